"""Busy times: the measure of unions of intervals, within windows.

At each instant the GPU is in one state: the first kind of work of `WORKS` that runs, or idle.  Communication beside
computation is hidden; the rest is exposed.

    |computing| + |exposed communication| + |exposed copies| + |idle| = window
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quadrille.experiments.traces.device_trace import COMPUTING, WORKS, DeviceTrace, Floats, Work


@dataclass(frozen=True, slots=True)
class Busy:
    """A union of intervals, as disjoint intervals in order.

    >>> busy = Busy.of([0.0, 1.0, 5.0], [2.0, 3.0, 6.0])
    >>> busy.within([0.0, 2.5, 10.0]).tolist()
    [2.5, 1.5]
    """

    starts: Floats
    ends: Floats

    @classmethod
    def of(cls, starts: "Sequence[float] | Floats", ends: "Sequence[float] | Floats") -> "Busy":
        """The union of intervals in any order."""
        begins, stops = np.asarray(starts, dtype=np.float64), np.asarray(ends, dtype=np.float64)
        if not len(begins):
            return cls(begins, stops)
        order = np.argsort(begins, kind="stable")
        begins, latest = begins[order], np.maximum.accumulate(stops[order])
        new = np.concatenate(([True], begins[1:] > latest[:-1]))
        last = np.concatenate((new[1:], [True]))
        return cls(begins[new], latest[last])

    def __or__(self, other: "Busy") -> "Busy":
        return Busy.of(np.concatenate((self.starts, other.starts)), np.concatenate((self.ends, other.ends)))

    def before(self, times: "Sequence[float] | Floats") -> Floats:
        """The busy time before each of these times [s]."""
        asked = np.asarray(times, dtype=np.float64)
        if not len(self.starts):
            return np.zeros(len(asked))
        totals = np.concatenate(([0.0], np.cumsum(self.ends - self.starts)))
        place = np.searchsorted(self.starts, asked, side="right")
        at = np.maximum(place - 1, 0)
        inside = np.clip(asked - self.starts[at], 0.0, self.ends[at] - self.starts[at])
        before: Floats = np.where(place > 0, totals[at] + inside, 0.0)
        return before

    def within(self, borders: "Sequence[float] | Floats") -> Floats:
        """The busy time in each window between two borders [s]."""
        return np.diff(self.before(borders))


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """The time of each window by state [s].

    Parameters
    ----------
    by_work : time in which this is the first kind of work that runs
    idle : time without work
    hidden : communication beside computation
    """

    by_work: dict[Work, Floats]
    idle: Floats
    hidden: Floats


def busy_of(trace: DeviceTrace, *works: Work) -> Busy:
    """The union of all work of these kinds."""
    members = trace.of_work(*works)
    return Busy.of(trace.starts[members], trace.ends[members])


def split_time(trace: DeviceTrace, borders: Sequence[float]) -> TimeSplit:
    """The time between borders by state."""
    union, covered, by_work = Busy.of([], []), np.zeros(len(borders) - 1), dict[Work, Floats]()
    for work in WORKS:
        union |= busy_of(trace, work)
        total = union.within(borders)
        by_work[work], covered = np.maximum(total - covered, 0.0), total
    communication = busy_of(trace, "communication").within(borders)
    computing = busy_of(trace, *COMPUTING)
    exposed = exposed_within(trace, trace.of_work("communication"), computing, borders)
    return TimeSplit(by_work, np.maximum(np.diff(borders) - covered, 0.0), np.maximum(communication - exposed, 0.0))


def exposed_within(
    trace: DeviceTrace, members: "np.typing.NDArray[np.bool_]", computing: Busy, borders: Sequence[float]
) -> Floats:
    """The time of some work beside which nothing computes [s]."""
    both = Busy.of(trace.starts[members], trace.ends[members]) | computing
    return np.maximum(both.within(borders) - computing.within(borders), 0.0)
