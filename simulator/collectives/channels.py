"""Channels: how a library lays rings and trees over nodes, several at once on different links.

A ring in rank order crosses every node by one way and leaves it by one NIC.
Libraries lay several, each its own way, so that together they use all links:

    node of 4 GPUs, 4 NICs     channel 0   in at gpu:1, 1 → 2 → 3 → 0, out at gpu:0
    every pair wired           channel 1   in at gpu:2, 2 → 0 → 3 → 1, out at gpu:1

Node after node is passed whole, in the order of the ranks; only the order inside
is chosen.  For each channel that is the way through the node (in, a path over
all members, out) whose narrowest link has most left beside the channels before
it.  Nodes in which the same GPUs belong to the group are passed alike, so the
choice is made once for each pattern of GPUs and not for each node.

Trees join the nodes by the first GPU of each channel's path; inside, the path
is a chain.

Source: NVIDIA, "NCCL user guide", environment variables NCCL_MIN_NCHANNELS and
NCCL_CROSS_NIC, for what channels are and that they may leave by different NICs;
trees as `ncclGetDtree` in NCCL's src/graph/trees.cc joins them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from algorithms.nccl.tables import MOST_CHANNELS
from topologies.routes.routing import Routes

Ints = NDArray[np.int64]

MOST_LAID = MOST_CHANNELS // 2
"""As many as NCCL's search may find: what runs is twice as many."""
MOST_SEARCHED = 16
"""Members of a node up to which paths are searched; more are passed in order, turned from channel to channel."""
PATIENCE = 8
"""Channels without any gain after which no more are tried."""
WORTH_HAVING = 0.05
"""What of the most that any number of channels carries may be missed to have fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Groups sorted node by node, and which GPUs of each node belong to them.

    Parameters
    ----------
    slots : positions of members in their group, node after node [groups, members]
    first, length : where each node's members begin, in `slots` counted through all groups, and how many [blocks]
    pattern : which row of `patterns` a block has [blocks]
    patterns : GPUs of a node, numbered within it, -1 after the last [patterns, most members of a node]
    group : of each block
    """

    slots: Ints
    first: Ints
    length: Ints
    pattern: Ints
    patterns: Ints
    group: Ints

    @property
    def several(self) -> bool:
        """Whether any group is on more than one node."""
        return bool(np.any(np.diff(self.group) == 0))


def by_node(places: Ints, per_node: int) -> Nodes:
    """The groups' members node by node, nodes in the order in which a group first comes to them.

    >>> by_node(np.array([[0, 2, 1, 3]]), 2).slots.tolist()
    [[0, 2, 1, 3]]

    Parameters
    ----------
    places : compute place of each member [groups, members]
    """
    groups, members = places.shape
    node, local = np.divmod(places, per_node)
    owner = np.repeat(np.arange(groups), members)
    key = owner * (int(node.max(initial=0)) + 1) + node.ravel()
    _, seen, block = np.unique(key, return_index=True, return_inverse=True)
    order = np.lexsort((np.tile(np.arange(members), groups), local.ravel(), seen[block.ravel()], owner))
    begins = np.flatnonzero(np.diff(key[order], prepend=-1))
    length = np.diff(begins, append=len(order))
    table = np.full((len(begins), int(length.max(initial=0))), -1, dtype=np.int64)
    column = np.arange(len(order)) - np.repeat(begins, length)
    table[np.repeat(np.arange(len(begins)), length), column] = local.ravel()[order]
    patterns, pattern = np.unique(table, axis=0, return_inverse=True)
    return Nodes(
        (order % members).reshape(groups, members), begins, length, pattern.ravel(), patterns, owner[order[begins]]
    )


def ring_orders(routes: Routes, places: Ints, channels: int | None = None) -> list[Ints]:
    """For each channel, the members of every group in the order of its ring [groups, members].

    Parameters
    ----------
    places : compute place of each member [groups, members]
    channels : how many; None for the fewest that together carry the most
    """
    nodes = by_node(places, routes.net.per_node)
    found = [ways_through(inside(routes, row[row >= 0], several=nodes.several), channels) for row in nodes.patterns]
    count = channels or max(map(len, found))
    return [_laid(nodes, [ways[channel % len(ways)] for ways in found]) for channel in range(count)]


def _laid(nodes: Nodes, orders: Sequence[Sequence[int]]) -> Ints:
    """The slots with every node passed in the order that its pattern has."""
    flat = nodes.slots.ravel().copy()
    width = nodes.patterns.shape[1]
    table = np.zeros((len(orders), width), dtype=np.int64)
    for row, order in enumerate(orders):
        table[row, : len(order)] = order
    block = np.repeat(np.arange(len(nodes.first)), nodes.length)
    column = np.arange(len(flat)) - nodes.first[block]
    laid: Ints = flat[nodes.first[block] + table[nodes.pattern[block], column]].reshape(nodes.slots.shape)
    return laid


@dataclass(frozen=True, slots=True)
class Inside:
    """What a group has of a node: links from member to member, and out of the node and back in.

    Links are numbered 0, 1, … as they come up, so that nodes that are alike are equal.

    Parameters
    ----------
    count : members
    capacity : of each link [B/s]
    within : links from each member to each other one
    across : links out of the node from each member and into the next to each, and the same links where rings come
        back into this node; empty where rings close inside
    """

    count: int
    capacity: tuple[float, ...]
    within: tuple[tuple[tuple[int, ...], ...], ...]
    across: tuple[tuple[tuple[int, ...], ...], ...]


def inside(routes: Routes, members: Ints, *, several: bool) -> Inside:
    """What the members, numbered within node 0, have there.

    Parameters
    ----------
    several : whether rings go on to another node
    """
    net, here = routes.net, np.asarray(members, dtype=np.int64)
    there = here + net.per_node
    numbers: dict[int, int] = {}

    def renumbered(links: list[int]) -> tuple[int, ...]:
        return tuple(numbers.setdefault(link, len(numbers)) for link in links)

    def table(ends: Ints, others: Ints) -> list[list[list[int]]]:
        paths = routes.between(np.repeat(ends, len(others)), np.tile(others, len(ends)))
        links = [paths.links[a:b].tolist() for a, b in pairwise(paths.offsets.tolist())]
        return [links[i : i + len(others)] for i in range(0, len(links), len(others))]

    within = tuple(tuple(map(renumbered, row)) for row in table(here, here))
    across: tuple[tuple[tuple[int, ...], ...], ...] = ()
    if several and int(there.max()) < net.place_count:
        both = zip(table(here, there), table(there, here), strict=True)
        across = tuple(tuple(renumbered(o + b) for o, b in zip(*rows, strict=True)) for rows in both)
    return Inside(len(here), tuple(net.bandwidths[list(numbers)].tolist()), within, across)


@lru_cache(maxsize=256)
def ways_through(node: Inside, wanted: int | None) -> tuple[tuple[int, ...], ...]:
    """So many ways through the node, or the fewest that carry the most: members in order, channel after channel."""
    search = _Search(node)
    found: list[tuple[int, ...]] = []
    rates: list[float] = []
    while len(found) < (wanted or MOST_LAID):
        found.append(tuple(search.next(len(found))))
        rates.append(len(found) * search.taken(found[-1]))
        if wanted is None and len(rates) > PATIENCE and max(rates[-PATIENCE:]) <= max(rates[:-PATIENCE]):
            break
    if wanted is not None:
        return tuple(found)
    enough = max(rates) * (1 - WORTH_HAVING)
    return tuple(found[: 1 + next(i for i, rate in enumerate(rates) if rate >= enough)])


class _Search:
    """The channels laid so far, and the next one."""

    def __init__(self, node: Inside) -> None:
        self.node, self.count = node, node.count
        self.load: Counter[int] = Counter()

    def taken(self, way: Sequence[int]) -> float:
        """What each channel gets where most of them meet, with this one [B/s]."""
        end = self.node.across or self.node.within
        for links in (*(self.node.within[a][b] for a, b in pairwise(way)), end[way[-1]][way[0]]):
            self.load.update(links)
        return min((self.node.capacity[link] / load for link, load in self.load.items()), default=inf)

    def next(self, channel: int) -> list[int]:
        """The way with most room beside the channels so far."""
        turned = [(channel + 1 + i) % self.count for i in range(self.count)]
        if self.count <= 1 or self.count > MOST_SEARCHED:
            return turned
        width = [[self._width(links) for links in row] for row in self.node.within]
        closing = [[self._width(links) for links in row] for row in self.node.across] or width
        levels = sorted({w for row in width for w in row}, reverse=True)
        best, chosen = (-1.0, -inf, -1.0, -1.0), turned
        for last, first in self._ends(channel):
            # out by one and in by the next, so that no last channel is left to go out and in by the same member
            near = -float((first - last) % self.count) if self.node.across else 0.0
            for least in levels:
                narrowest = min(least, closing[last][first])
                if (narrowest, near, least) < best[:3]:
                    break
                path = _path(width, first, last, least)
                if path is not None:
                    found = (narrowest, near, least, sum(width[a][b] for a, b in pairwise(path)))
                    best, chosen = max((best, chosen), (found, path), key=lambda one: one[0])
                    break
        return chosen

    def _width(self, links: Sequence[int]) -> float:
        """What one more channel would get of these links [B/s]."""
        return min((self.node.capacity[link] / (self.load[link] + 1) for link in links), default=inf)

    def _ends(self, channel: int) -> Iterator[tuple[int, int]]:
        """Pairs of a last and a first member, those next to each other and the channel's own turn first."""
        for distance in range(1, self.count):
            for i in range(self.count):
                last = (channel + i) % self.count
                yield last, (last + distance) % self.count


def _path(width: list[list[float]], first: int, last: int, least: float) -> list[int] | None:
    """A path over all members from the first to the last over hops of at least this width, in turn where it can be.

    >>> _path([[9, 1, 9], [9, 9, 9], [9, 9, 9]], 0, 2, 5) is None
    True
    >>> _path([[9, 9, 9], [9, 9, 9], [9, 9, 9]], 1, 0, 5)
    [1, 2, 0]
    """
    count = len(width)
    path = [first]
    tried: list[Iterator[int]] = [iter(())]
    if count > 1:
        tried = [_onward(width, first, least)]
    while tried:
        if len(path) == count:
            return path
        following = next((b for b in tried[-1] if b not in path and (b != last or len(path) == count - 1)), None)
        if following is None:
            tried.pop()
            path.pop()
        else:
            path.append(following)
            tried.append(_onward(width, following, least))
    return None


def _onward(width: list[list[float]], a: int, least: float) -> Iterator[int]:
    """Members that a hop of this width leads to, the widest first, then those after `a` in turn."""
    count = len(width)
    after = ((a + i) % count for i in range(1, count))
    return iter(sorted((b for b in after if width[a][b] >= least), key=lambda b: -width[a][b]))


def tree_edges(routes: Routes, places: Ints, orders: Sequence[Ints]) -> list[tuple[Ints, Ints, Ints, Ints]]:
    """Edges of two complementary trees over the nodes for each channel, chains inside the nodes.

    Gives for each channel and tree (group, child slot, parent slot, depth of the
    child's node in edges), each an array over edges; half of the channel's bytes
    goes through either tree.

    Source: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth
    broadcast, reduction and scan", Parallel Computing 35(12), 2009.
    """
    nodes = by_node(places, routes.net.per_node)
    block = np.repeat(np.arange(len(nodes.first)), nodes.length)
    column = np.arange(len(block)) - nodes.first[block]
    first_block = np.searchsorted(nodes.group, np.arange(len(places)))
    per_group = np.bincount(nodes.group, minlength=len(places))
    rank_of_block = np.arange(len(nodes.first)) - first_block[nodes.group]
    found = []
    for order in orders:
        flat = order.ravel()
        chain = np.flatnonzero(column > 0)
        for tree in range(2):
            parents = _parents(per_group[nodes.group], rank_of_block, tree)
            depth = _depths(parents, first_block[nodes.group])
            child = np.flatnonzero(parents >= 0)
            heads = nodes.first[child]
            above = nodes.first[first_block[nodes.group[child]] + parents[child]]
            group = np.concatenate([nodes.group[block[chain]], nodes.group[child]])
            down = np.concatenate([flat[chain], flat[heads]])
            up = np.concatenate([flat[chain - 1], flat[above]])
            level = np.concatenate([depth[block[chain]] + column[chain], depth[child]])
            found.append((group, down, up, level))
    return found


def _parents(sizes: Ints, ranks: Ints, tree: int) -> Ints:
    """Parent of each node in a binary tree in order; the second tree is the first with all ranks moved on by one.

    Rank r > 0 with lowest bit b has the parent (r ^ b) | 2b, or r ^ b where that
    is past the end; the root is 0.
    """
    shifted = (ranks - tree) % np.maximum(sizes, 1)
    low = shifted & -shifted
    up = (shifted ^ low) | (low << 1)
    parent = np.where(up >= sizes, shifted ^ low, up)
    return np.where(shifted == 0, -1, (parent + tree) % np.maximum(sizes, 1))


def _depths(parents: Ints, base: Ints) -> Ints:
    """Edges from each node to the root of its tree; parents are numbered within the group, which begins at `base`."""
    depth = np.zeros(len(parents), dtype=np.int64)
    at = np.arange(len(parents))
    while True:
        moving = parents[at] >= 0
        if not moving.any():
            return depth
        depth += moving
        at = np.where(moving, base[at] + parents[at], at)
