"""Collectives whose messages run down chains and trees in waves, step by step in one compiled pass.

In a chain of 64 members and 64 pieces there are 126 steps, each with other members
at work; but a message is one of 63 hops, with a piece of one of two sizes.  So hops
are priced once, and the steps only say which hops there are (`Table`).

A step is the one of `message_ends.py`: all messages of a step look at the times before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.labels import Ints
from quadrille.simulator.bounds.distinct import distinct, rising
from quadrille.simulator.bounds.prices import Costs
from quadrille.simulator.bounds.rate_bounds import HIGH
from quadrille.simulator.bounds.stages import Stage
from quadrille.simulator.bounds.wave_kernels import CALLED, KERNELS, Wires, pass_on, tell
from quadrille.simulator.bounds.work import Part
from quadrille.simulator.engine.compiled import Kernel, as_column_table, compiled
from quadrille.topologies.network import Floats

LARGE = 1 << 6
"""Messages of one collective from which on a compiled kernel is worth loading."""
TABLES_KEPT = 1 << 12
ONE_WAY, EXCHANGE, AROUND = 0, 1, 2
"""Whether a sender gets nothing in the step, gets from its receiver, or from another."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The messages of one group, in order of the steps.

    Parameters
    ----------
    first : where the messages of each step begin, and the last ones end [steps + 1]
    hop, piece, pattern : of each message
    gets : whether the receiver of a message sends nothing in its step
    sender, receiver, adds : of each hop
    """

    first: Ints
    hop: Ints
    piece: Ints
    pattern: Ints
    gets: NDArray[np.bool_]
    sender: Ints
    receiver: Ints
    adds: NDArray[np.bool_]


@lru_cache(TABLES_KEPT)
def table_of(stages: tuple[Stage, ...], members: int) -> Table | None:
    """The messages of stages of which each is one step of single pieces; None of others."""
    moves = [move for stage in stages for move in stage.moves]
    if (
        not moves
        or any(stage.times > 1 for stage in stages)
        or any(move.stride or (move.count != 1).any() for move in moves)
    ):
        return None
    key = np.concatenate([(move.sender * members + move.receiver) * 2 + move.adds for move in moves])
    hops, hop = np.unique(key, return_inverse=True)
    patterns = [_pattern(move.sender, move.receiver, members) for move in moves]
    return Table(
        np.concatenate([[0], np.cumsum([len(move.sender) for move in moves])]),
        hop,
        np.concatenate([move.first for move in moves]),
        np.concatenate(patterns),
        np.concatenate([~np.isin(move.receiver, move.sender) for move in moves]),
        hops // 2 // members,
        hops // 2 % members,
        hops % 2 == 1,
    )


def _pattern(sender: Ints, receiver: Ints, members: int) -> Ints:
    source = np.full(members, -1)
    source[receiver] = sender
    back = source[sender]
    return np.where(back < 0, ONE_WAY, np.where(back == receiver, EXCHANGE, AROUND))


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """The hops of all groups, and what each kind of message costs on them.

    Parameters
    ----------
    sender, receiver : by their place among all members [hops, groups]
    channel : [hops, groups]
    kind : of the messages, by pattern, kind of buffer and piece [3, kinds, pieces]; -1 where there is none
    buffer : the kind of buffer of each hop [hops, groups]
    size : of each kind of message [bytes]
    latency, alone, added : of each kind on each hop [kinds, hops, groups] [s]
    moving : in three rows [3, kinds, hops, groups] [s]
    """

    sender: Ints
    receiver: Ints
    channel: Ints
    kind: Ints
    buffer: Ints
    size: Floats
    latency: Floats
    moving: Floats
    alone: Floats
    added: Floats
    extrapolated: bool


def hops_of(table: Table, part: Part, lane: str, costs: Costs, slowdown: float) -> Hops:
    """What the messages of a part cost; at most so many times as long, beside work of their ends."""
    groups, members = part.ranks.shape
    offset = np.arange(groups) * members
    sender, receiver = table.sender[:, None] + offset, table.receiver[:, None] + offset
    ranks = part.ranks.ravel()
    channel = costs.channels.numbers(lane, ranks[sender.ravel()], ranks[receiver.ravel()])
    rates = np.zeros(len(costs.channels.keys))
    used = rising(channel.ravel())
    rates[used] = costs.channels.taking_turns(used)
    pieces = np.diff(part.edges, axis=1)
    if part.even:
        pieces = np.repeat(part.edges[:, -1:] / pieces.shape[1], pieces.shape[1], axis=1)
    sizes, size = distinct(pieces.ravel())
    patterns = rising(table.pattern)
    kind = np.full((3, *pieces.shape), -1)
    kind[patterns] = np.arange(len(patterns))[:, None, None] * len(sizes) + size.reshape(pieces.shape)
    shape, priced, added = sender.shape, [], []
    extrapolated = False
    for pattern in patterns.tolist():
        for one in sizes.tolist():
            size_of_each = np.full(sender.size, one)
            priced.append(costs.transfer(channel, size_of_each, np.full(sender.size, pattern), rates[channel]))
            adds = np.where(np.repeat(table.adds, groups), one, 0.0)
            seconds, beyond = costs.memory("add", adds, ranks[receiver.ravel()])
            added.append(seconds)
            extrapolated |= beyond or priced[-1].extrapolated
    for one in priced:
        one.moving[HIGH] *= slowdown
    return Hops(
        sender,
        receiver,
        channel.reshape(shape),
        kind,
        part.which[sender],
        np.tile(sizes, len(patterns)),
        np.stack([one.latency for one in priced]).reshape(-1, *shape),
        np.stack([one.moving for one in priced], axis=1).reshape(3, -1, *shape),
        np.stack([one.alone for one in priced]).reshape(-1, *shape),
        np.stack(added).reshape(-1, *shape),
        extrapolated,
    )


class Waves:
    """The messages of a part, ready to be passed on as often as there are instances.

    Parameters
    ----------
    told : latency, bandwidth, contention and compute of each member in an instance [4, members of all groups] [s]
    carried : bytes and seconds over each hop in an instance [2, hops of all groups]
    """

    def __init__(self, table: Table, hops: Hops, members: int) -> None:
        self.hops = hops
        wires = _wires(table, hops)
        many = len(table.hop) * hops.sender.shape[1] >= LARGE
        kernels: Mapping[str, Kernel] = compiled(KERNELS, CALLED) if many else {"tell": tell, "pass_on": pass_on}
        self._wires: Any = as_column_table(wires) if many else wires
        self._pass_on = kernels["pass_on"]
        self._ends = np.empty((int(np.diff(table.first).max()), hops.sender.shape[1]))
        self.told, self.carried = np.zeros((4, members)), np.zeros((2, hops.sender.size))
        self.messages = int(kernels["tell"](self._wires, self.told, self.carried))

    def pass_on(self, slow: Floats, times: Floats) -> None:
        """Takes all steps: `times` become when members end."""
        self._pass_on(self._wires, slow, times, self._ends)


def _wires(table: Table, hops: Hops) -> Wires:
    _, buffers, pieces = hops.kind.shape
    return Wires(
        shape=np.array([hops.sender.shape[1], buffers, pieces, hops.sender.size, hops.latency.size]),
        first=table.first,
        hop=table.hop.ravel(),
        piece=table.piece,
        pattern=table.pattern,
        gets=table.gets.astype(np.int64),
        sender=hops.sender.ravel(),
        receiver=hops.receiver.ravel(),
        buffer=hops.buffer.ravel(),
        kind=hops.kind.ravel(),
        size=hops.size,
        latency=hops.latency.ravel(),
        moving=hops.moving.ravel(),
        alone=hops.alone.ravel(),
        added=hops.added.ravel(),
    )
