"""The messages of one move of all groups, priced step by step."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.labels import Ints, first_alike, rising, thin
from quadrille.algorithms.collectives.group_stages import GroupMove, GroupStage
from quadrille.simulator.bounds.channels import HIGH, LOW, TYPICAL
from quadrille.simulator.bounds.instances import ROWS, InstanceTotals, TimeParts
from quadrille.simulator.bounds.pipelined import PipelinedMessages, hop_costs, message_table
from quadrille.simulator.bounds.prices import MachinePrices, Price
from quadrille.simulator.bounds.work import GroupWork
from quadrille.simulator.engine.compiled import as_column_table
from quadrille.topologies.network import Floats


@dataclass(slots=True, eq=False)
class PricedMove:
    """The messages of one move: which of the hop's there are, their price, and what their receivers add [s]."""

    moving: NDArray[np.bool_] | slice
    size: Floats
    price: Price
    added: Floats
    extrapolated: bool


class PricedHop:
    """One move of all groups: members by their place among all."""

    def __init__(self, move: GroupMove, part: GroupWork, lane: str, costs: MachinePrices, slowdown: float) -> None:
        groups, members = part.ranks.shape
        offset = np.zeros((1, 1), dtype=np.int64) if part.flat else np.arange(groups)[:, None] * members
        copies = 1 if part.flat else groups
        ranks = part.ranks.ravel()
        self.sender = (offset + move.sender).ravel()
        self.receiver = (offset + move.receiver).ravel()
        self.typical: Floats = np.zeros(0)
        self._move, self._part, self._costs, self._copies = move, part, costs, copies
        self._slowdown = slowdown
        self._count = np.tile(move.count, copies)
        self._adds = np.tile(move.adds, copies)
        self._to = ranks[self.receiver]
        self.channel: Ints = costs.channels.numbers(lane, ranks[self.sender], self._to)
        self._kept: PricedMove | None = None

    def step(self, k: int) -> PricedMove:
        """The k-th step."""
        if self._kept is not None:
            return self._kept
        size = self._size(k)
        there = np.ones(len(size), dtype=bool) if self._part.empty_messages else size > 0
        moving: NDArray[np.bool_] | slice = slice(None) if there.all() else there
        pattern = _patterns(self.sender[moving], self.receiver[moving], self._part.ranks.size)
        price = self._costs.transfer(self.channel[moving], size[moving], pattern, self.typical[moving])
        price.moving[HIGH] *= self._slowdown
        added, extrapolated = self._costs.memory("add", np.where(self._adds, size, 0.0)[moving], self._to[moving])
        found = PricedMove(moving, size[moving], price, added, extrapolated)
        if self._part.even or not self._move.stride:
            self._kept = found
        return found

    def tell(self, moved: PricedMove, times: int, story: TimeParts) -> None:
        """Adds so many such moves to the stories of the members."""
        sender, receiver, price = self.sender[moved.moving], self.receiver[moved.moving], moved.price
        only = np.ones(len(story.latency), dtype=bool)
        only[sender] = False
        gets = only[receiver]
        for told, spent in (
            (story.latency, price.latency),
            (story.bandwidth, price.alone),
            (story.contention, price.moving[TYPICAL] - price.alone),
        ):
            told[sender] += times * spent
            told[receiver[gets]] += times * spent[gets]
        story.compute[receiver] += times * moved.added

    def _size(self, k: int) -> Floats:
        """Bytes of each message."""
        edges, which, part = self._part.edges, self._part.which[self.sender], self._part
        pieces = edges.shape[1] - 1
        if part.even or part.empty_messages:
            whole: Floats = edges[which, -1] / pieces * self._count
            return whole
        first = np.tile(self._move.pieces(k, pieces), self._copies)
        if self._move.every == 1:
            end = first + self._count
            around: Floats = edges[which, np.maximum(0, end - pieces)] - edges[which, 0]
            around += edges[which, np.minimum(end, pieces)] - edges[which, first]
            return around
        size = np.zeros(len(first))
        for j in range(int(self._count.max(initial=0))):
            piece = (first + j * self._move.every) % pieces
            size += np.where(j < self._count, edges[which, piece + 1] - edges[which, piece], 0.0)
        return size


def _patterns(sender: Ints, receiver: Ints, members: int) -> Ints:
    """Whether each message goes one way (0), to and fro (1) or around (2)."""
    source = np.full(members, -1)
    source[receiver] = sender
    back = source[sender]
    return np.where(back < 0, 0, np.where(back == receiver, 1, 2))


MOST_STATES = 64
"""Stages of one collective whose typical rates are found each by itself."""

KEPT_NUMBERS = 1 << 21
"""Of the steps of one collective, up to which they are kept for its next instance: 16 MiB."""

NUMBERS_A_MESSAGE = 9

COMPILED = 1 << 6
"""Messages of a step from which on a compiled kernel is worth loading."""


class StepArrays(NamedTuple):
    """The messages of a step as kernels take them, hop after hop.

    Parameters
    ----------
    first : where the messages of each hop begin, and the last ones end
    sender, receiver : by their place among all members [messages]
    latency : paid before bytes move [messages] [s]
    moving, added : then, and for what the receiver adds, in three rows, one after the other [3 messages] [s]
    """

    first: Ints
    sender: Ints
    receiver: Ints
    latency: Floats
    moving: Floats
    added: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PricedStep:
    """One step of all groups; `wires` as kernels take them, compiled ones where messages are many.

    Parameters
    ----------
    groups : of each hop's messages, one after the other, as many in each; 1 where they are not known apart
    alike : for each group the first that costs the same, by row [3, groups]
    """

    wires: Any
    compiled: bool
    messages: int
    groups: int
    alike: Ints


class GroupSteps:
    """An op on groups that do the same steps.

    Parameters
    ----------
    slow : what local work takes longer, by row [3, members of all groups]
    before, after : copies of each member, in the rows [3, members of all groups] [s]
    waves : the messages, where members take turns and steps are of single pieces
    slowdown : how many times as long messages take at most, beside work of their ends
    """

    def __init__(self, part: GroupWork, lane: str, costs: MachinePrices, *, slowdown: float = 1.0) -> None:
        self.part, self._costs, self._lane, self._slowdown = part, costs, lane, slowdown
        self.ranks = ranks = part.ranks.ravel()
        self.slow = np.stack([np.ones(len(ranks)), 1 / costs.local.moving[ranks], 1 / costs.local.least[ranks]])
        before, extrapolated_before = costs.memory("copy", part.before.ravel(), ranks)
        after, later = costs.memory("copy", part.after.ravel(), ranks)
        self.before, self.after = thin(before * self.slow), thin(after * self.slow)
        self._extrapolated = extrapolated_before or later
        self.waves: PipelinedMessages | None = None
        together = not part.in_waves or part.flat or part.empty_messages
        table = None if together else message_table(part.stages, part.ranks.shape[1])
        if table is not None:
            self.waves = PipelinedMessages(table, hop_costs(table, part, lane, costs, slowdown), len(ranks))
        self._keeps = self.waves is None and NUMBERS_A_MESSAGE * self._messages() <= KEPT_NUMBERS
        self._steps: dict[tuple[int, int], PricedStep] = {}
        self._hops: dict[int, list[PricedHop]] = {}

    @property
    def numbers(self) -> int:
        """That it keeps, about."""
        if self.waves is not None:
            return 3 * self.waves.hops.moving.size + 8 * len(self.ranks)
        return 8 * len(self.ranks) + (NUMBERS_A_MESSAGE * self._messages() if self._keeps else 0)

    def alike(self, stage: GroupStage) -> bool:
        """Whether all steps of a stage are the same."""
        return stage.times == 1 or self.part.even or all(not move.stride for move in stage.moves)

    def _messages(self) -> int:
        """Of all the steps that differ."""
        groups = 1 if self.part.flat else self.part.ranks.shape[0]
        each = (
            (1 if self.alike(one) else one.times) * sum(len(m.sender) for m in one.moves) for one in self.part.stages
        )
        return groups * sum(each)

    def step(self, at: int, k: int) -> PricedStep:
        """The k-th step of a stage."""
        key = at, 0 if self.alike(self.part.stages[at]) else k
        if key in self._steps:
            return self._steps[key]
        return self._wired([(hop, hop.step(k)) for hop in self._hops_of(at)])

    def _wired(self, moves: list[tuple[PricedHop, PricedMove]]) -> PricedStep:
        """Moves of a step as kernels take them."""
        ends = [(hop.sender[one.moving], hop.receiver[one.moving]) for hop, one in moves]
        receiver = np.concatenate([to for _, to in ends])
        added = np.concatenate([one.added for _, one in moves]) * self.slow[:, receiver]
        wires = StepArrays(
            np.concatenate([[0], np.cumsum([len(one.size) for _, one in moves])]),
            np.concatenate([sender for sender, _ in ends]),
            receiver,
            np.concatenate([one.price.latency for _, one in moves]),
            np.concatenate([one.price.moving for _, one in moves], axis=1).ravel(),
            added.ravel(),
        )
        many, apart = len(receiver) >= COMPILED, all(isinstance(one.moving, slice) for _, one in moves)
        groups = self.part.ranks.shape[0] if apart and not self.part.flat else 1
        return PricedStep(as_column_table(wires) if many else wires, many, len(receiver), groups, _alike(wires, groups))

    @cached_property
    def told(self) -> InstanceTotals:
        """What an instance comes to; asked for before the steps, since it looks at them all."""
        channels = len(self._costs.channels.keys)
        moved, under_way, story = np.zeros(channels), np.zeros(channels), TimeParts.of(len(self.ranks))
        extrapolated = self._extrapolated
        if self.waves is not None:
            latency, bandwidth, contention, compute = self.waves.told.copy()
            story = TimeParts(latency, bandwidth, contention, compute, story.overhead)
            extrapolated |= self.waves.hops.extrapolated
            np.add.at(moved, self.waves.hops.channel.ravel(), self.waves.carried[0])
            np.add.at(under_way, self.waves.hops.channel.ravel(), self.waves.carried[1])
        for hop, one, times in self._each() if self.waves is None else ():
            channel = hop.channel[one.moving]
            moved[channel] += times * one.size
            under_way[channel] += times * one.price.moving[TYPICAL]
            hop.tell(one, times, story)
            extrapolated |= one.price.extrapolated or one.extrapolated
        story.compute += self.before[LOW] + self.after[LOW]
        if self._keeps:
            self._hops.clear()
            self.__dict__.pop("_typical_of_all", None)
        used = np.flatnonzero((moved > 0) | (under_way > 0))
        return InstanceTotals(story, used, moved[used], under_way[used], extrapolated)

    def _each(self) -> Iterator[tuple[PricedHop, PricedMove, int]]:
        """The moves of all steps, each with how often it is made; steps that are kept are made of them."""
        for at, stage in enumerate(self.part.stages):
            times = stage.times if self.alike(stage) else 1
            for k in range(stage.times // times):
                moves = [(hop, hop.step(k)) for hop in self._hops_of(at)]
                if self._keeps:
                    self._steps[at, k] = self._wired(moves)
                yield from ((hop, moved, times) for hop, moved in moves)

    def _hops_of(self, at: int) -> list[PricedHop]:
        """Those of a stage."""
        if at in self._hops:
            return self._hops[at]
        found = self._unpriced(at)
        several = len(self.part.stages) > MOST_STATES or self.part.in_waves
        for hop in found:
            rates = self._typical_of_all[hop.channel] if several else self._costs.channels.typical(hop.channel)
            hop.typical = rates
        self._hops = {at: found}
        return found

    def _unpriced(self, at: int) -> list[PricedHop]:
        return [
            PricedHop(move, self.part, self._lane, self._costs, self._slowdown) for move in self.part.stages[at].moves
        ]

    @cached_property
    def _typical_of_all(self) -> Floats:
        """Rates of all steps' transfers together."""
        channels = self._costs.channels
        hops = [hop for at in range(len(self.part.stages)) for hop in self._unpriced(at)]
        used = rising(np.concatenate([one.channel for one in hops]))
        found = np.zeros(len(channels.keys))
        found[used] = channels.taking_turns(used)
        return found


def _alike(wires: StepArrays, groups: int) -> Ints:
    """For each group the first whose messages cost the same, by row [3, groups]."""
    if groups == 1:
        return np.zeros((ROWS, 1), dtype=np.int64)
    hops = [slice(begin, end) for begin, end in pairwise(wires.first.tolist())]
    latency = [wires.latency[hop].reshape(groups, -1).view(np.int64) for hop in hops]
    moving, added = wires.moving.reshape(ROWS, -1), wires.added.reshape(ROWS, -1)
    by_row = (
        [one[row, hop].reshape(groups, -1).view(np.int64) for one in (moving, added) for hop in hops]
        for row in range(ROWS)
    )
    return np.stack([first_alike([*latency, *row]) for row in by_row])
