r"""Double binary trees (NCCL's tree algorithm): broadcast and all-reduce over two trees at full bandwidth.

In one pipelined binary tree the leaves, half of the members, send nothing.  So there are two trees over the members
after the root, each for half of the pieces.  An inner member of one tree is a leaf of the other:

    first tree        4             second tree,      3
    over 6 after    /   \           the first one   /   \
    the root       2     6          mirrored       1     5
                  / \   /                           \   / \
                 1   3 5                             2 4   6

Every member has two parents and at most two children.  Edges get two colours, so that both edges into a member differ,
and both edges out of it.  Even steps use one colour, odd steps the other, and a member never sends or receives twice in
a step.  A piece received in one step is forwarded in the next step or the one after.  A reduction is the same in
reverse.

Source: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
Computing 35(12), 2009; the in-order trees by lowest set bit, mirrored or shifted by one, are those of NCCL 2.4's double
binary trees (src/graph/trees.cc).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.collectives.lowered_collective import Lowered
from quadrille.algorithms.collectives.run_length_programs import NOBODY, Integers, PieceRange, Section, Step

ROOT = 0
MOST_CACHED = 8


@dataclass(frozen=True, slots=True, eq=False)
class DoubleTree:
    """Both trees over positions 1 .. members - 1; the root is position 0, outside of them.

    Rows are trees.  Column 0 holds NOBODY for a parent and -1 for a step.

    Parameters
    ----------
    parent : parent of each position
    starts : step in which a position receives the first piece of the tree; later pieces follow every second step
    children : positions served in even and odd steps, by row; NOBODY for none
    served_tree : tree of that child, by even and odd steps
    """

    parent: Integers
    starts: Integers
    children: Integers
    served_tree: Integers


def broadcast(members: int, root: int, pieces: int) -> Lowered:
    """Broadcast: the first half of the root's pieces goes along one tree, the second half along the other."""
    halves = (pieces + 1) // 2, pieces // 2
    if members == 1:
        return Lowered("double_binary_tree", 1, pieces, 0, lambda _i, _s: Step(), list)
    step, sections = _steps(members, root, halves), lambda: _sections(members, root, halves)
    steps = max(
        int(start.max()) + 2 * half - 1 for start, half in zip(double_tree(members).starts, halves, strict=True) if half
    )
    return Lowered("double_binary_tree", members, pieces, steps, step, sections)


def all_reduce(members: int, pieces: int) -> Lowered:
    """All-reduce: sums go up both trees to member 0, then the result goes down."""
    down = broadcast(members, ROOT, pieces)
    return down.backwards().then(down)


@lru_cache(MOST_CACHED)
def double_tree(members: int) -> DoubleTree:
    """Both trees, the colours of their edges, and the first step of each edge."""
    parent = np.array([_first_parents(members), _second_parents(members)])
    colour = _edge_colours(parent)
    starts = np.array([_starts(parent[tree], colour[tree]) for tree in range(2)])
    children = np.full((2, members), NOBODY)
    served_tree = np.zeros((2, members), np.int64)
    for tree in range(2):
        children[colour[tree, 1:], parent[tree, 1:]] = np.arange(1, members)
        served_tree[colour[tree, 1:], parent[tree, 1:]] = tree
    return DoubleTree(parent, starts, children, served_tree)


def _first_parents(members: int) -> Integers:
    """Parents in the in-order binary tree over 1 .. members - 1; odd positions are leaves.

    >>> _first_parents(7).tolist()
    [-1, 2, 4, 2, 0, 6, 4]
    """
    i = np.arange(1, members)
    bit = i & -i
    above = (i ^ bit) | (bit << 1)
    return np.concatenate([[NOBODY], np.where(above < members, above, i ^ bit)])


def _second_parents(members: int) -> Integers:
    """Parents in the tree whose inner positions are odd: the first tree mirrored, or shifted if that keeps parity.

    >>> _second_parents(7).tolist()
    [-1, 3, 1, 0, 5, 3, 5]
    """
    first, behind, i = _first_parents(members), members - 1, np.arange(1, members)
    moved = behind + 1 - i if behind % 2 == 0 else i % behind + 1
    position = np.concatenate([[ROOT], moved])
    parents = np.full(members, NOBODY)
    parents[moved] = position[first[1:]]
    return parents


def _edge_colours(parent: Integers) -> Integers:
    """Colour 0 or 1 of each edge, by tree and child; both edges into a member differ, and both edges out of it.

    The edge (tree, child) meets at most one other edge at its child, and one at its parent.  So edges that must differ
    form paths and cycles that alternate between both kinds of meeting; their length is even.  The first child on each
    path or cycle has colour 0 in the first tree.

    All paths are followed together, by pointer doubling, with the first child on each and whether its colour in the
    first tree differs.
    """
    members = parent.shape[1]
    met, turned = _meetings(parent)
    first = np.tile(np.arange(members), (2, 1)).ravel()
    flipped_first = np.zeros(2 * members, bool)
    for _ in range((2 * members).bit_length()):
        further, flipped = first[met], turned ^ flipped_first[met]
        flipped_first = np.where(further < first, flipped, flipped_first)
        first = np.minimum(first, further)
        met, turned = met[met], turned ^ turned[met]
    one_way, other_way = first[:members], first[members:]
    in_first_tree = np.where(one_way <= other_way, flipped_first[:members], flipped_first[members:]).astype(np.int64)
    colours = np.array([in_first_tree, 1 - in_first_tree])
    colours[:, ROOT] = NOBODY
    return colours


def _meetings(parent: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Successor of each walk, and whether the colours in the first tree differ between both ends.

    A walk that leaves child c by its edge in tree t has the number t · members + c.  It goes to the child with the same
    parent, and leaves that child by its other edge.
    """
    members = parent.shape[1]
    met = np.arange(2 * members)
    turned = np.zeros(2 * members, bool)
    for tree in range(2):
        order = np.argsort(parent[tree, 1:], kind="stable") + 1
        above = parent[tree, order]
        pairs = np.flatnonzero(above[1:] == above[:-1])
        for here, there in ((order[pairs], order[pairs + 1]), (order[pairs + 1], order[pairs])):
            met[tree * members + here] = (1 - tree) * members + there
            turned[tree * members + here] = True
    tops = [int(np.flatnonzero(parent[tree] == ROOT)[0]) for tree in range(2)]
    if tops[0] != tops[1]:  # both edges out of the root differ, so their children have one colour in the first tree
        met[tops[0]] = tops[1]
        met[members + tops[1]] = members + tops[0]
    return met, turned


def _starts(parents: Integers, colours: Integers) -> Integers:
    """First step of each edge: the next step of its colour after its parent has the piece."""
    starts = np.full(len(parents), NOBODY)
    waiting = np.arange(1, len(parents))
    while len(waiting):
        above = parents[waiting]
        ready = (above == ROOT) | (starts[above] != NOBODY)
        now = waiting[ready]
        after = starts[parents[now]] + 1
        starts[now] = after + (after - colours[now]) % 2
        waiting = waiting[~ready]
    return starts


def _steps(members: int, root: int, halves: tuple[int, int]) -> Callable[[int, int], Step]:
    def step(i: int, s: int) -> Step:
        trees = double_tree(members)
        here = (i - root) % members
        send_to = receive_from = None
        send = receive = None
        for tree in range(2):
            piece = _piece(int(trees.starts[tree, here]), s, halves, tree) if here else None
            if piece is not None:
                receive_from, receive = (int(trees.parent[tree, here]) + root) % members, PieceRange(piece, 1)
        child, tree = int(trees.children[s % 2, here]), int(trees.served_tree[s % 2, here])
        piece = _piece(int(trees.starts[tree, child]), s, halves, tree) if child != NOBODY else None
        if piece is not None:
            send_to, send = (child + root) % members, PieceRange(piece, 1)
        return Step(send_to, send, receive_from, receive)

    return step


def _piece(start: int, s: int, halves: tuple[int, int], tree: int) -> int | None:
    """Piece that an edge of the tree carries in step s, or None."""
    round_, late = divmod(s - start, 2)
    return None if late or not 0 <= round_ < halves[tree] else round_ + tree * halves[0]


def _sections(members: int, root: int, halves: tuple[int, int]) -> Iterator[Section]:
    """Sections of rounds, each an even and an odd step, in which a member has the same peers.

    In even steps a member receives from one parent during some rounds and sends to one child during others, and so it
    does in odd steps.  The eight ends of these ranges cut its rounds into at most seven sections.
    """
    trees = double_tree(members)
    here = np.arange(members)
    streams = [_stream(trees, parity, halves, receiving=way) for parity in range(2) for way in (True, False)]
    cuts = np.sort(np.array([edge for stream in streams for edge in (stream.begin, stream.end)]), axis=0)
    seat = (here - root) % members
    for begin, end in pairwise(cuts):
        for parity in range(2):
            received, sent = streams[2 * parity], streams[2 * parity + 1]
            yield Section(
                steps=(end - begin)[seat],
                receive_from=received.peers(begin, root)[seat],
                receive_first=received.first_pieces(begin)[seat],
                send_to=sent.peers(begin, root)[seat],
                send_first=sent.first_pieces(begin)[seat],
                stride=1,
                alternates=parity == 0,
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Stream:
    """The messages that each position receives, or sends, in steps of one parity.

    Parameters
    ----------
    peer : peer of each position; NOBODY if it has none [positions]
    begin, end : rounds from `begin` to `end` - 1 have a message [positions]
    base : piece of the first of these rounds; it rises by 1 each round [positions]
    """

    peer: Integers
    begin: Integers
    end: Integers
    base: Integers

    def peers(self, during: Integers, root: int) -> Integers:
        """Member at the other end of each position's message in this round; NOBODY if there is no message."""
        active = (self.peer != NOBODY) & (self.begin <= during) & (during < self.end)
        return np.where(active, (self.peer + root) % len(self.peer), NOBODY)

    def first_pieces(self, during: Integers) -> Integers:
        """First piece of each position in this round [positions]."""
        return self.base + during - self.begin


def _stream(trees: DoubleTree, parity: int, halves: tuple[int, int], *, receiving: bool) -> _Stream:
    members = trees.parent.shape[1]
    here = np.arange(members)
    if receiving:
        in_second = trees.starts[1] % 2 == parity
        tree = np.where(in_second, 1, 0)
        peer = np.where(here == ROOT, NOBODY, trees.parent[tree, here])
        start = trees.starts[tree, here]
    else:
        tree, peer = trees.served_tree[parity], trees.children[parity]
        start = trees.starts[tree, peer]
    begin = np.where(peer == NOBODY, 0, start // 2)
    length = np.where(peer == NOBODY, 0, np.array(halves)[tree])
    return _Stream(peer, begin, begin + length, np.where(tree == 1, halves[0], 0))
