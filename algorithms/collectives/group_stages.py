"""Group stages: the messages of a whole group in each step of a collective, with equal steps stored once.

The collective algorithms run in lockstep: a message that a member sends in its step s
is received in step s of its peer (idle steps are counted). So one table of peers
describes a step of the whole group, and one table describes the p - 1 equal steps of
a ring.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.collectives.lowered_collective import Lowered
from quadrille.algorithms.collectives.run_length_programs import NOBODY, Section
from quadrille.algorithms.errors import InputError

Ints = NDArray[np.int64]
MOST_STEPS = 1 << 22
"""Largest number of steps of all members that are visited one by one if sections do not run in lockstep (5 s)."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupMove:
    """The messages of one step of a group.

    In step k, member sender[e] sends `count[e]` pieces to member receiver[e].  The first
    of them is piece origin + (first - origin + k stride) mod modulus, and the distance
    between them is `spacing`.

    Parameters
    ----------
    adds : whether the receiver adds the message to its buffer [messages]
    """

    sender: Ints
    receiver: Ints
    first: Ints
    count: Ints
    adds: NDArray[np.bool_]
    stride: int = 0
    spacing: int = 1
    origin: Ints | int = 0
    modulus: int = 1 << 62

    def first_pieces(self, k: int, pieces: int) -> Ints:
        """The first piece of each message in step k, given the number of pieces [messages]."""
        if not self.stride:
            return self.first
        modulus = min(self.modulus, pieces)
        piece: Ints = self.origin + (self.first - self.origin + k * self.stride) % modulus
        return piece


@dataclass(frozen=True, slots=True, eq=False)
class GroupStage:
    """A sequence of moves that is repeated.

    Parameters
    ----------
    times : number of repetitions
    moves : moves of one repetition, in order
    """

    times: int
    moves: tuple[GroupMove, ...]


def group_stages(lowered: Lowered) -> tuple[GroupStage, ...]:
    """The steps of a collective, stage by stage.

    >>> from quadrille.algorithms.collectives.lowering import lower
    >>> [(stage.times, stage.moves[0].receiver.tolist()) for stage in group_stages(lower("all_gather", "ring", 3))]
    [(2, [1, 2, 0])]

    Raises
    ------
    InputError : the collective has too many steps
    """
    sections = list(lowered.sections())
    if _is_lockstep(sections, lowered.members):
        return tuple(_section_stages(sections, lowered.members))
    if lowered.members * lowered.steps > MOST_STEPS:
        raise InputError(
            f"{lowered.algorithm} of {lowered.members} ranks in {lowered.steps} steps: too many steps to look at one "
            f"by one; at most {MOST_STEPS} steps of all ranks are"
        )
    return tuple(_stages_by_step(lowered))


def _is_lockstep(sections: Sequence[Section], members: int) -> bool:
    """Whether peers take the same steps together in every section."""
    members_of_group = np.arange(members)
    for section in sections:
        steps, to, sender = (
            _for_members(value, members) for value in (section.steps, section.send_to, section.receive_from)
        )
        to, sender = np.where(steps > 0, to, NOBODY), np.where(steps > 0, sender, NOBODY)
        active = (to != NOBODY) | (sender != NOBODY)
        if active.any() and (steps[active] != steps[active][0]).any():
            return False
        sends, receives = members_of_group[to != NOBODY], members_of_group[sender != NOBODY]
        if (sender[to[sends]] != sends).any() or (to[sender[receives]] != receives).any():
            return False
    return all(
        not section.alternates or _same_steps(section, following, members) for section, following in pairwise(sections)
    )


def _same_steps(section: Section, following: Section, members: int) -> bool:
    """Whether all members take as many steps in both sections."""
    return bool((_for_members(section.steps, members) == _for_members(following.steps, members)).all())


def _for_members(values: Any, members: int) -> Ints:
    """The value of each member, from one value for all or from one for each [members]."""
    return np.broadcast_to(np.asarray(values, dtype=np.int64), (members,))


def _section_stages(sections: Sequence[Section], members: int) -> Iterator[GroupStage]:
    """The stages of sections that run in lockstep."""
    moves: list[GroupMove] = []
    for section in sections:
        steps = _for_members(section.steps, members)
        move = _section_move(section, steps > 0, members)
        if len(move.sender):
            moves.append(move)
        if not section.alternates and moves:
            yield GroupStage(int(steps.max()), tuple(moves))
            moves = []


def _section_move(section: Section, executes: NDArray[np.bool_], members: int) -> GroupMove:
    """The move of one section."""
    to = _for_members(section.send_to, members)
    sender = np.flatnonzero(executes & (to != NOBODY))
    receiver = to[sender]
    origin = section.origin if isinstance(section.origin, int) else _for_members(section.origin, members)[sender]
    return GroupMove(
        sender,
        receiver,
        _for_members(section.send_first, members)[sender],
        _for_members(section.sent, members)[sender],
        _for_members(section.reduce, members)[receiver].astype(np.bool_),
        section.stride,
        section.spacing,
        origin,
        section.modulus,
    )


def _stages_by_step(lowered: Lowered) -> Iterator[GroupStage]:
    """The stages, from a visit of every step of every member."""
    for index in range(lowered.steps):
        rows, spacing = [], 1
        for member in range(lowered.members):
            step = lowered.step(member, index)
            if step.send_to is not None and step.send is not None:
                adds = lowered.step(step.send_to, index).reduce
                rows.append((member, step.send_to, step.send.first, step.send.count, adds))
                spacing = step.send.spacing
        if rows:
            sender, receiver, first, count, adds = np.array(rows, dtype=np.int64).T
            yield GroupStage(1, (GroupMove(sender, receiver, first, count, adds.astype(np.bool_), spacing=spacing),))
