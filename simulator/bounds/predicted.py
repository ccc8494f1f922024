"""A prediction from a walk at steady rates: the same form as the exact simulation's, with the bound."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from quadrille.algorithms.analysis.labels import Ints
from quadrille.algorithms.formats.record import LinkLoad
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.timelines.op_times import OpTimes
from quadrille.algorithms.timelines.repeated_iterations import RepeatedIterations
from quadrille.algorithms.timelines.spans import ALONE, Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.simulator.bounds.bounds import BoundsResult
from quadrille.simulator.bounds.instances import Instance, places_of
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.prediction import Bound, Extent, Prediction, TimeBreakdowns, mean_parts
from quadrille.simulator.ranks.time_breakdown import OpInstance as Key
from quadrille.simulator.ranks.time_breakdown import TimeBreakdown
from quadrille.simulator.uncertainty import uncertainty
from quadrille.topologies.machines.machine import Machine

SHOWN = 8
"""Ranks whose spans are in the timeline if nobody asks for others, beside those on the critical path."""
MOST_SPANS = 50_000
"""Fewer ranks are shown, and of the path no more than twice as many spans, where ranks have many."""
MOST_TURNS = 64
"""Ranks that are looked for to complete the critical path."""


def predicted(
    found: BoundsResult,
    machine: Machine,
    placement: RankPlacement,
    name: str,
    grid: Grid,
    *,
    wanted: Sequence[int],
    links: int,
    why_not: str,
) -> Prediction:
    """The prediction.

    Parameters
    ----------
    wanted : ranks whose spans are to be in the timeline
    links : how many are named, those used most
    why_not : what kept ranks from being simulated as one
    """
    tally = found.tally
    times = tally.times()
    ranks = set(wanted) or set(range(max(1, min(SHOWN, grid.size, MOST_SPANS // _instances(times)))))
    spans, spent = _on_path(found, grid, ranks, max(2, 2 * MOST_SPANS // _instances(times)))
    timeline = Timeline(tuple(spans), "predicted", grid.size, name, repeated=tuple(tally.turns))
    parts = mean_parts(times, grid.size, tally.spent())
    return Prediction(
        timeline,
        parts,
        frozenset(tally.extrapolated),
        uncertainty(machine, timeline.makespan, None),
        {op: max(0.0, sums["contention"]) / grid.size for op, sums in tally.spent().items()},
        _loads(found, placement, links),
        Extent(
            folded=False,
            why_not=why_not,
            rank_classes=grid.size,
            flow_classes=len(found.channels.keys),
            link_classes=int(np.count_nonzero(np.bincount(found.channels.paths.links))),
            events=found.walk.carried.messages,
            iterations_skipped=found.walk.passed_over,
        ),
        TimeBreakdowns(spent, lambda rank: rank, _said(spans, tally.turns)),
        times,
        Bound(found.low, found.high, proven=found.walk.nccl is None),
        found.walk.nccl.labels if found.walk.nccl is not None else {},
    )


def _on_path(
    found: BoundsResult, grid: Grid, ranks: set[int], most: int
) -> tuple[list[Span], dict[Key, TimeBreakdown]]:
    """Spans of these ranks and of those on the critical path, as far as spans of all are kept.

    Parameters
    ----------
    most : ranks to which others on the path are added
    """
    ends, instances = found.walk.ends[1], found.tally.instances
    ranks = ranks | {int(np.argmax(ends)), found.walk.first_rank}
    groups: dict[tuple[str, int], list[Instance]] = defaultdict(list)  # of the ranks of each program
    for one in instances:
        if one.axis is not None:
            groups[one.op.name, one.index].append(one)
    spans: list[Span] = []
    spent: dict[Key, TimeBreakdown] = {}
    fresh: Iterable[int] = ranks
    for _ in range(MOST_TURNS):
        for span, story in _spans(instances, np.array(sorted(fresh)), grid):
            spans.append(span)
            spent[span.rank, span.op, span.index] = story
        path = Timeline(tuple(closed(spans, found.tally.turns)), "predicted", grid.size).critical_path()
        last = {_last(groups[span.op, span.index], span, grid) for span in path if span.group != ALONE}
        fresh = last - ranks
        if not fresh or len(ranks) + len(fresh) > most:
            break
        ranks |= fresh
    return sorted(spans, key=lambda span: (span.rank, span.start, span.end)), spent


def _instances(times: Mapping[str, OpTimes]) -> int:
    """Of all ops on a rank, at most."""
    return max(1, sum(one.count for one in times.values()))


def closed(spans: Iterable[Span], turns: Sequence[RepeatedIterations]) -> Iterator[Span]:
    """The spans as they would be without the turns that are said once: what repeats has the same ranks on its path."""
    for span in spans:
        over = sum(one.times * one.seconds for one in turns if span.start >= one.start)
        yield span.moved(-over, 0) if over else span


def _said(spans: Iterable[Span], turns: Sequence[RepeatedIterations]) -> dict[tuple[int, str], list[tuple[int, int]]]:
    """By rank and op, the first instance and the number of instances of turns that are said once."""
    found: dict[tuple[int, str], list[tuple[int, int]]] = {}
    ordered = sorted(spans, key=lambda span: span.start)
    starts = [span.start for span in ordered]
    for one in turns:
        first: dict[tuple[int, str], int] = {}
        for span in ordered[bisect_left(starts, one.start) : bisect_left(starts, one.start + one.seconds)]:
            if span.op in one.per_iteration:
                key = span.rank, span.op
                first[key] = min(span.index, first.get(key, span.index))
        for key, index in first.items():
            found.setdefault(key, []).append((index, one.per_iteration[key[1]]))
    return found


def _spans(instances: Sequence[Instance], ranks: Ints, grid: Grid) -> Iterable[tuple[Span, TimeBreakdown]]:
    known: dict[int, Ints] = {}
    for one in instances:
        if id(one.ranks) not in known:
            known[id(one.ranks)] = places_of(ranks, one.ranks)
        stride, length = (grid.stride(one.axis), grid.length(one.axis)) if one.axis is not None else (0, 1)
        yield from one.spans(known[id(one.ranks)], stride, length)


def _last(together: Sequence[Instance], span: Span, grid: Grid) -> int:
    """The member of a span's group that began last, of those in any of the instances."""
    assert span.axis is not None
    members = span.group + grid.stride(span.axis) * np.arange(grid.length(span.axis))
    latest, found = span.start, span.rank
    for one in together:
        at = places_of(members, one.ranks)
        start = one.start[at] + one.moved(at)
        if len(at) and start.max() > latest:
            latest, found = float(start.max()), int(one.ranks[at[np.argmax(start)]])
    return found


def _loads(found: BoundsResult, placement: RankPlacement, most: int) -> tuple[LinkLoad, ...]:
    """The links that are used most, the most used first; in use as long as their busiest channel at least."""
    carried, channels = found.walk.carried, found.channels
    moved, busy = found.walk.link_bytes(), channels.link_busy(carried.seconds)
    busy = np.maximum(busy, carried.links / channels.capacities)
    used = np.flatnonzero(moved)
    utilisation = moved[used] / (channels.capacities[used] * found.seconds) if found.seconds else np.zeros(len(used))
    chosen = np.argsort(-utilisation, kind="stable")[:most]
    return tuple(
        LinkLoad(
            placement.net.link(int(used[at])).name,
            float(moved[used[at]]),
            float(busy[used[at]]),
            float(utilisation[at]),
        )
        for at in chosen.tolist()
    )
