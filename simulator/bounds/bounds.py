"""A schedule at the granularity of collectives: every transfer at one rate, and at the least and the greatest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from quadrille.algorithms.analysis.labels import Ints, rising
from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import Communication, CommunicationOp, Receive, Send
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.bounds.channels import HIGH, LOW, TYPICAL, RatedChannels, list_channels, rate_channels
from quadrille.simulator.bounds.concurrency import together
from quadrille.simulator.bounds.inputs import OpCosts, WalkInputs, programs
from quadrille.simulator.bounds.loop_period import LoopPeriods
from quadrille.simulator.bounds.nccl import NcclTimes
from quadrille.simulator.bounds.op_totals import NoTotals, OpTotals
from quadrille.simulator.bounds.prices import MachinePrices, local_rates
from quadrille.simulator.bounds.supported import unsupported_reason
from quadrille.simulator.bounds.walk import BoundsWalk
from quadrille.simulator.bounds.work import ScheduleWork
from quadrille.simulator.machine.network import routes_of
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats

KEPT_BYTES = 3 << 27
"""Spans of all ranks are kept up to this, for the critical path."""
BYTES_A_SPAN = 32
SLOWER = 1.25
"""By how much typical rates are slowed at least where they promise more than links can carry."""
SLOWEST = 1e6
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class BoundsResult:
    """What came of it.

    Parameters
    ----------
    seconds, low, high : the makespan, typically, and between which two the exact simulation's is [s]
    """

    seconds: float
    low: float
    high: float
    walk: BoundsWalk
    tally: OpTotals

    @property
    def channels(self) -> RatedChannels:
        return self.walk.channels


def steady(
    schedule: Schedule,
    machine: Machine,
    choices: Choices,
    placement: RankPlacement,
    *,
    threads: int | None = None,
    wanted: Sequence[int] = (),
    fold_time: bool = True,
) -> BoundsResult:
    """The schedule at steady rates.

    Parameters
    ----------
    wanted : ranks whose spans are kept in any case
    fold_time : pass over turns of loops that repeat

    Raises
    ------
    InputError : a schedule that cannot be walked so
    """
    reason = unsupported_reason(schedule, placement, choices)
    if reason:
        raise InputError(f"granularity collective: {reason}; accepted is exact")
    each, looks = programs(schedule), ScheduleWork(schedule, choices)
    loops = LoopPeriods(schedule, looks, allowed=fold_time and len(each) == 1)
    found = list_channels(schedule, looks, [(one.ranks, int(one.ranks[0])) for one in each], loops.walk)
    busy = together(schedule, [one.place for one in each], loops.walk)
    channels = rate_channels(found, placement, routes_of(machine, placement.net), busy)
    local = local_rates(placement, threads, busy)
    costs = MachinePrices(machine, placement, schedule.dtype, threads, channels, local)
    nccl = NcclTimes(machine, placement, choices) if choices.carriage == "nccl" else None
    prepared = OpCosts(schedule, machine, looks, costs, busy)
    given = WalkInputs(schedule, machine, looks, costs, busy, loops, prepared, nccl)
    own_work = _own_work(given)
    instances = sum(len(one.ranks) * sum(1 for _ in loops.walk(schedule.program(one.place), one.place)) for one in each)
    if instances * BYTES_A_SPAN <= KEPT_BYTES:
        return _within(given, own_work, partial(OpTotals, schedule.grid.size))
    first = _within(given, own_work, partial(NoTotals, schedule.grid.size)).walk
    kept = {int(np.argmax(first.ends[TYPICAL])), first.first_rank, *wanted}
    return _within(given, own_work, partial(OpTotals, schedule.grid.size, np.array(sorted(kept))))


def _within(given: WalkInputs, own_work: dict[str, Floats], empty: Callable[[], OpTotals]) -> BoundsResult:
    """The walk, with what such a tally keeps of it, and typical times within the bounds.

    Where lanes overlap, messages of several share links, and typical rates, which
    know one lane, may promise more than a link can carry; then all are slowed.
    """
    found = _walked(given, own_work, empty())
    while found.seconds < found.low * (1 - ROUNDING) and given.costs.channels.slowed < SLOWEST:
        given.costs.channels.slowed *= max(SLOWER, found.low / found.seconds)
        given.prepared.forget_rates()
        found = _walked(given, own_work, empty())
    return found


def _walked(given: WalkInputs, own_work: dict[str, Floats], tally: OpTotals) -> BoundsResult:
    walked, channels = BoundsWalk(given, tally, own_work), given.costs.channels
    walked.run()
    if given.nccl is not None:
        given.nccl.check()
    low, typical, high = (float(walked.ends[row].max()) - walked.begin for row in (LOW, TYPICAL, HIGH))
    if given.nccl is None:
        low = max(low, float((walked.link_bytes() / channels.capacities).max(initial=0.0)))
    return BoundsResult(typical, low, high, walked, tally)


def _own_work(given: WalkInputs) -> dict[str, Floats]:
    """Local work of each rank in one instance of an op that runs beside others, at most [s]."""
    beside = {name for others in given.busy.beside.values() for name in others}
    if not beside or not given.costs.local.alone.any():
        return {}
    schedule, looks = given.schedule, given.looks
    found: dict[str, Floats] = {}
    seen = set()
    for one in programs(schedule):
        for op, moment in given.loops.walk(schedule.program(one.place), one.place):
            key = one.number, looks.key(op, moment)
            if not isinstance(op, Communication) or op.name not in beside or key in seen:
                continue
            seen.add(key)
            most = found.setdefault(op.name, np.zeros(schedule.grid.size))
            np.maximum(most, _local_seconds(op, looks, given, moment, one.ranks), out=most)
    return found


def _local_seconds(
    op: CommunicationOp, looks: ScheduleWork, given: WalkInputs, moment: Coordinates, ranks: Ints
) -> Floats:
    """Copies and additions of each rank in an op, by itself [s]."""
    grid, costs = given.schedule.grid, given.costs
    length, stride = grid.length(op.axis), grid.stride(op.axis)
    if isinstance(op, Send | Receive):
        return np.zeros(grid.size)
    if length == 1:
        found = np.zeros(grid.size)
        found[ranks], _ = costs.memory("copy", looks.alone(op, moment, ranks), ranks)
        return found
    return given.prepared.ready(op, moment, rising(ranks - ranks // stride % length * stride)).story.compute
