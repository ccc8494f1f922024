"""What is the same for all instances of an op on some groups: who sends to whom, at what price, and the sums of that.

Steps are priced once and kept, where they are not too many.  What an instance goes into
(`Told`) does not depend on when its members begin, so it is added up once, without times.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.folding.labels import Ints
from simulator.sharing.compiled import as_table
from simulator.steady.costs import Costs, Price
from simulator.steady.rates import HIGH, TYPICAL
from simulator.steady.stages import Move, Stage
from simulator.steady.story import Story, Told
from simulator.steady.waves import Waves, hops_of, table_of
from simulator.steady.work import Part
from topologies.network import Floats

MOST_STATES = 64
"""Stages of one collective whose typical rates are found each by itself."""
KEPT_NUMBERS = 1 << 21
"""Of the steps of one collective, up to which they are kept for its next instance: 16 MiB."""
NUMBERS_A_MESSAGE = 16
COMPILED = 1 << 6
"""Messages of a step from which on a compiled kernel is worth loading."""


class Wires(NamedTuple):
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
class Step:
    """One step of all groups; `wires` as kernels take them, compiled ones where messages are many."""

    wires: Any
    compiled: bool
    messages: int


class Prepared:
    """An op on groups that do the same steps.

    Parameters
    ----------
    slow : what local work takes longer, by row [3, members of all groups]
    before, after : seconds of the copies of each member
    waves : the messages, where members take turns and steps are of single pieces
    slowdown : how many times as long messages take at most, beside work of their ends
    """

    def __init__(self, part: Part, lane: str, costs: Costs, *, slowdown: float = 1.0) -> None:
        self.part, self._costs, self._lane, self._slowdown = part, costs, lane, slowdown
        self.ranks = ranks = part.ranks.ravel()
        self.slow = np.stack([np.ones(len(ranks)), 1 / costs.local.moving[ranks], 1 / costs.local.least[ranks]])
        self.before, beyond = costs.memory("copy", part.before.ravel(), ranks)
        self.after, later = costs.memory("copy", part.after.ravel(), ranks)
        self._extrapolated = beyond or later
        self.waves: Waves | None = None
        together = not part.in_waves or part.flat or part.empty_messages
        table = None if together else table_of(part.stages, part.ranks.shape[1])
        if table is not None:
            self.waves = Waves(table, hops_of(table, part, lane, costs, slowdown), len(ranks))
        self._keeps = self.waves is None and NUMBERS_A_MESSAGE * self._messages() <= KEPT_NUMBERS
        self._steps: dict[tuple[int, int], Step] = {}
        self._hops: dict[int, list[_Hop]] = {}

    @property
    def numbers(self) -> int:
        """That it keeps, about."""
        if self.waves is not None:
            return 3 * self.waves.hops.moving.size + 8 * len(self.ranks)
        return 8 * len(self.ranks) + (NUMBERS_A_MESSAGE * self._messages() if self._keeps else 0)

    def alike(self, stage: Stage) -> bool:
        """Whether all steps of a stage are the same."""
        return stage.times == 1 or self.part.even or all(not move.stride for move in stage.moves)

    def _messages(self) -> int:
        """Of all the steps that differ."""
        groups = 1 if self.part.flat else self.part.ranks.shape[0]
        each = (
            (1 if self.alike(one) else one.times) * sum(len(m.sender) for m in one.moves) for one in self.part.stages
        )
        return groups * sum(each)

    def step(self, at: int, k: int) -> Step:
        """The k-th step of a stage."""
        key = at, 0 if self.alike(self.part.stages[at]) else k
        if key in self._steps:
            return self._steps[key]
        found = self._wired([(hop, hop.step(k)) for hop in self._hops_of(at)])
        if self._keeps:
            self._steps[key] = found
        return found

    def _wired(self, moves: "list[tuple[_Hop, _Moved]]") -> Step:
        """Moves of a step as kernels take them."""
        ends = [(hop.sender[one.moving], hop.receiver[one.moving]) for hop, one in moves]
        receiver = np.concatenate([to for _, to in ends])
        added = np.concatenate([one.added for _, one in moves]) * self.slow[:, receiver]
        wires = Wires(
            np.concatenate([[0], np.cumsum([len(one.size) for _, one in moves])]),
            np.concatenate([sender for sender, _ in ends]),
            receiver,
            np.concatenate([one.price.latency for _, one in moves]),
            np.concatenate([one.price.moving for _, one in moves], axis=1).ravel(),
            added.ravel(),
        )
        many = len(receiver) >= COMPILED
        return Step(as_table(wires) if many else wires, many, len(receiver))

    @cached_property
    def told(self) -> Told:
        """What an instance comes to."""
        channels = len(self._costs.channels.keys)
        moved, under_way, story = np.zeros(channels), np.zeros(channels), Story.of(len(self.ranks))
        extrapolated = self._extrapolated
        if self.waves is not None:
            latency, bandwidth, contention, compute = self.waves.told.copy()
            story = Story(latency, bandwidth, contention, compute, story.overhead)
            extrapolated |= self.waves.hops.extrapolated
            np.add.at(moved, self.waves.hops.channel.ravel(), self.waves.carried[0])
            np.add.at(under_way, self.waves.hops.channel.ravel(), self.waves.carried[1])
        for hop, one, times in self._each() if self.waves is None else ():
            channel = hop.channel[one.moving]
            moved[channel] += times * one.size
            under_way[channel] += times * one.price.moving[TYPICAL]
            hop.tell(one, times, story)
            extrapolated |= one.price.extrapolated or one.extrapolated
        story.compute += self.before + self.after
        used = np.flatnonzero((moved > 0) | (under_way > 0))
        return Told(story, used, moved[used], under_way[used], extrapolated)

    def _each(self) -> "Iterator[tuple[_Hop, _Moved, int]]":
        """The moves of all steps, each with how often it is made."""
        for at, stage in enumerate(self.part.stages):
            times = stage.times if self.alike(stage) else 1
            for k in range(stage.times // times):
                yield from ((hop, hop.step(k), times) for hop in self._hops_of(at))

    def _hops_of(self, at: int) -> "list[_Hop]":
        """Those of a stage."""
        if at in self._hops:
            return self._hops[at]
        found = self._unpriced(at)
        several = len(self.part.stages) > MOST_STATES or self.part.in_waves
        for hop in found:
            rates = self._typical_of_all[hop.channel] if several else self._costs.channels.typical(hop.channel)
            hop.typical = rates
        self._hops = {**(self._hops if self._keeps else {}), at: found}
        return found

    def _unpriced(self, at: int) -> "list[_Hop]":
        return [_Hop(move, self.part, self._lane, self._costs, self._slowdown) for move in self.part.stages[at].moves]

    @cached_property
    def _typical_of_all(self) -> Floats:
        """Rates of all steps' transfers together."""
        channels = self._costs.channels
        hops = [hop for at in range(len(self.part.stages)) for hop in self._unpriced(at)]
        used = np.unique(np.concatenate([one.channel for one in hops]))
        found = np.zeros(len(channels.keys))
        found[used] = channels.taking_turns(used)
        return found


@dataclass(slots=True, eq=False)
class _Moved:
    """The messages of one move: which of the hop's there are, their price, and what their receivers add [s]."""

    moving: NDArray[np.bool_] | slice
    size: Floats
    price: Price
    added: Floats
    extrapolated: bool


class _Hop:
    """One move of all groups: members by their place among all."""

    def __init__(self, move: Move, part: Part, lane: str, costs: Costs, slowdown: float) -> None:
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
        self._kept: _Moved | None = None

    def step(self, k: int) -> _Moved:
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
        found = _Moved(moving, size[moving], price, added, extrapolated)
        if self._part.even or not self._move.stride:
            self._kept = found
        return found

    def tell(self, moved: _Moved, times: int, story: Story) -> None:
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
