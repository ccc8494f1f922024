"""Trees over nodes: they join the nodes by the first GPU of each channel's path; inside, the path is a chain.

Source: NVIDIA, NCCL, src/graph/trees.cc, `ncclGetDtree`.
"""

from collections.abc import Sequence

import numpy as np

from quadrille.simulator.collectives.channels import by_node
from quadrille.simulator.collectives.programs import Ints
from quadrille.topologies.routes.routing import Routes


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
