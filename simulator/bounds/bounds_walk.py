"""`BoundsWalk`: start and end times of all ops on all ranks, op by op, as lower bound, typical value and upper bound.

A *lane* of a rank is a sequence of ops that run in order, as on a CUDA stream: computation, or
communication along one axis. An op begins when the ops that it depends on have ended and its lane is
free; its end follows from fixed durations. The walk repeats this recurrence for three sets of
durations at once, the rows LOW, TYPICAL and HIGH (a longest-path computation on the dependency graph,
as in the critical path method):

    start = max(end of the op before on the lane, ends of its dependencies)
    end   = start + duration          for a collective: after the last member has started

Maxima and sums never fall when a duration grows, and their order does not depend on rates: lanes keep
program order, and the k-th message from one rank to another on a lane meets the k-th receive. In the
exact simulation every message and every local op takes at least its LOW and at most its HIGH
duration, so

    LOW makespan <= exact makespan <= HIGH makespan                (a theorem)

Local work on a GPU of its own has one more bound. A GEMM uses the whole GPU, so communication that
overlaps it and adds w seconds of its own work on the GPU makes it at most w seconds longer.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.analysis.equality_labels import compact, stored_numbers
from quadrille.algorithms.errors import Deadlock
from quadrille.algorithms.schedule.ops import (
    Communication,
    CommunicationOp,
    Compute,
    HostCopy,
    Op,
    Receive,
    Send,
    is_host_op,
    lane,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import Program, Repeat, ranks_to_peer
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.simulator.bounds.channels import TYPICAL
from quadrille.simulator.bounds.communication_state import (
    CollectiveEnd,
    CommunicationState,
    OpEnd,
    PendingMessage,
    last_of_lanes,
    latest,
)
from quadrille.simulator.bounds.group_work import Key
from quadrille.simulator.bounds.loop_period import SKIP_MULTIPLE, LoopPeriod
from quadrille.simulator.bounds.op_instances import ROWS, ChannelTotals, Instance, OpTimeParts
from quadrille.simulator.bounds.op_totals import OpTotals, TotalsSnapshot
from quadrille.simulator.bounds.walk_inputs import CACHED_NUMBERS, RankGroup, WalkInputs, rank_groups
from quadrille.simulator.ranks.tasks import LOOKAHEAD
from quadrille.topologies.network import Floats

NO_TIME = OpTimeParts.of(0)


@dataclass(slots=True, eq=False)
class _WalkPosition:
    """The progress of the ranks that follow one program.

    Parameters
    ----------
    own : the ranks
    dependencies : latest instance that reads or writes each tensor
    ended : the latest instances of each lane, at most LOOKAHEAD + 1
    issued : by lane, the instance whose end frees a slot of the lane's queue
    counts : instances so far, by op
    periods : period detectors of the loops that are walked, the outer ones first
    number : number of instances so far
    unposted : messages that have not started, because what they await has not ended
    unreported : instances that are not yet added to the totals, because an earlier message is in progress
    """

    own: RankGroup
    dependencies: Dependencies[OpEnd]
    ended: dict[str, deque[OpEnd]]
    issued: dict[str, OpEnd]
    counts: dict[str, int]
    periods: list[LoopPeriod] = field(default_factory=list)
    number: int = 0
    unposted: deque["_Unposted"] = field(default_factory=deque)
    unreported: deque["_Unreported"] = field(default_factory=deque)


@dataclass(frozen=True, slots=True, eq=False)
class _Unposted:
    """A send or receive that waits on its lane, while its rank goes on.

    Parameters
    ----------
    index : index of the instance among those of the op
    needs : ends of the instances that it depends on
    awaited : these, and the ends of the instances before it on its lane and in the queues
    unreported : its place among the instances that are not yet reported
    """

    op: Send | Receive
    coordinates: Coordinates
    index: int
    needs: list[OpEnd]
    awaited: list[OpEnd]
    unreported: "_Unreported"


@dataclass(slots=True, eq=False)
class _Unreported:
    """An instance that is not yet added to the totals.

    Parameters
    ----------
    instance : the instance; None while it has not started
    message : the message of a send or receive
    """

    end: OpEnd
    instance: Instance | None = None
    message: PendingMessage | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _IterationSnapshot:
    """A snapshot of all totals at the begin of a loop iteration."""

    tally: TotalsSnapshot
    counts: dict[str, int]
    carried: ChannelTotals


class BoundsWalk:
    """Computes when every op ends on every rank, in the rows LOW, TYPICAL and HIGH.

    Parameters
    ----------
    inputs : the schedule, the machine and the costs of ops
    tally : totals to which every instance of an op is added
    own_work : upper bound of each rank's local work in one instance of an op, by the op's name [ranks] [s]

    Attributes
    ----------
    ends : latest end on each rank so far [3, ranks] [s]
    begin, first_rank : start of the first op at typical rates [s], and its rank
    """

    def __init__(self, inputs: WalkInputs, tally: OpTotals, own_work: Mapping[str, Floats]) -> None:
        self._schedule, self._machine, self._cost_model = inputs.schedule, inputs.machine, inputs.cost_model
        self.channels = inputs.cost_model.channels
        self._overlaps, self._own_work = inputs.concurrency.overlaps, own_work
        self._schedule_work = inputs.schedule_work
        self._tally = tally
        self._programs = rank_groups(inputs.schedule)
        self._communication = CommunicationState(inputs, self._programs, tally.extrapolated)
        self._issue = inputs.machine.host.issue_seconds if inputs.machine.host is not None else 0.0
        self.ends = np.zeros((ROWS, inputs.schedule.grid.size))
        self.begin, self.first_rank = np.inf, 0
        self.nccl = inputs.nccl
        self._loops = inputs.loops
        self.skipped_iterations = 0
        self._op_costs = inputs.op_costs
        self._cached_work: dict[Key, tuple[Floats, OpTimeParts]] = {}
        self._cache_room = CACHED_NUMBERS

    def run(self) -> None:
        """Walks the programs of all ranks to their end; `ends` then holds the end of each rank.

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
        """Bytes and busy seconds of the channels so far."""
        return self._communication.carried

    def link_bytes(self) -> Floats:
        """Bytes over each link so far [links] [B]."""
        return self.channels.link_bytes(self.carried.bytes) + self.carried.links

    def _walk(self, group: RankGroup) -> Generator[str, None, None]:
        """Walks the ranks of one program op by op; yields an op's name while it waits for ranks of other programs."""
        nothing = np.zeros((ROWS, len(group.ranks)))
        names = dict.fromkeys(["compute", *(lane(op) for op in all_ops(self._schedule))])
        ended = {name: deque([OpEnd(0, lane=name, times=nothing)], LOOKAHEAD + 1) for name in names}
        counts = dict.fromkeys((op.name for op in all_ops(self._schedule)), 0)
        position = _WalkPosition(group, Dependencies(self._schedule), ended, {}, counts)
        for op, coordinates in self._program_ops(
            self._schedule.program(group.coordinates), group.coordinates, position
        ):
            position.number += 1
            end, lane_ends = OpEnd(position.number, op.name, lane(op)), ended[lane(op)]
            needs = last_of_lanes(position.dependencies.enter(op, coordinates, end))
            if len(lane_ends) > LOOKAHEAD:
                position.issued[lane(op)] = lane_ends[0]
            awaited = last_of_lanes((*needs, lane_ends[-1], *position.issued.values()))
            if isinstance(op, Send | Receive):
                end.posted, entry = False, _Unreported(end)
                position.unposted.append(_Unposted(op, coordinates, counts[op.name], needs, awaited, entry))
                position.unreported.append(entry)
                self._post(position)
            else:
                yield from self._until_final(awaited, position)
                instance = yield from self._instance(op, coordinates, end, needs, awaited, position)
                position.unreported.append(_Unreported(end, instance))
            lane_ends.append(end)
            counts[op.name] += 1
            self._report(position)
        yield from self._until_final([entry.end for entry in position.unreported], position)
        self._report(position)
        for lane_ends in ended.values():
            self.ends[:, group.at] = np.maximum(self.ends[:, group.at], lane_ends[-1].times)

    def _until_final(self, ends: Iterable[OpEnd], position: _WalkPosition) -> Generator[str, None, None]:
        """Waits until these ends are final; yields the name of an op that is not."""
        for end in ends:
            while not end.is_final():
                self._post(position)
                if not end.is_final():
                    yield end.name

    def _instance(
        self,
        op: Compute | CommunicationOp,
        coordinates: Coordinates,
        end: OpEnd,
        needs: Iterable[OpEnd],
        awaited: Iterable[OpEnd],
        position: _WalkPosition,
    ) -> Generator[str, None, Instance]:
        """Executes an op other than a message, whose awaited ends are final, and returns its instance."""
        group, index = position.own, position.counts[op.name]
        ready, start = self._start(group, needs, awaited)
        begin = arrival = start[TYPICAL]
        if isinstance(op, Communication):
            done = yield from self._collective(op, coordinates, index, position, start)
            end.times, time_parts = done.times, done.time_parts
            arrival = begin if done.arrival is None else done.arrival
        else:
            end.times, time_parts = self._compute(op, coordinates, group, start)
        self._record_begin(group, begin)
        return Instance(op, index, group.ranks, ready, begin, arrival, end.times[TYPICAL], time_parts)

    def _start(self, group: RankGroup, needs: Iterable[OpEnd], awaited: Iterable[OpEnd]) -> tuple[Floats, Floats]:
        """Typical time at which the dependencies have ended [ranks], and start of an op in each row [3, ranks] [s]."""
        nothing = np.zeros((ROWS, len(group.ranks)))
        ready = latest(nothing[TYPICAL], (need.times[TYPICAL] for need in needs))
        start = latest(nothing, (end.times for end in awaited))
        return ready, start + self._issue if self._issue else start

    def _post(self, position: _WalkPosition) -> None:
        """Starts the messages whose awaited instances have ended; the messages of a lane start in their order."""
        group = position.own
        for _ in range(len(position.unposted)):
            waiting = position.unposted.popleft()
            if not all(end.is_final() for end in waiting.awaited):
                position.unposted.append(waiting)
                continue
            op, entry = waiting.op, waiting.unreported
            ready, start = self._start(group, waiting.needs, waiting.awaited)
            begin = start[TYPICAL]
            entry.message = self._communication.post(op, waiting.coordinates, group, start)
            entry.end.message, entry.end.sends, entry.end.posted = entry.message, isinstance(op, Send), True
            entry.instance = Instance(
                op,
                waiting.index,
                group.ranks,
                ready,
                begin,
                begin,
                begin,
                NO_TIME,
                to_peer=ranks_to_peer(op, waiting.coordinates),
            )
            self._record_begin(group, begin)

    def _collective(
        self, op: CommunicationOp, coordinates: Coordinates, index: int, position: _WalkPosition, start: Floats
    ) -> Generator[str, None, CollectiveEnd]:
        """Executes a collective on the ranks of a program; yields its name while it waits for ranks of other programs.

        Parameters
        ----------
        index : index of the instance among those of the op
        start : arrival of the ranks [3, ranks] [s]
        """
        group = position.own
        done = self._communication.within(op, coordinates, group, start)
        if done is not None:
            return done
        pending = self._communication.join(op, index, group, start)
        while not self._communication.complete(op, coordinates, pending, group):
            self._post(position)
            yield op.name
        time_parts = pending.time_parts if group.is_all else pending.time_parts.of_ranks(group.ranks)
        self._communication.discard(op, index, pending)
        return CollectiveEnd(pending.ends[:, group.at], pending.arrival[group.at], time_parts)

    def _report(self, position: _WalkPosition) -> None:
        """Adds instances whose end is known to the totals, in program order."""
        group = position.own
        while position.unreported and position.unreported[0].end.is_final():
            entry = position.unreported.popleft()
            assert entry.instance is not None, "the end is final"
            instance, message = entry.instance, entry.message
            if message is not None and message.ready is not None:
                instance = replace(
                    instance, end=entry.end.times[TYPICAL], time_parts=message.ready.time_parts.of_ranks(group.ranks)
                )
            for period in position.periods:
                period.note(entry.end.times)
            self._tally.note(instance, group.number)

    def _program_ops(
        self, program: Program, coordinates: Coordinates, position: _WalkPosition
    ) -> Iterator[tuple[Op, Coordinates]]:
        """The ops in program order, without iterations that are skipped."""
        for entry in program:
            if not isinstance(entry, Repeat):
                yield entry, coordinates
                continue
            yield from self._loop_ops(entry, coordinates, position)

    def _loop_ops(
        self, entry: Repeat, coordinates: Coordinates, position: _WalkPosition
    ) -> Iterator[tuple[Op, Coordinates]]:
        """The ops of a loop, without skipped iterations; inner loops of a watched iteration are walked in full."""
        indices, index, first = entry.indices(coordinates), 0, (position.number, len(self._tally.instances))
        last = 0 if position.periods else len(indices) - self._loops.tail(entry, coordinates)
        period = self._loops.period(entry, coordinates)
        while index < len(indices):
            may_repeat = last - index >= SKIP_MULTIPLE
            snapshot = self._snapshot(position) if may_repeat else None
            if may_repeat:
                period.begin()
                position.periods.append(period)
            yield from self._program_ops(entry.body, coordinates.during(entry.loop, indices[index]), position)
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
        """Skips `times` iterations, each like the iteration since the snapshot: shifts all times of the loop, adds
        totals.

        Parameters
        ----------
        times : number of iterations
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

    def _record_begin(self, group: RankGroup, start: Floats) -> None:
        """Records the earliest start and its rank."""
        earliest = int(np.argmin(start))
        if start[earliest] < self.begin:
            self.begin, self.first_rank = float(start[earliest]), int(group.ranks[earliest])

    # Local work

    def _compute(
        self, op: Compute, coordinates: Coordinates, group: RankGroup, start: Floats
    ) -> tuple[Floats, OpTimeParts]:
        """End of an op of the compute lane on each rank [3, ranks] [s], and the breakdown of its time."""
        key = self._op_costs.local_key(group.number, op, coordinates, group.ranks)
        if self._own_work:  # differs between programs
            key = group.number, *key
        if key in self._cached_work:
            durations, time_parts = self._cached_work[key]
        else:
            durations, time_parts = self._durations(op, coordinates, group)
            durations, time_parts = compact(durations), time_parts.thin()
            if self._cache_room > 0:
                self._cached_work[key] = durations, time_parts
                self._cache_room -= stored_numbers(durations) + sum(
                    stored_numbers(column) for column in time_parts.columns()
                )
        return start + durations, time_parts

    def _durations(self, op: Compute, coordinates: Coordinates, group: RankGroup) -> tuple[Floats, OpTimeParts]:
        """Duration of a local op on each rank [3, ranks] [s], and the breakdown of its time."""
        if is_host_op(op):
            return self._host_op(op, coordinates, group)
        seconds, extrapolated = self._op_costs.local_work(group.number, op, coordinates, group.ranks)
        local = self._cost_model.local
        if extrapolated:
            self._tally.extrapolated.add(op.name)
        slowest = seconds / local.least[group.ranks]
        overlaps = self._overlaps.get(op.name, {})
        if all(name in self._own_work for name in overlaps):
            added = sum((count * self._own_work[name][group.ranks] for name, count in overlaps.items()), np.zeros(1))
            slowest = np.where(local.alone[group.ranks], np.minimum(slowest, seconds + added), slowest)
        if overlaps:
            slowest = slowest * self._machine.device.overlap_slowdown
        time_parts = OpTimeParts.of(len(group.ranks))
        time_parts.compute, typical = seconds, seconds / local.computing[group.ranks]
        time_parts.contention = typical - seconds
        return np.stack([seconds, typical, slowest]), time_parts

    def _host_op(self, op: Compute, coordinates: Coordinates, group: RankGroup) -> tuple[Floats, OpTimeParts]:
        """Duration of a host copy or of work of the host on each rank [3, ranks] [s], and the breakdown of its time.

        At least a rank has the link, or the memory of the host, for itself; typically and at most all ranks share it.
        """
        link = self._machine.host_link
        assert link is not None, "unsupported_reason"
        moving, extrapolated = self._op_costs.local_work(group.number, op, coordinates, group.ranks)
        assert not extrapolated, "a host link has one rate"
        moving = np.broadcast_to(moving, len(group.ranks))
        latency = link.latency_seconds if isinstance(op, HostCopy) else 0.0
        typical = moving * self._cost_model.ranks_on_host(link, lane(op))
        time_parts = OpTimeParts.of(len(group.ranks))
        time_parts.latency, time_parts.bandwidth = time_parts.latency + latency, moving
        time_parts.contention = typical - moving
        return latency + np.stack([moving, typical, typical]), time_parts
