from collections import Counter

import networkx as nx
import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.dragonfly import add_dragonfly, dragonfly
from quadrille.topologies.families.dragonfly_plus import add_dragonfly_plus, dragonfly_plus
from quadrille.topologies.families.global_links import global_cables
from quadrille.topologies.network_builder import Builder

CABLE = {"bandwidth": 25.0, "latency": 1e-6}
SHAPES = [(9, 4, 2, 2), (5, 4, 3, 2), (3, 4, 1, 5), (2, 3, 1, 2), (1, 4, 2, 1), (7, 16, 2, 3)]


def between(net, kind, per_group):
    """How many links lead from each group to each other."""
    first, count = net.kinds[kind]
    inside = (net.sources >= first) & (net.targets >= first) & (net.sources < first + count)
    groups = (net.sources[inside] - first) // per_group, (net.targets[inside] - first) // per_group
    return Counter((int(one), int(other)) for one, other in zip(*groups, strict=True) if one != other)


@pytest.mark.parametrize(("groups", "routers", "hosts", "links"), SHAPES)
def test_a_dragonfly_has_the_counts_it_says(groups, routers, hosts, links):
    net = dragonfly(groups, routers, hosts, links, local_links=2, **CABLE)
    cables = global_cables("dragonfly", groups, routers, links)
    assert net.kinds == {"host": (0, groups * routers * hosts), "router": (groups * routers * hosts, groups * routers)}
    local, across = groups * routers * (routers - 1) // 2 * 2, groups * (groups - 1) // 2 * cables
    assert net.link_count == 2 * (groups * routers * hosts + local + across)
    assert nx.is_strongly_connected(nx.DiGraph(net.graph()))


@pytest.mark.parametrize(("groups", "routers", "hosts", "links"), SHAPES)
def test_every_pair_of_groups_has_as_many_cables_and_no_router_more_than_its_ports(groups, routers, hosts, links):
    net = dragonfly(groups, routers, hosts, links, **CABLE)
    pairs = between(net, "router", routers)
    assert len(pairs) == groups * (groups - 1)
    assert set(pairs.values()) <= {routers * links // max(1, groups - 1)}
    ports = np.bincount(net.sources[net.paths.global_links] - net.kinds["router"][0], minlength=groups * routers)
    assert ports.max(initial=0) <= links
    assert ports.sum() == sum(pairs.values())


def test_the_largest_dragonfly_uses_every_port_once():
    net = dragonfly(9, 4, 2, 2, **CABLE)
    degrees = {degree for node, degree in net.graph().out_degree() if node.startswith("router")}
    assert degrees == {2 + 3 + 2}
    assert set(between(net, "router", 4).values()) == {1}


def test_groups_shifted_by_one_are_wired_equally():
    net = dragonfly(7, 6, 1, 3, **CABLE)
    first, count = net.kinds["router"]
    links = {(int(a), int(b)) for a, b in zip(net.sources, net.targets, strict=True) if a >= first and b >= first}
    turned = {(first + (a - first + 6) % count, first + (b - first + 6) % count) for a, b in links}
    assert turned == links


def test_several_cables_between_two_groups_are_at_different_routers():
    net = dragonfly(3, 8, 1, 2, **CABLE)
    sources = net.sources[net.paths.global_links] - net.kinds["router"][0]
    per_group = Counter((net.targets[net.paths.global_links] - net.kinds["router"][0]) // 8 * 100 + sources)
    assert set(per_group.values()) == {1}


def test_kinds_of_cables_have_their_own_bandwidths_and_latencies():
    rates = {"local_bandwidth": 50.0, "local_latency": 2e-6, "global_bandwidth": 75.0, "global_latency": 3e-6}
    for net in (dragonfly(3, 2, 2, 1, **CABLE, **rates), dragonfly_plus(3, 2, 2, 1, 1, **CABLE, **rates)):
        kinds = Counter(zip(net.bandwidths.tolist(), net.latencies.tolist(), strict=True))
        assert kinds.keys() == {(25.0, 1e-6), (50.0, 2e-6), (75.0, 3e-6)}
        assert kinds[75.0, 3e-6] == len(net.paths.global_links)


@pytest.mark.parametrize(
    ("groups", "leaves", "spines", "hosts", "links"),
    [(5, 2, 2, 2, 2), (3, 4, 3, 2, 2), (1, 2, 3, 1, 1), (4, 2, 4, 3, 3)],
)
def test_a_dragonfly_plus_has_the_counts_it_says(groups, leaves, spines, hosts, links):
    net = dragonfly_plus(groups, leaves, spines, hosts, links, **CABLE)
    assert {kind: count for kind, (_, count) in net.kinds.items()} == {
        "host": groups * leaves * hosts,
        "leaf": groups * leaves,
        "spine": groups * spines,
    }
    pairs = between(net, "spine", spines)
    assert set(pairs.values()) <= {spines * links // max(1, groups - 1)}
    assert net.link_count == 2 * (groups * leaves * (hosts + spines)) + sum(pairs.values())
    graph = net.graph()
    assert all(
        graph.has_edge(f"leaf:{g * leaves}", f"spine:{g * spines + s}") for g in range(groups) for s in range(spines)
    )
    assert nx.diameter(graph) == (5 if groups > 1 else 4)


def test_the_diameter_of_a_dragonfly_is_five_with_the_cables_of_hosts():
    net = dragonfly(9, 4, 2, 2, **CABLE)
    hosts = [f"host:{i}" for i in range(72)]
    lengths = dict(nx.all_pairs_shortest_path_length(net.graph()))
    assert max(lengths[a][b] for a in hosts for b in hosts) == 5


@pytest.mark.parametrize("add", [add_dragonfly, add_dragonfly_plus])
def test_endpoints_fill_group_after_group_and_must_fit(add):
    shape = {"routers": 2, "per_router": 3} if add is add_dragonfly else {"leaves": 2, "spines": 2, "per_leaf": 3}
    builder = Builder("", {})
    ways = add(builder, builder.nodes("host", 13), global_links=2, **shape, **CABLE)
    net = builder.network(("host", 13), ways)
    assert ways.between.groups == 3
    assert nx.is_strongly_connected(nx.DiGraph(net.graph()))
    builder = Builder("", {})
    with pytest.raises(InputError, match="groups=2 have room for 12 endpoints, not for 13"):
        add(builder, builder.nodes("host", 13), groups=2, global_links=2, **shape, **CABLE)


def test_slingshot_groups_with_several_links_everywhere_can_be_built():
    net = dragonfly(74, 32, 16, 16, local_links=2, bandwidth=25e9, latency=1e-6)
    assert set(between(net, "router", 32).values()) == {32 * 16 // 73}
    assert net.endpoint_count == 74 * 512
