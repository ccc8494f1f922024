"""Rings and trees over nodes: who comes after whom, and which NICs and links they use."""

import numpy as np
import pytest

from quadrille.simulator.collectives.node_layouts import node_blocks, ring_orders, tree_edges
from quadrille.simulator.collectives.node_paths import node_links, node_paths
from quadrille.topologies.build import build
from quadrille.topologies.routes.routing import Routes


def routes(node, nodes=4):
    return Routes(build("gpu-cluster", {"nodes": nodes, "node": node}))


def places_with_stride(on, stride, nodes=4):
    return np.array([np.arange(first, nodes * on.net.per_node, stride) for first in range(stride)])


@pytest.mark.parametrize("node", ["perlmutter", "frontier", "dgx-a100", "dgx-1v", "summit"])
@pytest.mark.parametrize("stride", [1, 2])
def test_every_ring_passes_every_member_once_and_every_node_whole(node, stride):
    on = routes(node)
    places = places_with_stride(on, stride)
    orders = ring_orders(on, places)
    assert len(orders) > 0
    for order in orders:
        assert (np.sort(order, axis=1) == np.arange(places.shape[1])).all()
        nodes = np.take_along_axis(places, order, axis=1) // on.net.per_node
        assert (np.diff(nodes, axis=1) >= 0).all()


@pytest.mark.parametrize(("node", "nics"), [("perlmutter", 4), ("frontier", 4), ("dgx-a100", 8), ("abci-v", 2)])
def test_channels_leave_and_enter_by_different_nics(node, nics):
    on = routes(node)
    places = places_with_stride(on, 1)
    share = on.net.per_node // nics
    orders = ring_orders(on, places, nics)
    exits = {int(order[0][on.net.per_node - 1]) // share for order in orders}
    entries = {int(order[0][on.net.per_node]) % on.net.per_node // share for order in orders}
    assert exits == entries == set(range(nics))


def test_the_fewest_channels_that_pay_are_the_nics_of_a_quad():
    assert len(ring_orders(routes("perlmutter"), places_with_stride(routes("perlmutter"), 1))) == 4


def test_six_rings_fill_a_quad_whose_directed_pairs_do_not_split_into_fewer():
    """K4 with both directions has no split into Hamiltonian cycles; its six cycles together use every pair twice."""
    found = node_paths(node_links(routes("perlmutter"), np.arange(4), several=False), None)
    hops = [(way[i], way[(i + 1) % 4]) for way in found for i in range(4)]
    assert len(found) == 6
    assert all(hops.count((a, b)) == 2 for a in range(4) for b in range(4) if a != b)


def test_members_of_a_node_that_come_apart_in_rank_order_are_brought_together():
    on = routes("perlmutter", nodes=2)
    order = ring_orders(on, np.array([[0, 4, 1, 5, 2, 6, 3, 7]]), 1)[0]
    assert (np.array([0, 4, 1, 5, 2, 6, 3, 7])[order[0]] // 4).tolist() == [0] * 4 + [1] * 4


def test_nodes_of_different_patterns_are_distinguished():
    nodes = node_blocks(np.array([[0, 1, 2, 4, 5, 6], [8, 9, 10, 12, 13, 15]]), 4)
    assert nodes.length.tolist() == [3, 3, 3, 3]
    assert nodes.patterns.tolist() == [[0, 1, 2], [0, 1, 3]]
    assert nodes.pattern.tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 13])
def test_each_tree_joins_all_members_and_ends_at_one_root(count):
    on = routes("perlmutter", nodes=count)
    places = np.arange(4 * count)[None]
    orders = ring_orders(on, places, 2)
    edges = tree_edges(on, places, orders)
    assert len(edges) == 4
    for group, child, parent, _ in edges:
        assert (group == 0).all()
        assert len(child) == 4 * count - 1
        assert len(set(child.tolist())) == len(child)
        above = dict(zip(child.tolist(), parent.tolist(), strict=True))
        for start in above:
            seen = [start]
            while seen[-1] in above:
                seen.append(above[seen[-1]])
                assert len(seen) <= 4 * count


@pytest.mark.parametrize("count", [2, 4, 6, 8, 16, 64])
def test_a_node_that_serves_two_others_in_one_tree_is_a_leaf_of_the_other(count):
    on = routes("perlmutter", nodes=count)
    places = 4 * np.arange(count)[None]
    first, second = tree_edges(on, places, [np.arange(count)[None]])
    inner = [set(edges[2].tolist()) for edges in (first, second)]
    both = inner[0] & inner[1]
    assert len(both) <= 1  # at most a root, which has a single child in its own tree


@pytest.mark.parametrize("count", [2, 7, 64, 1000])
def test_trees_are_as_deep_as_a_logarithm(count):
    on = routes("perlmutter", nodes=count)
    trees = tree_edges(on, 4 * np.arange(count)[None], [np.arange(count)[None]])
    assert len(trees) == 2
    for *_, level in trees:
        assert level.max() <= count.bit_length() + 1
