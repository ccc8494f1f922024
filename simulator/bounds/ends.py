"""When instances end on the ranks of a program, and the latest of several ends."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from quadrille.simulator.bounds.meetings import Message
from quadrille.simulator.bounds.time_breakdown import ROWS
from quadrille.topologies.network import Floats


@dataclass(slots=True, eq=False)
class End:
    """When an instance ends on the ranks of a program [3, ranks]; the how manieth instance of all it is, on which lane.

    Parameters
    ----------
    message : that has not been delivered as far as is known; these ranks are its senders or its receivers
    """

    number: int
    name: str = ""
    lane: str = ""
    times: Floats = field(default_factory=lambda: np.zeros((ROWS, 0)))
    message: Message | None = None
    sends: bool = False

    def known(self) -> bool:
        """Whether it is known by now."""
        if self.message is not None and self.message.ends:
            self.times, self.message = self.message.ends[self.sends], None
        return self.message is None


def last_of_lanes(ends: Iterable[End]) -> list[End]:
    """Of each lane the last of these instances: lanes keep their order, so the others have ended by then."""
    found: dict[str, End] = {}
    for one in ends:
        if one.lane not in found or found[one.lane].number < one.number:
            found[one.lane] = one
    return list(found.values())


def latest(nothing: Floats, times: Iterable[Floats]) -> Floats:
    """The latest of these on each rank; it may be one of them, and is not to be written to."""
    found = nothing
    for at, one in enumerate(times):
        found = one if at == 0 else np.maximum(found, one, out=None if at == 1 else found)
    return found
