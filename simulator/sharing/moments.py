"""What is under way at an instant, and whether it is the same a little later.

An activity is *staying* if it was under way at both instants, else it is one that
came in place of another.  Two moments are alike if the others run in the same
classes, with as much left, on the way to the same end.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from simulator.sharing.flow_class import Activity, FlowClass

SAME = 1e-13
"""Part of the time between two moments by which what is left may differ."""
ROUNDING = 4e-16
"""Relative error of an instant."""


class Recurring(ABC):
    """What is called at the end of an activity that may come again and again; it knows when that began."""

    __slots__ = ("begun",)
    begun: float

    @property
    @abstractmethod
    def key(self) -> tuple[float, ...]:
        """The same for activities that lead to the same."""

    @abstractmethod
    def __call__(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """The state of the engine when all that happens at an instant has happened.

    Parameters
    ----------
    starting : activities whose latency lasts, and when it will be over [s]
    running : what is left to serve to each member of each active class, in the order in which they end
    services : work served to each member of an active class so far
    served, busy : of every class, and of every resource
    """

    now: float
    starting: Sequence[tuple[float, Activity]]
    running: Mapping[FlowClass, Sequence[tuple[float, Activity]]]
    services: Mapping[FlowClass, float]
    served: Sequence[float]
    busy: Sequence[float]

    def activities(self) -> Iterator[Activity]:
        """All that are under way."""
        yield from (activity for _, activity in self.starting)
        for members in self.running.values():
            yield from (activity for _, activity in members)


@dataclass(frozen=True, slots=True, eq=False)
class Stride:
    """What happens from one moment to another that is alike.

    Parameters
    ----------
    seconds : from one to the other
    moved : work served to each member of the classes whose members stay
    most : times that it can happen again before one that stays ends
    staying : numbers of the activities that stay
    """

    seconds: float
    moved: Mapping[FlowClass, float]
    most: float
    staying: frozenset[int]


def stride(before: Moment, after: Moment) -> Stride | None:
    """What happens between two moments; None where they are not alike."""
    seconds = after.now - before.now
    staying = {one.number for one in before.activities()} & {one.number for one in after.activities()}
    close = slack(seconds, after.now)
    if seconds <= 0 or before.running.keys() != after.running.keys():
        return None
    most, moved = inf, dict[FlowClass, float]()
    for c, now in after.running.items():
        earlier = before.running[c]
        stay = sum(activity.number in staying for _, activity in now)
        if len(now) != len(earlier) or stay not in (0, len(now)):
            return None
        if stay:
            moved[c] = after.services[c] - before.services[c]
            most = min(most, now[0][0] / moved[c] - 1 if moved[c] > 0 else inf)
        elif not all(
            abs(left - was) <= close * c.rate and _recurs(one, other)
            for (left, one), (was, other) in zip(now, earlier, strict=True)
        ):
            return None
    due = [(time - after.now, one) for time, one in after.starting if one.number not in staying]
    was_due = [(time - before.now, one) for time, one in before.starting if one.number not in staying]
    if len(due) != len(was_due):
        return None
    for (time, one), (was, other) in zip(due, was_due, strict=True):
        same = one.flow_class is other.flow_class and one.work == other.work
        if not (same and abs(time - was) <= close and _recurs(one, other)):
            return None
    stays_until = min((time for time, one in after.starting if one.number in staying), default=inf)
    return Stride(seconds, moved, min(most, (stays_until - after.now) / seconds - 1), frozenset(staying))


def slack(seconds: float, now: float) -> float:
    """By how much times may differ that are the same but for rounding, so many seconds apart."""
    return SAME * seconds + ROUNDING * now


def _recurs(one: Activity, other: Activity) -> bool:
    mine, theirs = one.then, other.then
    return isinstance(mine, Recurring) and isinstance(theirs, Recurring) and mine.key == theirs.key
