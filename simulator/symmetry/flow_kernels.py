"""Compiled kernels of colour refinement and of its check: the computations of `refinement.py` and `fold.py`, flow by
flow.

With millions of entries whole arrays exceed the caches many times over, and
visiting flow after flow takes a tenth of the time; below `MANY` entries, loading
Numba takes longer. The colours are the same, number by number.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quadrille.simulator.engine.kernel_compiler import Kernel, compile_kernels
from quadrille.simulator.symmetry.partition import (
    CROSSING,
    FIRST,
    LINK,
    RECEIVED,
    RECEIVER,
    SECOND,
    SENDER,
    SENT,
    Flows,
    Hashes,
    Ints,
)

ONE, THREE, HALF = np.uint64(1), np.uint64(3), np.uint64(32)
BEFORE, ROUND, AFTER = 0, 1, 2
LAST, MIDDLE, END = np.uint64(30), np.uint64(27), np.uint64(31)


class FlowGraph(NamedTuple):
    """The flows of `Flows` in the form that kernels take.

    Parameters
    ----------
    weights : weights of entries; empty if all are 1
    users : number of flows that cross each link, at most 2
    """

    sender: Ints
    receiver: Ints
    offsets: Ints
    links: Ints
    weights: Hashes
    users: NDArray[np.int8]


class RefinementState(NamedTuple):
    """Colours, and room for a round.

    Parameters
    ----------
    flows, ranks, links : colours
    as_sender, as_receiver, as_link : hashes of the colours of ranks and links, as flows use them
    of_rank, of_link : sums of the hashes of the flows of each rank and link
    met : hash table in which different colours are counted
    """

    flows: Hashes
    ranks: Hashes
    links: Hashes
    as_sender: Hashes
    as_receiver: Hashes
    as_link: Hashes
    of_rank: Hashes
    of_link: Hashes
    seen_colours: Hashes


class LabelBags(NamedTuple):
    """Labels by owner, and room to compare them.

    Parameters
    ----------
    owners, labels : each label, and who owns it
    offsets : where the labels of each owner begin in `gathered`
    classes, first : class of each owner, and first owner of each class
    places, gathered, counts : room for the next index of each owner, the labels by owner, and counts of labels
    """

    owners: Ints
    labels: Ints
    offsets: Ints
    classes: Ints
    first: Ints
    places: Ints
    gathered: Ints
    counts: Ints


def _hash(colour: np.uint64) -> np.uint64:
    """The finaliser of SplitMix64."""
    colour ^= colour >> LAST
    colour *= FIRST
    colour ^= colour >> MIDDLE
    colour *= SECOND
    colour ^= colour >> END
    return colour


def _begin(g: FlowGraph, c: RefinementState) -> None:
    """Adds to every flow the links that only it crosses."""
    for f in range(len(g.sender)):
        for e in range(g.offsets[f], g.offsets[f + 1]):
            if g.users[g.links[e]] == 1:
                weight = g.weights[e] if len(g.weights) else ONE
                c.flows[f] += _hash(c.links[g.links[e]] + LINK) * weight


def _hash_ranks_and_links(c: RefinementState) -> None:
    """Computes the hashes of ranks and links that flows use."""
    for r in range(len(c.ranks)):
        c.as_sender[r], c.as_receiver[r] = _hash(c.ranks[r] + SENDER), _hash(c.ranks[r] + RECEIVER)
        c.of_rank[r] = 0
    for j in range(len(c.links)):
        c.as_link[j] = _hash(c.links[j] + LINK)
        c.of_link[j] = 0


def _colour_flows(g: FlowGraph, c: RefinementState) -> None:
    """Colours flows, and sums their hashes for ranks and links."""
    for f in range(len(g.sender)):
        sender, receiver = g.sender[f], g.receiver[f]
        total = THREE * c.flows[f] + c.as_sender[sender] + c.as_receiver[receiver]
        for e in range(g.offsets[f], g.offsets[f + 1]):
            if g.users[g.links[e]] > 1:
                total += c.as_link[g.links[e]] * (g.weights[e] if len(g.weights) else ONE)
        colour = _hash(total)
        crossing = _hash(colour + CROSSING)
        c.flows[f] = colour
        c.of_rank[sender] += _hash(colour + SENT)
        c.of_rank[receiver] += _hash(colour + RECEIVED)
        for e in range(g.offsets[f], g.offsets[f + 1]):
            c.of_link[g.links[e]] += crossing * (g.weights[e] if len(g.weights) else ONE)


def _recolour(g: FlowGraph, c: RefinementState, users: int) -> None:
    """Colours the links that one flow crosses, or those that two or more flows cross."""
    for j in range(len(c.links)):
        if g.users[j] == users:
            c.links[j] = _hash(THREE * c.links[j] + c.of_link[j])


def _count_distinct(c: RefinementState) -> int:
    """Number of different colours of flows; `met` has room for twice as many, a power of two."""
    count, zero, mask = 0, 0, len(c.seen_colours) - 1
    for i in range(len(c.seen_colours)):
        c.seen_colours[i] = 0
    for f in range(len(c.flows)):
        if c.flows[f] == 0:
            zero = 1
            continue
        place = np.int64(c.flows[f] >> HALF) & mask
        while c.seen_colours[place] != 0 and c.seen_colours[place] != c.flows[f]:
            place = (place + 1) & mask
        if c.seen_colours[place] == 0:
            c.seen_colours[place] = c.flows[f]
            count += 1
    return count + zero


def colour(g: FlowGraph, c: RefinementState, part: int) -> int:
    """Executes a round of refinement, or the part before or after all rounds; returns the number of flow classes."""
    if part == BEFORE:
        _begin(g, c)
        return 0
    if part == AFTER:
        _recolour(g, c, 1)
        return 0
    _hash_ranks_and_links(c)
    _colour_flows(g, c)
    for r in range(len(c.ranks)):
        c.ranks[r] = _hash(THREE * c.ranks[r] + c.of_rank[r])
    _recolour(g, c, 2)
    return _count_distinct(c)


def _sort_labels(b: LabelBags) -> None:
    """Sorts the labels by owner."""
    for o in range(len(b.classes)):
        b.places[o] = b.offsets[o]
    for i in range(len(b.owners)):
        b.gathered[b.places[b.owners[i]]] = b.labels[i]
        b.places[b.owners[i]] += 1


def first_unequal(b: LabelBags, once: bool) -> int:
    """The first owner whose bag of labels is not that of its class's first owner, or has a label twice; else -1."""
    _sort_labels(b)
    for o in range(len(b.classes)):
        p = b.first[b.classes[o]]
        if b.offsets[o + 1] - b.offsets[o] != b.offsets[p + 1] - b.offsets[p]:
            return o
        for i in range(b.offsets[p], b.offsets[p + 1]):
            b.counts[b.gathered[i]] += 1
            if once and b.counts[b.gathered[i]] > 1:
                return o
        for i in range(b.offsets[o], b.offsets[o + 1]):
            b.counts[b.gathered[i]] -= 1
        for i in range(b.offsets[p], b.offsets[p + 1]):
            if b.counts[b.gathered[i]] != 0:
                return o
    return -1


KERNELS: tuple[Kernel, ...] = (
    _hash,
    _begin,
    _hash_ranks_and_links,
    _colour_flows,
    _recolour,
    _count_distinct,
    colour,
    _sort_labels,
    first_unequal,
)
CALLED = ("colour", "first_unequal")


class CompiledRounds:
    """Rounds of refinement that change the given colours of flows, ranks and links in place."""

    def __init__(self, flows: Flows, colours: tuple[Hashes, Hashes, Hashes], weights: Hashes) -> None:
        of_flows, of_ranks, of_links = colours
        users = np.minimum(np.bincount(flows.links, minlength=len(of_links)), 2).astype(np.int8)
        sender, receiver, offsets, links = (
            np.ascontiguousarray(part, dtype=np.int64)
            for part in (flows.sender, flows.receiver, flows.offsets, flows.links)
        )
        sizes = (len(of_ranks), len(of_ranks), len(of_links), len(of_ranks), len(of_links))
        buffers = [np.empty(size, dtype=np.uint64) for size in sizes]
        seen_colours = np.empty(2 << len(of_flows).bit_length(), dtype=np.uint64)
        self._graph = FlowGraph(sender, receiver, offsets, links, weights, users)
        self._seen = RefinementState(
            of_flows, of_ranks, of_links, buffers[0], buffers[1], buffers[2], buffers[3], buffers[4], seen_colours
        )
        self._colour = compile_kernels(KERNELS, CALLED)["colour"]
        self._colour(self._graph, self._seen, BEFORE)

    def another(self) -> int:
        """Executes another round; returns the number of flow classes."""
        return int(self._colour(self._graph, self._seen, ROUND))

    def finish(self) -> None:
        """Colours the links that one flow crosses."""
        self._colour(self._graph, self._seen, AFTER)


def all_bags_equal(owners: Ints, labels: Ints, classes: Ints, first: Ints, *, once: bool) -> bool:
    """Whether owners of one class have the same bag of labels (and, if asked, no label twice)."""
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=len(classes)))])
    places, gathered = np.empty(len(classes), dtype=np.int64), np.empty(len(labels), dtype=np.int64)
    counts = np.zeros(int(labels.max(initial=0)) + 1, dtype=np.int64)
    entries = (np.ascontiguousarray(part, dtype=np.int64) for part in (owners, labels))
    bags = LabelBags(next(entries), next(entries), offsets, classes, first, places, gathered, counts)
    return int(compile_kernels(KERNELS, CALLED)["first_unequal"](bags, once)) < 0
