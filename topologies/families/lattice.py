"""Paths through a torus or a mesh.

A shortest path goes along each dimension by the shorter side: steps[i] hops
along dimension i, in any order.  So there are

    (steps[0] + steps[1] + …)! / (steps[0]! · steps[1]! · …)

orders, twice as many for each dimension in which both sides are equally long
(a tie: half of a ring of even length).  A path's number says by its quotient
which sides are taken in ties, by its remainder which of the orders, sorted as
words: order 0 is all of dimension 0 first, then dimension 1, …: dimension-order
routing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.topologies.builder import reverse
from quadrille.topologies.network import Floats, Ints
from quadrille.topologies.structured_paths import MAX_COUNTED_PATHS

MAX_HOPS = 1 << 28
"""Hops of all pairs together that are listed at once."""


@dataclass(frozen=True)
class LatticePaths:
    """Shortest paths, and detours by way of a router drawn from all (Valiant, Brebner 1981).

    In ties deterministic routing goes up from even coordinates and down from odd
    ones, so that both directions of a ring carry alike.

    Parameters
    ----------
    lengths : of each dimension, the first varies fastest
    closed : a torus, where dimensions longer than 2 are rings
    ahead : link from each vertex to its next along each dimension, -1 where there is none [vertices, dimensions]
    up : link from each endpoint to its router; none where endpoints are the vertices [endpoints]
    per_router : endpoints on each router
    """

    lengths: tuple[int, ...]
    closed: bool
    ahead: Ints
    up: Ints | None
    per_router: int

    @property
    def has_groups(self) -> bool:
        return False

    @property
    def global_links(self) -> Ints:
        return np.zeros(0, dtype=np.int64)

    @property
    def most_hops(self) -> int:
        """Hops between the furthest endpoints: half of each ring, all of each line, and two cables of hosts."""
        across = sum(n // 2 if self._ring(n) else n - 1 for n in self.lengths)
        return across + 2 * (self.up is not None)

    def counts(self, sources: Ints, targets: Ints) -> Ints:
        steps, _, ties = self._steps(sources // self.per_router, targets // self.per_router)
        found: Ints = orders(steps) << ties.sum(axis=1)
        return found

    def default(self, sources: Ints, targets: Ints) -> Ints:
        ends = sources // self.per_router, targets // self.per_router
        steps, _, ties = self._steps(*ends)
        return self._sides(ends[0], ties) * orders(steps)

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        first, last = sources // self.per_router, targets // self.per_router
        around = chosen < 0
        if around.any():
            between = np.where(around & (first != last), ~chosen % prod(self.lengths), first)
            paths = np.where(around, 0, chosen)
            legs = [self._default(first, between), self._default_or(between, last, paths, around)]
            table = np.concatenate(legs, axis=1)
        else:
            table = self._across(first, last, chosen)
        if self.up is None:
            return table
        same = sources == targets
        out, back = np.where(same, -1, self.up[sources]), np.where(same, -1, reverse(self.up[targets]))
        return np.concatenate([out[:, None], table, back[:, None]], axis=1)

    def spread(self, sources: Ints, targets: Ints) -> tuple[Ints, Ints, Floats]:
        """An equal split over all paths, the same for all pairs that lie alike, shifted."""
        first, last = sources // self.per_router, targets // self.per_router
        steps, signs, ties = self._steps(first, last)
        alike, members = np.unique(np.concatenate([steps * signs, ties], axis=1), axis=0, return_inverse=True)
        order, sizes = np.argsort(members, kind="stable"), np.bincount(members.ravel(), minlength=len(alike))
        owners, links, shares = [], [], []
        groups = np.split(order, np.cumsum(sizes)[:-1])[: len(alike)]
        for moves, pairs in zip(alike, groups, strict=True):
            for owner, link, share in self._spread_alike(
                first[pairs], moves[: len(self.lengths)], moves[len(self.lengths) :]
            ):
                owners.append(pairs[owner])
                links.append(link)
                shares.append(share)
        if self.up is not None:
            apart = np.flatnonzero(sources != targets)
            for path in (self.up[sources[apart]], reverse(self.up[targets[apart]])):
                owners.append(apart)
                links.append(path)
                shares.append(np.ones(len(apart)))
        return _joined(owners, np.int64), _joined(links, np.int64), _joined(shares, np.float64)

    # Along the grid, between vertices

    def _ring(self, length: int) -> bool:
        return self.closed and length > 2

    def _coordinates(self, vertices: Ints) -> Ints:
        strides = np.cumprod([1, *self.lengths[:-1]])
        coordinates: Ints = vertices[:, None] // strides % np.array(self.lengths)
        return coordinates

    def _steps(self, sources: Ints, targets: Ints) -> tuple[Ints, Ints, Ints]:
        """Steps along each dimension, their direction (1, -1), whether the other is as short [pairs, dimensions]."""
        moves = self._coordinates(targets) - self._coordinates(sources)
        rings = np.array([self._ring(length) for length in self.lengths])
        lengths = np.array(self.lengths)
        moves = np.where(rings, (moves + (lengths - 1) // 2) % lengths - (lengths - 1) // 2, moves)
        ties = rings & (2 * moves == lengths)
        return np.abs(moves), np.where(moves < 0, -1, 1), ties.astype(np.int64)

    def _sides(self, sources: Ints, ties: Ints) -> Ints:
        """The sides that deterministic routing takes in ties, one bit each, 1 for down."""
        return self._packed(self._coordinates(sources) % 2 * ties, ties)

    @staticmethod
    def _packed(bits: Ints, ties: Ints) -> Ints:
        packed: Ints = (bits << (np.cumsum(ties, axis=1) - ties)).sum(axis=1)
        return packed

    def _default(self, sources: Ints, targets: Ints) -> Ints:
        """Links of dimension-order routing."""
        steps, _, ties = self._steps(sources, targets)
        return self._across(sources, targets, self._sides(sources, ties) * orders(steps))

    def _default_or(self, sources: Ints, targets: Ints, chosen: Ints, default: NDArray[np.bool_]) -> Ints:
        """Links of dimension-order routing where `default`, else of the chosen paths."""
        steps, _, ties = self._steps(sources, targets)
        return self._across(sources, targets, np.where(default, self._sides(sources, ties) * orders(steps), chosen))

    def _across(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        """Links of the chosen paths between vertices."""
        steps, signs, ties = self._steps(sources, targets)
        sides, rest = np.divmod(chosen, orders(steps))
        down = sides[:, None] >> (np.cumsum(ties, axis=1) - ties) & ties
        signs = np.where(down == 1, -1, signs)
        hops = int(steps.sum(axis=1).max(initial=0))
        if hops * len(sources) > MAX_HOPS:
            raise InputError(f"routes of up to {hops} hops for {len(sources)} flows are too many to list")
        table = np.full((len(sources), hops), -1, dtype=np.int64)
        vertices, rows = sources.copy(), np.arange(len(sources))
        for hop in range(hops):
            dimension, rest = _next(steps, rest)
            moving = dimension >= 0
            rows_moving, along = rows[moving], dimension[moving]
            table[rows_moving, hop], vertices[moving] = self._hop(vertices[moving], along, signs[rows_moving, along])
            steps[rows_moving, along] -= 1
        return table

    def _hop(self, vertices: Ints, along: Ints, signs: Ints) -> tuple[Ints, Ints]:
        """Link from each vertex to its neighbour along a dimension, and that neighbour."""
        strides = np.cumprod([1, *self.lengths[:-1]])[along]
        lengths = np.array(self.lengths)[along]
        place = vertices // strides % lengths
        neighbours = vertices + ((place + signs) % lengths - place) * strides
        ahead = self.ahead[vertices, along]
        behind = reverse(self.ahead[neighbours, along])
        return np.where(signs > 0, ahead, behind), neighbours

    def _spread_alike(self, first: Ints, moves: Ints, ties: Ints) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Pairs, links and shares of pairs that lie alike, side by side in ties, dimension by dimension."""
        steps, weight = np.abs(moves), 0.5 ** int(ties.sum())
        points = np.indices(tuple((steps + 1).tolist())).reshape(len(steps), -1).T
        for sides in product(
            *((1, -1) if tie else (int(np.sign(move)) or 1,) for tie, move in zip(ties, moves, strict=True))
        ):
            signs = np.array(sides)
            for dimension in range(len(steps)):
                here = points[points[:, dimension] < steps[dimension]]
                onward = steps - here
                onward[:, dimension] -= 1
                share = weight * np.exp(_log_orders(here) + _log_orders(onward) - _log_orders(steps[None, :]))
                start = self._coordinates(first)[:, None, :] + here * signs
                vertices = (start % np.array(self.lengths) * np.cumprod([1, *self.lengths[:-1]])).sum(axis=2)
                along, sign = np.full(vertices.size, dimension), np.full(vertices.size, signs[dimension])
                links, _ = self._hop(vertices.ravel(), along, sign)
                yield np.repeat(np.arange(len(first)), len(here)), links, np.tile(share, len(first))


def orders(steps: Ints) -> Ints:
    """In how many orders steps along several dimensions can be taken, at most `MAX_COUNTED_PATHS` [pairs].

    >>> orders(np.array([[2, 1], [0, 5], [1, 1], [40, 40]])).tolist()
    [3, 1, 2, 2147483648]
    """
    found, before = np.ones(len(steps), dtype=np.int64), np.zeros(len(steps), dtype=np.int64)
    for column in steps.T:
        before = before + column
        found = np.minimum(found * _binomial(before, np.minimum(column, before - column)), MAX_COUNTED_PATHS)
    return found


def _binomial(total: Ints, part: Ints) -> Ints:
    """How many paths to choose `part`, at most half, of `total`; at most `MAX_COUNTED_PATHS`."""
    found = np.ones(len(total), dtype=np.int64)
    # With 17 of 34 or more the number is above 2**31 already.
    for factor in range(1, min(17, int(part.max(initial=0))) + 1):
        more = np.minimum(found * (total - part + factor) // factor, MAX_COUNTED_PATHS)
        found = np.where(factor <= part, more, found)
    return found


def _next(steps: Ints, rest: Ints) -> tuple[Ints, Ints]:
    """Dimension of the next step in order number `rest`, -1 after the last; the number among what then remains."""
    dimension = np.full(len(steps), -1, dtype=np.int64)
    if not rest.any():
        left = steps > 0
        return np.where(left.any(axis=1), left.argmax(axis=1), -1), rest
    for along in range(steps.shape[1]):
        possible = (dimension < 0) & (steps[:, along] > 0)
        fewer = steps[possible]
        fewer[:, along] -= 1
        block = np.zeros(len(steps), dtype=np.int64)
        block[possible] = orders(fewer)
        taken = possible & (rest < block)
        dimension[taken] = along
        rest = np.where(possible & ~taken, rest - block, rest)
    return dimension, rest


def _log_orders(steps: Ints) -> Floats:
    """Logarithm of the number of orders."""
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, int(steps.sum(axis=1).max(initial=0)) + 1)))])
    logs: Floats = factorials[steps.sum(axis=1)] - factorials[steps].sum(axis=1)
    return logs


def _joined(parts: list[NDArray], dtype: type) -> NDArray:  # type: ignore[type-arg]
    return np.concatenate([np.zeros(0, dtype=dtype), *parts])
