"""Paths through a node for several channels of a collective, each on the links with most remaining capacity.

A path enters at its first member, visits all, and leaves at its last. The next
channel is the path whose narrowest hop has most capacity left, the hop out of the node
and into the next included; channels are added as long as they carry more together. Where equal links join every two
members of a single node, rings that use each link equally often are known without a search.

Source: Alspach, "The wonderful Walecki construction", Bulletin of the ICA 52, 2008. RCCL has the same numbers of rings
for 8 MI300X, in a table (src/graph/rome_models.cc, rome_model_79).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import inf

import numpy as np

from quadrille.algorithms.collectives.nccl.tuning_constants import MOST_CHANNELS
from quadrille.simulator.collectives.programs import Ints
from quadrille.topologies.network import Network
from quadrille.topologies.routes.routing import Routes

MAX_FOUND_CHANNELS = MOST_CHANNELS // 2
"""Largest number of channels that NCCL's search may find; NCCL runs twice as many."""
MOST_SEARCHED = 16
"""Members of a node up to which paths are searched; more are visited in order, rotated from channel to channel."""
MOST_HOPS = 20_000
"""Hops that a search for one path tries before it gives up: more than nine members of a node have paths."""
PATIENCE = 8
"""Channels without any gain after which no more are tried."""
RATE_GIVEN_UP = 0.05
"""Part of the best rate of any number of channels that may be given up to have fewer."""


@dataclass(frozen=True, slots=True)
class NodeLinks:
    """The links that a group has in a node: from member to member, and out of the node and back in.

    Links are numbered 0, 1, … in the order of their occurrence, so that equivalent nodes are equal.

    Parameters
    ----------
    count : number of members
    capacity : capacity of each link [B/s]
    within : links from each member to each other member
    across : links out of the node from each member and into the next node to each, and the same links where rings come
        back into this node; empty if rings close inside
    """

    count: int
    capacity: tuple[float, ...]
    within: tuple[tuple[tuple[int, ...], ...], ...]
    across: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def is_fully_joined(self) -> bool:
        """Whether rings close inside the node, and a link of its own joins each member to each other, all alike."""
        links = [links for a, row in enumerate(self.within) for b, links in enumerate(row) if a != b]
        is_direct = all(len(link) == 1 for link in links) and len(set(links)) == len(links)
        few = 2 < self.count <= MAX_FOUND_CHANNELS // 2
        return not self.across and few and is_direct and len(set(self.capacity)) == 1


def node_links(routes: Routes, members: Ints, *, several: bool) -> NodeLinks:
    """The links of members, numbered within node 0.

    Parameters
    ----------
    several : whether rings go on to another node
    """
    net, here = routes.net, np.asarray(members, dtype=np.int64)
    numbers: dict[int, int] = {}

    def renumbered(links: list[int]) -> tuple[int, ...]:
        return tuple(numbers.setdefault(link, len(numbers)) for link in links)

    def table(ends: Ints, others: Ints) -> list[list[list[int]]]:
        paths = routes.between(np.repeat(ends, len(others)), np.tile(others, len(ends)))
        links = [paths.links[a:b].tolist() for a, b in pairwise(paths.offsets.tolist())]
        return [links[i : i + len(others)] for i in range(0, len(links), len(others))]

    within = tuple(tuple(map(renumbered, row)) for row in table(here, here))
    across: tuple[tuple[tuple[int, ...], ...], ...] = ()
    if several:
        next_node = _in_next_node(here, net)
        both = zip(table(here, next_node), table(next_node, here), strict=True)
        across = tuple(tuple(renumbered(o + b) for o, b in zip(*rows, strict=True)) for rows in both)
    return NodeLinks(len(here), tuple(net.bandwidths[list(numbers)].tolist()), within, across)


def _in_next_node(members: Ints, net: Network) -> Ints:
    """The endpoints of node 1 in the places of these members of node 0; places beyond a smaller node 1 begin anew."""
    count = min(net.per_node, net.endpoint_count - net.per_node)
    assert count > 0, "several nodes"
    return net.per_node + members % count


def common_paths(nodes: Sequence[NodeLinks]) -> list[tuple[tuple[int, ...], ...]]:
    """For each node the members in order, channel after channel; as many channels in all nodes.

    Of the numbers of channels that suit a node, the number is taken with which the slowest node carries most, and the
    fewest of equally good ones. As in NCCL, no node has a channel that another one has not.
    """
    wanted = sorted({len(node_paths(node, None)) for node in nodes})
    rates = [min(paths_rate(node, node_paths(node, count)) for node in nodes) for count in wanted]
    enough = max(rates) * (1 - RATE_GIVEN_UP)
    count = next(count for count, rate in zip(wanted, rates, strict=True) if rate >= enough)
    return [node_paths(node, count) for node in nodes]


def paths_rate(node: NodeLinks, paths: Sequence[Sequence[int]]) -> float:
    """The rate of all channels together if each has the rate of the slowest [B/s]."""
    search = _Search(node)
    return len(paths) * min(search.taken(path) for path in paths)


@lru_cache(maxsize=256)
def node_paths(node: NodeLinks, wanted: int | None) -> tuple[tuple[int, ...], ...]:
    """The members in order, channel after channel: `wanted` channels, or the fewest that carry the most."""
    if node.is_fully_joined:
        rings = _rings_of_all_links(node.count)
        if wanted in (None, len(rings)):
            return rings
    search = _Search(node)
    paths: list[tuple[int, ...]] = []
    rates: list[float] = []
    while len(paths) < (wanted or MAX_FOUND_CHANNELS):
        paths.append(tuple(search.next(len(paths))))
        rates.append(len(paths) * search.taken(paths[-1]))
        if wanted is None and len(rates) > PATIENCE and max(rates[-PATIENCE:]) <= max(rates[:-PATIENCE]):
            break
    if wanted is not None:
        return tuple(paths)
    enough = max(rates) * (1 - RATE_GIVEN_UP)
    return tuple(paths[: 1 + next(i for i, rate in enumerate(rates) if rate >= enough)])


def _rings_of_all_links(count: int) -> tuple[tuple[int, ...], ...]:
    """Rings over all members that use each link from member to member equally often: once, or twice for even counts.

    The last member and a zigzag over the others, 0, 1, -1, 2, -2, …, are a ring. Turned by 1, 2, … it meets the other
    links; of an odd number of members half a turn does, and of an even number a whole turn meets each link twice.

    >>> len(_rings_of_all_links(8)), _rings_of_all_links(3)
    (14, ((2, 0, 1), (1, 0, 2)))
    """
    others = count - 1
    zigzag = [(step + 1) // 2 * (1 if step % 2 else -1) for step in range(others)]
    turns = range(others if count % 2 == 0 else others // 2)
    forward = [(others, *((place + turn) % others for place in zigzag)) for turn in turns]
    return (*forward, *(ring[::-1] for ring in forward))


class _Search:
    """The channels found so far, and the search for the next."""

    def __init__(self, node: NodeLinks) -> None:
        self.node, self.count = node, node.count
        self.load: Counter[int] = Counter()

    def taken(self, path: Sequence[int]) -> float:
        """The rate of each channel where most of them meet, with this path added [B/s]."""
        end = self.node.across or self.node.within
        for links in (*(self.node.within[a][b] for a, b in pairwise(path)), end[path[-1]][path[0]]):
            self.load.update(links)
        return min((self.node.capacity[link] / load for link, load in self.load.items()), default=inf)

    def next(self, channel: int) -> list[int]:
        """The path with most capacity left beside the channels so far."""
        rotated = [(channel + 1 + i) % self.count for i in range(self.count)]
        if self.count <= 1 or self.count > MOST_SEARCHED:
            return rotated
        width = [[self._width(links) for links in row] for row in self.node.within]
        closing = [[self._width(links) for links in row] for row in self.node.across] or width
        levels = sorted({w for row in width for w in row}, reverse=True)
        best, chosen = (-1.0, -inf, -1.0, -1.0), rotated
        for last, first in self._ends(channel):
            # out by one and in by the next, so that no last channel is left to go out and in by the same member
            near = -float((first - last) % self.count) if self.node.across else 0.0
            for least in levels:
                narrowest = min(least, closing[last][first])
                if (narrowest, near, least) < best[:3]:
                    break
                path = _path(width, first, last, least)
                if path is not None:
                    score = (narrowest, near, least, sum(width[a][b] for a, b in pairwise(path)))
                    best, chosen = max((best, chosen), (score, path), key=lambda scored: scored[0])
                    break
        return chosen

    def _width(self, links: Sequence[int]) -> float:
        """The rate that one more channel would get on these links [B/s]."""
        return min((self.node.capacity[link] / (self.load[link] + 1) for link in links), default=inf)

    def _ends(self, channel: int) -> Iterator[tuple[int, int]]:
        """Pairs of a last and a first member: neighbours first, and the channel's own rotation first."""
        for distance in range(1, self.count):
            for i in range(self.count):
                last = (channel + i) % self.count
                yield last, (last + distance) % self.count


def _path(width: list[list[float]], first: int, last: int, least: float) -> list[int] | None:
    """A path over all members from the first to the last over hops of at least this width, in order if possible.

    None if there is none, or if none is found within `MOST_HOPS` hops.

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
    for _ in range(MOST_HOPS):
        if not tried:
            return None
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
    """Members that a hop of this width leads to, the widest first, then those after `a` in order."""
    count = len(width)
    after = ((a + i) % count for i in range(1, count))
    return iter(sorted((b for b in after if width[a][b] >= least), key=lambda b: -width[a][b]))
