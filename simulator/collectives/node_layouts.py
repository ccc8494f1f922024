"""Node layouts: the rings and trees of a collective over nodes and GPUs, with several channels on different links.

A ring in rank order crosses every node by one path and leaves it by one NIC.
Libraries lay several channels with different paths, so that together they use all links:

    node of 4 GPUs, 4 NICs     channel 0   in at gpu:1, 1 → 2 → 3 → 0, out at gpu:0
    every pair wired           channel 1   in at gpu:2, 2 → 0 → 3 → 1, out at gpu:1

Nodes are visited one after another, in the order of the ranks; only the order inside
is chosen (`node_paths.py`), as if no link were degraded: libraries do not know of such
faults. Nodes in which the same GPUs belong to the group get the same path, so the choice
is made once for each pattern of GPUs. Nodes with different numbers of GPUs have as many
channels as the slowest of them needs. Trees join the nodes by the first GPU of each
channel's path; inside a node, the path is a chain.

Source: NVIDIA, "NCCL user guide", environment variables NCCL_MIN_NCHANNELS and
NCCL_CROSS_NIC, for channels and different NICs; NCCL, src/graph/trees.cc, `ncclGetDtree`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import lcm

import numpy as np

from quadrille.algorithms.collectives.nccl.tuning_constants import MOST_CHANNELS
from quadrille.simulator.collectives.node_paths import common_paths, node_links, node_paths
from quadrille.simulator.collectives.programs import Ints
from quadrille.topologies.routes.routing import Routes


@dataclass(frozen=True, slots=True, eq=False)
class NodeBlocks:
    """Groups sorted node by node; a block is the members of a group on one node.

    Parameters
    ----------
    slots : positions of members in their group, node after node [groups, members]
    first, length : index of each block's first member in `slots`, counted through all groups, and its size [blocks]
    pattern : row of `patterns` of each block [blocks]
    patterns : GPUs of a node, numbered within it, -1 after the last [patterns, most members of a node]
    group : group of each block
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


def node_blocks(endpoints: Ints, per_node: int) -> NodeBlocks:
    """The members of groups node by node, nodes in the order in which a group first visits them.

    >>> node_blocks(np.array([[0, 2, 1, 3]]), 2).slots.tolist()
    [[0, 2, 1, 3]]

    Parameters
    ----------
    endpoints : endpoint of each member [groups, members]
    """
    groups, members = endpoints.shape
    node, local = np.divmod(endpoints, per_node)
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
    return NodeBlocks(
        (order % members).reshape(groups, members), begins, length, pattern.ravel(), patterns, owner[order[begins]]
    )


def ring_orders(routes: Routes, endpoints: Ints, channels: int | None = None) -> list[Ints]:
    """For each channel, the members of every group in the order of its ring [groups, members].

    Parameters
    ----------
    endpoints : endpoint of each member [groups, members]
    channels : number of channels; None for the fewest that together carry the most
    """
    routes, nodes = routes.expected(), node_blocks(endpoints, routes.net.per_node)
    links = [node_links(routes, row[row >= 0], several=nodes.several) for row in nodes.patterns]
    alike, row_of_block = _patterns_of_groups(nodes)
    paths: list[tuple[tuple[int, ...], ...]] = []
    for patterns in alike:
        of_group = [links[pattern] for pattern in patterns]
        paths += [node_paths(node, channels) for node in of_group] if channels else common_paths(of_group)
    counts = {len(of_pattern) for of_pattern in paths}
    count = lcm(*counts) if lcm(*counts) <= MOST_CHANNELS else max(counts)
    return [
        _in_node_order(nodes, row_of_block, [of_pattern[channel % len(of_pattern)] for of_pattern in paths])
        for channel in range(count)
    ]


def _patterns_of_groups(nodes: NodeBlocks) -> tuple[list[tuple[int, ...]], Ints]:
    """The different sets of patterns that groups have, and for each block the row of its pattern in all these sets."""
    begins = np.flatnonzero(np.diff(nodes.group, prepend=-1))
    sets = [tuple(np.unique(patterns).tolist()) for patterns in np.split(nodes.pattern, begins[1:])]
    alike = list(dict.fromkeys(sets))
    first_rows = dict(zip(alike, accumulate(map(len, alike), initial=0), strict=False))
    row_of_block = np.empty(len(nodes.pattern), dtype=np.int64)
    for begin, end, patterns in zip(begins, [*begins[1:], len(nodes.pattern)], sets, strict=True):
        row_of_block[begin:end] = first_rows[patterns] + np.searchsorted(patterns, nodes.pattern[begin:end])
    return alike, row_of_block


def _in_node_order(nodes: NodeBlocks, row_of_block: Ints, orders: Sequence[Sequence[int]]) -> Ints:
    """The slots with every node visited in the order of its row."""
    flat = nodes.slots.ravel().copy()
    width = nodes.patterns.shape[1]
    table = np.zeros((len(orders), width), dtype=np.int64)
    for row, order in enumerate(orders):
        table[row, : len(order)] = order
    block = np.repeat(np.arange(len(nodes.first)), nodes.length)
    column = np.arange(len(flat)) - nodes.first[block]
    laid: Ints = flat[nodes.first[block] + table[row_of_block[block], column]].reshape(nodes.slots.shape)
    return laid


def tree_edges(routes: Routes, endpoints: Ints, orders: Sequence[Ints]) -> list[tuple[Ints, Ints, Ints, Ints]]:
    """The edges of two complementary trees over the nodes for each channel, with chains inside the nodes.

    Returns for each channel and tree (group, child slot, parent slot, depth of the
    child's node in edges), each an array over edges; half of the channel's bytes
    goes through either tree.

    Source: Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth
    broadcast, reduction and scan", Parallel Computing 35(12), 2009.
    """
    nodes = node_blocks(endpoints, routes.net.per_node)
    block = np.repeat(np.arange(len(nodes.first)), nodes.length)
    column = np.arange(len(block)) - nodes.first[block]
    first_block = np.searchsorted(nodes.group, np.arange(len(endpoints)))
    per_group = np.bincount(nodes.group, minlength=len(endpoints))
    rank_of_block = np.arange(len(nodes.first)) - first_block[nodes.group]
    edges = []
    for order in orders:
        flat = order.ravel()
        chain = np.flatnonzero(column > 0)
        for tree in range(2):
            parents = _parents(per_group[nodes.group], rank_of_block, tree)
            depth = _depths(parents, first_block[nodes.group])
            child = np.flatnonzero(parents >= 0)
            heads = nodes.first[child]
            parent_heads = nodes.first[first_block[nodes.group[child]] + parents[child]]
            group = np.concatenate([nodes.group[block[chain]], nodes.group[child]])
            down = np.concatenate([flat[chain], flat[heads]])
            up = np.concatenate([flat[chain - 1], flat[parent_heads]])
            level = np.concatenate([depth[block[chain]] + column[chain], depth[child]])
            edges.append((group, down, up, level))
    return edges


def _parents(sizes: Ints, ranks: Ints, tree: int) -> Ints:
    """The parent of each node in an in-order binary tree; the second tree is the first with all ranks shifted by one.

    Rank r > 0 with lowest bit b has the parent (r ^ b) | 2b, or r ^ b where that
    is past the end; the root is 0.
    """
    shifted = (ranks - tree) % np.maximum(sizes, 1)
    low = shifted & -shifted
    up = (shifted ^ low) | (low << 1)
    parent = np.where(up >= sizes, shifted ^ low, up)
    return np.where(shifted == 0, -1, (parent + tree) % np.maximum(sizes, 1))


def _depths(parents: Ints, base: Ints) -> Ints:
    """Edges from each node to the root; parents are numbered within the group, which begins at `base`."""
    depth = np.zeros(len(parents), dtype=np.int64)
    at = np.arange(len(parents))
    while True:
        moving = parents[at] >= 0
        if not moving.any():
            return depth
        depth += moving
        at = np.where(moving, base[at] + parents[at], at)
