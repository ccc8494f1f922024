"""What an op comes to on all ranks at once: seconds of local work, and hops of messages between ranks.

An op knows little of a place (`coordinate_dependence.py`), so it is looked at once for each
kind of place, and what it found there is spread over the ranks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.coordinate_dependence import Dependence, OpDependences
from quadrille.algorithms.analysis.labels import Ints
from quadrille.algorithms.analysis.op_plans import OpPlans
from quadrille.algorithms.analysis.storage import LocalCopies, local_copies
from quadrille.algorithms.analysis.traffic import Traffic, traffic
from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.collectives.group_stages import GroupMove, GroupStage, stages
from quadrille.algorithms.schedule.grid import AXES, Axis
from quadrille.algorithms.schedule.ops import Collective, CommunicationOp, Compute, Op, Send, Shift
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.simulator.symmetry.patterns import same_on_all_members
from quadrille.topologies.network import Floats

Key = tuple[Any, ...]
WAVES = ("pipelined", "double_binary_tree", "hierarchical")
"""Algorithms whose steps are taken by some of the members at a time."""
ROUNDING = 1e-9
"""Part by which pieces of one size may seem to differ."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupWork:
    """Groups that go through the same steps.

    Parameters
    ----------
    ranks : of the members, group by group [groups, members]
    stages : of one group, or of all as one where `flat`
    edges, which : where the pieces of each kind of buffer begin and the last one ends [bytes]; the kind of each member
    before, after : bytes copied on each rank [groups, members]
    flat : the stages are those of all groups as one
    empty_messages : also messages of no bytes are sent
    in_waves : not all members are in one step at once: they begin and end one after the other
    alone : members for whom nothing goes over a wire, where they know beforehand
    """

    ranks: Ints
    stages: tuple[GroupStage, ...]
    edges: Floats
    which: Ints
    before: Floats
    after: Floats
    flat: bool = False
    empty_messages: bool = False
    in_waves: bool = False
    alone: NDArray[np.bool_] | None = None

    @property
    def even(self) -> bool:
        """Whether all pieces have one size."""
        sizes = np.diff(self.edges, axis=1)
        mean = sizes.mean(axis=1, keepdims=True)
        return bool((mean > 0).all() and (np.abs(sizes - mean) <= ROUNDING * mean).all())

    @property
    def mark(self) -> Key:
        """The same for parts that do the same on the same ranks; of their steps it knows which object they are."""
        arrays = (self.ranks, self.edges, self.which, self.before, self.after, self.alone)
        said = [b"" if one is None else one.tobytes() for one in arrays]
        kinds = self.ranks.shape, self.flat, self.empty_messages, self.in_waves
        return (id(self.stages), *kinds, *(blake2b(one).digest() for one in said))


class ScheduleWork:
    """What the ops of a schedule do; each is looked at once for each value of the loops that it depends on."""

    def __init__(self, schedule: Schedule, choices: Choices) -> None:
        self._schedule, self._choices, self._grid = schedule, choices, schedule.grid
        self._duties = OpPlans(schedule, choices)
        self.needs = schedule.cached(OpDependences).of
        self._stages: dict[Key, tuple[GroupStage, ...]] = {}
        ranks = np.arange(self._grid.size)
        self.coordinates = {axis: ranks // self._grid.stride(axis) % self._grid.length(axis) for axis in AXES}

    def key(self, op: Op, moment: Coordinates) -> Key:
        """The same for moments at which an op does the same."""
        return (id(op), *(moment.indices.get(loop) for loop in sorted(self.needs(op).loops)))

    def sizes(self, op: Compute, moment: Coordinates, ranks: Ints) -> tuple[list[Any], Ints]:
        """The sizes of local work, and which of them each rank has."""
        return self._kinds(self.needs(op), moment, ranks, lambda place: self._duties.local(op, place))

    def alone(self, op: CommunicationOp, moment: Coordinates, ranks: Ints) -> Floats:
        """Bytes that ranks copy where nothing goes over a wire."""
        found, which = self._kinds(self.needs(op), moment, ranks, lambda place: self._copied(op, place, None).before)
        return np.array(found, dtype=np.float64)[which]

    def parts(self, op: CommunicationOp, moment: Coordinates, first: Ints) -> list[GroupWork]:
        """The groups of an op, those together that do the same steps.

        Parameters
        ----------
        first : first rank of each group
        """
        if isinstance(op, Shift):
            return self._shifted(op, moment, first)
        assert isinstance(op, Collective)
        members, stride = self._grid.length(op.axis), self._grid.stride(op.axis)
        ranks = first[:, None] + stride * np.arange(members)
        if not same_on_all_members(op, self._schedule):
            return list(self._unlike(op, moment, ranks))
        needed = _without(self.needs(op), op.axis)
        found, which = self._kinds(needed, moment, first, lambda place: self._moved(op, place))
        return list(self._alike(op, moment, ranks, found, which))

    def bytes(self, op: Collective, moment: Coordinates, first: Ints) -> float:
        """Of the buffer of an op, the mean over its groups."""
        found, which = self._kinds(
            _without(self.needs(op), op.axis), moment, first, lambda place: self._moved(op, place)
        )
        return float(np.mean(np.array([_bytes(moved)[-1] for moved in found])[which]))

    def _moved(self, op: CommunicationOp, place: Coordinates) -> Traffic | None:
        return traffic(op, self._schedule, place, self._choices)

    def _copied(self, op: CommunicationOp, place: Coordinates, moved: Traffic | None) -> LocalCopies:
        return local_copies(op, self._schedule, place, moved)

    def _alike(
        self, op: Collective, moment: Coordinates, ranks: Ints, found: list[Any], which: Ints
    ) -> Iterator[GroupWork]:
        """Of groups whose members all see the same buffer."""
        keys = [_steps_of(moved) for moved in found]
        for key in dict.fromkeys(keys):
            kinds = [kind for kind, own in enumerate(keys) if own == key]
            groups = np.flatnonzero(np.isin(which, kinds))
            number = np.searchsorted(kinds, which[groups])
            copied = np.array([self._members_copies(op, moment, found[kind]) for kind in kinds], dtype=np.float64)
            members = ranks.shape[1]
            yield GroupWork(
                ranks[groups],
                self._steps((type(op), *key), found[kinds[0]]),
                np.array([_bytes(found[kind]) for kind in kinds]),
                np.repeat(number, members),
                copied[number, :, 0],
                copied[number, :, 1],
                empty_messages=found[kinds[0]].lowered.algorithm == "dissemination",
                in_waves=found[kinds[0]].lowered.algorithm in WAVES,
            )

    def _members_copies(self, op: Collective, moment: Coordinates, moved: Traffic) -> list[tuple[int, int]]:
        """Bytes copied by each member; those with pieces of one size, and no root, copy as much."""
        known: dict[tuple[int, bool], tuple[int, int]] = {}
        found = []
        for member in range(moved.lowered.members):
            size = moved.edges[member + 1] - moved.edges[member] if member + 1 < len(moved.edges) else 0
            key = size, member == moved.root
            if key not in known:
                one = self._copied(op, moment, replace(moved, member=member))
                known[key] = one.before, one.after
            found.append(known[key])
        return found

    def _unlike(self, op: Collective, moment: Coordinates, ranks: Ints) -> Iterator[GroupWork]:
        """Of groups whose members see buffers of their own."""
        needed = self.needs(op)
        everyone = replace(needed, distinct_axes=needed.distinct_axes | {op.axis})
        found, which = self._kinds(everyone, moment, ranks.ravel(), lambda place: self._moved(op, place))
        keys = [_steps_of(moved) for moved in found]
        of_group = np.array([keys.index(key) for key in keys])[which].reshape(ranks.shape)
        copied = np.array([(one.before, one.after) for one in (self._copied(op, moment, moved) for moved in found)])
        for steps in np.unique(of_group[:, 0]).tolist():
            groups = np.flatnonzero(of_group[:, 0] == steps)
            of_member = which.reshape(ranks.shape)[groups]
            yield GroupWork(
                ranks[groups],
                self._steps((type(op), *keys[steps]), found[steps]),
                np.array([_bytes(moved) for moved in found]),
                of_member.ravel(),
                copied[of_member, 0].astype(np.float64),
                copied[of_member, 1].astype(np.float64),
            )

    def _steps(self, key: Key, moved: Traffic) -> tuple[GroupStage, ...]:
        if key not in self._stages:
            self._stages[key] = stages(moved.lowered)
        return self._stages[key]

    def _shifted(self, op: Shift, moment: Coordinates, first: Ints) -> list[GroupWork]:
        """Of groups whose members pass a block on, each group as far as it says."""
        members, stride = self._grid.length(op.axis), self._grid.stride(op.axis)
        ranks = first[:, None] + stride * np.arange(members)
        needed = replace(self.needs(op), distinct_axes=self.needs(op).distinct_axes | {op.axis})
        found, which = self._kinds(needed, moment, ranks.ravel(), lambda place: _one_step(self._moved(op, place)))
        to, size = np.array(found, dtype=np.float64)[which].T
        copied, kind = self._kinds(
            needed, moment, ranks.ravel(), lambda place: self._copied(op, place, self._moved(op, place)).before
        )
        flat = np.arange(ranks.size)
        moving = np.flatnonzero((to >= 0) & (size > 0))
        receiver = moving // members * members + to[moving].astype(np.int64)
        zero = np.zeros(len(moving), dtype=np.int64)
        move = GroupMove(moving, receiver, zero, zero + 1, np.zeros(len(moving), dtype=np.bool_))
        none = np.zeros(ranks.shape)
        before = np.array(copied, dtype=np.float64)[kind].reshape(ranks.shape)
        edges = np.stack([np.zeros(ranks.size), size], axis=1)
        return [GroupWork(ranks, (GroupStage(1, (move,)),), edges, flat, before, none, flat=True, alone=to < 0)]

    def sent(self, op: Send, moment: Coordinates, ranks: Ints) -> GroupWork:
        """What ranks that have one coordinate along the op's axis send, each to the same other one: groups of two."""
        found, which = self._kinds(self.needs(op), moment, ranks, lambda place: _one_step(self._moved(op, place)))
        further = int(found[0][0]) - int(self.coordinates[op.axis][ranks[0]])
        pairs = ranks[:, None] + np.array([0, further * self._grid.stride(op.axis)])
        none, one = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
        move = GroupMove(none, one, none, one, np.zeros(1, dtype=np.bool_))
        edges = np.array([(0.0, size) for _, size in found])
        nothing = np.zeros(pairs.shape)
        return GroupWork(pairs, (GroupStage(1, (move,)),), edges, np.repeat(which, 2), nothing, nothing)

    def _kinds(
        self, needed: Dependence, moment: Coordinates, ranks: Ints, look: Callable[[Coordinates], Any]
    ) -> tuple[list[Any], Ints]:
        """What `look` sees for each combination of kinds of coordinates, and the one of each of the ranks."""
        index = np.zeros(len(ranks), dtype=np.int64)
        for axis in needed.axes:
            ones, kinds = needed.kinds(axis, self._grid.length(axis))
            index = index * len(ones) + np.array(kinds)[self.coordinates[axis][ranks]]
        _, first, which = np.unique(index, return_index=True, return_inverse=True)
        values = []
        for rank in ranks[first].tolist():
            coordinates = {axis: int(of_rank[rank]) for axis, of_rank in self.coordinates.items()}
            values.append(look(replace(moment, along=coordinates)))
        return values, which


def _without(needed: Dependence, axis: Axis) -> Dependence:
    """The same, whatever the coordinate along the axis."""
    thresholds = {name: found for name, found in needed.thresholds.items() if name != axis}
    return replace(needed, thresholds=thresholds, distinct_axes=needed.distinct_axes - {axis})


def _steps_of(moved: Traffic) -> Key:
    lowered = moved.lowered
    return lowered.algorithm, lowered.members, lowered.pieces, lowered.steps, moved.root


def _bytes(moved: Traffic) -> list[float]:
    return [float(edge) * moved.item_bytes for edge in moved.edges]


def _one_step(moved: Traffic | None) -> tuple[float, float]:
    """The coordinate to which a shift or a send goes, and how many bytes; nowhere is -1."""
    if moved is None:
        return -1.0, 0.0
    (exchange,) = moved.exchanges()
    to = exchange.send_to
    return (-1.0 if to is None else float(to)), float(exchange.sent * moved.item_bytes)
