"""Labels and channels of all ranks: ranks with equal labels do the same work, and channels list who sends to whom.

Two ranks have the same *label* if they execute the same ops, with the same sizes in
the same steps, whoever their peers are. Who sends to whom is listed by lane
(`channels.py`), with a label that says in which steps of which patterns. A
*pattern* is all that collectives of one kind, algorithm, root and number of pieces
do on a lane, so a schedule of a hundred layers has no more patterns than one layer.

Exact folding (`fold.py`) starts from labels and channels. Labels may be finer than needed, never
coarser. An op depends on few axes, and is analysed once for each combination of
coordinates along these.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from quadrille.algorithms.analysis.coordinate_dependence import Dependence
from quadrille.algorithms.analysis.equality_labels import Ints, value_labels
from quadrille.algorithms.analysis.op_plans import channel_name
from quadrille.algorithms.analysis.storage import local_copies
from quadrille.algorithms.analysis.traffic import Traffic, traffic
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import AXES, Axis
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Communication,
    CommunicationOp,
    Op,
    Receive,
    Reduce,
    ReduceScatter,
    Send,
    Shift,
    message_lane,
    reads,
    writes,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.symmetry.channels import Channels, ChannelUses, MemberKinds, equal_pieces
from quadrille.simulator.symmetry.signatures import (
    Key,
    LoopPosition,
    RankLabels,
    RanksByKind,
    Signatures,
    loop_count_axes,
)

EndKinds = Callable[[Collective], tuple[int, ...]]
"""A number for each member of a collective's groups, equal for members that end together; empty if all do."""
LISTED = 1 << 23
"""Largest number of listed channel uses; above it, each rank talks to hundreds of other ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class Patterns(Channels):
    """Labels of ranks, and channels.

    Parameters
    ----------
    labels : label of each rank
    iterations : signature of each iteration of each loop, by position of the loop: equal numbers mean equal sizes,
        peers and roots on all ranks; only the iterations that all ranks execute
    """

    labels: Ints
    iterations: dict[LoopPosition, list[int]]


def patterns(schedule: Schedule, choices: Choices, member_kinds: EndKinds) -> Patterns | None:
    """The patterns of a schedule; None if there are too many channels to list.

    Parameters
    ----------
    member_kinds : function from a collective to the kinds of its members that end together
    """
    search = _PatternSearch(schedule, choices, member_kinds)
    search.visit()
    return search.result()


class _PatternSearch:
    """Visits every program once and collects labels and uses of channels."""

    def __init__(self, schedule: Schedule, choices: Choices, member_kinds: EndKinds) -> None:
        self.schedule = schedule
        self._choices, self._kinds_of_members = choices, member_kinds
        self._grid = schedule.grid
        self._labels = RankLabels(schedule.grid)
        self._members: dict[Key, MemberKinds] = {}
        self._uses = ChannelUses(schedule.grid)
        self._recorded: set[Key] = set()
        self._iterations: list[dict[LoopPosition, list[int]]] = []

    # Programs

    def visit(self) -> None:
        """Visits every op at all loop indices that differ, for the ranks of one program and number of iterations."""
        for position, (ranks, coordinates) in enumerate(self._programs()):
            self._labels.of_rank[ranks] = position
            signatures = Signatures(self.schedule, partial(self._analyse, ranks))
            self._iterations.append(signatures.iterations(self.schedule.program(coordinates), coordinates))

    def iterations(self) -> dict[LoopPosition, list[int]]:
        """The signature of each iteration of each loop, over all ranks that have the loop."""
        iterations = {}
        for loop in dict.fromkeys(loop for iterations in self._iterations for loop in iterations):
            numbers_of_programs = zip(
                *(iterations[loop] for iterations in self._iterations if loop in iterations), strict=False
            )
            iterations[loop] = value_labels(list(numbers_of_programs)).tolist()
        return iterations

    def _programs(self) -> Iterator[tuple[Ints, Coordinates]]:
        """Ranks that follow one program for the same number of iterations, with coordinates of the program."""
        axes: set[Axis] = {role.axis for role in self.schedule.roles if role.axis is not None}
        for role in self.schedule.roles:
            axes |= loop_count_axes(role.program)
        chosen = sorted(axes)
        for coordinates in product(*(range(self._grid.length(axis)) for axis in chosen)):
            chosen_coordinates = dict(zip(chosen, coordinates, strict=True))
            ranks = np.arange(self._grid.size)
            for axis, coordinate in chosen_coordinates.items():
                ranks = ranks[self._labels.coordinates[axis][ranks] == coordinate]
            yield (
                ranks,
                Coordinates(self._grid, self.schedule.sizes, {axis: chosen_coordinates.get(axis, 0) for axis in AXES}),
            )

    # Ops

    def _analyse(self, ranks: Ints, op: Op, coordinates: Coordinates, dependence: Dependence) -> Key:
        """Adds an op to labels and channels; equal results mean that it does the same on all ranks."""
        if not isinstance(op, Communication):
            tensors = [self.schedule.tensors[name] for name in dict.fromkeys((*reads(op), *writes(op)))]
            values, by = self._labels.by_kind(
                dependence, coordinates, ranks, lambda at: tuple(tensor.block(at).shape for tensor in tensors)
            )
            return self._distinguish(by, values)
        if self._grid.length(op.axis) == 1:
            values, by = self._labels.by_kind(
                dependence, coordinates, ranks, lambda at: self._single_rank_copies(op, at)
            )
            return self._distinguish(by, values)
        if isinstance(op, Send | Receive | Shift):
            return self._peer_to_peer(op, coordinates, dependence, ranks)
        assert isinstance(op, Collective)
        return self._collective(op, coordinates, dependence, ranks)

    def _distinguish(self, by: RanksByKind, values: Sequence[Key]) -> Key:
        """Gives ranks with different values different labels."""
        self._labels.distinguish(by, value_labels(values).tolist())
        return tuple(values)

    def _single_rank_copies(self, op: CommunicationOp, coordinates: Coordinates) -> Key:
        """The local copies of a rank that is alone in its group."""
        return local_copies(op, self.schedule, coordinates, traffic(op, self.schedule, coordinates, self._choices))

    def _collective(self, op: Collective, coordinates: Coordinates, dependence: Dependence, ranks: Ints) -> Key:
        """Adds a collective, analysed once for each kind of group; members differ by `MemberKinds`."""
        axes = set(dependence.axes) - {op.axis}
        if not same_on_all_members(op, self.schedule):
            axes.add(op.axis)
            dependence = replace(dependence, distinct_axes=dependence.distinct_axes | {op.axis})
        patterns_of: dict[Key, tuple[str, Key]] = {}

        def analyse(coordinates: Coordinates) -> Key:
            sent = traffic(op, self.schedule, coordinates, self._choices)
            assert sent is not None
            key, even = self._pattern(op, sent), equal_pieces(sent)
            sizes = (key, sent.edges[:2] if even else (sent.edges, sent.receive_edges))
            patterns_of[sizes] = channel_name(op, sent), key
            return sizes

        values, by = self._labels.by_kind(dependence, coordinates, ranks, analyse, axes)
        sizes = value_labels(values).tolist()
        seen_key = op.axis, by, tuple(sizes), tuple(patterns_of[value] for value in values)
        if seen_key not in self._recorded:
            self._recorded.add(seen_key)
            self._labels.distinguish(by, sizes)
            self._group_members(op.axis, by, sizes, dict(zip(sizes, seen_key[-1], strict=True)))
        return tuple(values)

    def _group_members(
        self, axis: Axis, by: RanksByKind, sizes: Sequence[int], patterns_of: dict[int, tuple[str, Key]]
    ) -> None:
        """Adds the uses of lanes by the groups of each size, and distinguishes their members."""
        size, member = np.array(sizes)[by.which], self._labels.coordinates[axis][by.ranks]
        kinds = np.zeros(len(by.ranks), dtype=np.int64)
        for number, (lane_name, key) in patterns_of.items():
            ranks_of_size = np.flatnonzero(size == number)
            kinds[ranks_of_size] = self._members[key].kinds[member[ranks_of_size]]
            first = by.ranks[ranks_of_size] - member[ranks_of_size] * self._grid.stride(axis)
            self._uses.by_groups(axis, lane_name, key, self._members[key], first)
        self._labels.split(by.ranks, kinds)

    def _pattern(self, op: Collective, sent: Traffic) -> Key:
        """The key of a collective's pattern, whose members are analysed once."""
        lowered, even, kinds = sent.lowered, equal_pieces(sent), self._kinds_of_members(op)
        key = (type(op), lowered.algorithm, lowered.members, lowered.pieces, lowered.steps, sent.root, even, kinds)
        if key not in self._members:
            marks = np.array(kinds) if kinds else np.zeros(lowered.members, dtype=np.int64)
            if isinstance(op, Broadcast | Reduce):
                marks = 2 * marks + (np.arange(lowered.members) == sent.root)
            self._members[key] = MemberKinds.of(lowered, marks, even=even)
        return key

    def _peer_to_peer(
        self, op: Send | Receive | Shift, coordinates: Coordinates, dependence: Dependence, ranks: Ints
    ) -> Key:
        """Adds a send, a receive or a shift."""
        stride = self._grid.stride(op.axis)
        dependence = replace(dependence, distinct_axes=dependence.distinct_axes | {op.axis})
        values, by = self._labels.by_kind(dependence, coordinates, ranks, lambda at: self._peers(op, at))
        first = ranks - self._labels.coordinates[op.axis][ranks] * stride
        to, sender = (np.array([-1 if peers[side] is None else peers[side] for peers in values]) for side in (0, 1))
        sends, receives = (to[by.which] >= 0), (sender[by.which] >= 0)
        event = type(op), op.name, dependence.of_indices(coordinates.indices)
        receivers, senders = ((first + peer[by.which] * stride) for peer in (to, sender))
        self._uses.point_to_point(message_lane(op), ranks[sends], receivers[sends], (*event, "sends"))
        self._uses.point_to_point(message_lane(op), senders[receives], ranks[receives], (*event, "receives"))
        kinds = [(to is None, sender is None, to == sender, *sizes) for to, sender, *sizes in values]
        self._labels.distinguish(by, value_labels(kinds).tolist())
        return tuple(values)

    def _peers(self, op: Send | Receive | Shift, coordinates: Coordinates) -> tuple[Any, ...]:
        """The coordinates of the receiver and the sender, the local copies, and the elements sent and received."""
        sent = traffic(op, self.schedule, coordinates, self._choices)
        local = local_copies(op, self.schedule, coordinates, sent)
        if sent is None:
            return None, None, local, 0, 0
        (exchange,) = sent.exchanges()
        return exchange.send_to, exchange.receive_from, local, exchange.sent, exchange.received

    def result(self) -> Patterns | None:
        """All labels and channels, after `visit`."""
        if self._uses.count() > LISTED:
            return None
        channels = self._uses.channels()
        return Patterns(
            channels.lanes,
            channels.lane,
            channels.sender,
            channels.receiver,
            channels.label,
            self._labels.of_rank,
            self.iterations(),
        )


def same_on_all_members(op: Collective, schedule: Schedule) -> bool:
    """Whether all members of a group send the same pieces of the same buffer."""
    match op:
        case AllToAll():
            return False
        case Barrier():
            return True
        case AllGather() | Broadcast():
            whole = op.into
        case ReduceScatter() | Reduce():
            whole = op.source
        case AllReduce():
            return all(op.axis not in schedule.tensors[name].cut_over for name in op.buffers)
    return op.axis not in schedule.tensors[whole].cut_over
