from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.topologies.build import FAMILIES, build
from quadrille.topologies.families.basic import full, host, star
from quadrille.topologies.families.dragonfly import dragonfly
from quadrille.topologies.families.dragonfly_plus import dragonfly_plus
from quadrille.topologies.families.leaf_spine import leaf_spine, rail_optimised
from quadrille.topologies.families.torus import mesh, ring, torus
from quadrille.topologies.families.tree import fat_tree, tree
from quadrille.topologies.machines.machine_catalogue import MACHINES, machine
from quadrille.topologies.measures.bisection import bisection, oversubscription
from quadrille.topologies.measures.diameter import diameter
from quadrille.topologies.measures.measures import measures

CABLE = {"bandwidth": 3.0, "latency": 1e-6}


@pytest.mark.parametrize(
    ("net", "hops", "across", "ratio"),
    [
        # Bisection: half of the hosts × 3 where nothing blocks; else the links that formulas of textbooks count.
        (star(6, **CABLE), 2, 3 * 3.0, 1.0),
        (leaf_spine(4, 2, 4, **CABLE), 4, 2 * 2 * 3.0, 2.0),
        (leaf_spine(4, 4, 4, **CABLE), 4, 8 * 3.0, 1.0),
        (leaf_spine(4, 1, 8, uplink_bandwidth=12.0, **CABLE), 4, 2 * 12.0, 2.0),
        (fat_tree(4, **CABLE), 6, 8 * 3.0, 1.0),
        (fat_tree(8, **CABLE), 6, 64 * 3.0, 1.0),
        (tree("4x4x4", "1x2x2", **CABLE), 6, 8 * 3.0, 4.0),
        (tree("4x4", "1x2", parallel="1x2", **CABLE), 4, 8 * 3.0, 1.0),
        (ring(8, **CABLE), 4, 2 * 3.0, 4.0),
        (torus("4x4", **CABLE), 4, 2 * 4 * 3.0, 4.0),
        (torus("4x4x4", **CABLE), 6, 2 * 4**2 * 3.0, 6.0),
        (torus("6x6x6", hosts_per_router=1, **CABLE), 11, 2 * 6**2 * 3.0, 1.5),
        (mesh("4x4x4", **CABLE), 9, 4**2 * 3.0, (6 * 64 - 6 * 16) / 2 / 16),
        (full(8, **CABLE), 1, 4 * 4 * 3.0, 28 / 16),
        (rail_optimised(8, 4, 4, 4, **CABLE), 4, 16 * 3.0, 1.0),
        # Half of the groups of a dragonfly of 4 groups: 2 × 2 pairs of groups with a cable each.
        (dragonfly(4, 3, 3, 1, **CABLE), 5, 4 * 3.0, 18 / 4),
        (dragonfly_plus(4, 3, 3, 3, 1, **CABLE), 5, 4 * 3.0, 18 / 4),
    ],
    ids=lambda value: value.name.partition(",")[0] if hasattr(value, "name") else "",
)
def test_measures_are_those_of_the_textbook(net, hops, across, ratio):
    found = measures(net)
    assert [figure.bound for figure in (found.diameter, found.bisection, found.oversubscription)] == ["exact"] * 3
    assert found.diameter.value == hops
    assert found.bisection.value == pytest.approx(across, rel=1e-9)
    assert found.oversubscription.value == pytest.approx(ratio, rel=1e-9)


def test_counts_are_by_kind():
    found = measures(leaf_spine(3, 2, 4, **CABLE))
    assert found.nodes == {"host": 12, "leaf": 3, "spine": 2}
    assert found.links == {"host>leaf": 12, "leaf>host": 12, "leaf>spine": 6, "spine>leaf": 6}
    assert found.endpoints == 12


NODE = {"gpus_per_node": 4, "nics_per_node": 2, "gpu_bandwidth": 9.0, "gpu_latency": 0, "nic_bandwidth": 2.0}
SMALL = {
    "host": {"cores": 2},
    "star": {"hosts": 5, **CABLE},
    "dumbbell": {"hosts": 5, "waist_bandwidth": 2.0, **CABLE},
    "leaf-spine": {"leaves": 3, "spines": 2, "hosts_per_leaf": 3, **CABLE},
    "fat-tree": {"ports": 4, **CABLE},
    "tree": {"down": "3x2x3", "up": "1x2x2", "parallel": "1x1x3", "bandwidth": "1x2x4", "latency": 0},
    "dragonfly": {"groups": 5, "routers": 2, "hosts_per_router": 2, "global_links": 2, "local_bandwidth": 1.0, **CABLE},
    "dragonfly+": {"groups": 3, "leaves": 2, "spines": 2, "hosts_per_leaf": 3, "global_links": 2, **CABLE},
    "torus": {"dims": "3x5", "hosts_per_router": 2, "host_bandwidth": 2.0, **CABLE},
    "mesh": {"dims": "3x3", **CABLE},
    "rail-optimised": {"nodes": 5, "rails": 2, "nodes_per_unit": 2, "spines": 3, **CABLE},
    "ring": {"hosts": 7, **CABLE},
    "full": {"hosts": 5, **CABLE},
    "gpu-cluster": {"nodes": 6, "nic_latency": 0, **NODE, "nodes_per_leaf": 2, "spines": 3},
    **{name: {"gpus": 44} for name in MACHINES},
}


def capacities(net):
    """The network with parallel links as one, whose capacity is theirs together."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(net.node_count))
    columns = net.sources.tolist(), net.targets.tolist(), net.bandwidths.tolist()
    for source, target, bandwidth in zip(*columns, strict=True):
        before = graph.get_edge_data(source, target, {"capacity": 0.0})["capacity"]
        if bandwidth:
            graph.add_edge(source, target, capacity=before + bandwidth)
    return graph


def plain_bisection(net):
    """A maximum flow: source and sink joined to the places by cables that never limit, in place of merging them."""
    graph, nodes, half = capacities(net), net.endpoint_nodes().tolist(), net.endpoint_count // 2
    graph.add_edges_from(("source", node) for node in nodes[:half])
    graph.add_edges_from((node, "sink") for node in nodes[half:])
    return nx.maximum_flow_value(graph, "source", "sink")


def plain_diameter(net):
    """The largest of all distances."""
    graph, places = capacities(net), net.endpoint_nodes().tolist()
    return max(nx.single_source_shortest_path_length(graph, place)[other] for place in places for other in places)


def test_every_family_is_measured_here():
    assert SMALL.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", [family for family in SMALL if family != "host"])
def test_the_figures_of_every_family_are_those_of_searches_and_flows_in_full(family):
    net = build(family, SMALL[family])
    found = measures(net)
    assert (found.diameter.bound, found.bisection.bound) == ("exact", "exact")
    assert found.diameter.value == plain_diameter(net)
    assert found.bisection.value == pytest.approx(plain_bisection(net), rel=1e-9)


@given(seed=st.integers(0, 2**32), family=st.sampled_from([f for f in SMALL if f not in MACHINES and f != "host"]))
def test_with_links_that_have_failed_or_are_slower_the_figures_are_right_too(seed, family):
    net, draw = build(family, SMALL[family]), np.random.default_rng(seed)
    net = net.with_bandwidths(net.bandwidths * draw.choice([0.0, 0.5, 1.0], net.link_count, p=[0.05, 0.15, 0.8]))
    if not all(
        nx.has_path(capacities(net), a, b) for a in net.endpoint_nodes()[:1] for b in net.endpoint_nodes()
    ) or not all(nx.has_path(capacities(net), a, net.endpoint_nodes()[0]) for a in net.endpoint_nodes()):
        with pytest.raises(InputError, match="the network is cut in two"):
            diameter(net)
        return
    hops, halves = diameter(net), bisection(net)
    assert hops.value == plain_diameter(net) if hops.bound == "exact" else hops.value <= plain_diameter(net)
    assert halves.bound == "exact"
    assert halves.value == pytest.approx(plain_bisection(net), rel=1e-9)


@pytest.mark.parametrize(
    ("net", "ratio"),
    [
        # As their docstrings say: hosts_per_leaf × bandwidth / (spines × uplink_bandwidth), down / (up · parallel).
        (leaf_spine(4, 2, 6, uplink_bandwidth=4.5, **CABLE), 6 * 3.0 / (2 * 4.5)),
        (tree("4x2", "1x1", bandwidth=1.0, latency=0), 4.0),
        (tree("6x2x2", "1x2x1", bandwidth=1.0, latency=0), 6 / 2 * 2),
        (tree("8x2", "1x2", parallel="1x2", bandwidth=1.0, latency=0), 8 / (2 * 2)),
        (machine("abci-v100").topology(4 * 68), 3.0),
    ],
    ids=lambda value: value.name.partition(",")[0] if hasattr(value, "name") else "",
)
def test_oversubscription_is_what_the_family_says(net, ratio):
    assert oversubscription(net, bisection(net)).value == pytest.approx(ratio, rel=1e-9)


def test_bounds_are_called_bounds_where_searching_would_take_too_long():
    net = dragonfly(9, 4, 2, 2, **CABLE)
    exact, unstructured = measures(net), replace(net, paths=None)
    hops, across = diameter(unstructured, most_visits=0), bisection(unstructured, max_flow_links=0)
    assert (hops.bound, across.bound) == ("at least", "at most")
    assert hops.value <= exact.diameter.value
    assert across.value >= exact.bisection.value
    assert str(hops) == "at least 5 (searched from 4 of 72 endpoints)"


def test_a_degraded_link_narrows_the_bisection():
    net = leaf_spine(4, 2, 4, **CABLE)
    bandwidths = net.bandwidths.copy()
    bandwidths[net.link_numbers("leaf:0-spine:0")] *= 0.5
    assert bisection(net.with_bandwidths(bandwidths)).value == pytest.approx(3.5 * 3.0)


def test_a_failed_link_lengthens_the_diameter_of_a_ring():
    net = ring(9, **CABLE)
    bandwidths = net.bandwidths.copy()
    bandwidths[net.link_numbers("host:0-host:8")] = 0.0
    assert diameter(net.with_bandwidths(bandwidths)).value == 8


def test_a_cluster_injects_by_its_nics():
    net = machine("h100-superpod").topology(64)
    assert oversubscription(net, bisection(net)).value == pytest.approx(1.0)


def test_the_bench_clusters_are_oversubscribed_as_they_say():
    for name, ratio in (("bench-1to1", 1.0), ("bench-2to1", 2.0)):
        net = machine(name).topology(1024)
        assert oversubscription(net, bisection(net)).value == pytest.approx(ratio, rel=1e-9)


def test_a_single_place_has_nothing_to_cross():
    found = measures(host())
    assert (found.diameter.value, found.bisection.value, found.oversubscription.value) == (0, 0.0, 1.0)


def test_a_network_that_is_cut_has_no_diameter():
    net = star(3, **CABLE)
    with pytest.raises(InputError, match="the network is cut in two; host:0 reaches 2 of 3 endpoints"):
        diameter(net.with_bandwidths(np.where(net.targets == 2, 0.0, net.bandwidths)))
