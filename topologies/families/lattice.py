"""Paths through a torus or a mesh.

A shortest path takes the shorter direction along each dimension: steps[i] hops
along dimension i.  The hops may come in any order, so there are

    (steps[0] + steps[1] + …)! / (steps[0]! · steps[1]! · …)

orders.  Each dimension in which both directions are equally long (a tie: half of a
ring of even length) doubles the number of paths.  The quotient of a path's number
by the number of orders selects the directions in ties; the remainder selects the
order, in lexicographic order of the dimensions.  Order 0 is dimension-order
routing: first all hops of dimension 0, then all of dimension 1, ….
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.errors import InputError
from quadrille.topologies.network import Floats, Ints
from quadrille.topologies.network_builder import reverse
from quadrille.topologies.structured_paths import MAX_COUNTED_PATHS

MAX_HOPS = 1 << 28
"""Largest size of a table of links [pairs · hops]."""


@dataclass(frozen=True)
class LatticePaths:
    """The paths of a torus or mesh: shortest paths, and paths through a random router (Valiant, Brebner 1981).

    In ties, deterministic routing goes up from even coordinates and down from odd
    coordinates, so that both directions of a ring carry the same load.

    Parameters
    ----------
    lengths : number of vertices along each dimension; the first dimension varies fastest
    closed : whether dimensions longer than 2 are rings (a torus)
    ahead : link from each vertex to the next along each dimension; -1 at the end of a mesh [vertices, dimensions]
    up : link from each endpoint to its router [endpoints]; None if the endpoints are the vertices
    per_router : number of endpoints on each router; 1 if the endpoints are the vertices
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
        """Upper bound of the hops of a shortest path: half of each ring, each line, and the cables of both hosts."""
        across = sum(n // 2 if self._ring(n) else n - 1 for n in self.lengths)
        return across + 2 * (self.up is not None)

    def counts(self, sources: Ints, targets: Ints) -> Ints:
        steps, _, ties = self._steps(sources // self.per_router, targets // self.per_router)
        paths: Ints = orders(steps) << ties.sum(axis=1)
        return paths

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
        """Pair, link and share of each entry of the equal split over all paths [entries].

        Pairs with the same displacement have the same split, shifted by the source.
        """
        first, last = sources // self.per_router, targets // self.per_router
        steps, signs, ties = self._steps(first, last)
        displacements, members = np.unique(np.concatenate([steps * signs, ties], axis=1), axis=0, return_inverse=True)
        order, sizes = np.argsort(members, kind="stable"), np.bincount(members.ravel(), minlength=len(displacements))
        owners, links, shares = [], [], []
        groups = np.split(order, np.cumsum(sizes)[:-1])[: len(displacements)]
        for moves, pairs in zip(displacements, groups, strict=True):
            for owner, link, share in self._spread_shifted(
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
        """Hops along each dimension, direction (1, -1), and whether both directions tie [pairs, dimensions]."""
        moves = self._coordinates(targets) - self._coordinates(sources)
        rings = np.array([self._ring(length) for length in self.lengths])
        lengths = np.array(self.lengths)
        moves = np.where(rings, (moves + (lengths - 1) // 2) % lengths - (lengths - 1) // 2, moves)
        ties = rings & (2 * moves == lengths)
        return np.abs(moves), np.where(moves < 0, -1, 1), ties.astype(np.int64)

    def _sides(self, sources: Ints, ties: Ints) -> Ints:
        """Directions that deterministic routing takes in ties, one bit each, 1 for down [pairs]."""
        return self._packed(self._coordinates(sources) % 2 * ties, ties)

    @staticmethod
    def _packed(bits: Ints, ties: Ints) -> Ints:
        packed: Ints = (bits << (np.cumsum(ties, axis=1) - ties)).sum(axis=1)
        return packed

    def _default(self, sources: Ints, targets: Ints) -> Ints:
        """Links of dimension-order routing between vertices [pairs, hops]."""
        steps, _, ties = self._steps(sources, targets)
        return self._across(sources, targets, self._sides(sources, ties) * orders(steps))

    def _default_or(self, sources: Ints, targets: Ints, chosen: Ints, default: NDArray[np.bool_]) -> Ints:
        """Links of dimension-order routing where `default`, and of the chosen paths elsewhere [pairs, hops]."""
        steps, _, ties = self._steps(sources, targets)
        return self._across(sources, targets, np.where(default, self._sides(sources, ties) * orders(steps), chosen))

    def _across(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        """Links of the chosen paths between vertices [pairs, hops]."""
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

    def _spread_shifted(self, first: Ints, moves: Ints, ties: Ints) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Pairs, links and shares of the split of pairs with one displacement, by directions and dimension."""
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
    """Number of orders of these steps along several dimensions, at most `MAX_COUNTED_PATHS` [pairs].

    Parameters
    ----------
    steps : number of hops along each dimension [pairs, dimensions]

    >>> orders(np.array([[2, 1], [0, 5], [1, 1], [40, 40]])).tolist()
    [3, 1, 2, 2147483648]
    """
    count, before = np.ones(len(steps), dtype=np.int64), np.zeros(len(steps), dtype=np.int64)
    for column in steps.T:
        before = before + column
        count = np.minimum(count * _binomial(before, np.minimum(column, before - column)), MAX_COUNTED_PATHS)
    return count


def _binomial(total: Ints, part: Ints) -> Ints:
    """The binomial coefficient of `total` and `part` (at most half of it), at most `MAX_COUNTED_PATHS` [pairs]."""
    count = np.ones(len(total), dtype=np.int64)
    # With 17 of 34 or more the number is above 2**31 already.
    for factor in range(1, min(17, int(part.max(initial=0))) + 1):
        more = np.minimum(count * (total - part + factor) // factor, MAX_COUNTED_PATHS)
        count = np.where(factor <= part, more, count)
    return count


def _next(steps: Ints, rest: Ints) -> tuple[Ints, Ints]:
    """Dimension of the next step in order number `rest` (-1: none), and number of the order of the remaining steps."""
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
    """Natural logarithm of the number of orders of these steps [pairs]."""
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, int(steps.sum(axis=1).max(initial=0)) + 1)))])
    logs: Floats = factorials[steps.sum(axis=1)] - factorials[steps].sum(axis=1)
    return logs


def _joined(parts: list[NDArray], dtype: type) -> NDArray:  # type: ignore[type-arg]
    return np.concatenate([np.zeros(0, dtype=dtype), *parts])
