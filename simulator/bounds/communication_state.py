"""`CommunicationState`: communication ops in progress during a bounds walk, with the arrivals and ends of their ranks.

A collective runs once all members of a group have arrived; a message once both
its sender and its receiver have. Programs are walked one after the other, so
an instance waits here for the ranks of the other programs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.equality_labels import Ints, compact, sorted_distinct
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import (
    Collective,
    CommunicationOp,
    Op,
    Receive,
    Send,
    collective_kind,
    lane,
    message_lane,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.simulator.bounds.channels import TYPICAL
from quadrille.simulator.bounds.group_work import Key
from quadrille.simulator.bounds.message_times import end_times
from quadrille.simulator.bounds.op_instances import ROWS, ChannelTotals, OpTimeParts
from quadrille.simulator.bounds.walk_inputs import PreparedOp, RankGroup, WalkInputs
from quadrille.topologies.network import Floats

if TYPE_CHECKING:
    from quadrille.simulator.bounds.nccl_times import NcclTimes


@dataclass(slots=True, eq=False)
class PendingCollective:
    """An instance of a collective on all ranks: the arrival and end times, and which ranks have arrived and ended.

    Parameters
    ----------
    times, ends : arrival and end of each rank [3, ranks] [s]
    arrival : typical time at which the last member of a rank's group has arrived [ranks] [s]
    arrived, done : whether each rank has arrived, and has ended [ranks]
    """

    times: Floats
    arrival: Floats
    ends: Floats
    arrived: NDArray[np.bool_]
    done: NDArray[np.bool_]
    time_parts: OpTimeParts


@dataclass(slots=True, eq=False)
class PendingMessage:
    """The messages of one instance of a send: every rank of one program sends one message to a rank of another.

    Parameters
    ----------
    begin, ends : arrival times and end times; the senders' under True, the receivers' under False
    ready : the messages, prepared; None until they are sent
    """

    begin: dict[bool, Floats] = field(default_factory=dict)
    ends: dict[bool, Floats] = field(default_factory=dict)
    ready: PreparedOp | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _NcclCost:
    """The cost of a collective by NCCL's model.

    Parameters
    ----------
    seconds : time from the begin of a group to the end of each member [groups, members] [s]
    link_bytes : bytes over each link [links]
    """

    seconds: Floats
    link_bytes: Floats
    time_parts: OpTimeParts
    label: str
    _of_groups: dict[int, OpTimeParts] = field(default_factory=dict)

    def of_group(self, group: RankGroup) -> OpTimeParts:
        """The breakdown of the time of the ranks of a program, computed once."""
        if group.is_all:
            return self.time_parts
        if group.number not in self._of_groups:
            self._of_groups[group.number] = self.time_parts.of_ranks(group.ranks)
        return self._of_groups[group.number]


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveEnd:
    """The times of one instance of a collective on the ranks of a program.

    Parameters
    ----------
    times : end times [3, ranks] [s]
    arrival : typical time at which the last member of a rank's group has arrived; None if ranks wait for no other
        rank [ranks] [s]
    """

    times: Floats
    arrival: Floats | None
    time_parts: OpTimeParts


class CommunicationState:
    """All communication of a walk.

    Parameters
    ----------
    rank_groups : the ranks of all programs
    extrapolated : names of ops whose time is extrapolated beyond measurements are added here
    finished : number of ops executed so far
    carried : totals of the channels
    """

    def __init__(self, inputs: WalkInputs, rank_groups: Sequence[RankGroup], extrapolated: set[str]) -> None:
        self._schedule, self._cost_model, self._schedule_work = inputs.schedule, inputs.cost_model, inputs.schedule_work
        self._overlaps, self._nccl, self._op_costs = inputs.concurrency.overlaps, inputs.nccl, inputs.op_costs
        self._lanes = {op.name: lane(op) for op in all_ops(inputs.schedule)}
        self._by_lane: dict[str, list[dict[str, int]]] = {}
        self._extrapolated = extrapolated
        self._collectives: dict[tuple[str, int], PendingCollective] = {}
        self._messages: dict[tuple[str, int, int, int], PendingMessage] = {}
        self._posted: Counter[tuple[str, int, int, bool]] = Counter()
        self._groups: dict[tuple[int, Axis], Ints] = {}
        self._nccl_costs: dict[Key, _NcclCost] = {}
        self._copy_costs: dict[Key, tuple[Floats, OpTimeParts]] = {}
        self._indices: dict[tuple[int, Axis], Ints] = {}
        self._program_of = np.zeros(inputs.schedule.grid.size, dtype=np.int64)
        for group in rank_groups:
            self._program_of[group.at] = group.number
        self.finished = 0
        channels = inputs.cost_model.channels
        self.carried = ChannelTotals.none(len(channels.keys), len(channels.capacities))

    def within(
        self, op: CommunicationOp, coordinates: Coordinates, group: RankGroup, start: Floats
    ) -> CollectiveEnd | None:
        """Executes an op whose cost is the same whenever it runs and whose groups hold no ranks of other programs.

        Returns None for any other op; see `join`.

        Parameters
        ----------
        start : arrival of the ranks [3, ranks] [s]
        """
        groups = self._groups_of(op.axis, group)
        if groups.shape[1] == 1:
            self.finished += 1
            durations, time_parts = self._copies_alone(op, coordinates, group)
            return CollectiveEnd(start + durations, None, time_parts)
        if self._nccl is None or not isinstance(op, Collective) or groups.size != len(group.ranks):
            return None
        self.finished += 1
        return self._nccl_within(self._nccl, op, coordinates, group, start)

    def join(self, op: CommunicationOp, index: int, group: RankGroup, start: Floats) -> PendingCollective:
        """The pending instance of an op, with the arrival of these ranks recorded.

        Parameters
        ----------
        index : index of the instance among those of the op
        start : arrival of the ranks [3, ranks] [s]
        """
        if group.is_all:
            return self._pending_collective(start)
        pending = self._collectives.get((op.name, index))
        if pending is None:
            pending = self._collectives[op.name, index] = self._pending_collective(
                np.zeros((ROWS, self._schedule.grid.size))
            )
            pending.arrived[:] = False
        pending.times[:, group.ranks] = start
        pending.arrived[group.ranks] = True
        return pending

    def _pending_collective(self, times: Floats) -> PendingCollective:
        """A pending instance at which all ranks arrive at these times."""
        size = times.shape[1]
        arrived = np.ones(size, dtype=bool)
        return PendingCollective(times, np.zeros(size), np.zeros_like(times), arrived, ~arrived, OpTimeParts.of(0))

    def discard(self, op: Op, index: int, pending: PendingCollective) -> None:
        """Drops an instance that all ranks have ended."""
        if pending.done.all():
            self._collectives.pop((op.name, index), None)

    def complete(
        self, op: CommunicationOp, coordinates: Coordinates, pending: PendingCollective, group: RankGroup
    ) -> bool:
        """Whether the groups of these ranks have ended the op; groups that are complete execute it now."""
        groups = self._groups_of(op.axis, group)
        if group.is_all:
            self._execute(op, coordinates, pending, groups)
            return True
        complete = pending.arrived[groups].all(axis=1) & ~pending.done[groups].any(axis=1)
        if complete.any():
            self._execute(op, coordinates, pending, groups[complete])
        return bool(pending.done[group.ranks].all())

    def _groups_of(self, axis: Axis, group: RankGroup) -> Ints:
        """The groups along an axis that these ranks belong to [groups, members]."""
        key = group.number, axis
        if key not in self._groups:
            grid = self._schedule.grid
            length, stride = grid.length(axis), grid.stride(axis)
            first = sorted_distinct(group.ranks - group.ranks // stride % length * stride)
            self._groups[key] = first[:, None] + stride * np.arange(length)
        return self._groups[key]

    def _execute(self, op: CommunicationOp, coordinates: Coordinates, pending: PendingCollective, groups: Ints) -> None:
        """Executes the op on complete groups."""
        self.finished += 1
        ranks = groups.ravel()
        pending.done[ranks] = True
        latest = pending.times[TYPICAL][groups].max(axis=1)
        pending.arrival[ranks] = np.repeat(latest, groups.shape[1])
        if self._nccl is not None and isinstance(op, Collective):
            time_parts = self._by_nccl(self._nccl, op, coordinates, pending, groups)
        else:
            time_parts = self._by_steps(op, coordinates, pending, groups[:, 0])
        if len(ranks) == len(pending.done):
            pending.time_parts = time_parts
            return
        if not len(pending.time_parts.latency):
            pending.time_parts = OpTimeParts.of(len(pending.done))
        pending.time_parts.set_ranks(ranks, time_parts.of_ranks(ranks))

    def _by_steps(
        self, op: CommunicationOp, coordinates: Coordinates, pending: PendingCollective, first: Ints
    ) -> OpTimeParts:
        """Executes the op message by message on groups with these first ranks."""
        ready = self._op_costs.ready(op, coordinates, first)
        for steps, overhead in zip(ready.steps, ready.overhead, strict=True):
            ends, messages = end_times(steps, pending.times[:, steps.ranks] + overhead)
            pending.ends[:, steps.ranks] = ends
            self.carried.add_instance(steps.totals)
            self.carried.messages += messages
            if steps.totals.extrapolated:
                self._extrapolated.add(op.name)
        return ready.time_parts

    def post(self, op: Send | Receive, coordinates: Coordinates, group: RankGroup, start: Floats) -> PendingMessage:
        """The message of a send or receive, which is delivered once both ends have arrived.

        The k-th message that a program sends to another on a lane meets the k-th receive of the other from it.
        """
        sends = isinstance(op, Send)
        to = evaluate(op.to if isinstance(op, Send) else op.sender, replace(coordinates, along=group.coordinates.along))
        stride = self._schedule.grid.stride(op.axis)
        peer = int(self._program_of[group.ranks[0] + (to - group.coordinates.along[op.axis]) * stride])
        channel = message_lane(op), *((group.number, peer) if sends else (peer, group.number))
        key = *channel, self._posted[*channel, sends]
        self._posted[*channel, sends] += 1
        message = self._messages.setdefault(key, PendingMessage())
        message.begin[sends] = start + self._op_costs.overhead(alone=False)
        if isinstance(op, Send):
            message.ready = self._op_costs.message(group.number, op, coordinates, group.ranks)
        if len(message.begin) == 2:
            self._deliver(op, self._messages.pop(key))
        return message

    def _deliver(self, op: Send | Receive, message: PendingMessage) -> None:
        """Computes the times at which the sender and the receiver of a message end."""
        assert message.ready is not None
        for steps in message.ready.steps:
            pairs = np.stack([message.begin[True], message.begin[False]], axis=2)
            ends, messages = end_times(steps, pairs.reshape(ROWS, -1))
            message.ends = {True: ends[:, ::2].copy(), False: ends[:, 1::2].copy()}
            self.carried.add_instance(steps.totals)
            self.carried.messages += messages
            if steps.totals.extrapolated:
                self._extrapolated.add(op.name)
        self.finished += 1

    def _by_nccl(
        self, nccl: "NcclTimes", op: Collective, coordinates: Coordinates, pending: PendingCollective, groups: Ints
    ) -> OpTimeParts:
        """Executes the op by NCCL's model, in which groups begin when their last member has arrived."""
        cost = self._nccl_cost(nccl, op, coordinates, groups, len(pending.done))
        begin = pending.times[:, groups].max(axis=2, keepdims=True)
        pending.ends[:, groups] = begin + self._nccl_seconds(nccl, op, cost)
        return cost.time_parts

    def _nccl_within(
        self, nccl: "NcclTimes", op: Collective, coordinates: Coordinates, group: RankGroup, start: Floats
    ) -> CollectiveEnd:
        """Executes the op by NCCL's model on groups that hold no ranks of other programs."""
        groups = self._groups_of(op.axis, group)
        cost = self._nccl_cost(nccl, op, coordinates, groups, self._schedule.grid.size)
        position = group.number, op.axis
        if position not in self._indices:
            self._indices[position] = np.searchsorted(group.ranks, groups)
        indices = self._indices[position]
        begin = start[:, indices].max(axis=2, keepdims=True)
        times, arrival = np.empty_like(start), np.empty(start.shape[1])
        times[:, indices] = begin + self._nccl_seconds(nccl, op, cost)
        arrival[indices] = begin[TYPICAL]
        return CollectiveEnd(times, arrival, cost.of_group(group))

    def _nccl_seconds(self, nccl: "NcclTimes", op: Collective, cost: "_NcclCost") -> Floats:
        """Seconds of the op in each row for each member [3, groups, members]; its traffic is added to the totals."""
        delay = nccl.delay(cost.seconds, self._overlaps_by_lane(op))
        self.carried.links += cost.link_bytes
        self.carried.messages += cost.seconds.size
        return np.stack([cost.seconds, cost.seconds, self._op_costs.slowdown(op) * (cost.seconds + delay)])

    def _overlaps_by_lane(self, op: Collective) -> list[dict[str, int]]:
        """For each lane, how many instances of its ops may overlap one instance of the op."""
        if op.name not in self._by_lane:
            by_lane: dict[str, dict[str, int]] = defaultdict(dict)
            for name, count in self._overlaps.get(op.name, {}).items():
                by_lane[self._lanes[name]][name] = count
            self._by_lane[op.name] = list(by_lane.values())
        return self._by_lane[op.name]

    def _nccl_cost(
        self, nccl: "NcclTimes", op: Collective, coordinates: Coordinates, groups: Ints, ranks: int
    ) -> "_NcclCost":
        """The cost of an op on these groups by NCCL's model, cached by what the op does."""
        key = self._schedule_work.key(op, coordinates), groups[:, 0].tobytes()
        if key not in self._nccl_costs:
            size = self._schedule_work.buffer_bytes(op, coordinates, groups[:, 0])
            pairs = self._schedule_work.pair_bytes(op, coordinates, int(groups[0, 0]))
            seconds = nccl.seconds(op, coordinates, groups, size, pairs)
            root, routed = evaluate(getattr(op, "root", 0), coordinates), getattr(op, "routed", None)
            like = collective_kind(op), root, routed, size, pairs, groups.shape, key[1]
            if like not in self._nccl_costs:
                time_parts = OpTimeParts.of(ranks)
                time_parts.set_causes(groups, seconds, nccl.causes(op, coordinates, groups, size, pairs))
                link_bytes = nccl.link_bytes(op, coordinates, groups, size, pairs)
                self._nccl_costs[like] = _NcclCost(seconds, link_bytes, time_parts.thin(), nccl.labels[op.name])
            self._nccl_costs[key] = self._nccl_costs[like]
        cost = self._nccl_costs[key]
        nccl.labels[op.name] = cost.label
        return cost

    def _copies_alone(
        self, op: CommunicationOp, coordinates: Coordinates, group: RankGroup
    ) -> tuple[Floats, OpTimeParts]:
        """Seconds of an op on ranks that are alone in their groups [3, ranks]: a copy; and their breakdown."""
        key = group.number, self._schedule_work.key(op, coordinates)
        if key not in self._copy_costs:
            overhead, local = self._op_costs.overhead(alone=True), self._cost_model.local
            seconds, extrapolated = self._op_costs.alone(op, coordinates, group.ranks)
            slow = np.stack([np.ones(len(group.ranks)), 1 / local.moving[group.ranks], 1 / local.least[group.ranks]])
            if extrapolated:
                self._extrapolated.add(op.name)
            time_parts = OpTimeParts.of(len(group.ranks))
            time_parts.overhead[:], time_parts.compute[:] = overhead, seconds
            self._copy_costs[key] = compact(overhead + seconds * slow), time_parts.thin()
        return self._copy_costs[key]


@dataclass(slots=True, eq=False)
class OpEnd:
    """The end times of an instance on the ranks of a program.

    Parameters
    ----------
    number : position of the instance among all instances of the program, from 1
    times : end times [3, ranks] [s]
    message : the message that is not delivered yet; None once the times are final
    sends : whether these ranks are the senders of the message
    posted : whether the instance has started; a message starts once what it awaits has ended
    """

    number: int
    name: str = ""
    lane: str = ""
    times: Floats = field(default_factory=lambda: np.zeros((ROWS, 0)))
    message: PendingMessage | None = None
    sends: bool = False
    posted: bool = True

    def is_final(self) -> bool:
        """Whether the end times are final."""
        if not self.posted:
            return False
        if self.message is not None and self.message.ends:
            self.times, self.message = self.message.ends[self.sends], None
        return self.message is None


def last_of_lanes(ends: Iterable[OpEnd]) -> list[OpEnd]:
    """The last of these instances on each lane; earlier instances of the lane have ended by then."""
    last: dict[str, OpEnd] = {}
    for end in ends:
        if end.lane not in last or last[end.lane].number < end.number:
            last[end.lane] = end
    return list(last.values())


def latest(nothing: Floats, times: Iterable[Floats]) -> Floats:
    """The latest of these times on each rank, else `nothing`; a read-only array, which may be one of the inputs."""
    times_so_far = nothing
    for at, column in enumerate(times):
        times_so_far = column if at == 0 else np.maximum(times_so_far, column, out=None if at == 1 else times_so_far)
    return times_so_far
