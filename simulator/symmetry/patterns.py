"""What the ranks of a schedule do, and who sends to whom, for all of them at once.

Two ranks have the same *colour* if they do the same ops, with the same sizes in
the same steps, whoever their peers are.  Who sends to whom is listed by lane
(`channels.py`), with a label that says in which steps of which patterns.  A pattern
is all that collectives of one kind, algorithm, root and number of pieces do on a
lane, so a schedule of a hundred layers has no more patterns than one of a single layer.

Both are what exact folding starts from (`fold.py`): colours may be finer than
needed, never coarser.  An op depends on a few axes only, and is looked at once
for each combination of coordinates along these.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from quadrille.algorithms.analysis.coordinate_dependence import Dependence
from quadrille.algorithms.analysis.labels import Ints, numbered
from quadrille.algorithms.analysis.op_plans import wires_of
from quadrille.algorithms.analysis.storage import local_copies
from quadrille.algorithms.analysis.traffic import Traffic, traffic
from quadrille.algorithms.collectives.choices import Choices
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
    lane,
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
"""A number for each member of a collective's groups, the same for those that end together; none where all do."""
LISTED = 1 << 23
"""More are not worth listing: each rank talks to hundreds, and every transfer between classes is simulated anyway."""


@dataclass(frozen=True, slots=True, eq=False)
class Patterns(Channels):
    """Colours of ranks, and channels.

    Parameters
    ----------
    colours : of each rank
    turns : what all ranks that have a loop do in each of its turns, by where it stands: the same numbers, the same
        sizes, peers and roots; only the turns that all of them take
    """

    colours: Ints
    turns: dict[LoopPosition, list[int]]


def patterns(schedule: Schedule, choices: Choices, kinds_of_members: EndKinds) -> Patterns | None:
    """The patterns of a schedule; None where there are too many channels to list.

    Parameters
    ----------
    kinds_of_members : which members of a collective end at times of their own, whatever steps they do
    """
    found = _PatternSearch(schedule, choices, kinds_of_members)
    found.look()
    return found.result()


class _PatternSearch:
    """Goes through every program once and collects colours and uses of channels."""

    def __init__(self, schedule: Schedule, choices: Choices, kinds_of_members: EndKinds) -> None:
        self.schedule = schedule
        self._choices, self._kinds_of_members = choices, kinds_of_members
        self._grid = schedule.grid
        self._colours = RankLabels(schedule.grid)
        self._members: dict[Key, MemberKinds] = {}
        self._uses = ChannelUses(schedule.grid)
        self._noted: set[Key] = set()
        self._turns: list[dict[LoopPosition, list[int]]] = []

    # Programs

    def look(self) -> None:
        """Every op at every moment that differs, for the ranks that follow one program for the same number of turns."""
        for position, (ranks, place) in enumerate(self._alike_programs()):
            self._colours.of_rank[ranks] = position
            looks = Signatures(self.schedule, partial(self._look_at, ranks))
            self._turns.append(looks.turns(self.schedule.program(place), place))

    def turns(self) -> dict[LoopPosition, list[int]]:
        """What all ranks that have a loop do together in each of its turns."""
        found = {}
        for loop in dict.fromkeys(loop for turns in self._turns for loop in turns):
            together = zip(*(turns[loop] for turns in self._turns if loop in turns), strict=False)
            found[loop] = numbered(list(together)).tolist()
        return found

    def _alike_programs(self) -> Iterator[tuple[Ints, Coordinates]]:
        axes: set[Axis] = {role.axis for role in self.schedule.roles if role.axis is not None}
        for role in self.schedule.roles:
            axes |= loop_count_axes(role.program)
        chosen = sorted(axes)
        for coordinates in product(*(range(self._grid.length(axis)) for axis in chosen)):
            given = dict(zip(chosen, coordinates, strict=True))
            ranks = np.arange(self._grid.size)
            for axis, coordinate in given.items():
                ranks = ranks[self._colours.coordinates[axis][ranks] == coordinate]
            yield ranks, Coordinates(self._grid, self.schedule.sizes, {axis: given.get(axis, 0) for axis in AXES})

    # Ops

    def _look_at(self, ranks: Ints, op: Op, moment: Coordinates, needed: Dependence) -> Key:
        """Notes what an op does to colours and channels; equal for moments at which it does the same on all ranks."""
        if not isinstance(op, Communication):
            tensors = [self.schedule.tensors[name] for name in dict.fromkeys((*reads(op), *writes(op)))]
            values, by = self._colours.looked_at(
                needed, moment, ranks, lambda place: tuple(tensor.block(place).shape for tensor in tensors)
            )
            return self._told_apart(by, values)
        if self._grid.length(op.axis) == 1:
            values, by = self._colours.looked_at(needed, moment, ranks, lambda place: self._alone(op, place))
            return self._told_apart(by, values)
        if isinstance(op, Send | Receive | Shift):
            return self._point_to_point(op, moment, needed, ranks)
        assert isinstance(op, Collective)
        return self._collective(op, moment, needed, ranks)

    def _told_apart(self, by: RanksByKind, values: Sequence[Key]) -> Key:
        self._colours.told_apart(by, numbered(values).tolist())
        return tuple(values)

    def _alone(self, op: CommunicationOp, place: Coordinates) -> Key:
        return local_copies(op, self.schedule, place, traffic(op, self.schedule, place, self._choices))

    def _collective(self, op: Collective, moment: Coordinates, needed: Dependence, ranks: Ints) -> Key:
        """One look for each kind of group; its members differ in what `MemberKinds` says."""
        axes = set(needed.axes) - {op.axis}
        if not same_on_all_members(op, self.schedule):
            axes.add(op.axis)
            needed = replace(needed, distinct_axes=needed.distinct_axes | {op.axis})
        patterns_of: dict[Key, tuple[str, Key]] = {}

        def look(place: Coordinates) -> Key:
            moved = traffic(op, self.schedule, place, self._choices)
            assert moved is not None
            key, even = self._pattern(op, moved), equal_pieces(moved)
            sizes = (key, moved.edges[:2] if even else (moved.edges, moved.receive_edges))
            patterns_of[sizes] = wires_of(op, moved), key
            return sizes

        values, by = self._colours.looked_at(needed, moment, ranks, look, axes)
        sizes = numbered(values).tolist()
        once = op.axis, by, tuple(sizes), tuple(patterns_of[value] for value in values)
        if once not in self._noted:
            self._noted.add(once)
            self._colours.told_apart(by, sizes)
            self._group_members(op.axis, by, sizes, dict(zip(sizes, once[-1], strict=True)))
        return tuple(values)

    def _group_members(
        self, axis: Axis, by: RanksByKind, sizes: Sequence[int], patterns_of: dict[int, tuple[str, Key]]
    ) -> None:
        """Notes who uses which lane in the groups of each size, and tells members apart."""
        size, own = np.array(sizes)[by.which], self._colours.coordinates[axis][by.ranks]
        kinds = np.zeros(len(by.ranks), dtype=np.int64)
        for number, (wires, key) in patterns_of.items():
            here = np.flatnonzero(size == number)
            kinds[here] = self._members[key].kinds[own[here]]
            first = by.ranks[here] - own[here] * self._grid.stride(axis)
            self._uses.by_groups(axis, wires, key, self._members[key], first)
        self._colours.split(by.ranks, kinds)

    def _pattern(self, op: Collective, moved: Traffic) -> Key:
        lowered, even, kinds = moved.lowered, equal_pieces(moved), self._kinds_of_members(op)
        key = (type(op), lowered.algorithm, lowered.members, lowered.pieces, lowered.steps, moved.root, even, kinds)
        if key not in self._members:
            marks = np.array(kinds) if kinds else np.zeros(lowered.members, dtype=np.int64)
            if isinstance(op, Broadcast | Reduce):
                marks = 2 * marks + (np.arange(lowered.members) == moved.root)
            self._members[key] = MemberKinds.of(lowered, marks, even=even)
        return key

    def _point_to_point(self, op: Send | Receive | Shift, moment: Coordinates, needed: Dependence, ranks: Ints) -> Key:
        stride = self._grid.stride(op.axis)
        needed = replace(needed, distinct_axes=needed.distinct_axes | {op.axis})
        values, by = self._colours.looked_at(needed, moment, ranks, lambda place: self._peers(op, place))
        loops = tuple((loop, moment.indices.get(loop)) for loop in sorted(needed.loops))
        first = ranks - self._colours.coordinates[op.axis][ranks] * stride
        to, sender = (np.array([-1 if peers[side] is None else peers[side] for peers in values]) for side in (0, 1))
        goes, comes = (to[by.which] >= 0), (sender[by.which] >= 0)
        event = type(op), op.name, loops
        receivers, senders = ((first + peer[by.which] * stride) for peer in (to, sender))
        self._uses.singly(lane(op), ranks[goes], receivers[goes], (*event, "sends"))
        self._uses.singly(lane(op), senders[comes], ranks[comes], (*event, "receives"))
        kinds = [(to is None, sender is None, to == sender, *sizes) for to, sender, *sizes in values]
        self._colours.told_apart(by, numbered(kinds).tolist())
        return tuple(values)

    def _peers(self, op: Send | Receive | Shift, place: Coordinates) -> tuple[Any, ...]:
        """Whom the rank sends to and receives from, and how much."""
        moved = traffic(op, self.schedule, place, self._choices)
        local = local_copies(op, self.schedule, place, moved)
        if moved is None:
            return None, None, local, 0, 0
        (exchange,) = moved.exchanges()
        return exchange.send_to, exchange.receive_from, local, exchange.sent, exchange.received

    def result(self) -> Patterns | None:
        """All colours and channels, once everything was looked at."""
        if self._uses.count() > LISTED:
            return None
        found = self._uses.channels()
        return Patterns(
            found.lanes, found.lane, found.sender, found.receiver, found.label, self._colours.of_rank, self.turns()
        )


def same_on_all_members(op: Collective, schedule: Schedule) -> bool:
    """Whether each member of a group moves the same pieces of the same buffer."""
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
