"""The seconds of every step of one communication op, for many groups of ranks at once.

A *stage* is a sequence of moves that is repeated (`group_stages.py`); repetition k is *step* k of the stage; a *move*
is messages between members that are sent at once. Times have three rows: LOW and HIGH are bounds, TYPICAL is the
estimate.

An instance of the op executes these steps (`message_times.py`). The seconds do not
depend on when members begin, so they are computed once, as are the sums that an instance
adds to the totals (`InstanceTotals`). Steps are cached if they are not too many.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.equality_labels import Ints, compact, first_equal_rows, sorted_distinct
from quadrille.algorithms.collectives.group_stages import GroupMove, GroupStage
from quadrille.simulator.bounds.channels import HIGH, LOW, TYPICAL
from quadrille.simulator.bounds.cost_model import CostModel, TransferCosts, message_patterns
from quadrille.simulator.bounds.group_work import GroupWork
from quadrille.simulator.bounds.op_instances import ROWS, InstanceTotals, OpTimeParts
from quadrille.simulator.bounds.pipelined_collectives import PipelinedMessages, hop_costs, message_table
from quadrille.simulator.engine.kernel_compiler import as_column_table
from quadrille.topologies.network import Floats


@dataclass(slots=True, eq=False)
class MoveCosts:
    """The messages of one move that are sent, with their costs.

    Parameters
    ----------
    is_sent : which of the hop's messages are sent
    size : bytes of each message
    costs : seconds of each message
    added : seconds that receivers need to add the messages to their buffers [s]
    extrapolated : whether an addition is larger than what was measured
    """

    is_sent: NDArray[np.bool_] | slice
    size: Floats
    costs: TransferCosts
    added: Floats
    extrapolated: bool


class MoveOfGroups:
    """One move of all groups: messages between members of each group that are sent at once."""

    def __init__(self, move: GroupMove, work: GroupWork, lane: str, cost_model: CostModel, slowdown: float) -> None:
        groups, members = work.ranks.shape
        offset = np.zeros((1, 1), dtype=np.int64) if work.flat else np.arange(groups)[:, None] * members
        copies = 1 if work.flat else groups
        ranks = work.ranks.ravel()
        self.sender = (offset + move.sender).ravel()
        self.receiver = (offset + move.receiver).ravel()
        self.typical: Floats = np.zeros(0)
        self._move, self._work, self._cost_model, self._copies = move, work, cost_model, copies
        self._slowdown = slowdown
        self._count = np.tile(move.count, copies)
        self._adds = np.tile(move.adds, copies)
        self._to = ranks[self.receiver]
        self.channel: Ints = cost_model.channels.numbers(lane, ranks[self.sender], self._to)
        self._cached: MoveCosts | None = None

    def step(self, k: int) -> MoveCosts:
        """The messages of the k-th step."""
        if self._cached is not None:
            return self._cached
        size = self._size(k)
        sent = np.ones(len(size), dtype=bool) if self._work.empty_messages else size > 0
        is_sent: NDArray[np.bool_] | slice = slice(None) if sent.all() else sent
        pattern = message_patterns(self.sender[is_sent], self.receiver[is_sent], self._work.ranks.size)
        costs = self._cost_model.transfer(self.channel[is_sent], size[is_sent], pattern, self.typical[is_sent])
        costs.moving[HIGH] *= self._slowdown
        added, extrapolated = self._cost_model.memory(
            "add", np.where(self._adds, size, 0.0)[is_sent], self._to[is_sent]
        )
        move_costs = MoveCosts(is_sent, size[is_sent], costs, added, extrapolated)
        if self._work.even or not self._move.stride:
            self._cached = move_costs
        return move_costs

    def account(self, moved: MoveCosts, times: int, time_parts: OpTimeParts) -> None:
        """Adds the time of `times` equal moves to the breakdown of the members."""
        sender, receiver, costs = self.sender[moved.is_sent], self.receiver[moved.is_sent], moved.costs
        unseen = np.ones(len(time_parts.latency), dtype=bool)
        unseen[sender] = False
        gets = unseen[receiver]
        for totals, seconds in (
            (time_parts.latency, costs.latency),
            (time_parts.bandwidth, costs.alone),
            (time_parts.contention, costs.moving[TYPICAL] - costs.alone),
        ):
            totals[sender] += times * seconds
            totals[receiver[gets]] += times * seconds[gets]
        time_parts.compute[receiver] += times * moved.added

    def _size(self, k: int) -> Floats:
        """Bytes of each message of the k-th step."""
        edges, which, work = self._work.edges, self._work.buffer_kind[self.sender], self._work
        pieces = edges.shape[1] - 1
        if work.even or work.empty_messages:
            return np.asarray(edges[which, -1] / pieces * self._count)
        first = np.tile(self._move.first_pieces(k, pieces), self._copies)
        if self._move.spacing == 1:
            end = first + self._count
            around_end = edges[which, np.maximum(0, end - pieces)] - edges[which, 0]
            return np.asarray(around_end + (edges[which, np.minimum(end, pieces)] - edges[which, first]))
        size = np.zeros(len(first))
        for j in range(int(self._count.max(initial=0))):
            piece = (first + j * self._move.spacing) % pieces
            size += np.where(j < self._count, edges[which, piece + 1] - edges[which, piece], 0.0)
        return size


MOST_STAGES = 64
"""Largest number of stages for which typical rates are computed stage by stage."""

CACHED_STEP_NUMBERS = 1 << 21
"""Largest count of numbers of a collective's steps that are cached for its next instance: 16 MiB."""

NUMBERS_PER_MESSAGE = 9

COMPILED = 1 << 6
"""Number of messages of a step from which a compiled kernel is used."""


class StepArrays(NamedTuple):
    """The messages of one step as arrays for kernels, hop after hop.

    Parameters
    ----------
    first : index of the first message of each hop; the last entry is the number of messages
    sender, receiver : index of each message's ends among all members [messages]
    latency : time before bytes move [messages] [s]
    moving : time in which bytes move, three rows one after the other [3 messages] [s]
    added : time in which the receiver adds the message, in the same way [3 messages] [s]
    """

    first: Ints
    sender: Ints
    receiver: Ints
    latency: Floats
    moving: Floats
    added: Floats


@dataclass(frozen=True, slots=True, eq=False)
class StepCosts:
    """One step of all groups.

    Parameters
    ----------
    arrays : the messages, as a compiled kernel takes them if they are many
    groups : groups of equal size whose messages follow one another; 1 where groups are not separated
    equivalents : for each group the first group with the same costs, by row [3, groups]
    """

    arrays: Any
    compiled: bool
    messages: int
    groups: int
    equivalents: Ints


class GroupSteps:
    """A communication op on groups that take the same steps.

    Parameters
    ----------
    slow : factor by which local work is slowed, by row [3, members of all groups]
    before, after : seconds in which each member copies before and after the steps [3, members of all groups] [s]
    pipeline : the messages as pipelines, where members send at different times and steps are single pieces
    slowdown : factor by which messages are slowed at most while their ends compute
    """

    def __init__(self, work: GroupWork, lane: str, cost_model: CostModel, *, slowdown: float = 1.0) -> None:
        self.work, self._cost_model, self._lane, self._slowdown = work, cost_model, lane, slowdown
        self.ranks = ranks = work.ranks.ravel()
        self.slow = np.stack(
            [np.ones(len(ranks)), 1 / cost_model.local.moving[ranks], 1 / cost_model.local.least[ranks]]
        )
        before, extrapolated_before = cost_model.memory("copy", work.before.ravel(), ranks)
        after, extrapolated_after = cost_model.memory("copy", work.after.ravel(), ranks)
        self.before, self.after = compact(before * self.slow), compact(after * self.slow)
        self._extrapolated = extrapolated_before or extrapolated_after
        self.pipeline: PipelinedMessages | None = None
        in_lockstep = not work.pipelined or work.flat or work.empty_messages
        table = None if in_lockstep else message_table(work.stages, work.ranks.shape[1])
        if table is not None:
            self.pipeline = PipelinedMessages(table, hop_costs(table, work, lane, cost_model, slowdown), len(ranks))
        self._caches_steps = self.pipeline is None and NUMBERS_PER_MESSAGE * self._messages() <= CACHED_STEP_NUMBERS
        self._steps: dict[tuple[int, int], StepCosts] = {}
        self._hops: dict[int, list[MoveOfGroups]] = {}

    @property
    def numbers(self) -> int:
        """Approximate count of cached numbers."""
        if self.pipeline is not None:
            return 3 * self.pipeline.hops.moving.size + 8 * len(self.ranks)
        return 8 * len(self.ranks) + (NUMBERS_PER_MESSAGE * self._messages() if self._caches_steps else 0)

    def steps_equal(self, stage: GroupStage) -> bool:
        """Whether all steps of a stage are the same."""
        return stage.times == 1 or self.work.even or all(not move.stride for move in stage.moves)

    def _messages(self) -> int:
        """Number of messages of all steps that differ."""
        groups = 1 if self.work.flat else self.work.ranks.shape[0]
        counts = (
            (1 if self.steps_equal(stage) else stage.times) * sum(len(move.sender) for move in stage.moves)
            for stage in self.work.stages
        )
        return groups * sum(counts)

    def step(self, at: int, k: int) -> StepCosts:
        """The k-th step of a stage."""
        key = at, 0 if self.steps_equal(self.work.stages[at]) else k
        if key in self._steps:
            return self._steps[key]
        return self._step_of([(hop, hop.step(k)) for hop in self._hops_of(at)])

    def _step_of(self, moves: list[tuple[MoveOfGroups, MoveCosts]]) -> StepCosts:
        """The moves of a step as kernels take them."""
        ends = [(hop.sender[move.is_sent], hop.receiver[move.is_sent]) for hop, move in moves]
        receiver = np.concatenate([receivers for _, receivers in ends])
        added = np.concatenate([move.added for _, move in moves]) * self.slow[:, receiver]
        arrays = StepArrays(
            np.concatenate([[0], np.cumsum([len(move.size) for _, move in moves])]),
            np.concatenate([sender for sender, _ in ends]),
            receiver,
            np.concatenate([move.costs.latency for _, move in moves]),
            np.concatenate([move.costs.moving for _, move in moves], axis=1).ravel(),
            added.ravel(),
        )
        many, separated = len(receiver) >= COMPILED, all(isinstance(move.is_sent, slice) for _, move in moves)
        groups = self.work.ranks.shape[0] if separated and not self.work.flat else 1
        return StepCosts(
            as_column_table(arrays) if many else arrays, many, len(receiver), groups, _equivalents(arrays, groups)
        )

    @cached_property
    def totals(self) -> InstanceTotals:
        """The sums that one instance adds to the totals; computed first, because the computation visits all steps."""
        channels = len(self._cost_model.channels.keys)
        bytes_moved, busy, time_parts = np.zeros(channels), np.zeros(channels), OpTimeParts.of(len(self.ranks))
        extrapolated = self._extrapolated
        if self.pipeline is not None:
            latency, bandwidth, contention, compute = self.pipeline.breakdown.copy()
            time_parts = OpTimeParts(latency, bandwidth, contention, compute, time_parts.overhead)
            extrapolated |= self.pipeline.hops.extrapolated
            np.add.at(bytes_moved, self.pipeline.hops.channel.ravel(), self.pipeline.carried[0])
            np.add.at(busy, self.pipeline.hops.channel.ravel(), self.pipeline.carried[1])
        for hop, move_costs, times in self._moves() if self.pipeline is None else ():
            channel = hop.channel[move_costs.is_sent]
            bytes_moved[channel] += times * move_costs.size
            busy[channel] += times * move_costs.costs.moving[TYPICAL]
            hop.account(move_costs, times, time_parts)
            extrapolated |= move_costs.costs.extrapolated or move_costs.extrapolated
        time_parts.compute += self.before[LOW] + self.after[LOW]
        if self._caches_steps:
            self._hops.clear()
            self.__dict__.pop("_typical_of_all", None)
        used = np.flatnonzero((bytes_moved > 0) | (busy > 0))
        return InstanceTotals(time_parts, used, bytes_moved[used], busy[used], extrapolated)

    def _moves(self) -> Iterator[tuple[MoveOfGroups, MoveCosts, int]]:
        """The moves of all steps, each with its number of repetitions; the steps that are cached are made here."""
        for at, stage in enumerate(self.work.stages):
            times = stage.times if self.steps_equal(stage) else 1
            for k in range(stage.times // times):
                moves = [(hop, hop.step(k)) for hop in self._hops_of(at)]
                if self._caches_steps:
                    self._steps[at, k] = self._step_of(moves)
                yield from ((hop, move_costs, times) for hop, move_costs in moves)

    def _hops_of(self, at: int) -> list[MoveOfGroups]:
        """The hops of a stage, with their typical rates."""
        if at in self._hops:
            return self._hops[at]
        hops = self._new_hops(at)
        shares_rates = len(self.work.stages) > MOST_STAGES or self.work.pipelined
        for hop in hops:
            rates = (
                self._typical_of_all[hop.channel] if shares_rates else self._cost_model.channels.typical(hop.channel)
            )
            hop.typical = rates
        self._hops = {at: hops}
        return hops

    def _new_hops(self, at: int) -> list[MoveOfGroups]:
        return [
            MoveOfGroups(move, self.work, self._lane, self._cost_model, self._slowdown)
            for move in self.work.stages[at].moves
        ]

    @cached_property
    def _typical_of_all(self) -> Floats:
        """Typical rates of the transfers of all steps together."""
        channels = self._cost_model.channels
        hops = [hop for at in range(len(self.work.stages)) for hop in self._new_hops(at)]
        used = sorted_distinct(np.concatenate([hop.channel for hop in hops]))
        rates = np.zeros(len(channels.keys))
        rates[used] = channels.one_at_a_time(used)
        return rates


def _equivalents(arrays: StepArrays, groups: int) -> Ints:
    """For each group the first group whose messages have the same costs, by row [3, groups]."""
    if groups == 1:
        return np.zeros((ROWS, 1), dtype=np.int64)
    hops = [slice(begin, end) for begin, end in pairwise(arrays.first.tolist())]
    latency = [arrays.latency[hop].reshape(groups, -1).view(np.int64) for hop in hops]
    moving, added = arrays.moving.reshape(ROWS, -1), arrays.added.reshape(ROWS, -1)
    by_row = (
        [column[row, hop].reshape(groups, -1).view(np.int64) for column in (moving, added) for hop in hops]
        for row in range(ROWS)
    )
    return np.stack([first_equal_rows([*latency, *row]) for row in by_row])
