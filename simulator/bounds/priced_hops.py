"""The messages of one move of all groups, priced step by step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.labels import Ints
from quadrille.simulator.bounds.prices import Costs, Price
from quadrille.simulator.bounds.rate_bounds import HIGH, TYPICAL
from quadrille.simulator.bounds.stages import Move
from quadrille.simulator.bounds.time_breakdown import Story
from quadrille.simulator.bounds.work import Part
from quadrille.topologies.network import Floats


@dataclass(slots=True, eq=False)
class PricedMove:
    """The messages of one move: which of the hop's there are, their price, and what their receivers add [s]."""

    moving: NDArray[np.bool_] | slice
    size: Floats
    price: Price
    added: Floats
    extrapolated: bool


class Hop:
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

    def tell(self, moved: PricedMove, times: int, story: Story) -> None:
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
