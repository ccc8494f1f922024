"""Bounds of a schedule's makespan, and a typical makespan, without simulating single flows (`granularity=collective`).

Theory of operation
-------------------
The exact simulator (`engine/`) lets all transfers share links max-min fairly and
follows every event. The bounds replace the sharing by three fixed rates for
each transfer: the highest rate that it can have, a typical rate, and the lowest
(`channels.py`). One walk over the programs of all ranks (`bounds_walk.py`) then computes
three rows of times:

    LOW       every transfer at its highest rate    no event of the exact simulation is earlier
    TYPICAL   every transfer at its typical rate    the predicted time
    HIGH      every transfer at its lowest rate     no event of the exact simulation is later

An op that needs no network (a GEMM, a copy) is bounded in the same way by the
cores and the memory bandwidth that its rank may have to share (`cost_model.py`).
The time of a collective is computed for all its groups at once, step by step
(`message_times.py`), or hop by hop where a pipeline runs down a chain or a tree
(`pipelined_collectives.py`), or by NCCL's own model (`nccl_times.py`). Loop iterations
that repeat are skipped (`loop_period.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from quadrille.algorithms.analysis.equality_labels import Ints, sorted_distinct
from quadrille.algorithms.analysis.folded_walk import FoldedWalks
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import Communication, CommunicationOp, Receive, Send
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.bounds.bounds_support import unsupported_reason
from quadrille.simulator.bounds.bounds_walk import BoundsWalk
from quadrille.simulator.bounds.channels import HIGH, LOW, TYPICAL, RatedChannels, list_channels, rate_channels
from quadrille.simulator.bounds.concurrency import concurrency_of
from quadrille.simulator.bounds.cost_model import CostModel, local_rates
from quadrille.simulator.bounds.group_work import ScheduleWork
from quadrille.simulator.bounds.loop_period import LoopPeriods
from quadrille.simulator.bounds.op_totals import NoTotals, OpTotals
from quadrille.simulator.bounds.walk_inputs import OpCosts, WalkInputs, rank_groups
from quadrille.simulator.machine.network import routes_of
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats

MAX_SPAN_BYTES = 3 << 27
"""Size up to which the spans of all ranks are kept, for the critical path."""
BYTES_PER_SPAN = 32
SLOWER = 1.25
"""The least factor by which typical rates are slowed if they exceed what the links can carry."""
SLOWEST = 1e6
"""The largest factor by which typical rates are slowed."""
MOST_INSTANCES = 5_000_000
"""Largest number of op instances, of one rank of each program, that a walk without skipped iterations visits."""
ROUNDING = 1e-9
"""Relative amount by which the typical makespan may be below the lower bound through rounding."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundsResult:
    """The bounds and the typical makespan of a schedule, with the walk that found them.

    Parameters
    ----------
    seconds : typical makespan [s]
    low, high : bounds of the makespan of the exact simulation [s]
    walk : the finished walk
    tally : totals of every op
    """

    seconds: float
    low: float
    high: float
    walk: BoundsWalk
    tally: OpTotals

    @property
    def channels(self) -> RatedChannels:
        return self.walk.channels


def bound_schedule(
    schedule: Schedule,
    machine: Machine,
    choices: Choices,
    placement: RankPlacement,
    *,
    threads: int | None = None,
    wanted: Sequence[int] = (),
    fold_time: bool = True,
    most_span_bytes: int = MAX_SPAN_BYTES,
    tight: bool = True,
) -> BoundsResult:
    """Bounds and the typical makespan of a schedule on a machine.

    Parameters
    ----------
    threads : BLAS threads of each rank, by default its share of the host's cores
    wanted : ranks whose spans are kept in any case
    fold_time : whether to skip loop iterations that repeat
    most_span_bytes : size up to which the spans of all ranks are kept, for the critical path
    tight : whether the upper bound counts how long communication can slow local work at most; else it is higher, which
        takes less time

    Raises
    ------
    InputError : the schedule or the machine is not supported (see `bounds_support.py`), or there are too many ops
    """
    reason = unsupported_reason(schedule, placement, choices)
    if reason:
        raise InputError(f"granularity collective: {reason}; accepted is exact")
    groups, work = rank_groups(schedule), ScheduleWork(schedule, choices)
    skips = fold_time and len(groups) == 1
    if not skips:
        _check_instances(FoldedWalks(schedule, choices), [group.coordinates for group in groups])
    loops = LoopPeriods(schedule, work, allowed=skips)
    channel_list = list_channels(schedule, work, [(group.ranks, int(group.ranks[0])) for group in groups], loops.walk)
    concurrency = concurrency_of(schedule, [group.coordinates for group in groups], loops.walk)
    channels = rate_channels(channel_list, placement, routes_of(machine, placement.net), concurrency)
    local = local_rates(placement, threads, concurrency)
    cost_model = CostModel(machine, placement, schedule.dtype, threads, channels, local)
    nccl = None
    if choices.implementation == "nccl":
        from quadrille.simulator.bounds.nccl_times import NcclTimes

        nccl = NcclTimes(machine, placement, choices)
    op_costs = OpCosts(schedule, machine, work, cost_model, concurrency)
    inputs = WalkInputs(schedule, machine, work, cost_model, concurrency, loops, op_costs, nccl)
    own_work = _own_work(inputs) if tight else {}
    instances = sum(
        len(group.ranks) * sum(1 for _ in loops.walk(schedule.program(group.coordinates), group.coordinates))
        for group in groups
    )
    if instances * BYTES_PER_SPAN <= most_span_bytes:
        return _consistent_result(inputs, own_work, partial(OpTotals, schedule.grid.size))
    first_walk = _consistent_result(inputs, own_work, partial(NoTotals, schedule.grid.size)).walk
    kept_ranks = {int(np.argmax(first_walk.ends[TYPICAL])), first_walk.first_rank, *wanted}
    return _consistent_result(inputs, own_work, partial(OpTotals, schedule.grid.size, np.array(sorted(kept_ranks))))


def _check_instances(walks: FoldedWalks, programs: Sequence[Coordinates]) -> None:
    """Raises InputError if a walk of these ranks' programs would visit too many op instances."""
    count = sum(instance.count for coordinates in programs for instance in walks.of(coordinates))
    if count > MOST_INSTANCES:
        raise InputError(
            f"granularity collective: the programs of {len(programs)} pipeline stages have {count} op instances, and "
            f"at most {MOST_INSTANCES} are accepted: fewer steps, microbatches or layers have fewer"
        )


def _consistent_result(inputs: WalkInputs, own_work: dict[str, Floats], empty: Callable[[], OpTotals]) -> BoundsResult:
    """The result of the walk, with typical rates slowed until the typical makespan is at least the lower bound.

    The typical rate of a transfer is computed for one lane. Where lanes overlap,
    transfers of several lanes share links, and their typical rates may add up to
    more than the link has. All typical rates are then divided by one factor.
    """
    result = _walk_result(inputs, own_work, empty())
    while result.seconds < result.low * (1 - ROUNDING) and inputs.cost_model.channels.slowed < SLOWEST:
        inputs.cost_model.channels.slowed *= max(SLOWER, result.low / result.seconds)
        inputs.op_costs.forget_rates()
        result = _walk_result(inputs, own_work, empty())
    return result


def _walk_result(inputs: WalkInputs, own_work: dict[str, Floats], tally: OpTotals) -> BoundsResult:
    """The result of one walk at the current rates."""
    walk, channels = BoundsWalk(inputs, tally, own_work), inputs.cost_model.channels
    walk.run()
    if inputs.nccl is not None:
        inputs.nccl.check()
    low, typical, high = (float(walk.ends[row].max()) - walk.begin for row in (LOW, TYPICAL, HIGH))
    if inputs.nccl is None:
        bytes_moved = walk.link_bytes()
        used = np.flatnonzero(bytes_moved)
        low = max(low, float((bytes_moved[used] / channels.capacities[used]).max(initial=0.0)))
    return BoundsResult(typical, low, high, walk, tally)


def _own_work(inputs: WalkInputs) -> dict[str, Floats]:
    """Upper bound of each rank's local work in one instance of each op that overlaps others [s]."""
    overlapping = {name for others in inputs.concurrency.overlaps.values() for name in others}
    if not overlapping or not inputs.cost_model.local.alone.any():
        return {}
    schedule, schedule_work = inputs.schedule, inputs.schedule_work
    most_by_op: dict[str, Floats] = {}
    seen = set()
    for group in rank_groups(schedule):
        for op, coordinates in inputs.loops.walk(schedule.program(group.coordinates), group.coordinates):
            if not isinstance(op, Communication) or op.name not in overlapping:
                continue
            key = group.number, schedule_work.key(op, coordinates)
            if key in seen:
                continue
            seen.add(key)
            most = most_by_op.setdefault(op.name, np.zeros(schedule.grid.size))
            np.maximum(most, _local_seconds(op, schedule_work, inputs, coordinates, group.ranks), out=most)
    return most_by_op


def _local_seconds(
    op: CommunicationOp, work: ScheduleWork, inputs: WalkInputs, coordinates: Coordinates, ranks: Ints
) -> Floats:
    """Copies and reductions of each rank in one instance of an op, each rank alone on its cores [s]."""
    grid, cost_model = inputs.schedule.grid, inputs.cost_model
    length, stride = grid.length(op.axis), grid.stride(op.axis)
    if isinstance(op, Send | Receive):
        return np.zeros(grid.size)
    if length == 1:
        seconds = np.zeros(grid.size)
        seconds[ranks], _ = cost_model.memory("copy", work.copied_bytes(op, coordinates, ranks), ranks)
        return seconds
    return inputs.op_costs.ready(
        op, coordinates, sorted_distinct(ranks - ranks // stride % length * stride)
    ).time_parts.compute
