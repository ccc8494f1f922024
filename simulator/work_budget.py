"""`WorkBudget`: the wall time that an exact simulation may still take; every long loop charges its work to it.

Work is counted, at a fixed wall time for each op and event, so a simulation is given up at the same point on every
machine. An event with thousands of flows takes longer than is counted, so a clock of the processor time is asked as
well, with a limit that a usual simulation never reaches.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import thread_time

TOO_LONG = "it takes longer to simulate than was expected"
CLOCK_FACTOR = 2.0
"""The processor time at which a simulation is given up, over the wall time that it may take by its count of work."""


class BudgetExceeded(Exception):  # noqa: N818
    """Raised if the exact simulation would take too long and bounds suffice; the message gives the reason."""


@dataclass(slots=True)
class WorkBudget:
    """The limit of the work of a simulation, and the work so far.

    >>> budget = WorkBudget(1.0, clock=lambda: 0.0)
    >>> budget.charge(0.25)
    >>> budget.charge(0.5)
    >>> budget.spent
    0.75

    Parameters
    ----------
    seconds : largest wall time, by the count of work [s]
    clock : processor time of the simulation's thread [s]
    spent : wall time so far, by the count of work [s]
    """

    seconds: float = inf
    clock: Callable[[], float] = thread_time
    spent: float = 0.0
    _begin: float = field(init=False)

    def __post_init__(self) -> None:
        self._begin = self.clock()

    def charge(self, seconds: float) -> None:
        """Add work to the count.

        Parameters
        ----------
        seconds : approximate wall time of the work [s]

        Raises
        ------
        BudgetExceeded : the count or the clock is beyond its limit
        """
        self.spent += seconds
        if self.spent > self.seconds or self.clock() - self._begin > CLOCK_FACTOR * self.seconds:
            raise BudgetExceeded(TOO_LONG)
