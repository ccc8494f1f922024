"""All ranks through their programs, op by op, as three rows of times: never earlier, typically, never later.

Ops begin when what they depend on has ended and their lane is free; messages go at
the rates of `rates.py`.  Times are made of maxima and sums alone, in an order that no
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
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from algorithms.dependencies import Dependencies
from algorithms.errors import Deadlock
from algorithms.formats.machine import Machine
from algorithms.grid import Axis
from algorithms.ops import Collective, Communication, CommunicationOp, Compute, Op, Receive, Send, lane
from algorithms.parts import Panel, Place
from algorithms.schedule import Program, Repeat, Schedule, all_ops
from simulator.feed import LOOKAHEAD
from simulator.folding.labels import Ints
from simulator.steady.costs import Costs
from simulator.steady.nccl import Nccl
from simulator.steady.passing import ROWS, Carried, Passing, Prepared, Story
from simulator.steady.rates import TYPICAL
from simulator.steady.tally import Instance, Tally, TallyMark
from simulator.steady.together import Together
from simulator.steady.turns import LEFT_OUT, Beat, Loops
from simulator.steady.work import Key, Looks
from topologies.network import Floats

NUMBERS_KEPT = 1 << 25
"""Of what ops come to, for their next turns: 256 MiB."""
NUMBERS_A_RANK = 12


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """What is walked, on what."""

    schedule: Schedule
    machine: Machine
    looks: Looks
    costs: Costs
    busy: Together
    loops: Loops
    nccl: Nccl | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The ranks of one program, rising, and the place of one of them."""

    number: int
    ranks: Ints
    place: Place


def programs(schedule: Schedule) -> list[Ranks]:
    """Ranks that follow one program for the same number of turns, together."""
    grid = schedule.grid
    axes: set[Axis] = {role.axis for role in schedule.roles if role.axis is not None}
    for role in schedule.roles:
        axes |= _turning(role.program)
    everyone, chosen = np.arange(grid.size), sorted(axes)
    found = []
    for number, coordinates in enumerate(product(*(range(grid.length(axis)) for axis in chosen))):
        ranks = everyone
        for axis, coordinate in zip(chosen, coordinates, strict=True):
            ranks = ranks[ranks // grid.stride(axis) % grid.length(axis) == coordinate]
        found.append(Ranks(number, ranks, schedule.place(int(ranks[0]))))
    return found


def _turning(program: Program) -> set[Axis]:
    """Axes on whose coordinate it depends how often something is repeated."""
    found: set[Axis] = set()
    for entry in program:
        if isinstance(entry, Repeat):
            found |= _turning(entry.body)
            if isinstance(entry.count, Panel) and entry.count.shared_over is not None:
                found.add(entry.count.shared_over)
    return found


def why_impossible(schedule: Schedule) -> str:
    """Why a schedule cannot be walked so, in words; empty where it can."""
    single = [op.name for op in all_ops(schedule) if isinstance(op, Send | Receive)]
    return f"op {single[0]!r} sends or receives alone" if single else ""


@dataclass(slots=True, eq=False)
class _End:
    """When an instance ends on the ranks of a program [3, ranks]; the how manieth instance of all it is."""

    number: int
    times: Floats = field(default_factory=lambda: np.zeros((ROWS, 0)))


@dataclass(slots=True, eq=False)
class _Way:
    """What the ranks of one program remember on their way.

    Parameters
    ----------
    ended : the latest instances of each lane
    handed : of each lane the instance after whose end its next op may be found
    counts : instances so far, by op
    beats : of the loops that are walked, the outer ones first
    """

    own: Ranks
    dependencies: Dependencies[_End]
    ended: dict[str, deque[_End]]
    handed: dict[str, _End]
    counts: dict[str, int]
    beats: list[Beat] = field(default_factory=list)
    number: int = 0


@dataclass(slots=True, eq=False)
class _Meeting:
    """An instance of a communication op on all ranks: who has come when, and who has ended."""

    times: Floats
    arrival: Floats
    ends: Floats
    come: NDArray[np.bool_]
    done: NDArray[np.bool_]
    story: Story


@dataclass(frozen=True, slots=True, eq=False)
class _Mark:
    """How far sums had come when a turn began."""

    tally: TallyMark
    counts: dict[str, int]
    carried: Carried


class Walk:
    """The walk of all ranks; `ends` are those of each [3, ranks].

    Parameters
    ----------
    own_work : local work of each rank in one instance of an op, by the op's name, at most [s]
    """

    def __init__(self, given: Given, tally: Tally, own_work: Mapping[str, Floats]) -> None:
        self._schedule, self._machine, self._costs = given.schedule, given.machine, given.costs
        self.channels = given.costs.channels
        self._beside, self._own_work = given.busy.beside, own_work
        self._looks = given.looks
        self._tally = tally
        self._meetings: dict[tuple[str, int], _Meeting] = {}
        size = given.schedule.grid.size
        channels = len(given.costs.channels.keys)
        self.ends = np.zeros((ROWS, size))
        self.begin, self.first_rank = np.inf, 0
        self.carried = Carried.none(channels, len(given.costs.channels.capacities))
        self.nccl = given.nccl
        self._loops = given.loops
        self.passed_over = 0
        self._room = NUMBERS_KEPT
        self._kept_parts: dict[Key, list[Prepared]] = {}
        self._kept_work: dict[Key, tuple[Floats, bool]] = {}

    def run(self) -> None:
        """Every rank to its end.

        Raises
        ------
        Deadlock : ranks that wait on each other
        """
        walkers = {ranks.number: self._walk(ranks) for ranks in programs(self._schedule)}
        waiting: dict[int, str] = {}
        while walkers:
            before = len(walkers), dict(waiting), self._finished
            for number, walker in list(walkers.items()):
                try:
                    waiting[number] = next(walker)
                except StopIteration:
                    del walkers[number]
                    waiting.pop(number, None)
            if before == (len(walkers), waiting, self._finished):
                names = ", ".join(repr(name) for name in dict.fromkeys(waiting.values()))
                raise Deadlock(f"deadlock: ranks wait in {names}; each waits for another")

    def link_bytes(self) -> Floats:
        """What went over each link."""
        return self.channels.link_bytes(self.carried.bytes) + self.carried.links

    @property
    def _finished(self) -> int:
        return sum(int(meeting.done.sum()) for meeting in self._meetings.values())

    def _walk(self, own: Ranks) -> Generator[str, None, None]:
        """The ranks of one program from op to op; gives the name of an op whose other members have not come."""
        host = self._machine.host
        issue = host.issue_seconds if host is not None else 0.0
        nothing = np.zeros((ROWS, len(own.ranks)))
        names = dict.fromkeys(["compute", *(lane(op) for op in all_ops(self._schedule))])
        ended = {name: deque([_End(0, nothing)], LOOKAHEAD + 1) for name in names}
        counts = dict.fromkeys((op.name for op in all_ops(self._schedule)), 0)
        way = _Way(own, Dependencies(self._schedule), ended, {}, counts)
        for op, moment in self._through(self._schedule.program(own.place), own.place, way):
            way.number += 1
            end, done = _End(way.number), ended[lane(op)]
            needs = way.dependencies.enter(op, moment, end)
            if len(done) > LOOKAHEAD:
                way.handed[lane(op)] = done[0]
            ready = _latest(nothing, (need.times for need in needs))
            start = _latest(np.maximum(ready, done[-1].times), (one.times for one in way.handed.values())) + issue
            index = counts[op.name]
            counts[op.name] += 1
            if isinstance(op, Communication):
                meeting = self._meet(op, index, own, start)
                while not self._goes_on(op, index, moment, meeting, own):
                    yield op.name
                end.times, arrival = meeting.ends[:, own.ranks], meeting.arrival[own.ranks]
                story = meeting.story.of_ranks(own.ranks)
                self._leave(op, index, meeting)
            else:
                end.times, story = self._compute(op, moment, own, start)
                arrival = start[TYPICAL]
            done.append(end)
            for beat in way.beats:
                beat.note(end.times)
            self._begins(own, start[TYPICAL])
            typical = ready[TYPICAL], start[TYPICAL], arrival, end.times[TYPICAL]
            self._tally.note(Instance(op, index, own.ranks, *typical, story), own.number)
            self.ends[:, own.ranks] = np.maximum(self.ends[:, own.ranks], end.times)

    def _through(self, program: Program, place: Place, way: _Way) -> Iterator[tuple[Op, Place]]:
        """Ops in program order; turns of a loop that have come to repeat are passed over."""
        for entry in program:
            if not isinstance(entry, Repeat):
                yield entry, place
                continue
            yield from self._turns(entry, place, way)

    def _turns(self, entry: Repeat, place: Place, way: _Way) -> Iterator[tuple[Op, Place]]:
        """The ops of a loop; while a loop around it is looked at, all its turns are there."""
        indices, at, first = entry.indices(place), 0, (way.number, len(self._tally.instances))
        beat, last = Beat(), len(indices) - self._loops.behind(entry, place)
        if way.beats:
            last = 0
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

    def _mark(self, way: _Way) -> _Mark:
        return _Mark(self._tally.mark(), dict(way.counts), self.carried.copy())

    def _pass_over(self, times: int, seconds: Floats, mark: _Mark, way: _Way, first: tuple[int, int]) -> None:
        """So many turns more, each as the one since the mark.

        Parameters
        ----------
        first : instances before the loop, and those of them that are kept
        """
        later = times * seconds[:, None]
        on_lanes = (end for done in way.ended.values() for end in done)
        known = {id(end): end for end in (*way.dependencies.tokens(), *on_lanes, *way.handed.values())}
        for end in known.values():
            if end.number > first[0]:
                end.times = end.times + later
        ranks = way.own.ranks
        self.ends[:, ranks] = _latest(self.ends[:, ranks], (done[-1].times for done in way.ended.values()))
        per_turn = {name: count - mark.counts[name] for name, count in way.counts.items() if count > mark.counts[name]}
        for name, count in per_turn.items():
            way.counts[name] += times * count
        self.carried.add(mark.carried, times)
        self._tally.pass_over(times, float(seconds[TYPICAL]), mark.tally, per_turn, first)
        self.passed_over += times

    def _begins(self, own: Ranks, start: Floats) -> None:
        """Remembers the rank that began first."""
        earliest = int(np.argmin(start))
        if start[earliest] < self.begin:
            self.begin, self.first_rank = float(start[earliest]), int(own.ranks[earliest])

    # Local work

    def _compute(self, op: Compute, moment: Place, own: Ranks, start: Floats) -> tuple[Floats, Story]:
        seconds, extrapolated = self._seconds(op, moment, own)
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
        story = Story.of(len(own.ranks))
        story.compute, typical = seconds, seconds / local.computing[own.ranks]
        story.contention = typical - seconds
        return start + np.stack([seconds, typical, slowest]), story

    def _seconds(self, op: Compute, moment: Place, own: Ranks) -> tuple[Floats, bool]:
        """Of each rank with its cores to itself, and whether one is extrapolated."""
        key = own.number, self._looks.key(op, moment)
        if key in self._kept_work:
            return self._kept_work[key]
        found, which = self._looks.sizes(op, moment, own.ranks)
        models = self._costs.models(own.ranks)
        kinds, place = np.unique(which * (int(models.max()) + 1) + models, return_inverse=True)
        pairs = [divmod(kind, int(models.max()) + 1) for kind in kinds.tolist()]
        priced = [self._costs.computing(op, found[kind], model) for kind, model in pairs]
        seconds = np.array([one.seconds for one in priced])[place.ravel()]
        result = seconds, any(one.extrapolated for one in priced)
        if self._room > 0:
            self._kept_work[key] = result
            self._room -= len(seconds)
        return result

    # Communication

    def _meet(self, op: CommunicationOp, index: int, own: Ranks, start: Floats) -> _Meeting:
        """The meeting of all members of an instance, to which these ranks have come."""
        size = self._schedule.grid.size
        none = np.zeros(size, dtype=bool)
        meeting = self._meetings.get((op.name, index))
        if meeting is None:
            rows = np.zeros((ROWS, size))
            meeting = _Meeting(rows, np.zeros(size), rows.copy(), none, none.copy(), Story.of(size))
            self._meetings[op.name, index] = meeting
        meeting.times[:, own.ranks] = start
        meeting.come[own.ranks] = True
        return meeting

    def _leave(self, op: Op, index: int, meeting: _Meeting) -> None:
        if meeting.done.all():
            self._meetings.pop((op.name, index), None)

    def _goes_on(self, op: CommunicationOp, index: int, moment: Place, meeting: _Meeting, own: Ranks) -> bool:
        """Whether the ranks' groups are complete and have ended; those that are complete end now."""
        grid = self._schedule.grid
        length, stride = grid.length(op.axis), grid.stride(op.axis)
        first = np.unique(own.ranks - own.ranks // stride % length * stride)
        groups = first[:, None] + stride * np.arange(length)
        ripe = meeting.come[groups].all(axis=1) & ~meeting.done[groups].any(axis=1)
        if ripe.any():
            self._carry(op, moment, meeting, groups[ripe])
        return bool(meeting.done[own.ranks].all())

    def _carry(self, op: CommunicationOp, moment: Place, meeting: _Meeting, groups: Ints) -> None:
        """The op on complete groups."""
        ranks = groups.ravel()
        meeting.done[ranks] = True
        latest = meeting.times[TYPICAL][groups].max(axis=1)
        meeting.arrival[ranks] = np.repeat(latest, groups.shape[1])
        if groups.shape[1] == 1:
            self._copy_alone(op, moment, meeting, ranks)
            return
        if self.nccl is not None and isinstance(op, Collective):
            self._by_nccl(self.nccl, op, moment, meeting, groups)
            return
        for prepared in self._prepared(op, moment, groups[:, 0]):
            part = prepared.part
            members = part.ranks.ravel()
            alone = np.zeros(len(members), dtype=bool) if part.alone is None else part.alone
            overhead = np.where(alone, self._overhead(alone=True), self._overhead(alone=False))
            meeting.story.overhead[members] = overhead
            passing = Passing(prepared, self.carried, meeting.times[:, members] + overhead)
            passing.run()
            meeting.ends[:, members] = passing.times
            meeting.story.add(members, passing.story)
            if passing.extrapolated:
                self._tally.extrapolated.add(op.name)

    def _prepared(self, op: CommunicationOp, moment: Place, first: Ints) -> list[Prepared]:
        """The parts of an op; those of all groups at once are kept for its next turn, as far as there is room."""
        key = self._looks.key(op, moment)
        whole = len(first) * self._schedule.grid.length(op.axis) == self._schedule.grid.size
        if not whole:
            return [Prepared(part, lane(op), self._costs) for part in self._looks.parts(op, moment, first)]
        if key in self._kept_parts:
            return self._kept_parts[key]
        found = [Prepared(part, lane(op), self._costs) for part in self._looks.parts(op, moment, first)]
        if self._room > 0:
            self._kept_parts[key] = found
            self._room -= sum(one.numbers + NUMBERS_A_RANK * one.part.ranks.size for one in found)
        return found

    def _by_nccl(self, nccl: Nccl, op: Collective, moment: Place, meeting: _Meeting, groups: Ints) -> None:
        """Groups begin when their last member has come, and take what NCCL's model says."""
        size = self._looks.bytes(op, moment, groups[:, 0])
        seconds = nccl.seconds(op, moment, groups, size)
        delayed = nccl.delayed(op.name, self._beside.get(op.name, {}))
        begin = meeting.times[:, groups].max(axis=2, keepdims=True)
        meeting.ends[:, groups] = begin + seconds + np.array([0.0, 0.0, delayed])[:, None, None]
        meeting.story.bandwidth[groups] = seconds
        self.carried.links += nccl.link_bytes(op, moment, groups, size)
        self.carried.messages += groups.size

    def _copy_alone(self, op: CommunicationOp, moment: Place, meeting: _Meeting, ranks: Ints) -> None:
        overhead = self._overhead(alone=True)
        seconds, extrapolated = self._costs.memory("copy", self._looks.alone(op, moment, ranks), ranks)
        local = self._costs.local
        slow = np.stack([np.ones(len(ranks)), 1 / local.moving[ranks], 1 / local.least[ranks]])
        meeting.ends[:, ranks] = meeting.times[:, ranks] + overhead + seconds * slow
        meeting.story.overhead[ranks], meeting.story.compute[ranks] = overhead, seconds
        if extrapolated:
            self._tally.extrapolated.add(op.name)

    def _overhead(self, *, alone: bool) -> float:
        """Seconds beside the steps of a communication op; measured steps between ranks of a host include theirs."""
        host, device = self._machine.host, self._machine.device
        if host is not None:
            return host.alone_seconds if alone else 0.0
        return 0.0 if alone else device.overhead_seconds


def _latest(nothing: Floats, times: Iterable[Floats]) -> Floats:
    for one in times:
        nothing = np.maximum(nothing, one)
    return nothing
