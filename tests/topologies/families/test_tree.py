from math import prod

import networkx as nx
import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.tree import add_tree, fat_tree, tree
from quadrille.topologies.network_builder import Builder
from quadrille.topologies.routes.routing import Routes

CABLE = {"bandwidth": 4.0, "latency": 1e-6}
SHAPES = [
    ((4,), (1,), (1,)),
    ((3, 2), (2, 3), (2, 1)),
    ((2, 3, 4), (1, 2, 2), (1, 1, 2)),
    ((2, 2, 2, 2), (1, 2, 1, 2), (1, 2, 1, 1)),
]


@pytest.mark.parametrize(("down", "up", "parallel"), SHAPES)
def test_counts_are_those_of_a_generalised_fat_tree(down, up, parallel):
    net = tree(down, up, parallel=parallel, **CABLE)
    levels = [count for _, count in net.kinds.values()]
    assert levels == [prod(up[:level]) * prod(down[level:]) for level in range(len(down) + 1)]
    assert net.link_count == 2 * sum(n * w * p for n, w, p in zip(levels, up, parallel, strict=False))
    assert nx.is_strongly_connected(nx.DiGraph(net.graph()))


@pytest.mark.parametrize(("down", "up", "parallel"), SHAPES)
def test_every_node_has_its_children_and_parents_as_often_as_said(down, up, parallel):
    net = tree(down, up, parallel=parallel, **CABLE)
    level_of = np.repeat(np.arange(len(net.kinds)), [count for _, count in net.kinds.values()])
    climbing = level_of[net.targets] > level_of[net.sources]
    for level in range(len(down)):
        parents = np.bincount(net.sources[climbing], minlength=net.node_count)[level_of == level]
        children = np.bincount(net.targets[climbing], minlength=net.node_count)[level_of == level + 1]
        assert set(parents) == {up[level] * parallel[level]}
        assert set(children) == {down[level] * parallel[level]}


def test_levels_have_their_own_bandwidths_and_latencies():
    net = tree("2x2", "1x1", bandwidth="5x7", latency=(1e-6, 2e-6))
    assert (net.bandwidths[0], net.bandwidths[-1]) == (5.0, 7.0)
    assert (net.latencies[0], net.latencies[-1]) == (1e-6, 2e-6)


def test_a_fat_tree_of_equal_switches_is_a_tree():
    one, other = fat_tree(4, **CABLE), tree("2x2x4", "1x2x2", **CABLE)
    assert np.array_equal(one.sources, other.sources)
    assert np.array_equal(one.targets, other.targets)


@pytest.mark.parametrize("endpoints", [1, 5, 6, 7, 23])
def test_a_tree_that_is_not_full_leaves_out_switches_above_nobody(endpoints):
    builder = Builder("tree", {})
    ways = add_tree(builder, builder.nodes("host", endpoints), down="3x2x4", up="1x2x2", **CABLE)
    net = builder.network(("host", endpoints), ways)
    assert net.kinds["leaf"][1] == -(-endpoints // 3)
    assert net.kinds["spine"][1] == -(-endpoints // 6) * 2
    paths = Routes(net).between([0] * endpoints, list(range(endpoints)))
    lengths = np.diff(paths.offsets)
    assert lengths.tolist() == [0 if not i else 2 if i < 3 else 4 if i < 6 else 6 for i in range(endpoints)]


def test_a_tree_has_no_room_for_more_than_its_leaves_hold():
    builder = Builder("tree", {})
    with pytest.raises(InputError, match="tree: down=2x2 has room for 4 endpoints, not 5"):
        add_tree(builder, builder.nodes("host", 5), down="2x2", up="1x1", **CABLE)
