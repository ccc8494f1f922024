"""The steps of a collective for all members of a group at once: who sends to whom, step by step in lockstep.

All our algorithms keep step: what a member sends in step s its peer receives in
its own step s (idle steps counted).  So one table of peers for each step stands
for the whole group, and a ring's p - 1 equal steps are one table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.collectives.lowered import Lowered
from quadrille.algorithms.collectives.runs import NOBODY, PieceRange, Section
from quadrille.algorithms.errors import InputError

Ints = NDArray[np.int64]
MOST_STEPS = 1 << 22
"""Steps of members that are looked at one by one, where sections do not keep step; about 5 s."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupMove:
    """One step of those members who send.

    In the k-th step member `sender[e]` sends to `receiver[e]` the `count[e]`
    pieces from origin + (first - origin + k stride) mod around on, `every` apart.

    Parameters
    ----------
    adds : whether the receiver adds what it gets to what it holds
    """

    sender: Ints
    receiver: Ints
    first: Ints
    count: Ints
    adds: NDArray[np.bool_]
    stride: int = 0
    every: int = 1
    origin: Ints | int = 0
    around: int = 1 << 62

    def pieces(self, k: int, pieces: int) -> Ints:
        """The first piece of the k-th step."""
        if not self.stride:
            return self.first
        around = min(self.around, pieces)
        found: Ints = self.origin + (self.first - self.origin + k * self.stride) % around
        return found


@dataclass(frozen=True, slots=True, eq=False)
class GroupStage:
    """Moves that take turns, `times` times."""

    times: int
    moves: tuple[GroupMove, ...]


def stages(lowered: Lowered) -> tuple[GroupStage, ...]:
    """The steps of a collective, stage by stage.

    >>> from quadrille.algorithms.collectives.lowering import lower
    >>> [(stage.times, stage.moves[0].receiver.tolist()) for stage in stages(lower("all_gather", "ring", 3))]
    [(2, [1, 2, 0])]

    Raises
    ------
    InputError : a collective of too many steps
    """
    sections = list(lowered.sections())
    if _keeps_step(sections, lowered.members):
        return tuple(_of_sections(sections, lowered.members))
    if lowered.members * lowered.steps > MOST_STEPS:
        raise InputError(
            f"{lowered.algorithm} of {lowered.members} ranks in {lowered.steps} steps: too many steps to look at one "
            f"by one; at most {MOST_STEPS} steps of all ranks are"
        )
    return tuple(_one_by_one(lowered))


def _keeps_step(sections: Sequence[Section], members: int) -> bool:
    """Whether in every section peers take the same steps together."""
    everyone = np.arange(members)
    for section in sections:
        steps, to, sender = (
            _spread(value, members) for value in (section.steps, section.send_to, section.receive_from)
        )
        to, sender = np.where(steps > 0, to, NOBODY), np.where(steps > 0, sender, NOBODY)
        active = (to != NOBODY) | (sender != NOBODY)
        if active.any() and (steps[active] != steps[active][0]).any():
            return False
        sends, receives = everyone[to != NOBODY], everyone[sender != NOBODY]
        if (sender[to[sends]] != sends).any() or (to[sender[receives]] != receives).any():
            return False
    return all(not one.alternates or _same_steps(one, other, members) for one, other in pairwise(sections))


def _same_steps(one: Section, other: Section, members: int) -> bool:
    return bool((_spread(one.steps, members) == _spread(other.steps, members)).all())


def _spread(values: Any, members: int) -> Ints:
    return np.broadcast_to(np.asarray(values, dtype=np.int64), (members,))


def _of_sections(sections: Sequence[Section], members: int) -> Iterator[GroupStage]:
    waiting: list[GroupMove] = []
    for section in sections:
        steps = _spread(section.steps, members)
        move = _of_section(section, steps > 0, members)
        if len(move.sender):
            waiting.append(move)
        if not section.alternates and waiting:
            yield GroupStage(int(steps.max()), tuple(waiting))
            waiting = []


def _of_section(section: Section, taken: NDArray[np.bool_], members: int) -> GroupMove:
    to = _spread(section.send_to, members)
    sender = np.flatnonzero(taken & (to != NOBODY))
    receiver = to[sender]
    origin = section.origin if isinstance(section.origin, int) else _spread(section.origin, members)[sender]
    return GroupMove(
        sender,
        receiver,
        _spread(section.send_first, members)[sender],
        _spread(section.sent, members)[sender],
        _spread(section.reduce, members)[receiver].astype(np.bool_),
        section.stride,
        section.every,
        origin,
        section.modulus,
    )


def _one_by_one(lowered: Lowered) -> Iterator[GroupStage]:
    for index in range(lowered.steps):
        rows, every = [], 1
        for member in range(lowered.members):
            step = lowered.step(member, index)
            if step.send_to is not None and step.send is not None:
                adds = lowered.step(step.send_to, index).reduce
                rows.append((member, step.send_to, *_pieces(step.send), adds))
                every = step.send.every
        if rows:
            sender, receiver, first, count, adds = np.array(rows, dtype=np.int64).T
            yield GroupStage(1, (GroupMove(sender, receiver, first, count, adds.astype(np.bool_), every=every),))


def _pieces(run: PieceRange) -> tuple[int, int]:
    return run.first, run.count
