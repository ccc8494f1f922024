"""Work of a schedule's ops on all ranks at once: sizes of local work, and the messages of each group of ranks.

An op depends on few coordinates (`coordinate_dependence.py`), so it is analysed
once for each kind of coordinates, and the result is spread over the ranks.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.coordinate_dependence import Dependence, OpDependences
from quadrille.algorithms.analysis.equality_labels import Ints
from quadrille.algorithms.analysis.op_plans import OpPlans
from quadrille.algorithms.analysis.storage import LocalCopies, local_copies
from quadrille.algorithms.analysis.traffic import Traffic, traffic
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.collectives.group_stages import GroupMove, GroupStage, group_stages
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import AllToAll, Collective, CommunicationOp, Compute, Op, Send, Shift
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.collectives.programs import PairBytes
from quadrille.simulator.symmetry.patterns import same_on_all_members
from quadrille.topologies.network import Floats

Key = tuple[Any, ...]
PIPELINED = ("pipelined", "double_binary_tree", "hierarchical")
"""Algorithms in which members send at different times, as in a pipeline."""
CACHED_NUMBERS = 1 << 24
"""Largest count of numbers in the cache of shifts: 128 MiB."""
NUMBERS_PER_MEMBER = 12
"""Approximate count of numbers that a cached shift takes for each member of its groups."""
CACHED_KINDS = 1 << 22
"""Largest count of numbers in the cache of kinds of coordinates: 32 MiB."""
ROUNDING = 1e-9
"""Relative difference up to which sizes of pieces count as equal."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupWork:
    """Groups that take the same steps.

    Parameters
    ----------
    ranks : ranks of the members [groups, members]
    stages : the steps of one group, or of all groups as one where `flat`
    edges : start of each piece of each kind of buffer, and end of the last piece [kinds, pieces + 1] [bytes]
    buffer_kind : kind of buffer of each member
    before, after : bytes copied by each member before and after the steps [groups, members]
    flat : whether `stages` are those of all groups as one
    empty_messages : whether messages of no bytes are sent, too
    pipelined : whether members begin and end one after another, as in a pipeline
    alone : whether each member exchanges nothing; None if members cannot know beforehand
    """

    ranks: Ints
    stages: tuple[GroupStage, ...]
    edges: Floats
    buffer_kind: Ints
    before: Floats
    after: Floats
    flat: bool = False
    empty_messages: bool = False
    pipelined: bool = False
    alone: NDArray[np.bool_] | None = None

    @property
    def even(self) -> bool:
        """Whether all pieces have the same size."""
        sizes = np.diff(self.edges, axis=1)
        mean = sizes.mean(axis=1, keepdims=True)
        return bool((mean > 0).all() and (np.abs(sizes - mean) <= ROUNDING * mean).all())

    @property
    def identity(self) -> Key:
        """A key that is equal for groups of the same ranks that do the same; steps are compared by identity."""
        arrays = (self.ranks, self.edges, self.buffer_kind, self.before, self.after, self.alone)
        contents = [b"" if array is None else array.tobytes() for array in arrays]
        kinds = self.ranks.shape, self.flat, self.empty_messages, self.pipelined
        return (id(self.stages), *kinds, *(blake2b(array).digest() for array in contents))


class ScheduleWork:
    """Messages and local sizes of a schedule's ops; an op is analysed once for each value of its loops."""

    def __init__(self, schedule: Schedule, choices: Choices) -> None:
        self._schedule, self._choices, self._grid = schedule, choices, schedule.grid
        self._op_plans = OpPlans(schedule, choices)
        self.needs = schedule.cached(OpDependences).of
        self._loops: dict[int, tuple[Op, list[str], list[tuple[str, int]]]] = {}  # with the op: its id stays unique
        self._stages: dict[Key, tuple[GroupStage, ...]] = {}
        self._shift_works: dict[Key, list[GroupWork]] = {}
        self._shift_room = CACHED_NUMBERS
        self._positions: dict[tuple[Axis, bytes], int] = {}
        self._kinds_of: dict[Key, tuple[list[Any], Ints]] = {}
        self._kinds_room = CACHED_KINDS
        ranks = np.arange(self._grid.size)
        self.coordinates = {
            axis: ranks // self._grid.stride(axis) % self._grid.length(axis) for axis in self._grid.axes
        }

    def key(self, op: Op, coordinates: Coordinates) -> Key:
        """A key that is equal for loop indices at which an op does the same."""
        if id(op) not in self._loops:
            needs = self.needs(op)
            self._loops[id(op)] = op, sorted(needs.loops), sorted(needs.iterations)
        _, loops, iterations = self._loops[id(op)]
        get = coordinates.indices.get
        return (id(op), *map(get, loops), *(get(loop) == index for loop, index in iterations))

    def local_sizes(self, op: Compute, coordinates: Coordinates, ranks: Ints) -> tuple[list[Any], Ints]:
        """The sizes of local work that occur, and the index of each rank's size among them."""
        return self._cached_kinds(
            "local", op, self.needs(op), coordinates, ranks, lambda at: self._op_plans.local(op, at)
        )

    def copied_bytes(self, op: CommunicationOp, coordinates: Coordinates, ranks: Ints) -> Floats:
        """Bytes that ranks copy where nothing is sent."""
        values, which = self._kinds(
            self.needs(op), coordinates, ranks, lambda at: self._local_copies(op, at, None).before
        )
        return np.array(values, dtype=np.float64)[which]

    def of_groups(self, op: CommunicationOp, coordinates: Coordinates, first: Ints) -> list[GroupWork]:
        """The groups of an op, those that take the same steps together.

        Parameters
        ----------
        first : the first rank of each group
        """
        if isinstance(op, Shift):
            return self._cached_shift_work(op, coordinates, first)
        assert isinstance(op, Collective)
        members, stride = self._grid.length(op.axis), self._grid.stride(op.axis)
        ranks = first[:, None] + stride * np.arange(members)
        if not same_on_all_members(op, self._schedule):
            return list(self._different_buffers(op, coordinates, ranks))
        dependence = _without(self.needs(op), op.axis)
        traffics, which = self._traffics(op, dependence, coordinates, first)
        return list(self._same_buffers(op, coordinates, ranks, traffics, which))

    def buffer_bytes(self, op: Collective, coordinates: Coordinates, first: Ints) -> float:
        """Bytes of an op's buffer, the mean over its groups."""
        traffics, which = self._traffics(op, _without(self.needs(op), op.axis), coordinates, first)
        return float(np.mean(np.array([_piece_edges(traffic_of_kind)[-1] for traffic_of_kind in traffics])[which]))

    def pair_bytes(self, op: Collective, coordinates: Coordinates, first: int) -> PairBytes | None:
        """Bytes that each member of a group sends to each, where experts have uneven loads; None for equal pieces.

        Parameters
        ----------
        first : the first rank of the group
        """
        if not (isinstance(op, AllToAll) and op.counts):
            return None
        rows = self._schedule.tensors[op.source if op.back else op.into].rows
        if not rows.loads:
            return None
        needs, members = self.needs(op), self._grid.length(op.axis)
        dependence = replace(needs, distinct_axes=needs.distinct_axes | {op.axis})
        ranks = first + self._grid.stride(op.axis) * np.arange(members)
        traffics, which = self._traffics(op, dependence, coordinates, ranks)
        pieces = [tuple(np.diff(_piece_edges(traffic_of_kind)).tolist()) for traffic_of_kind in traffics]
        return tuple(pieces[kind] for kind in which.tolist())

    def position(self, op: Op, ranks: Ints) -> Key:
        """A key that is equal for ranks with the same coordinates along the axes that an op depends on."""
        return self._position(self.needs(op).axes, ranks)

    def _position(self, axes: Iterable[Axis], ranks: Ints) -> Key:
        """A key that is equal for ranks with the same coordinates along some axes."""
        numbers, contents = self._positions, ((axis, self.coordinates[axis][ranks].tobytes()) for axis in axes)
        return (len(ranks), *(numbers.setdefault(content, len(numbers)) for content in contents))

    def _traffics(
        self, op: CommunicationOp, dependence: Dependence, coordinates: Coordinates, ranks: Ints
    ) -> tuple[list[Any], Ints]:
        """The traffic of an op that occurs, and the index of each rank's traffic."""
        return self._cached_kinds("traffic", op, dependence, coordinates, ranks, lambda at: self._traffic(op, at))

    def _traffic(self, op: CommunicationOp, coordinates: Coordinates) -> Traffic | None:
        """The traffic of an op on one rank; None if it sends nothing."""
        return traffic(op, self._schedule, coordinates, self._choices)

    def _local_copies(self, op: CommunicationOp, coordinates: Coordinates, sent: Traffic | None) -> LocalCopies:
        """The local copies of an op on one rank."""
        return local_copies(op, self._schedule, coordinates, sent)

    def _same_buffers(
        self, op: Collective, coordinates: Coordinates, ranks: Ints, traffics: list[Any], which: Ints
    ) -> Iterator[GroupWork]:
        """Groups whose members all see the same buffer."""
        keys = [_steps_of(traffic_of_kind) for traffic_of_kind in traffics]
        for key in dict.fromkeys(keys):
            kinds = [kind for kind, key_of_kind in enumerate(keys) if key_of_kind == key]
            groups = np.flatnonzero(np.isin(which, kinds))
            number = np.searchsorted(kinds, which[groups])
            copied = np.array(
                [self._members_copies(op, coordinates, traffics[kind]) for kind in kinds], dtype=np.float64
            )
            members = ranks.shape[1]
            yield GroupWork(
                ranks[groups],
                self._steps((type(op), *key), traffics[kinds[0]]),
                np.array([_piece_edges(traffics[kind]) for kind in kinds]),
                np.repeat(number, members),
                copied[number, :, 0],
                copied[number, :, 1],
                empty_messages=traffics[kinds[0]].lowered.algorithm == "dissemination",
                pipelined=traffics[kinds[0]].lowered.algorithm in PIPELINED,
            )

    def _members_copies(self, op: Collective, coordinates: Coordinates, sent: Traffic) -> list[tuple[int, int]]:
        """Bytes copied by each member; members with pieces of one size copy the same, except for the root."""
        cache: dict[tuple[int, bool], tuple[int, int]] = {}
        copies_of_members = []
        for member in range(sent.lowered.members):
            size = sent.edges[member + 1] - sent.edges[member] if member + 1 < len(sent.edges) else 0
            key = size, member == sent.root
            if key not in cache:
                copied = self._local_copies(op, coordinates, replace(sent, member=member))
                cache[key] = copied.before, copied.after
            copies_of_members.append(cache[key])
        return copies_of_members

    def _different_buffers(self, op: Collective, coordinates: Coordinates, ranks: Ints) -> Iterator[GroupWork]:
        """Groups whose members see different buffers."""
        dependence = self.needs(op)
        on_all_members = replace(dependence, distinct_axes=dependence.distinct_axes | {op.axis})
        traffics, which = self._traffics(op, on_all_members, coordinates, ranks.ravel())
        keys = [_steps_of(traffic_of_kind) for traffic_of_kind in traffics]
        of_group = np.array([keys.index(key) for key in keys])[which].reshape(ranks.shape)
        copied = np.array(
            [
                (copied_by_kind.before, copied_by_kind.after)
                for copied_by_kind in (
                    self._local_copies(op, coordinates, traffic_of_kind) for traffic_of_kind in traffics
                )
            ]
        )
        for steps in np.unique(of_group[:, 0]).tolist():
            groups = np.flatnonzero(of_group[:, 0] == steps)
            of_member = which.reshape(ranks.shape)[groups]
            yield GroupWork(
                ranks[groups],
                self._steps((type(op), *keys[steps]), traffics[steps]),
                np.array([_piece_edges(traffic_of_kind) for traffic_of_kind in traffics]),
                of_member.ravel(),
                copied[of_member, 0].astype(np.float64),
                copied[of_member, 1].astype(np.float64),
            )

    def _steps(self, key: Key, sent: Traffic) -> tuple[GroupStage, ...]:
        """The stages of a collective, cached."""
        if key not in self._stages:
            self._stages[key] = group_stages(sent.lowered)
        return self._stages[key]

    def _cached_shift_work(self, op: Shift, coordinates: Coordinates, first: Ints) -> list[GroupWork]:
        """The work of a shift, cached as long as there is room."""
        key = self.key(op, coordinates), first.tobytes()
        if key not in self._shift_works:
            work = self._shift_work(op, coordinates, first)
            if self._shift_room <= 0:
                return work
            self._shift_room -= NUMBERS_PER_MEMBER * work[0].ranks.size
            self._shift_works[key] = work
        return self._shift_works[key]

    def _shift_work(self, op: Shift, coordinates: Coordinates, first: Ints) -> list[GroupWork]:
        """Groups whose members shift a block, each group by its own distance."""
        members, stride = self._grid.length(op.axis), self._grid.stride(op.axis)
        ranks = first[:, None] + stride * np.arange(members)
        dependence = replace(self.needs(op), distinct_axes=self.needs(op).distinct_axes | {op.axis})
        shifts, which = self._kinds(dependence, coordinates, ranks.ravel(), lambda at: self._shift_of(op, at))
        to, size, copied = np.array(shifts, dtype=np.float64)[which].T
        flat = np.arange(ranks.size)
        moving = np.flatnonzero((to >= 0) & (size > 0))
        receiver = moving // members * members + to[moving].astype(np.int64)
        zero = np.zeros(len(moving), dtype=np.int64)
        move = GroupMove(moving, receiver, zero, zero + 1, np.zeros(len(moving), dtype=np.bool_))
        zeros = np.zeros(ranks.shape)
        edges = np.stack([np.zeros(ranks.size), size], axis=1)
        before = copied.reshape(ranks.shape)
        return [GroupWork(ranks, (GroupStage(1, (move,)),), edges, flat, before, zeros, flat=True, alone=to < 0)]

    def _shift_of(self, op: Shift, coordinates: Coordinates) -> tuple[float, float, int]:
        """The coordinate to which a rank shifts its block, the bytes that it sends, and the bytes that it copies."""
        sent = self._traffic(op, coordinates)
        return *_one_step(sent), self._local_copies(op, coordinates, sent).before

    def of_messages(self, op: Send, coordinates: Coordinates, ranks: Ints) -> GroupWork:
        """The messages of ranks that send to one coordinate of the op's axis, as groups of two members."""
        destinations, which = self._kinds(
            self.needs(op), coordinates, ranks, lambda at: _one_step(self._traffic(op, at))
        )
        distance = int(destinations[0][0]) - int(self.coordinates[op.axis][ranks[0]])
        pairs = ranks[:, None] + np.array([0, distance * self._grid.stride(op.axis)])
        first, second = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
        move = GroupMove(first, second, first, second, np.zeros(1, dtype=np.bool_))
        edges = np.array([(0.0, size) for _, size in destinations])
        nothing = np.zeros(pairs.shape)
        return GroupWork(pairs, (GroupStage(1, (move,)),), edges, np.repeat(which, 2), nothing, nothing)

    def _cached_kinds(
        self,
        analysis: str,
        op: Op,
        dependence: Dependence,
        coordinates: Coordinates,
        ranks: Ints,
        analyse: Callable[[Coordinates], Any],
    ) -> tuple[list[Any], Ints]:
        """The result of `_kinds`, cached by what the op does at these coordinates.

        Parameters
        ----------
        analysis : name of what is analysed
        """
        key = analysis, self.key(op, coordinates), *self._position(dependence.axes, ranks)
        if key not in self._kinds_of:
            result = self._kinds(dependence, coordinates, ranks, analyse)
            if self._kinds_room <= 0:
                return result
            self._kinds_of[key] = result
            self._kinds_room -= len(ranks)
        return self._kinds_of[key]

    def _kinds(
        self, dependence: Dependence, coordinates: Coordinates, ranks: Ints, analyse: Callable[[Coordinates], Any]
    ) -> tuple[list[Any], Ints]:
        """The result of `analyse` for each combination of kinds of coordinates, and the index of each rank's result."""
        index = np.zeros(len(ranks), dtype=np.int64)
        for axis in dependence.axes:
            representatives, kinds = dependence.kinds(axis, self._grid.length(axis))
            index = index * len(representatives) + np.array(kinds)[self.coordinates[axis][ranks]]
        _, first, which = np.unique(index, return_index=True, return_inverse=True)
        values = []
        for rank in ranks[first].tolist():
            along = {axis: int(of_rank[rank]) for axis, of_rank in self.coordinates.items()}
            values.append(analyse(replace(coordinates, along=along)))
        return values, which


def _without(dependence: Dependence, axis: Axis) -> Dependence:
    """A dependence without the dependence on the coordinate along one axis."""
    thresholds = {name: limits for name, limits in dependence.thresholds.items() if name != axis}
    return replace(dependence, thresholds=thresholds, distinct_axes=dependence.distinct_axes - {axis})


def _steps_of(sent: Traffic) -> Key:
    """A key that is equal for traffic with the same steps."""
    lowered = sent.lowered
    return lowered.algorithm, lowered.members, lowered.pieces, lowered.steps, sent.root


def _piece_edges(sent: Traffic) -> list[float]:
    """Start of each piece of the buffer, and end of the last piece [bytes]."""
    return [float(edge) * sent.item_bytes for edge in sent.edges]


def _one_step(sent: Traffic | None) -> tuple[float, float]:
    """The coordinate to which a shift or a send goes, or -1 for nowhere, and the bytes sent."""
    if sent is None:
        return -1.0, 0.0
    (exchange,) = sent.exchanges()
    to = exchange.send_to
    return (-1.0 if to is None else float(to)), float(exchange.sent * sent.item_bytes)
