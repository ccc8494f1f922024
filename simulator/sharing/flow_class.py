"""Activities that run at one rate: a class of them, and each by itself."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class FlowClass:
    """Activities with the same demands, weight and cap.

    A unit of work takes coefficients[i] units of resources[i]; `entries` are both, for
    the resources of finite capacity.
    `service` is the work served to each member since the class was last empty,
    `served` the work of all members together since the beginning, both as of
    the instant `updated`.  `stamp` names the class's valid entry in the heap of ends.
    """

    number: int
    resources: tuple[int, ...]
    coefficients: tuple[float, ...]
    entries: tuple[tuple[int, float], ...]
    weight: float
    cap: float
    members: list[tuple[float, int, "Activity"]] = field(default_factory=list)
    rate: float = 0.0
    service: float = 0.0
    served: float = 0.0
    updated: float = 0.0
    stamp: int = 0

    def advance(self, now: float) -> None:
        """Serves the members up to the instant `now` [s]."""
        step = self.rate * (now - self.updated)
        self.service += step
        self.served += step * len(self.members)
        self.updated = now


@dataclass(slots=True, eq=False)
class Activity:
    """A piece of work under way: when it was requested, when its latency was paid, when it ended [s].

    `started` and `ended` are NaN until then.
    """

    number: int
    flow_class: FlowClass
    work: float
    then: Callable[[], object]
    requested: float
    started: float = float("nan")
    ended: float = float("nan")
