"""Times of pipelined collectives: messages pass along chains and trees, step by step, in one compiled pass.

A chain of 64 members and 64 pieces has 126 steps, and different members send in each
step.  But every message uses one of 63 hops and has one of two sizes.  So the cost of
each hop is computed once for each size, and the steps only list their hops
(`MessageTable`).

As in `message_times.py`, all messages of a step begin at the times before the step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.equality_labels import Ints, distinct_values, sorted_distinct
from quadrille.algorithms.collectives.group_stages import GroupStage
from quadrille.simulator.bounds.channels import HIGH, TYPICAL
from quadrille.simulator.bounds.cost_model import CostModel, message_patterns
from quadrille.simulator.bounds.group_work import GroupWork
from quadrille.simulator.engine.kernel_compiler import Kernel, as_column_table, compile_kernels
from quadrille.topologies.network import Floats

CALLED = ("account", "execute")
"""Names of the kernels that Python calls."""

assert TYPICAL == 1, "the kernels name the row"


class PipelineArrays(NamedTuple):
    """The message table and the hop costs as flat arrays for the kernels; a *pair* is a hop of one group.

    Parameters
    ----------
    shape : number of groups, of kinds of buffers, of pieces, of pairs, and of costs in a row
    """

    shape: Ints
    first: Ints
    hop: Ints
    piece: Ints
    pattern: Ints
    receives_only: Ints
    sender: Ints
    receiver: Ints
    buffer: Ints
    kind: Ints
    size: Floats
    latency: Floats
    moving: Floats
    alone: Floats
    added: Floats


def message_kind(arrays: PipelineArrays, message: int, pair: int) -> int:
    """The kind, that is pattern and size, of a message on a pair."""
    of_buffer = arrays.pattern[message] * arrays.shape[1] + arrays.buffer[pair]
    return int(arrays.kind[of_buffer * arrays.shape[2] + arrays.piece[message]])


def end_messages(arrays: PipelineArrays, step: int, times: Floats, ends: Floats, row: int) -> None:
    """Computes the end time of each message of a step [s]; -1 for empty messages, which are not sent."""
    groups, begin = arrays.shape[0], arrays.first[step]
    for m in range(begin, arrays.first[step + 1]):
        for g in range(groups):
            pair = arrays.hop[m] * groups + g
            kind = message_kind(arrays, m, pair)
            cost = kind * arrays.shape[3] + pair
            sender_time, receiver_time = times[row, arrays.sender[pair]], times[row, arrays.receiver[pair]]
            end = (
                (sender_time if sender_time > receiver_time else receiver_time)
                + arrays.latency[cost]
                + arrays.moving[row * arrays.shape[4] + cost]
            )
            ends[m - begin, g] = end if arrays.size[kind] > 0.0 else -1.0


def advance_members(arrays: PipelineArrays, step: int, slow: Floats, times: Floats, ends: Floats, row: int) -> None:
    """Advances the members of a step: senders to the end of their message, then receivers, which may add it."""
    groups, begin = arrays.shape[0], arrays.first[step]
    for m in range(begin, arrays.first[step + 1]):
        for g in range(groups):
            if ends[m - begin, g] >= 0.0:
                times[row, arrays.sender[arrays.hop[m] * groups + g]] = ends[m - begin, g]
    for m in range(begin, arrays.first[step + 1]):
        for g in range(groups):
            if ends[m - begin, g] >= 0.0:
                pair = arrays.hop[m] * groups + g
                receiver, cost = arrays.receiver[pair], message_kind(arrays, m, pair) * arrays.shape[3] + pair
                times[row, receiver] = (
                    max(times[row, receiver], ends[m - begin, g]) + arrays.added[cost] * slow[row, receiver]
                )


def account(arrays: PipelineArrays, breakdown: Floats, carried: Floats) -> int:
    """Adds up the time of members by cause and the load of pairs; returns the number of messages.

    Parameters
    ----------
    breakdown : latency, bandwidth, contention and compute of each member, added to [4, members of all groups]
    carried : bytes and seconds over each pair, added to [2, pairs]
    """
    messages, groups = 0, arrays.shape[0]
    for m in range(len(arrays.hop)):
        for g in range(groups):
            pair = arrays.hop[m] * groups + g
            kind = message_kind(arrays, m, pair)
            cost = kind * arrays.shape[3] + pair
            if arrays.size[kind] > 0.0:
                messages += 1
                carried[0, pair] += arrays.size[kind]
                carried[1, pair] += arrays.moving[arrays.shape[4] + cost]
                breakdown[3, arrays.receiver[pair]] += arrays.added[cost]
                for who in range(1 + arrays.receives_only[m]):
                    member = arrays.receiver[pair] if who else arrays.sender[pair]
                    breakdown[0, member] += arrays.latency[cost]
                    breakdown[1, member] += arrays.alone[cost]
                    breakdown[2, member] += arrays.moving[arrays.shape[4] + cost] - arrays.alone[cost]
    return messages


def execute(arrays: PipelineArrays, slow: Floats, times: Floats, ends: Floats) -> None:
    """Executes all steps of all groups.

    Parameters
    ----------
    slow : factor by which additions are slowed, by row [3, members of all groups]
    times : time at which each member begins, replaced by the time at which it ends [s] [3, members of all groups]
    ends : buffer for the messages of a step [most messages, groups]
    """
    for row in range(3):
        for step in range(len(arrays.first) - 1):
            end_messages(arrays, step, times, ends, row)
            advance_members(arrays, step, slow, times, ends, row)


KERNELS = (message_kind, end_messages, advance_members, account, execute)

LARGE = 1 << 6
"""Number of messages of a collective from which a compiled kernel is used."""

CACHED_TABLES = 1 << 12


@dataclass(frozen=True, slots=True, eq=False)
class MessageTable:
    """The messages of one group, in the order of the steps.

    Parameters
    ----------
    first : index of the first message of each step; the last entry is the number of messages [steps + 1]
    hop, piece, pattern : hop, piece and pattern of each message [messages]
    receives_only : whether the receiver of a message sends nothing in the same step [messages]
    sender, receiver : members at the two ends of each hop [hops]
    adds : whether the receiver of each hop adds the message to its buffer [hops]
    """

    first: Ints
    hop: Ints
    piece: Ints
    pattern: Ints
    receives_only: NDArray[np.bool_]
    sender: Ints
    receiver: Ints
    adds: NDArray[np.bool_]


@lru_cache(CACHED_TABLES)
def message_table(stages: tuple[GroupStage, ...], members: int) -> MessageTable | None:
    """The messages of stages that are each one step of single pieces; None for other stages."""
    moves = [move for stage in stages for move in stage.moves]
    if (
        not moves
        or any(stage.times > 1 for stage in stages)
        or any(move.stride or (move.count != 1).any() for move in moves)
    ):
        return None
    key = np.concatenate([(move.sender * members + move.receiver) * 2 + move.adds for move in moves])
    hops, hop = np.unique(key, return_inverse=True)
    patterns = [message_patterns(move.sender, move.receiver, members) for move in moves]
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


@dataclass(frozen=True, slots=True, eq=False)
class HopCosts:
    """The hops of all groups, and the cost of each kind of message on them.

    Parameters
    ----------
    sender, receiver : index of the ends among all members [hops, groups]
    channel : channel of each hop [hops, groups]
    kind : kind of the messages by pattern, kind of buffer and piece; -1 where there is none [3, buffers, pieces]
    buffer : kind of buffer of each hop [hops, groups]
    size : size of each kind of message [bytes]
    latency, alone, added : time of each kind on each hop [kinds, hops, groups] [s]
    moving : time in which bytes move, in three rows [3, kinds, hops, groups] [s]
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


def hop_costs(table: MessageTable, work: GroupWork, lane: str, cost_model: CostModel, slowdown: float) -> HopCosts:
    """The cost of the messages of an op.

    Parameters
    ----------
    slowdown : factor by which messages are slowed at most while their ends compute
    """
    groups, members = work.ranks.shape
    offset = np.arange(groups) * members
    sender, receiver = table.sender[:, None] + offset, table.receiver[:, None] + offset
    ranks = work.ranks.ravel()
    channel = cost_model.channels.numbers(lane, ranks[sender.ravel()], ranks[receiver.ravel()])
    rates = np.zeros(len(cost_model.channels.keys))
    used = sorted_distinct(channel.ravel())
    rates[used] = cost_model.channels.one_at_a_time(used)
    pieces = np.diff(work.edges, axis=1)
    if work.even:
        pieces = np.repeat(work.edges[:, -1:] / pieces.shape[1], pieces.shape[1], axis=1)
    sizes, size = distinct_values(pieces.ravel())
    patterns = sorted_distinct(table.pattern)
    kind = np.full((3, *pieces.shape), -1)
    kind[patterns] = np.arange(len(patterns))[:, None, None] * len(sizes) + size.reshape(pieces.shape)
    shape, costs, added = sender.shape, [], []
    extrapolated = False
    for pattern in patterns.tolist():
        for message_bytes in sizes.tolist():
            size_of_each = np.full(sender.size, message_bytes)
            costs.append(cost_model.transfer(channel, size_of_each, np.full(sender.size, pattern), rates[channel]))
            adds = np.where(np.repeat(table.adds, groups), message_bytes, 0.0)
            seconds, also_extrapolated = cost_model.memory("add", adds, ranks[receiver.ravel()])
            added.append(seconds)
            extrapolated |= also_extrapolated or costs[-1].extrapolated
    for kind_costs in costs:
        kind_costs.moving[HIGH] *= slowdown
    return HopCosts(
        sender,
        receiver,
        channel.reshape(shape),
        kind,
        work.buffer_kind[sender],
        np.tile(sizes, len(patterns)),
        np.stack([kind_costs.latency for kind_costs in costs]).reshape(-1, *shape),
        np.stack([kind_costs.moving for kind_costs in costs], axis=1).reshape(3, -1, *shape),
        np.stack([kind_costs.alone for kind_costs in costs]).reshape(-1, *shape),
        np.stack(added).reshape(-1, *shape),
        extrapolated,
    )


class PipelinedMessages:
    """The messages of an op on its groups, prepared for any number of instances.

    Parameters
    ----------
    breakdown : latency, bandwidth, contention and compute of each member in an instance [4, members of all groups] [s]
    carried : bytes and seconds over each hop in an instance [2, hops of all groups]
    """

    def __init__(self, table: MessageTable, hops: HopCosts, members: int) -> None:
        self.hops = hops
        arrays = _arrays(table, hops)
        many = len(table.hop) * hops.sender.shape[1] >= LARGE
        kernels: Mapping[str, Kernel] = (
            compile_kernels(KERNELS, CALLED) if many else {"account": account, "execute": execute}
        )
        self._arrays: Any = as_column_table(arrays) if many else arrays
        self._execute = kernels["execute"]
        self._ends = np.empty((int(np.diff(table.first).max()), hops.sender.shape[1]))
        self.breakdown, self.carried = np.zeros((4, members)), np.zeros((2, hops.sender.size))
        self.messages = int(kernels["account"](self._arrays, self.breakdown, self.carried))

    def execute(self, slow: Floats, times: Floats) -> None:
        """Executes all steps: `times` become the times when members end."""
        self._execute(self._arrays, slow, times, self._ends)


def _arrays(table: MessageTable, hops: HopCosts) -> PipelineArrays:
    """Table and hop costs, flattened for the kernels."""
    _, buffers, pieces = hops.kind.shape
    return PipelineArrays(
        shape=np.array([hops.sender.shape[1], buffers, pieces, hops.sender.size, hops.latency.size]),
        first=table.first,
        hop=table.hop.ravel(),
        piece=table.piece,
        pattern=table.pattern,
        receives_only=table.receives_only.astype(np.int64),
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
