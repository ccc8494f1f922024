"""Messages down chains and trees, step by step, as kernels over arrays (`waves.py` says what they are given)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.labels import Ints, distinct, rising
from quadrille.algorithms.collectives.group_stages import GroupStage
from quadrille.simulator.bounds.channels import HIGH, TYPICAL
from quadrille.simulator.bounds.prices import MachinePrices
from quadrille.simulator.bounds.work import GroupWork
from quadrille.simulator.engine.compiled import Kernel, as_column_table, compiled
from quadrille.topologies.network import Floats

CALLED = ("tell", "pass_on")
"""Kernels that Python calls."""

assert TYPICAL == 1, "the kernels name the row"


class PipelineArrays(NamedTuple):
    """What a kernel must know of table and hops, see there, row after row; a wire is a hop of a group.

    `shape` is how many groups, kinds of buffers, pieces, wires, and costs of a row there are.
    """

    shape: Ints
    first: Ints
    hop: Ints
    piece: Ints
    pattern: Ints
    gets: Ints
    sender: Ints
    receiver: Ints
    buffer: Ints
    kind: Ints
    size: Floats
    latency: Floats
    moving: Floats
    alone: Floats
    added: Floats


def kind_of(wires: PipelineArrays, message: int, wire: int) -> int:
    """The kind of a message on a wire."""
    of_buffer = wires.pattern[message] * wires.shape[1] + wires.buffer[wire]
    return int(wires.kind[of_buffer * wires.shape[2] + wires.piece[message]])


def meet(wires: PipelineArrays, step: int, times: Floats, ends: Floats, row: int) -> None:
    """When the messages of a step end; -1 of those that there are not."""
    groups, begin = wires.shape[0], wires.first[step]
    for m in range(begin, wires.first[step + 1]):
        for g in range(groups):
            wire = wires.hop[m] * groups + g
            k = kind_of(wires, m, wire)
            cost = k * wires.shape[3] + wire
            a, b = times[row, wires.sender[wire]], times[row, wires.receiver[wire]]
            end = (a if a > b else b) + wires.latency[cost] + wires.moving[row * wires.shape[4] + cost]
            ends[m - begin, g] = end if wires.size[k] > 0.0 else -1.0


def move_on(wires: PipelineArrays, step: int, slow: Floats, times: Floats, ends: Floats, row: int) -> None:
    """Members of a step go on: senders when their message has ended, then receivers, who may add what they got."""
    groups, begin = wires.shape[0], wires.first[step]
    for m in range(begin, wires.first[step + 1]):
        for g in range(groups):
            if ends[m - begin, g] >= 0.0:
                times[row, wires.sender[wires.hop[m] * groups + g]] = ends[m - begin, g]
    for m in range(begin, wires.first[step + 1]):
        for g in range(groups):
            if ends[m - begin, g] >= 0.0:
                wire = wires.hop[m] * groups + g
                to, cost = wires.receiver[wire], kind_of(wires, m, wire) * wires.shape[3] + wire
                times[row, to] = max(times[row, to], ends[m - begin, g]) + wires.added[cost] * slow[row, to]


def tell(wires: PipelineArrays, told: Floats, carried: Floats) -> int:
    """What the time of members goes into, and what goes over wires; gives back how many messages there are.

    Parameters
    ----------
    told : latency, bandwidth, contention and compute of each member, added to [4, members of all groups]
    carried : bytes and seconds over each wire, added to [2, wires]
    """
    messages, groups = 0, wires.shape[0]
    for m in range(len(wires.hop)):
        for g in range(groups):
            wire = wires.hop[m] * groups + g
            k = kind_of(wires, m, wire)
            cost = k * wires.shape[3] + wire
            if wires.size[k] > 0.0:
                messages += 1
                carried[0, wire] += wires.size[k]
                carried[1, wire] += wires.moving[wires.shape[4] + cost]
                told[3, wires.receiver[wire]] += wires.added[cost]
                for who in range(1 + wires.gets[m]):
                    member = wires.receiver[wire] if who else wires.sender[wire]
                    told[0, member] += wires.latency[cost]
                    told[1, member] += wires.alone[cost]
                    told[2, member] += wires.moving[wires.shape[4] + cost] - wires.alone[cost]
    return messages


def pass_on(wires: PipelineArrays, slow: Floats, times: Floats, ends: Floats) -> None:
    """All steps of all groups.

    Parameters
    ----------
    slow : what additions take longer, by row [3, members of all groups]
    times : when each member begins, and then ends [3, members of all groups]
    ends : room for the messages of a step [most messages, groups]
    """
    for row in range(3):
        for step in range(len(wires.first) - 1):
            meet(wires, step, times, ends, row)
            move_on(wires, step, slow, times, ends, row)


KERNELS = (kind_of, meet, move_on, tell, pass_on)

LARGE = 1 << 6
"""Messages of one collective from which on a compiled kernel is worth loading."""

TABLES_KEPT = 1 << 12

ONE_WAY, EXCHANGE, AROUND = 0, 1, 2
"""Whether a sender gets nothing in the step, gets from its receiver, or from another."""


@dataclass(frozen=True, slots=True, eq=False)
class MessageTable:
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
def message_table(stages: tuple[GroupStage, ...], members: int) -> MessageTable | None:
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
    return MessageTable(
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
class HopCosts:
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


def hop_costs(table: MessageTable, part: GroupWork, lane: str, costs: MachinePrices, slowdown: float) -> HopCosts:
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
    return HopCosts(
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


class PipelinedMessages:
    """The messages of a part, ready to be passed on as often as there are instances.

    Parameters
    ----------
    told : latency, bandwidth, contention and compute of each member in an instance [4, members of all groups] [s]
    carried : bytes and seconds over each hop in an instance [2, hops of all groups]
    """

    def __init__(self, table: MessageTable, hops: HopCosts, members: int) -> None:
        self.hops = hops
        wires = _arrays(table, hops)
        many = len(table.hop) * hops.sender.shape[1] >= LARGE
        kernels: Mapping[str, Kernel] = compiled(KERNELS, CALLED) if many else {"tell": tell, "pass_on": pass_on}
        self._arrays: Any = as_column_table(wires) if many else wires
        self._pass_on = kernels["pass_on"]
        self._ends = np.empty((int(np.diff(table.first).max()), hops.sender.shape[1]))
        self.told, self.carried = np.zeros((4, members)), np.zeros((2, hops.sender.size))
        self.messages = int(kernels["tell"](self._arrays, self.told, self.carried))

    def pass_on(self, slow: Floats, times: Floats) -> None:
        """Takes all steps: `times` become when members end."""
        self._pass_on(self._arrays, slow, times, self._ends)


def _arrays(table: MessageTable, hops: HopCosts) -> PipelineArrays:
    _, buffers, pieces = hops.kind.shape
    return PipelineArrays(
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
