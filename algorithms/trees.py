r"""Two binary trees at once, so that every member sends and receives all the time.

In one pipelined binary tree the leaves, half of the members, send nothing.  So
there are two trees over the members behind the root, each for half of the
pieces, and who is inner in one is a leaf in the other:

    first tree        4             second tree,      3
    over 6 behind   /   \           the first one   /   \
    the root       2     6          mirrored       1     5
                  / \   /                           \   / \
                 1   3 5                             2 4   6

Every member then has two parents and at most two children.  The edges get two
colours such that both edges into a member differ, and both out of it: even
steps use one colour, odd steps the other, and a member never sends or receives
twice in a step.  A piece that came in one step goes on in the next or the one
after it.  A reduction is the same, backwards in time.

Source: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth
broadcast, reduction and scan", Parallel Computing 35(12), 2009; the in-order
trees by lowest set bit, mirrored or shifted by one, are those of NCCL 2.4's
double binary trees (src/graph/trees.cc).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from algorithms.lowered import Lowered
from algorithms.runs import NOBODY, Integers, Section
from algorithms.steps import Run, Step

ROOT = 0
GROUPS_KEPT = 8


@dataclass(frozen=True, slots=True, eq=False)
class TwoTrees:
    """Both trees over positions 1 .. members - 1; the root is position 0 and outside of them.

    Rows are trees.  Column 0, the root's, holds NOBODY for a parent and -1 for a step.

    Parameters
    ----------
    parent : of each position
    starts : the step in which a position gets the first piece of the tree; the others follow every second step
    children : positions served in even and in odd steps, by row, NOBODY for none
    served_tree : by even and odd steps, the tree of that child
    """

    parent: Integers
    starts: Integers
    children: Integers
    served_tree: Integers


def broadcast(members: int, root: int, pieces: int) -> Lowered:
    """The root's pieces to all members, the first half of them down one tree, the others down the other."""
    halves = (pieces + 1) // 2, pieces // 2
    if members == 1:
        return Lowered("double_binary_tree", 1, pieces, 0, lambda _i, _s: Step(), list)
    step, sections = _steps(members, root, halves), lambda: _sections(members, root, halves)
    steps = max(
        int(start.max()) + 2 * half - 1 for start, half in zip(two_trees(members).starts, halves, strict=True) if half
    )
    return Lowered("double_binary_tree", members, pieces, steps, step, sections)


def all_reduce(members: int, pieces: int) -> Lowered:
    """Sums up both trees to member 0, then the sum down again."""
    down = broadcast(members, ROOT, pieces)
    return down.backwards().then(down)


@lru_cache(GROUPS_KEPT)
def two_trees(members: int) -> TwoTrees:
    """Both trees, the colours of their edges and the steps in which these begin."""
    parents = [_first_parents(members), _second_parents(members)]
    colours = _colours(parents, members)
    parent = np.array(parents)
    starts = np.array([_starts(one, colour) for one, colour in zip(parents, colours, strict=True)])
    children = np.full((2, members), NOBODY)
    served_tree = np.zeros((2, members), np.int64)
    for tree, (one, colour) in enumerate(zip(parents, colours, strict=True)):
        children[colour[1:], one[1:]] = np.arange(1, members)
        served_tree[colour[1:], one[1:]] = tree
    return TwoTrees(parent, starts, children, served_tree)


def _first_parents(members: int) -> list[int]:
    """Parents in the in-order binary tree over 1 .. members - 1: odd positions are leaves.

    >>> _first_parents(7)
    [-1, 2, 4, 2, 0, 6, 4]
    """
    parents = [NOBODY]
    for i in range(1, members):
        bit = i & -i
        above = (i ^ bit) | (bit << 1)
        parents.append(above if above < members else i ^ bit)
    return parents


def _second_parents(members: int) -> list[int]:
    """Parents in the tree in which odd positions are inner: the first, mirrored, or shifted where that keeps parity.

    >>> _second_parents(7)
    [-1, 3, 1, 0, 5, 3, 5]
    """
    first, behind = _first_parents(members), members - 1
    if behind % 2 == 0:
        position = {i: behind + 1 - i for i in range(1, members)}
    else:
        position = {i: i % behind + 1 for i in range(1, members)}
    parents = [NOBODY] * members
    for i in range(1, members):
        parents[position[i]] = position.get(first[i], ROOT)
    return parents


def _colours(parents: list[list[int]], members: int) -> list[list[int]]:
    """0 or 1 for each edge, by tree and child, such that both edges into a member differ and both out of it.

    The edge of (tree, child) meets at most one other edge at its child, and one
    at its parent; so edges that must differ form paths and cycles, and these
    alternate between both kinds of meeting: their length is even.
    """
    out: dict[int, list[tuple[int, int]]] = {}
    for tree, one in enumerate(parents):
        for child in range(1, members):
            out.setdefault(one[child], []).append((tree, child))
    colours = [[NOBODY] * members for _ in parents]
    for edge in [(tree, child) for tree in range(2) for child in range(1, members)]:
        pending = [(edge, 0)] if colours[edge[0]][edge[1]] == NOBODY else []
        while pending:
            (tree, child), colour = pending.pop()
            if colours[tree][child] != NOBODY:
                continue
            colours[tree][child] = colour
            others = [(1 - tree, child), *out[parents[tree][child]]]
            pending += [(other, 1 - colour) for other in others if other != (tree, child)]
    return colours


def _starts(parents: list[int], colours: list[int]) -> list[int]:
    """The first step of each edge: the next one of its colour after its parent has the piece."""
    starts: list[int] = [NOBODY] * len(parents)
    for first in range(1, len(parents)):
        path = [first]
        while parents[path[-1]] != ROOT and starts[parents[path[-1]]] == NOBODY:
            path.append(parents[path[-1]])
        for i in reversed(path):
            after = starts[parents[i]] + 1
            starts[i] = after + (after - colours[i]) % 2
    return starts


def _steps(members: int, root: int, halves: tuple[int, int]) -> Callable[[int, int], Step]:
    def step(i: int, s: int) -> Step:
        trees = two_trees(members)
        here = (i - root) % members
        send_to = receive_from = None
        send = receive = None
        for tree in range(2):
            piece = _piece(int(trees.starts[tree, here]), s, halves, tree) if here else None
            if piece is not None:
                receive_from, receive = (int(trees.parent[tree, here]) + root) % members, Run(piece, 1)
        child, tree = int(trees.children[s % 2, here]), int(trees.served_tree[s % 2, here])
        piece = _piece(int(trees.starts[tree, child]), s, halves, tree) if child != NOBODY else None
        if piece is not None:
            send_to, send = (child + root) % members, Run(piece, 1)
        return Step(send_to, send, receive_from, receive)

    return step


def _piece(start: int, s: int, halves: tuple[int, int], tree: int) -> int | None:
    """The piece that an edge of the tree carries in step s, if it carries one."""
    round_, late = divmod(s - start, 2)
    return None if late or not 0 <= round_ < halves[tree] else round_ + tree * halves[0]


def _sections(members: int, root: int, halves: tuple[int, int]) -> Iterator[Section]:
    """Stretches of rounds, each an even and an odd step, in which a member has the same peers.

    In the even steps it receives from one parent during some rounds and sends to
    one child during others, in the odd steps alike: eight ends that cut its
    rounds into seven stretches at most.
    """
    trees = two_trees(members)
    here = np.arange(members)
    streams = [_stream(trees, parity, halves, receiving=way) for parity in range(2) for way in (True, False)]
    cuts = np.sort(np.array([edge for one in streams for edge in (one.begin, one.end)]), axis=0)
    seat = (here - root) % members
    for begin, end in pairwise(cuts):
        for parity in range(2):
            received, sent = streams[2 * parity], streams[2 * parity + 1]
            yield Section(
                steps=(end - begin)[seat],
                receive_from=received.peers(begin, root)[seat],
                receive_first=received.pieces(begin)[seat],
                send_to=sent.peers(begin, root)[seat],
                send_first=sent.pieces(begin)[seat],
                stride=1,
                take_turns=parity == 0,
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Stream:
    """What each position receives, or sends, in the steps of one parity: pieces from `base`, in rounds begin .. end."""

    peer: Integers
    begin: Integers
    end: Integers
    base: Integers

    def peers(self, during: Integers, root: int) -> Integers:
        active = (self.peer != NOBODY) & (self.begin <= during) & (during < self.end)
        return np.where(active, (self.peer + root) % len(self.peer), NOBODY)

    def pieces(self, during: Integers) -> Integers:
        return self.base + during - self.begin


def _stream(trees: TwoTrees, parity: int, halves: tuple[int, int], *, receiving: bool) -> _Stream:
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
