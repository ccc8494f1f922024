"""All ranks through their programs, op by op, as three rows of times: never earlier, typically, never later.

Ops begin when what they depend on has ended and their lane is free; messages go at
the rates of `rate_bounds.py`.  Times are made of maxima and sums alone, in an order that no
rate changes: lanes keep program order, and the k-th message from one rank to another
on a lane meets the k-th receive.  Such times never fall when a duration grows.  In the
exact simulation every message and every piece of work takes some time between that of
the first row and that of the last; so each of its ends lies between theirs, and

    first row <= exact makespan <= last row                        (a theorem)

Local work on a GPU of its own has one more bound.  A product leaves nothing of its
GPU idle, so beside communication that adds w seconds of its own work it takes at
most w longer, however long that communication lasts.
"""

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.analysis.labels import kept, thin
from quadrille.algorithms.errors import Deadlock
from quadrille.algorithms.schedule.ops import Communication, Compute, Op, Receive, Send, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.simulator.bounds.channels import TYPICAL
from quadrille.simulator.bounds.communication import CommunicationState, OpEnd, PendingMessage, last_of_lanes, latest
from quadrille.simulator.bounds.inputs import NUMBERS_KEPT, RankGroup, WalkInputs, programs
from quadrille.simulator.bounds.instances import ROWS, ChannelTotals, Instance, TimeParts
from quadrille.simulator.bounds.loop_period import LEFT_OUT, LoopPeriod
from quadrille.simulator.bounds.op_totals import OpTotals, TotalsMark
from quadrille.simulator.bounds.work import Key
from quadrille.simulator.ranks.tasks import LOOKAHEAD
from quadrille.topologies.network import Floats

NOTHING = TimeParts.of(0)


@dataclass(slots=True, eq=False)
class _WalkPosition:
    """What the ranks of one program remember on their way.

    Parameters
    ----------
    ended : the latest instances of each lane
    handed : of each lane the instance after whose end its next op may be found
    counts : instances so far, by op
    untold : instances that are still to be noted, since a message before them is under way
    beats : of the loops that are walked, the outer ones first
    """

    own: RankGroup
    dependencies: Dependencies[OpEnd]
    ended: dict[str, deque[OpEnd]]
    handed: dict[str, OpEnd]
    counts: dict[str, int]
    beats: list[LoopPeriod] = field(default_factory=list)
    number: int = 0
    untold: deque[tuple[OpEnd, Instance, PendingMessage | None]] = field(default_factory=deque)


@dataclass(frozen=True, slots=True, eq=False)
class _IterationMark:
    """How far sums had come when a turn began."""

    tally: TotalsMark
    counts: dict[str, int]
    carried: ChannelTotals


class BoundsWalk:
    """The walk of all ranks; `ends` are those of each [3, ranks].

    Parameters
    ----------
    own_work : local work of each rank in one instance of an op, by the op's name, at most [s]
    """

    def __init__(self, given: WalkInputs, tally: OpTotals, own_work: Mapping[str, Floats]) -> None:
        self._schedule, self._machine, self._costs = given.schedule, given.machine, given.costs
        self.channels = given.costs.channels
        self._beside, self._own_work = given.busy.beside, own_work
        self._looks = given.looks
        self._tally = tally
        self._programs = programs(given.schedule)
        self._meetings = CommunicationState(given, self._programs, tally.extrapolated)
        self.ends = np.zeros((ROWS, given.schedule.grid.size))
        self.begin, self.first_rank = np.inf, 0
        self.nccl = given.nccl
        self._loops = given.loops
        self.passed_over = 0
        self._prepared = given.prepared
        self._kept_work: dict[Key, tuple[Floats, TimeParts]] = {}
        self._room = NUMBERS_KEPT

    def run(self) -> None:
        """Every rank to its end.

        Raises
        ------
        Deadlock : ranks that wait on each other
        """
        walkers = {ranks.number: self._walk(ranks) for ranks in self._programs}
        waiting: dict[int, str] = {}
        while walkers:
            before = len(walkers), dict(waiting), self._meetings.finished
            for program, walker in list(walkers.items()):
                try:
                    waiting[program] = next(walker)
                except StopIteration:
                    del walkers[program]
                    waiting.pop(program, None)
            if before == (len(walkers), waiting, self._meetings.finished):
                names = ", ".join(repr(name) for name in dict.fromkeys(waiting.values()))
                raise Deadlock(f"deadlock: ranks wait in {names}; each waits for another")

    @property
    def carried(self) -> ChannelTotals:
        """What went over channels."""
        return self._meetings.carried

    def link_bytes(self) -> Floats:
        """What went over each link."""
        return self.channels.link_bytes(self.carried.bytes) + self.carried.links

    def _walk(self, own: RankGroup) -> Generator[str, None, None]:
        """The ranks of one program from op to op; gives the name of an op whose other members have not come."""
        host = self._machine.host
        issue = host.issue_seconds if host is not None else 0.0
        nothing = np.zeros((ROWS, len(own.ranks)))
        names = dict.fromkeys(["compute", *(lane(op) for op in all_ops(self._schedule))])
        ended = {name: deque([OpEnd(0, lane=name, times=nothing)], LOOKAHEAD + 1) for name in names}
        counts = dict.fromkeys((op.name for op in all_ops(self._schedule)), 0)
        way = _WalkPosition(own, Dependencies(self._schedule), ended, {}, counts)
        for op, moment in self._through(self._schedule.program(own.place), own.place, way):
            way.number += 1
            end, done = OpEnd(way.number, op.name, lane(op)), ended[lane(op)]
            needs = last_of_lanes(way.dependencies.enter(op, moment, end))
            if len(done) > LOOKAHEAD:
                way.handed[lane(op)] = done[0]
            awaited = last_of_lanes((*needs, done[-1], *way.handed.values()))
            for one in awaited:
                while not one.known():
                    yield one.name
            ready = latest(nothing[TYPICAL], (need.times[TYPICAL] for need in needs))
            start = latest(nothing, (one.times for one in awaited))
            start = start + issue if issue else start
            arrival, story = start[TYPICAL], NOTHING
            if isinstance(op, Send | Receive):
                end.message, end.sends = self._meetings.post(op, moment, own, start), isinstance(op, Send)
            elif isinstance(op, Communication):
                meeting = self._meetings.meet(op, counts[op.name], own, start)
                while not self._meetings.goes_on(op, moment, meeting, own):
                    yield op.name
                end.times, arrival = meeting.ends[:, own.at], meeting.arrival[own.at]
                story = meeting.story if own.everyone else meeting.story.of_ranks(own.ranks)
                self._meetings.leave(op, counts[op.name], meeting)
            else:
                end.times, story = self._compute(op, moment, own, start)
            done.append(end)
            self._begins(own, start[TYPICAL])
            typical = ready, start[TYPICAL], arrival, end.times[TYPICAL] if end.message is None else arrival
            way.untold.append((end, Instance(op, counts[op.name], own.ranks, *typical, story), end.message))
            counts[op.name] += 1
            self._tell(way)
        for one in (end for end, _, _ in tuple(way.untold)):
            while not one.known():
                yield one.name
        self._tell(way)

    def _tell(self, way: _WalkPosition) -> None:
        """Notes instances whose end is known, in program order."""
        own = way.own
        while way.untold and way.untold[0][0].known():
            end, one, message = way.untold.popleft()
            if message is not None and message.ready is not None:
                one = replace(one, end=end.times[TYPICAL], story=message.ready.story.of_ranks(own.ranks))
            for beat in way.beats:
                beat.note(end.times)
            self._tally.note(one, own.number)
            self.ends[:, own.at] = np.maximum(self.ends[:, own.at], end.times)

    def _through(self, program: Program, place: Coordinates, way: _WalkPosition) -> Iterator[tuple[Op, Coordinates]]:
        """Ops in program order; turns of a loop that have come to repeat are passed over."""
        for entry in program:
            if not isinstance(entry, Repeat):
                yield entry, place
                continue
            yield from self._turns(entry, place, way)

    def _turns(self, entry: Repeat, place: Coordinates, way: _WalkPosition) -> Iterator[tuple[Op, Coordinates]]:
        """The ops of a loop; while a loop around it is looked at, all its turns are there."""
        indices, at, first = entry.indices(place), 0, (way.number, len(self._tally.instances))
        last = 0 if way.beats else len(indices) - self._loops.behind(entry, place)
        beat = self._loops.beat(entry, place)
        while at < len(indices):
            looks = last - at >= LEFT_OUT
            mark = self._mark(way) if looks else None
            if looks:
                beat.begin()
                way.beats.append(beat)
            yield from self._through(entry.body, place.during(entry.loop, indices[at]), way)
            at += 1
            if mark is not None:
                way.beats.pop()
                seconds, left = beat.seconds(), (last - at) // LEFT_OUT * LEFT_OUT
                if seconds is not None and left > 0:
                    self._pass_over(left, seconds, mark, way, first)
                    at, last = at + left, 0

    def _mark(self, way: _WalkPosition) -> _IterationMark:
        return _IterationMark(self._tally.mark(), dict(way.counts), self.carried.copy())

    def _pass_over(
        self, times: int, seconds: Floats, mark: _IterationMark, way: _WalkPosition, first: tuple[int, int]
    ) -> None:
        """So many turns more, each as the one since the mark.

        Parameters
        ----------
        seconds : of a turn on each rank, in each row [3, ranks]
        first : instances before the loop, and those of them that are kept
        """
        later = times * seconds
        on_lanes = (end for done in way.ended.values() for end in done)
        known = {id(end): end for end in (*way.dependencies.tokens(), *on_lanes, *way.handed.values())}
        for end in known.values():
            if end.number > first[0]:
                end.times = end.times + later
        for done in way.ended.values():
            np.maximum(self.ends, done[-1].times, out=self.ends)
        per_turn = {name: count - mark.counts[name] for name, count in way.counts.items() if count > mark.counts[name]}
        for name, count in per_turn.items():
            way.counts[name] += times * count
        self.carried.add(mark.carried, times)
        self._tally.pass_over(times, seconds[TYPICAL], mark.tally, per_turn, first)
        self.passed_over += times

    def _begins(self, own: RankGroup, start: Floats) -> None:
        """Remembers the rank that began first."""
        earliest = int(np.argmin(start))
        if start[earliest] < self.begin:
            self.begin, self.first_rank = float(start[earliest]), int(own.ranks[earliest])

    # Local work

    def _compute(self, op: Compute, moment: Coordinates, own: RankGroup, start: Floats) -> tuple[Floats, TimeParts]:
        """When an op of the compute lane ends on each of the ranks, and what their time goes into."""
        key = own.number, self._looks.key(op, moment)
        if key in self._kept_work:
            longer, story = self._kept_work[key]
        else:
            longer, story = self._longer(op, moment, own)
            longer, story = thin(longer), story.thin()
            if self._room > 0:
                self._kept_work[key] = longer, story
                self._room -= kept(longer) + sum(kept(told) for told in story.columns())
        return start + longer, story

    def _longer(self, op: Compute, moment: Coordinates, own: RankGroup) -> tuple[Floats, TimeParts]:
        """What an op of the compute lane takes on each of the ranks, in three rows."""
        seconds, extrapolated = self._prepared.work(own.number, op, moment, own.ranks)
        local = self._costs.local
        if extrapolated:
            self._tally.extrapolated.add(op.name)
        slowest = seconds / local.least[own.ranks]
        beside = self._beside.get(op.name, {})
        if all(name in self._own_work for name in beside):
            longer = sum((count * self._own_work[name][own.ranks] for name, count in beside.items()), np.zeros(1))
            slowest = np.where(local.alone[own.ranks], np.minimum(slowest, seconds + longer), slowest)
        if beside:
            slowest = slowest * self._machine.device.overlap_slowdown
        story = TimeParts.of(len(own.ranks))
        story.compute, typical = seconds, seconds / local.computing[own.ranks]
        story.contention = typical - seconds
        return np.stack([seconds, typical, slowest]), story
