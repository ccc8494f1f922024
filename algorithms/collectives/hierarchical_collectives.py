"""Hierarchical collectives for groups whose members share nodes: phases inside the nodes and along the rails.

Members n P, …, n P + P - 1 share node n.  Links inside a node are faster than links between nodes, and member l of a
node reaches member l of another node (a *rail*) without crossing a switch.  Each member sends the minimum over the
network, along its rail only:

    all-gather        rings along the rails, then rings inside the nodes
    reduce-scatter    the same in reverse
    all-reduce        reduce-scatter, then all-gather
    broadcast         the root scatters inside its node, chains along the rails, rings inside the nodes
    reduce            the same in reverse

A group on one node, or with one member on each node, uses the flat algorithm, and records name it.

Source: the two levels of Thakur, Gropp, "Improving the performance of collective operations in MPICH", EuroPVM/MPI
2003, section 5; rails: Wang et al., "Rail-only: a low-cost high-performance network for training LLMs with trillion
parameters", arXiv 2307.12169, section 3.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from quadrille.algorithms.collectives.flat_collectives import chain_sections
from quadrille.algorithms.collectives.lowered_collective import Lowered
from quadrille.algorithms.collectives.run_length_programs import IDLE, NOBODY, PieceRange, Section, Step


def applies(members: int, per_node: int) -> bool:
    """Whether the group spans several nodes with several members each.

    >>> applies(8, 4), applies(8, 8), applies(8, 1), applies(8, 3)
    (True, False, False, False)
    """
    return 1 < per_node < members and members % per_node == 0


def all_gather(members: int, per_node: int) -> Lowered:
    """All-gather: member i starts with piece i; at the end each member holds all pieces."""
    return _gather(_Level(members, per_node, scattered=True))


def reduce_scatter(members: int, per_node: int) -> Lowered:
    """Reduce-scatter: each member starts with a summand of every piece; member i ends with the sum of piece i."""
    return all_gather(members, per_node).backwards()


def all_reduce(members: int, per_node: int) -> Lowered:
    """All-reduce: each member starts with a summand; at the end each holds the sum."""
    gather = _gather(_Level(members, per_node, scattered=False))
    return gather.backwards().then(gather)


@dataclass(frozen=True, slots=True)
class _Level:
    """Ownership of pieces: the pieces of one local index form a block, contiguous or (like members) scattered."""

    members: int
    per_node: int
    scattered: bool

    @property
    def nodes(self) -> int:
        return self.members // self.per_node

    def piece(self, node: int, local: int) -> PieceRange:
        """Piece that member `local` of a node holds at the start."""
        return PieceRange(node * self.per_node + local if self.scattered else local * self.nodes + node, 1)

    def block(self, local: int) -> PieceRange:
        """Pieces that each member of rail `local` holds after the rail phase."""
        return (
            PieceRange(local, self.nodes, self.per_node)
            if self.scattered
            else PieceRange(local * self.nodes, self.nodes)
        )


def _gather(level: _Level) -> Lowered:
    """Rings along the rails, then rings inside the nodes."""
    nodes, per_node = level.nodes, level.per_node

    def step(i: int, s: int) -> Step:
        node, local = divmod(i, per_node)
        if s < nodes - 1:
            after, before = (i + per_node) % level.members, (i - per_node) % level.members
            send, receive = level.piece((node - s) % nodes, local), level.piece((node - s - 1) % nodes, local)
            return Step(after, send, before, receive)
        t, base = s - (nodes - 1), node * per_node
        after, before = base + (local + 1) % per_node, base + (local - 1) % per_node
        return Step(after, level.block((local - t) % per_node), before, level.block((local - t - 1) % per_node))

    steps = nodes - 1 + per_node - 1
    return Lowered("hierarchical", level.members, level.members, steps, step, partial(_gather_sections, level))


def _gather_sections(level: _Level) -> list[Section]:
    nodes, per_node, members = level.nodes, level.per_node, level.members
    here = np.arange(members)
    node, local = here // per_node, here % per_node
    base = here - local
    first = here if level.scattered else local * nodes + node
    before = (here - per_node) % members
    return [
        Section(
            steps=nodes - 1,
            send_to=(here + per_node) % members,
            send_first=first,
            receive_from=before,
            receive_first=first[before],
            stride=-per_node if level.scattered else -1,
            origin=0 if level.scattered else local * nodes,
            modulus=members if level.scattered else nodes,
        ),
        Section(
            steps=per_node - 1,
            send_to=base + (local + 1) % per_node,
            send_first=local if level.scattered else local * nodes,
            sent=nodes,
            receive_from=base + (local - 1) % per_node,
            receive_first=(local - 1) % per_node * (1 if level.scattered else nodes),
            received=nodes,
            stride=-1 if level.scattered else -nodes,
            spacing=per_node if level.scattered else 1,
            modulus=per_node if level.scattered else members,
        ),
    ]


def broadcast(members: int, per_node: int, root: int, chunks: int) -> Lowered:
    """Broadcast of all pieces of the root.

    Parameters
    ----------
    members, per_node : numbers of members of the group, and of members on each node
    root : member that has the pieces at the start
    chunks : number of pieces that travel along each rail
    """
    spread = _Spread(members, per_node, root, chunks)
    steps = 2 * (per_node - 1) + chunks + spread.nodes - 2
    return Lowered("hierarchical", members, per_node * chunks, steps, spread.step, spread.sections)


def reduce(members: int, per_node: int, root: int, chunks: int) -> Lowered:
    """Reduce, the reverse of the broadcast: each member starts with a summand; at the end the root holds the sum."""
    return broadcast(members, per_node, root, chunks).backwards()


@dataclass(frozen=True, slots=True)
class _Spread:
    """A broadcast in three phases; block l of the pieces travels along the rail of local index l."""

    members: int
    per_node: int
    root: int
    chunks: int

    @property
    def nodes(self) -> int:
        return self.members // self.per_node

    def block(self, local: int) -> PieceRange:
        return PieceRange(local % self.per_node * self.chunks, self.chunks)

    def step(self, i: int, s: int) -> Step:
        scattering, chaining = self.per_node - 1, self.chunks + self.nodes - 2
        if s < scattering:
            return self._scatter(i, s)
        if s < scattering + chaining:
            return self._chain(i, s - scattering)
        return self._ring(i, s - scattering - chaining)

    def _scatter(self, i: int, s: int) -> Step:
        """Step s of the scatter: the root sends a block to neighbour s + 1 in its node."""
        root_node, root_local = divmod(self.root, self.per_node)
        to = root_node * self.per_node + (root_local + s + 1) % self.per_node
        if i == self.root:
            return Step(to, self.block(to))
        return Step(receive_from=self.root, receive=self.block(i)) if i == to else IDLE

    def _chain(self, i: int, s: int) -> Step:
        """Step of the pipelined broadcast along each rail."""
        node, local = divmod(i, self.per_node)
        behind = (node - self.root // self.per_node) % self.nodes
        base = local * self.chunks
        sends = behind < self.nodes - 1 and 0 <= s - behind < self.chunks
        receives = behind > 0 and 0 <= s - behind + 1 < self.chunks
        return Step(
            (i + self.per_node) % self.members if sends else None,
            PieceRange(base + s - behind, 1) if sends else None,
            (i - self.per_node) % self.members if receives else None,
            PieceRange(base + s - behind + 1, 1) if receives else None,
        )

    def _ring(self, i: int, s: int) -> Step:
        """Step of the ring inside each node; the root has all blocks and receives none."""
        node, local = divmod(i, self.per_node)
        after = node * self.per_node + (local + 1) % self.per_node
        before = node * self.per_node + (local - 1) % self.per_node
        sends, receives = after != self.root, i != self.root
        return Step(
            after if sends else None,
            self.block(local - s) if sends else None,
            before if receives else None,
            self.block(local - s - 1) if receives else None,
        )

    def sections(self) -> Iterator[Section]:
        """The three phases, for all members."""
        per_node, members = self.per_node, self.members
        here = np.arange(members)
        node, local = here // per_node, here % per_node
        root_node, root_local = divmod(self.root, per_node)
        for s in range(per_node - 1):
            to = root_node * per_node + (root_local + s + 1) % per_node
            yield Section(
                steps=1,
                send_to=np.where(here == self.root, to, NOBODY),
                send_first=to % per_node * self.chunks,
                sent=self.chunks,
                receive_from=np.where(here == to, self.root, NOBODY),
                receive_first=local * self.chunks,
                received=self.chunks,
            )
        after, before = (here + per_node) % members, (here - per_node) % members
        behind = (node - root_node) % self.nodes
        yield from chain_sections(behind, self.nodes, self.chunks, after, before, local * self.chunks)
        after, before = here - local + (local + 1) % per_node, here - local + (local - 1) % per_node
        yield Section(
            steps=per_node - 1,
            send_to=np.where(after == self.root, NOBODY, after),
            send_first=local * self.chunks,
            sent=self.chunks,
            receive_from=np.where(here == self.root, NOBODY, before),
            receive_first=(local - 1) % per_node * self.chunks,
            received=self.chunks,
            stride=-self.chunks,
            modulus=per_node * self.chunks,
        )
