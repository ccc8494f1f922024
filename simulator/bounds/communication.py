"""Where ranks come together on their walk: communication ops of groups, and messages of one program to another."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.labels import Ints, rising
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import Collective, CommunicationOp, Op, Receive, Send, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.simulator.bounds.channels import TYPICAL
from quadrille.simulator.bounds.inputs import PreparedOp, RankGroup, WalkInputs
from quadrille.simulator.bounds.instances import ROWS, ChannelTotals, TimeParts
from quadrille.simulator.bounds.message_times import passed
from quadrille.simulator.bounds.nccl import NcclTimes
from quadrille.topologies.network import Floats


@dataclass(slots=True, eq=False)
class PendingCollective:
    """An instance of a communication op on all ranks: who has come when, and who has ended."""

    times: Floats
    arrival: Floats
    ends: Floats
    come: NDArray[np.bool_]
    done: NDArray[np.bool_]
    story: TimeParts


@dataclass(slots=True, eq=False)
class PendingMessage:
    """What the ranks of one program send to those of another, each one message.

    Parameters
    ----------
    begin, ends : when its ends are there, and when they go on; the senders' under True, the receivers' under False
    ready : once it is sent
    """

    begin: dict[bool, Floats] = field(default_factory=dict)
    ends: dict[bool, Floats] = field(default_factory=dict)
    ready: PreparedOp | None = None


class CommunicationState:
    """All of a walk.

    Parameters
    ----------
    everyone : the ranks of all programs
    extrapolated : room for the names of ops beyond what was measured
    finished : how many were carried out so far
    carried : what went over channels
    """

    def __init__(self, given: WalkInputs, everyone: Sequence[RankGroup], extrapolated: set[str]) -> None:
        self._schedule, self._costs, self._looks = given.schedule, given.costs, given.looks
        self._beside, self._nccl, self._prepared = given.busy.beside, given.nccl, given.prepared
        self._extrapolated = extrapolated
        self._meetings: dict[tuple[str, int], PendingCollective] = {}
        self._messages: dict[tuple[str, int, int, int], PendingMessage] = {}
        self._posted: Counter[tuple[str, int, int, bool]] = Counter()
        self._groups: dict[tuple[int, Axis], Ints] = {}
        self._program_of = np.zeros(given.schedule.grid.size, dtype=np.int64)
        for one in everyone:
            self._program_of[one.at] = one.number
        self.finished = 0
        channels = given.costs.channels
        self.carried = ChannelTotals.none(len(channels.keys), len(channels.capacities))

    def meet(self, op: CommunicationOp, index: int, own: RankGroup, start: Floats) -> PendingCollective:
        """The meeting of all members of an instance, to which these ranks have come."""
        if own.everyone:
            return self._meeting(start)
        meeting = self._meetings.get((op.name, index))
        if meeting is None:
            meeting = self._meetings[op.name, index] = self._meeting(np.zeros((ROWS, self._schedule.grid.size)))
            meeting.come[:] = False
        meeting.times[:, own.ranks] = start
        meeting.come[own.ranks] = True
        return meeting

    def _meeting(self, times: Floats) -> PendingCollective:
        """A meeting to which all have come at these times."""
        size = times.shape[1]
        everyone = np.ones(size, dtype=bool)
        return PendingCollective(times, np.zeros(size), np.zeros_like(times), everyone, ~everyone, TimeParts.of(0))

    def leave(self, op: Op, index: int, meeting: PendingCollective) -> None:
        if meeting.done.all():
            self._meetings.pop((op.name, index), None)

    def goes_on(self, op: CommunicationOp, moment: Coordinates, meeting: PendingCollective, own: RankGroup) -> bool:
        """Whether the ranks' groups are complete and have ended; those that are complete end now."""
        groups = self._groups_of(op.axis, own)
        if own.everyone:
            self._carry(op, moment, meeting, groups)
            return True
        ripe = meeting.come[groups].all(axis=1) & ~meeting.done[groups].any(axis=1)
        if ripe.any():
            self._carry(op, moment, meeting, groups[ripe])
        return bool(meeting.done[own.ranks].all())

    def _groups_of(self, axis: Axis, own: RankGroup) -> Ints:
        """The groups along an axis in which these ranks are [groups, members]."""
        key = own.number, axis
        if key not in self._groups:
            grid = self._schedule.grid
            length, stride = grid.length(axis), grid.stride(axis)
            first = rising(own.ranks - own.ranks // stride % length * stride)
            self._groups[key] = first[:, None] + stride * np.arange(length)
        return self._groups[key]

    def _carry(self, op: CommunicationOp, moment: Coordinates, meeting: PendingCollective, groups: Ints) -> None:
        """The op on complete groups."""
        self.finished += 1
        ranks = groups.ravel()
        meeting.done[ranks] = True
        latest = meeting.times[TYPICAL][groups].max(axis=1)
        meeting.arrival[ranks] = np.repeat(latest, groups.shape[1])
        if groups.shape[1] == 1:
            story = self._copy_alone(op, moment, meeting, ranks)
        elif self._nccl is not None and isinstance(op, Collective):
            story = self._by_nccl(self._nccl, op, moment, meeting, groups)
        else:
            story = self._by_steps(op, moment, meeting, groups[:, 0])
        if len(ranks) == len(meeting.done):
            meeting.story = story
            return
        if not len(meeting.story.latency):
            meeting.story = TimeParts.of(len(meeting.done))
        meeting.story.put(ranks, story.of_ranks(ranks))

    def _by_steps(self, op: CommunicationOp, moment: Coordinates, meeting: PendingCollective, first: Ints) -> TimeParts:
        """Groups, of which these are the first ranks, message by message."""
        ready = self._prepared.ready(op, moment, first)
        for one, overhead in zip(ready.parts, ready.overhead, strict=True):
            ends, messages = passed(one, meeting.times[:, one.ranks] + overhead)
            meeting.ends[:, one.ranks] = ends
            self.carried.take(one.told)
            self.carried.messages += messages
            if one.told.extrapolated:
                self._extrapolated.add(op.name)
        return ready.story

    def post(self, op: Send | Receive, moment: Coordinates, own: RankGroup, start: Floats) -> PendingMessage:
        """The message of an instance, at one end of which these ranks now are; it is delivered once both are there.

        The k-th message that a program sends to another on a lane meets the k-th that the other receives from it.
        """
        sends = isinstance(op, Send)
        to = evaluate(op.to if isinstance(op, Send) else op.sender, replace(moment, along=own.place.along))
        stride = self._schedule.grid.stride(op.axis)
        peer = int(self._program_of[own.ranks[0] + (to - own.place.along[op.axis]) * stride])
        channel = lane(op), *((own.number, peer) if sends else (peer, own.number))
        key = *channel, self._posted[*channel, sends]
        self._posted[*channel, sends] += 1
        message = self._messages.setdefault(key, PendingMessage())
        message.begin[sends] = start + self._prepared.overhead(alone=False)
        if isinstance(op, Send):
            message.ready = self._prepared.message(own.number, op, moment, own.ranks)
        if len(message.begin) == 2:
            self._deliver(op, self._messages.pop(key))
        return message

    def _deliver(self, op: Send | Receive, message: PendingMessage) -> None:
        assert message.ready is not None
        for one in message.ready.parts:
            pairs = np.stack([message.begin[True], message.begin[False]], axis=2)
            ends, messages = passed(one, pairs.reshape(ROWS, -1))
            message.ends = {True: ends[:, ::2].copy(), False: ends[:, 1::2].copy()}
            self.carried.take(one.told)
            self.carried.messages += messages
            if one.told.extrapolated:
                self._extrapolated.add(op.name)
        self.finished += 1

    def _by_nccl(
        self, nccl: NcclTimes, op: Collective, moment: Coordinates, meeting: PendingCollective, groups: Ints
    ) -> TimeParts:
        """Groups begin when their last member has come, and take what NCCL's model says."""
        size = self._looks.bytes(op, moment, groups[:, 0])
        seconds = nccl.seconds(op, moment, groups, size)
        delayed = nccl.delayed(op.name, self._beside.get(op.name, {}))
        begin = meeting.times[:, groups].max(axis=2, keepdims=True)
        high = self._prepared.slowdown(op) * (seconds + delayed)
        meeting.ends[:, groups] = begin + np.stack([seconds, seconds, high])
        self.carried.links += nccl.link_bytes(op, moment, groups, size)
        self.carried.messages += groups.size
        story = TimeParts.of(len(meeting.done))
        story.bandwidth[groups] = seconds
        return story

    def _copy_alone(
        self, op: CommunicationOp, moment: Coordinates, meeting: PendingCollective, ranks: Ints
    ) -> TimeParts:
        overhead = self._prepared.overhead(alone=True)
        seconds, extrapolated = self._prepared.alone(op, moment, ranks)
        local = self._costs.local
        slow = np.stack([np.ones(len(ranks)), 1 / local.moving[ranks], 1 / local.least[ranks]])
        meeting.ends[:, ranks] = meeting.times[:, ranks] + overhead + seconds * slow
        if extrapolated:
            self._extrapolated.add(op.name)
        story = TimeParts.of(len(meeting.done))
        story.overhead[ranks], story.compute[ranks] = overhead, seconds
        return story


@dataclass(slots=True, eq=False)
class OpEnd:
    """When an instance ends on the ranks of a program [3, ranks]; the how manieth instance of all it is, on which lane.

    Parameters
    ----------
    message : that has not been delivered as far as is known; these ranks are its senders or its receivers
    """

    number: int
    name: str = ""
    lane: str = ""
    times: Floats = field(default_factory=lambda: np.zeros((ROWS, 0)))
    message: PendingMessage | None = None
    sends: bool = False

    def known(self) -> bool:
        """Whether it is known by now."""
        if self.message is not None and self.message.ends:
            self.times, self.message = self.message.ends[self.sends], None
        return self.message is None


def last_of_lanes(ends: Iterable[OpEnd]) -> list[OpEnd]:
    """Of each lane the last of these instances: lanes keep their order, so the others have ended by then."""
    found: dict[str, OpEnd] = {}
    for one in ends:
        if one.lane not in found or found[one.lane].number < one.number:
            found[one.lane] = one
    return list(found.values())


def latest(nothing: Floats, times: Iterable[Floats]) -> Floats:
    """The latest of these on each rank; it may be one of them, and is not to be written to."""
    found = nothing
    for at, one in enumerate(times):
        found = one if at == 0 else np.maximum(found, one, out=None if at == 1 else found)
    return found
