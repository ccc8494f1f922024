"""Several ranks of one run on one clock: who waits for whom in collectives, and the critical path over ranks.

Clocks of hosts differ.  All members leave a collective of `SYNCHRONOUS` at about the same time, so the difference of
two clocks is the median difference of the ends of their common collectives.  Ranks without a common collective are
aligned through others.

On the common clock a call moves data once its last member has arrived:

    waiting of a member = last arrival - its own arrival
    transfer            = its end - last arrival

The critical path goes back in time from the last end.  At a call in which the rank waited without computing, it goes on
with the member that arrived last.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quadrille.experiments.traces.busy_times import Busy, busy_of
from quadrille.experiments.traces.collective_calls import CollectiveCall
from quadrille.experiments.traces.device_trace import COMPUTING, NO_CALL, DeviceTrace, Floats
from quadrille.experiments.traces.iterations import Iterations

SYNCHRONOUS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Kinds in which every member needs data of every other."""
LEAST_WAITING = 1e-6
"""Waiting below which a call does not delay its rank [s]; ends of one collective differ by as much."""
COMPUTED_WHILE_WAITING = 0.5
"""Share of a waiting time from which on the rank computes, so that the waiting does not delay it."""
MOST_SEGMENTS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """A rank's trace and its iterations.

    Parameters
    ----------
    file : path of the trace
    rank : rank of the process
    """

    file: str
    rank: int
    trace: DeviceTrace
    iterations: Iterations


@dataclass(frozen=True, slots=True)
class CommonCalls:
    """The calls of one collective that several ranks made: a row for each call, a column for each rank.

    Parameters
    ----------
    members : places of the ranks in the list of traces
    starts, ends : times on each rank's clock [s]
    """

    call: CollectiveCall
    members: tuple[int, ...]
    starts: Floats
    ends: Floats


@dataclass(frozen=True, slots=True)
class PathPart:
    """A part of the critical path: the rank's place in the list of traces, begin and end on its own clock [s]."""

    place: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class AlignedRanks:
    """Ranks on one clock.

    Parameters
    ----------
    clocks : what is added to a rank's time to get the common time [s]
    waiting, transfers : time of each rank in common calls, waiting for the last member, and after it [s]
    delays : waiting of other ranks for each rank, which arrived last [s]
    path : critical path, the last part first
    unaligned : places of ranks that share no collective with the first
    calls : common calls that were matched
    unequal : calls that were left out, because ranks made different numbers of them
    """

    clocks: tuple[float, ...]
    waiting: tuple[float, ...]
    transfers: tuple[float, ...]
    delays: tuple[float, ...]
    path: tuple[PathPart, ...]
    unaligned: tuple[int, ...]
    calls: int
    unequal: tuple[CollectiveCall, ...] = ()


def align(ranks: Sequence[RankTrace]) -> AlignedRanks:
    """The ranks on one clock."""
    common, unequal = common_calls(ranks)
    clocks, unaligned = _clocks(len(ranks), common)
    waiting, transfers, delays = np.zeros(len(ranks)), np.zeros(len(ranks)), np.zeros(len(ranks))
    waits: list[list[tuple[float, float, int]]] = [[] for _ in ranks]
    computing = [busy_of(rank.trace, *COMPUTING) for rank in ranks]
    for calls in common:
        members = np.array(calls.members)
        shift = np.array([clocks[place] for place in calls.members])
        starts, ends = calls.starts + shift, calls.ends + shift
        last = starts.max(axis=1)
        latest = members[starts.argmax(axis=1)]
        waited = np.clip(last[:, None] - starts, 0.0, ends - starts)
        np.add.at(waiting, members, waited.sum(axis=0))
        np.add.at(transfers, members, (ends - starts - waited).sum(axis=0))
        np.add.at(delays, latest, waited.sum(axis=1))
        for column, place in enumerate(calls.members):
            times = zip(calls.starts[:, column], waited[:, column], latest, strict=True)
            waits[place] += _delaying(times, place, computing[place])
    path = _critical_path(ranks, clocks, [sorted(rows) for rows in waits])
    return AlignedRanks(
        clocks=tuple(clocks),
        waiting=tuple(waiting.tolist()),
        transfers=tuple(transfers.tolist()),
        delays=tuple(delays.tolist()),
        path=path,
        unaligned=unaligned,
        calls=sum(len(calls.starts) for calls in common),
        unequal=unequal,
    )


def common_calls(ranks: Sequence[RankTrace]) -> tuple[list[CommonCalls], tuple[CollectiveCall, ...]]:
    """The calls that ranks made together: those of the same group, kind and size, in their order.

    Calls of which ranks made different numbers are left out; the second list has them.
    """
    by_call: dict[CollectiveCall, dict[int, tuple[Floats, Floats]]] = defaultdict(dict)
    for place, rank in enumerate(ranks):
        trace = rank.trace
        within = (trace.starts >= rank.iterations.borders[0]) & (trace.starts < rank.iterations.borders[-1])
        calls = np.where(within, trace.calls, NO_CALL)
        order = np.argsort(calls, kind="stable")
        borders = np.searchsorted(calls[order], np.arange(len(trace.collectives) + 1))
        for call, first, last in zip(trace.collectives, borders, borders[1:], strict=False):
            members = order[first:last]
            if call.kind in SYNCHRONOUS and len(members):
                by_call[call][place] = (trace.starts[members], trace.ends[members])
    common, unequal = [], []
    for call, times in by_call.items():
        counts = {len(starts) for starts, _ in times.values()}
        if len(times) < 2 or len(times) > (call.members or 0):
            continue
        if len(counts) > 1:
            unequal.append(call)
            continue
        columns = sorted(times)
        starts, ends = (np.column_stack([times[place][side] for place in columns]) for side in (0, 1))
        common.append(CommonCalls(call, tuple(columns), starts, ends))
    return common, tuple(unequal)


def _clocks(count: int, common: Sequence[CommonCalls]) -> tuple[list[float], tuple[int, ...]]:
    """What is added to each rank's clock, and the ranks that no collective leads to from the first."""
    differences: dict[tuple[int, int], list[Floats]] = defaultdict(list)
    for calls in common:
        first = calls.members[0]
        for column, place in enumerate(calls.members[1:], start=1):
            differences[first, place].append(calls.ends[:, 0] - calls.ends[:, column])
    neighbours: dict[int, dict[int, float]] = defaultdict(dict)
    for (first, second), values in differences.items():
        neighbours[first][second] = float(np.median(np.concatenate(values)))
        neighbours[second][first] = -neighbours[first][second]
    clocks, waiting = {0: 0.0}, [0]
    while waiting:
        place = waiting.pop()
        for neighbour, difference in neighbours[place].items():
            if neighbour not in clocks:
                clocks[neighbour] = clocks[place] + difference
                waiting.append(neighbour)
    unaligned = tuple(place for place in range(count) if place not in clocks)
    return [clocks.get(place, 0.0) for place in range(count)], unaligned


def _delaying(times: "zip[tuple[float, float, int]]", place: int, computing: Busy) -> list[tuple[float, float, int]]:
    """The waits that delay a rank: last arrival on its own clock, waiting time, and the member that arrived last."""
    rows = [(start, waited, latest) for start, waited, latest in times if latest != place and waited > LEAST_WAITING]
    if not rows:
        return []
    starts, waits = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    computed = computing.before(starts + waits) - computing.before(starts)
    return [
        (float(start + waited), float(waited), int(latest))
        for (start, waited, latest), busy in zip(rows, computed, strict=True)
        if busy < COMPUTED_WHILE_WAITING * waited
    ]


def _critical_path(
    ranks: Sequence[RankTrace], clocks: Sequence[float], waits: Sequence[Sequence[tuple[float, float, int]]]
) -> tuple[PathPart, ...]:
    """The critical path, from the last end back to the begin of its rank's first iteration."""
    arrivals = [[arrival for arrival, _, _ in rows] for rows in waits]
    place = max(range(len(ranks)), key=lambda rank: ranks[rank].iterations.borders[-1] + clocks[rank])
    end, parts = ranks[place].iterations.borders[-1], list[PathPart]()
    while len(parts) < MOST_SEGMENTS:
        begin = ranks[place].iterations.borders[0]
        number = bisect_right(arrivals[place], end - LEAST_WAITING) - 1
        if number < 0 or arrivals[place][number] <= begin:
            parts.append(PathPart(place, min(begin, end), end))
            break
        arrival, _, latest = waits[place][number]
        parts.append(PathPart(place, arrival, end))
        end = arrival + clocks[place] - clocks[latest]
        place = latest
    return tuple(parts)
