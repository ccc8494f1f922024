"""The walk of all ranks through their programs, op by op, with three rows of times: LOW, TYPICAL and HIGH.

An op begins when the ops that it depends on have ended and its lane is free;
messages have the rates of `channels.py`. Times are made of maxima and sums
alone, in an order that does not depend on rates: lanes keep program order, and the
k-th message from one rank to another on a lane meets the k-th receive. Such times
never fall when a duration grows. In the exact simulation every message and every
local op takes some time between its LOW and its HIGH duration, so

    LOW makespan <= exact makespan <= HIGH makespan                (a theorem)

Local work on a GPU of its own has one more bound. A GEMM uses the whole GPU, so
beside communication that adds w seconds of its own work it takes at most w
longer, however long that communication lasts.
"""

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.analysis.equality_labels import compact, stored_numbers
from quadrille.algorithms.errors import Deadlock
from quadrille.algorithms.schedule.ops import Communication, Compute, Op, Receive, Send, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.simulator.bounds.channels import TYPICAL
from quadrille.simulator.bounds.communication import CommunicationState, OpEnd, PendingMessage, last_of_lanes, latest
from quadrille.simulator.bounds.inputs import NUMBERS_KEPT, RankGroup, WalkInputs, rank_groups
from quadrille.simulator.bounds.instances import ROWS, ChannelTotals, Instance, TimeParts
from quadrille.simulator.bounds.loop_period import SKIP_MULTIPLE, LoopPeriod
from quadrille.simulator.bounds.op_totals import OpTotals, TotalsSnapshot
from quadrille.simulator.bounds.work import Key
from quadrille.simulator.ranks.tasks import LOOKAHEAD
from quadrille.topologies.network import Floats

NOTHING = TimeParts.of(0)


@dataclass(slots=True, eq=False)
class _WalkPosition:
    """The position of the ranks of one program in their walk.

    Parameters
    ----------
    own : the ranks
    ended : the latest instances of each lane
    issued : for each lane, the instance after which the next op of the lane may be issued
    counts : instances so far, by op
    periods : period detectors of the loops that are walked, the outer ones first
    number : number of instances so far
    unreported : instances that are not yet added to the totals, because an earlier message is in progress
    """

    own: RankGroup
    dependencies: Dependencies[OpEnd]
    ended: dict[str, deque[OpEnd]]
    issued: dict[str, OpEnd]
    counts: dict[str, int]
    periods: list[LoopPeriod] = field(default_factory=list)
    number: int = 0
    unreported: deque[tuple[OpEnd, Instance, PendingMessage | None]] = field(default_factory=deque)


@dataclass(frozen=True, slots=True, eq=False)
class _IterationSnapshot:
    """A snapshot of all totals at the begin of an iteration."""

    tally: TotalsSnapshot
    counts: dict[str, int]
    carried: ChannelTotals


class BoundsWalk:
    """The walk of all ranks.

    Parameters
    ----------
    own_work : upper bound of each rank's local work in one instance of an op, by the op's name [s]
    """

    def __init__(self, inputs: WalkInputs, tally: OpTotals, own_work: Mapping[str, Floats]) -> None:
        self._schedule, self._machine, self._prices = inputs.schedule, inputs.machine, inputs.prices
        self.channels = inputs.prices.channels
        self._overlaps, self._own_work = inputs.concurrency.overlaps, own_work
        self._schedule_work = inputs.schedule_work
        self._tally = tally
        self._programs = rank_groups(inputs.schedule)
        self._communication = CommunicationState(inputs, self._programs, tally.extrapolated)
        self.ends = np.zeros((ROWS, inputs.schedule.grid.size))
        self.begin, self.first_rank = np.inf, 0
        self.nccl = inputs.nccl
        self._loops = inputs.loops
        self.skipped_iterations = 0
        self._op_costs = inputs.op_costs
        self._kept_work: dict[Key, tuple[Floats, TimeParts]] = {}
        self._room = NUMBERS_KEPT

    def run(self) -> None:
        """Walks every rank to its end.

        Raises
        ------
        Deadlock : ranks wait for each other
        """
        walks = {ranks.number: self._walk(ranks) for ranks in self._programs}
        waiting: dict[int, str] = {}
        while walks:
            before = len(walks), dict(waiting), self._communication.finished
            for program, walk in list(walks.items()):
                try:
                    waiting[program] = next(walk)
                except StopIteration:
                    del walks[program]
                    waiting.pop(program, None)
            if before == (len(walks), waiting, self._communication.finished):
                names = ", ".join(repr(name) for name in dict.fromkeys(waiting.values()))
                raise Deadlock(f"deadlock: ranks wait in {names}; each waits for another")

    @property
    def carried(self) -> ChannelTotals:
        """Totals of the channels."""
        return self._communication.carried

    def link_bytes(self) -> Floats:
        """Bytes over each link."""
        return self.channels.link_bytes(self.carried.bytes) + self.carried.links

    def _walk(self, group: RankGroup) -> Generator[str, None, None]:
        """Walks the ranks of one program op by op; yields the name of an op whose other members have not arrived."""
        host = self._machine.host
        issue = host.issue_seconds if host is not None else 0.0
        nothing = np.zeros((ROWS, len(group.ranks)))
        names = dict.fromkeys(["compute", *(lane(op) for op in all_ops(self._schedule))])
        ended = {name: deque([OpEnd(0, lane=name, times=nothing)], LOOKAHEAD + 1) for name in names}
        counts = dict.fromkeys((op.name for op in all_ops(self._schedule)), 0)
        position = _WalkPosition(group, Dependencies(self._schedule), ended, {}, counts)
        for op, moment in self._program_ops(self._schedule.program(group.place), group.place, position):
            position.number += 1
            end, lane_ends = OpEnd(position.number, op.name, lane(op)), ended[lane(op)]
            needs = last_of_lanes(position.dependencies.enter(op, moment, end))
            if len(lane_ends) > LOOKAHEAD:
                position.issued[lane(op)] = lane_ends[0]
            awaited = last_of_lanes((*needs, lane_ends[-1], *position.issued.values()))
            for end_awaited in awaited:
                while not end_awaited.is_final():
                    yield end_awaited.name
            ready = latest(nothing[TYPICAL], (need.times[TYPICAL] for need in needs))
            start = latest(nothing, (end_awaited.times for end_awaited in awaited))
            start = start + issue if issue else start
            arrival, time_parts = start[TYPICAL], NOTHING
            if isinstance(op, Send | Receive):
                end.message, end.sends = self._communication.post(op, moment, group, start), isinstance(op, Send)
            elif isinstance(op, Communication):
                pending = self._communication.join(op, counts[op.name], group, start)
                while not self._communication.complete(op, moment, pending, group):
                    yield op.name
                end.times, arrival = pending.ends[:, group.at], pending.arrival[group.at]
                time_parts = pending.time_parts if group.is_all else pending.time_parts.of_ranks(group.ranks)
                self._communication.discard(op, counts[op.name], pending)
            else:
                end.times, time_parts = self._compute(op, moment, group, start)
            lane_ends.append(end)
            self._begins(group, start[TYPICAL])
            typical = ready, start[TYPICAL], arrival, end.times[TYPICAL] if end.message is None else arrival
            position.unreported.append(
                (end, Instance(op, counts[op.name], group.ranks, *typical, time_parts), end.message)
            )
            counts[op.name] += 1
            self._report(position)
        for end_awaited in (end for end, _, _ in tuple(position.unreported)):
            while not end_awaited.is_final():
                yield end_awaited.name
        self._report(position)

    def _report(self, position: _WalkPosition) -> None:
        """Adds instances whose end is known to the totals, in program order."""
        group = position.own
        while position.unreported and position.unreported[0][0].is_final():
            end, instance, message = position.unreported.popleft()
            if message is not None and message.ready is not None:
                instance = replace(
                    instance, end=end.times[TYPICAL], time_parts=message.ready.time_parts.of_ranks(group.ranks)
                )
            for period in position.periods:
                period.note(end.times)
            self._tally.note(instance, group.number)
            self.ends[:, group.at] = np.maximum(self.ends[:, group.at], end.times)

    def _program_ops(
        self, program: Program, place: Coordinates, position: _WalkPosition
    ) -> Iterator[tuple[Op, Coordinates]]:
        """The ops in program order, without iterations that are skipped."""
        for entry in program:
            if not isinstance(entry, Repeat):
                yield entry, place
                continue
            yield from self._loop_ops(entry, place, position)

    def _loop_ops(self, entry: Repeat, place: Coordinates, position: _WalkPosition) -> Iterator[tuple[Op, Coordinates]]:
        """The ops of a loop, without skipped iterations; inner loops of a watched iteration are walked in full."""
        indices, index, first = entry.indices(place), 0, (position.number, len(self._tally.instances))
        last = 0 if position.periods else len(indices) - self._loops.tail(entry, place)
        period = self._loops.period(entry, place)
        while index < len(indices):
            may_repeat = last - index >= SKIP_MULTIPLE
            snapshot = self._snapshot(position) if may_repeat else None
            if may_repeat:
                period.begin()
                position.periods.append(period)
            yield from self._program_ops(entry.body, place.during(entry.loop, indices[index]), position)
            index += 1
            if snapshot is not None:
                position.periods.pop()
                seconds, left = period.seconds(), (last - index) // SKIP_MULTIPLE * SKIP_MULTIPLE
                if seconds is not None and left > 0:
                    self._skip_iterations(left, seconds, snapshot, position, first)
                    index, last = index + left, 0

    def _snapshot(self, position: _WalkPosition) -> _IterationSnapshot:
        """A snapshot of all totals."""
        return _IterationSnapshot(self._tally.snapshot(), dict(position.counts), self.carried.copy())

    def _skip_iterations(
        self, times: int, seconds: Floats, snapshot: _IterationSnapshot, position: _WalkPosition, first: tuple[int, int]
    ) -> None:
        """Skips so many iterations, each like the iteration since the snapshot.

        Parameters
        ----------
        seconds : time of an iteration on each rank, in each row [3, ranks] [s]
        first : number of instances before the loop, and how many of them are kept
        """
        later = times * seconds
        on_lanes = (end for lane_ends in position.ended.values() for end in lane_ends)
        ends = {id(end): end for end in (*position.dependencies.tokens(), *on_lanes, *position.issued.values())}
        for end in ends.values():
            if end.number > first[0]:
                end.times = end.times + later
        for lane_ends in position.ended.values():
            np.maximum(self.ends, lane_ends[-1].times, out=self.ends)
        per_iteration = {
            name: count - snapshot.counts[name]
            for name, count in position.counts.items()
            if count > snapshot.counts[name]
        }
        for name, count in per_iteration.items():
            position.counts[name] += times * count
        self.carried.add(snapshot.carried, times)
        self._tally.skip_iterations(times, seconds[TYPICAL], snapshot.tally, per_iteration, first)
        self.skipped_iterations += times

    def _begins(self, group: RankGroup, start: Floats) -> None:
        """Remembers the rank that began first."""
        earliest = int(np.argmin(start))
        if start[earliest] < self.begin:
            self.begin, self.first_rank = float(start[earliest]), int(group.ranks[earliest])

    # Local work

    def _compute(self, op: Compute, moment: Coordinates, group: RankGroup, start: Floats) -> tuple[Floats, TimeParts]:
        """When an op of the compute lane ends on each of the ranks, and the breakdown of its time."""
        key = group.number, self._schedule_work.key(op, moment)
        if key in self._kept_work:
            durations, time_parts = self._kept_work[key]
        else:
            durations, time_parts = self._longer(op, moment, group)
            durations, time_parts = compact(durations), time_parts.thin()
            if self._room > 0:
                self._kept_work[key] = durations, time_parts
                self._room -= stored_numbers(durations) + sum(stored_numbers(column) for column in time_parts.columns())
        return start + durations, time_parts

    def _longer(self, op: Compute, moment: Coordinates, group: RankGroup) -> tuple[Floats, TimeParts]:
        """The duration of a local op on each of the ranks, in three rows, and the breakdown of its time."""
        seconds, extrapolated = self._op_costs.local_work(group.number, op, moment, group.ranks)
        local = self._prices.local
        if extrapolated:
            self._tally.extrapolated.add(op.name)
        slowest = seconds / local.least[group.ranks]
        overlaps = self._overlaps.get(op.name, {})
        if all(name in self._own_work for name in overlaps):
            added = sum((count * self._own_work[name][group.ranks] for name, count in overlaps.items()), np.zeros(1))
            slowest = np.where(local.alone[group.ranks], np.minimum(slowest, seconds + added), slowest)
        if overlaps:
            slowest = slowest * self._machine.device.overlap_slowdown
        time_parts = TimeParts.of(len(group.ranks))
        time_parts.compute, typical = seconds, seconds / local.computing[group.ranks]
        time_parts.contention = typical - seconds
        return np.stack([seconds, typical, slowest]), time_parts
