"""The `Prediction` made of the result of a bounds walk: timeline of some ranks, times by op and cause, link loads.

The *bounds walk* computes a lower bound, an estimate and an upper bound of the makespan, collective by collective.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from quadrille.algorithms.analysis.equality_labels import Ints
from quadrille.algorithms.formats.record import LinkLoad
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.timelines.op_times import OpTimes
from quadrille.algorithms.timelines.spans import ALONE, RepeatedIterations, Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.simulator.bounds.makespan_bounds import BoundsResult
from quadrille.simulator.bounds.op_instances import Instance, indices_of
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.prediction import MOST_LINKS, Bound, Extent, Prediction, TimeBreakdowns, mean_parts
from quadrille.simulator.ranks.time_breakdown import OpInstance as Key
from quadrille.simulator.ranks.time_breakdown import TimeBreakdown
from quadrille.simulator.uncertainty import uncertainty
from quadrille.topologies.machines.machine import Machine

SHOWN_RANKS = 8
"""Number of ranks in the timeline besides the ranks on the critical path, by default."""
MOST_SPANS = 50_000
"""Largest number of spans of the shown ranks; the ranks on the critical path may have twice as many."""
MAX_SEARCHES = 64
"""Largest number of searches for further ranks on the critical path."""


def bounds_prediction(
    result: BoundsResult,
    machine: Machine,
    placement: RankPlacement,
    name: str,
    grid: Grid,
    *,
    wanted: Sequence[int],
    links: int,
    not_folded_reason: str,
) -> Prediction:
    """The prediction of a schedule from the result of its bounds walk.

    Parameters
    ----------
    wanted : ranks whose spans are in the timeline
    links : number of links that are named, the most used first
    not_folded_reason : why ranks were not folded into classes
    """
    tally = result.tally
    times = tally.times()
    ranks = set(wanted) or set(range(max(1, min(SHOWN_RANKS, grid.size, MOST_SPANS // _instances(times)))))
    spans, breakdowns = _path_spans(result, grid, ranks, max(2, 2 * MOST_SPANS // _instances(times)))
    timeline = Timeline(tuple(spans), "predicted", grid.size, name, repeated=tuple(tally.repeats), grid=grid)
    parts = mean_parts(times, grid.size, tally.seconds_by_cause())
    return Prediction(
        timeline,
        parts,
        frozenset(tally.extrapolated),
        uncertainty(machine, timeline.makespan, None),
        {op: max(0.0, sums["contention"]) / grid.size for op, sums in tally.seconds_by_cause().items()},
        _loads(result, placement, links),
        Extent(
            folded=False,
            not_folded_reason=not_folded_reason,
            rank_classes=grid.size,
            flow_classes=len(result.channels.keys),
            link_classes=int(np.count_nonzero(np.bincount(result.channels.paths.links))),
            events=result.walk.carried.messages,
            iterations_skipped=result.walk.skipped_iterations,
        ),
        TimeBreakdowns(breakdowns, lambda rank: rank, _encoded_instances(spans, tally.repeats)),
        times,
        Bound(result.low, result.high, proven=result.walk.nccl is None),
        result.walk.nccl.labels if result.walk.nccl is not None else {},
        every_link=partial(_every_link, result, placement) if placement.net.link_count <= MOST_LINKS else dict,
    )


def _path_spans(
    result: BoundsResult, grid: Grid, ranks: set[int], most: int
) -> tuple[list[Span], dict[Key, TimeBreakdown]]:
    """Spans of these ranks and of the ranks on the critical path, as far as spans are kept.

    Parameters
    ----------
    most : number of ranks up to which ranks on the path are added
    """
    ends, instances = result.walk.ends[1], result.tally.instances
    ranks = ranks | {int(np.argmax(ends)), result.walk.first_rank}
    groups: dict[tuple[str, int], list[Instance]] = defaultdict(list)  # of the ranks of each program
    for instance in instances:
        if instance.axis is not None:
            groups[instance.op.name, instance.index].append(instance)
    spans: list[Span] = []
    breakdowns: dict[Key, TimeBreakdown] = {}
    new_ranks: Iterable[int] = ranks
    for _ in range(MAX_SEARCHES):
        for span, time_parts in _spans(instances, np.array(sorted(new_ranks)), grid):
            spans.append(span)
            breakdowns[span.rank, span.op, span.index] = time_parts
        timeline = Timeline(tuple(spans), "predicted", grid.size, repeated=tuple(result.tally.repeats))
        path = timeline.without_repeats().critical_path()
        latest_members = {_last(groups[span.op, span.index], span, grid) for span in path if span.group != ALONE}
        other_ends = {span.rank + span.to_peer for span in path if span.to_peer}
        new_ranks = (latest_members | other_ends) - ranks
        if not new_ranks or len(ranks) + len(new_ranks) > most:
            break
        ranks |= new_ranks
    return sorted(spans, key=lambda span: (span.rank, span.start, span.end)), breakdowns


def _instances(times: Mapping[str, OpTimes]) -> int:
    """Instances of all ops on a rank, at most."""
    return max(1, sum(times_of_op.count for times_of_op in times.values()))


def _encoded_instances(
    spans: Iterable[Span], repeats: Sequence[RepeatedIterations]
) -> dict[tuple[int, str], list[tuple[int, int]]]:
    """The first instance and the number of instances in repeated iterations, by rank and op."""
    instances: dict[tuple[int, str], list[tuple[int, int]]] = {}
    ordered = sorted(spans, key=lambda span: span.start)
    starts = [span.start for span in ordered]
    for repeated in repeats:
        first: dict[tuple[int, str], int] = {}
        for span in ordered[
            bisect_left(starts, repeated.start) : bisect_left(starts, repeated.start + repeated.seconds)
        ]:
            if span.op in repeated.per_iteration:
                key = span.rank, span.op
                first[key] = min(span.index, first.get(key, span.index))
        for key, index in first.items():
            instances.setdefault(key, []).append((index, repeated.per_iteration[key[1]]))
    return instances


def _spans(instances: Sequence[Instance], ranks: Ints, grid: Grid) -> Iterable[tuple[Span, TimeBreakdown]]:
    """The spans of some ranks."""
    indices: dict[int, Ints] = {}
    for instance in instances:
        if id(instance.ranks) not in indices:
            indices[id(instance.ranks)] = indices_of(ranks, instance.ranks)
        stride, length = (
            (grid.stride(instance.axis), grid.length(instance.axis)) if instance.axis is not None else (0, 1)
        )
        yield from instance.spans(indices[id(instance.ranks)], stride, length)


def _last(instances: Sequence[Instance], span: Span, grid: Grid) -> int:
    """The member of a span's group that began last."""
    assert span.axis is not None
    members = span.group + grid.stride(span.axis) * np.arange(grid.length(span.axis))
    latest, last_rank = span.start, span.rank
    for instance in instances:
        at = indices_of(members, instance.ranks)
        start = instance.start[at] + instance.delay(at)
        if len(at) and start.max() > latest:
            latest, last_rank = float(start.max()), int(instance.ranks[at[np.argmax(start)]])
    return last_rank


def _every_link(result: BoundsResult, placement: RankPlacement) -> dict[str, float]:
    """The utilisation of all used links by name."""
    return {load.link: load.utilisation for load in _loads(result, placement, MOST_LINKS)}


def _loads(result: BoundsResult, placement: RankPlacement, most: int) -> tuple[LinkLoad, ...]:
    """The links that are used most, the most used first; a link is in use at least as long as its busiest channel."""
    carried, channels = result.walk.carried, result.channels
    bytes_moved = result.walk.link_bytes()
    used = np.flatnonzero(bytes_moved)
    capacities = channels.capacities[used]
    busy = np.maximum(channels.link_busy(carried.seconds)[used], carried.links[used] / capacities)
    utilisation = bytes_moved[used] / (capacities * result.seconds) if result.seconds else np.zeros(len(used))
    chosen = np.argsort(-utilisation, kind="stable")[:most]
    return tuple(
        LinkLoad(
            placement.net.link(int(used[at])).name,
            float(bytes_moved[used[at]]),
            float(busy[at]),
            float(utilisation[at]),
        )
        for at in chosen.tolist()
    )
