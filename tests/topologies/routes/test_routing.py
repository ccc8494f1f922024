from collections import Counter
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.errors import InputError
from quadrille.topologies.cluster import gpu_cluster
from quadrille.topologies.families.basic import full, host, star
from quadrille.topologies.families.dragonfly import dragonfly
from quadrille.topologies.families.dragonfly_plus import dragonfly_plus
from quadrille.topologies.families.leaf_spine import leaf_spine, rail_optimised
from quadrille.topologies.families.torus import mesh, ring, torus
from quadrille.topologies.families.tree import fat_tree, tree
from quadrille.topologies.machines.machine_catalogue import machine
from quadrille.topologies.routes.routing import Routes, Routing, parse_routing
from quadrille.topologies.routes.search import SearchedPaths
from tests.support.work import python_calls

CABLE = {"bandwidth": 1e9, "latency": 1e-6}
NVSWITCH = {
    "gpus_per_node": 3,
    "nics_per_node": 3,
    "gpu_bandwidth": 450e9,
    "gpu_latency": 1e-6,
    "nic_bandwidth": 50e9,
    "nic_latency": 1e-6,
}
NETS = {
    "star": star(5, **CABLE),
    "leaf-spine": leaf_spine(3, 2, 3, **CABLE),
    "fat-tree": fat_tree(4, **CABLE),
    "tree": tree("2x3x2", "1x2x2", parallel="1x2x1", **CABLE),
    "dual-homed tree": tree("3x2", "2x2", parallel="2x1", **CABLE),
    "torus": torus("4x3", **CABLE),
    "torus of routers": torus("2x4", hosts_per_router=2, **CABLE),
    "mesh": mesh("3x4", **CABLE),
    "ring": ring(6, **CABLE),
    "full": full(5, **CABLE),
    "rails": rail_optimised(5, 2, 2, 3, **CABLE),
    "dragonfly+": dragonfly_plus(3, 2, 3, 2, 2, **CABLE),
    "dragonfly of a group": dragonfly(1, 3, 2, 1, local_links=2, **CABLE),
    "nvswitch": gpu_cluster(4, **NVSWITCH, nodes_per_leaf=2, uplink_bandwidth=1e11),
    "perlmutter": machine("perlmutter").topology(10),
    "frontier": machine("frontier").topology(18),
}
# Inside their nodes GPUs are joined by several ways, of which the kind of node takes one.
MESHED_NODES = {"perlmutter", "frontier"}
# By way of a third group ways of two global links may be shorter: their minimal ways have a test of their own.
DRAGONFLIES = {
    "dragonfly": dragonfly(5, 2, 2, 2, **CABLE),
    "several links": dragonfly(4, 4, 1, 2, **CABLE),
    "parallel links": dragonfly(3, 3, 1, 4, local_links=2, **CABLE),
    "dragonfly+": NETS["dragonfly+"],
}


@pytest.fixture(params=NETS)
def net(request):
    return NETS[request.param]


@pytest.fixture(params=[name for name in NETS if name not in MESHED_NODES])
def plain(request):
    return NETS[request.param]


@pytest.fixture(params=DRAGONFLIES)
def grouped(request):
    return DRAGONFLIES[request.param]


def unstructured(net):
    """The same network without what its builder knows."""
    return replace(net, paths=None)


def without(net, *names):
    """The network with these links failed, both directions of `a-b`."""
    bandwidths = net.bandwidths.copy()
    for name in names:
        bandwidths[net.link_numbers(name)] = 0.0
    return net.with_bandwidths(bandwidths)


def pairs(net):
    """All pairs of places."""
    return np.divmod(np.arange(net.endpoint_count**2), net.endpoint_count)


def routes(net, rule="shortest"):
    """Links and shares of every pair of places."""
    sources, targets = pairs(net)
    paths = Routes(net, parse_routing(rule)).between(sources, targets)
    ends = list(pairwise(paths.offsets.tolist()))
    assert len(ends) == len(sources)
    return [
        ((source, target), paths.links[a:b].tolist(), paths.shares[a:b].tolist())
        for source, target, (a, b) in zip(sources.tolist(), targets.tolist(), ends, strict=True)
    ]


def assert_connected(net, pair, links):
    nodes = net.endpoint_nodes()
    assert not net.failed[links].any()
    at = nodes[pair[0]]
    for link in links:
        assert net.sources[link] == at
        at = net.targets[link]
    assert at == nodes[pair[1]]


def assert_conserved(net, pair, links, shares):
    """What flows out of the source flows into the target, and nowhere else does any begin or end."""
    balance = np.zeros(net.node_count)
    np.add.at(balance, net.sources[links], shares)
    np.subtract.at(balance, net.targets[links], shares)
    nodes = net.endpoint_nodes()
    balance[nodes[pair[0]]] -= 1
    balance[nodes[pair[1]]] += 1
    assert balance == pytest.approx(np.zeros(net.node_count), abs=1e-12)


# One way


@pytest.mark.parametrize("rule", ["shortest", "minimal", "ecmp:3"])
def test_routes_are_connected_and_as_short_as_any(net, rule):
    lengths = dict(nx.all_pairs_shortest_path_length(net.graph()))
    names = [net.node_name(node) for node in net.endpoint_nodes()]
    for pair, links, shares in routes(net, rule):
        assert_connected(net, pair, links)
        assert len(links) == lengths[names[pair[0]]][names[pair[1]]]
        assert set(shares) <= {1.0}


@pytest.mark.parametrize("rule", ["shortest", "ecmp:3"])
def test_searched_routes_are_as_short_as_those_of_the_structure(net, rule):
    structured, searched = routes(net, rule), routes(unstructured(net), rule)
    assert [len(links) for _, links, _ in structured] == [len(links) for _, links, _ in searched]
    for pair, links, _ in searched:
        assert_connected(net, pair, links)


def test_the_structure_counts_the_paths_that_a_search_finds(plain):
    sources, targets = pairs(plain)
    assert plain.paths.counts(sources, targets).tolist() == SearchedPaths(plain).counts(sources, targets).tolist()


@pytest.mark.parametrize("name", [*NETS, *DRAGONFLIES])
def test_all_paths_of_the_structure_differ(name):
    net = {**NETS, **DRAGONFLIES}[name]
    sources, targets = pairs(net)
    counts, seen = net.paths.counts(sources, targets), set()
    for way in range(counts.max()):
        some = np.flatnonzero(counts > way)
        table = net.paths.links(sources[some], targets[some], np.full(len(some), way))
        for pair, links in zip(some, table, strict=True):
            path = tuple(links[links >= 0].tolist())
            assert_connected(net, (sources[pair], targets[pair]), list(path))
            seen.add((pair, path))
    assert len(seen) == counts.sum()


def test_routes_are_the_same_however_they_are_asked_for(net):
    sources, targets = pairs(net)
    for rule in ("shortest", "ecmp:5", "spray"):
        whole = routes(net, rule)
        again = Routes(net, parse_routing(rule))
        single = [again.between([source], [target]) for source, target in zip(sources, targets, strict=True)]
        assert [sorted(zip(one.links.tolist(), one.shares.tolist(), strict=True)) for one in single] == [
            sorted(zip(links, shares, strict=True)) for _, links, shares in whole
        ]


def test_latency_is_the_sum_along_the_path(net):
    sources, targets = pairs(net)
    paths = Routes(net).between(sources, targets)
    along = [net.latencies[paths.links[a:b]].sum() for a, b in pairwise(paths.offsets)]
    assert paths.latency == pytest.approx(along, rel=1e-12)


def test_targets_spread_evenly_over_the_spines():
    net = leaf_spine(2, 3, 6, **CABLE)
    for one in (net, unstructured(net)):
        paths = Routes(one).between([0] * 6, list(range(6, 12)))
        assert set(Counter(paths.links.reshape(6, 4)[:, 1].tolist()).values()) == {2}


def test_targets_on_a_rail_spread_evenly_over_the_spines():
    net = rail_optimised(8, 4, 4, 4, **CABLE)
    paths = Routes(net).between([1] * 4, [16, 20, 24, 28])
    assert len(set(paths.links.reshape(4, 4)[:, 1].tolist())) == 4


def test_every_core_switch_of_a_fat_tree_is_used():
    net = NETS["fat-tree"]
    paths = Routes(net).between([0] * 12, list(range(4, 16)))
    assert Counter(net.targets[paths.links.reshape(12, 6)[:, 2]].tolist()) == dict.fromkeys(range(32, 36), 3)


def test_d_mod_k_leaves_a_shift_without_contention():
    net = tree("4x4x4", "1x4x4", **CABLE)
    for shift in range(1, 64):
        paths = Routes(net).between(np.arange(64), (np.arange(64) + shift) % 64)
        assert np.bincount(paths.links).max() == 1


def test_dimension_order_goes_along_the_first_dimension_first():
    net = torus("5x5x5", **CABLE)
    paths = Routes(net).between([0], [2 + 4 * 5 + 1 * 25])
    nodes = [0, *net.targets[paths.links].tolist()]
    assert nodes == [0, 1, 2, 2 + 20, 2 + 20 + 25]


def test_ties_of_a_ring_load_both_directions_equally():
    net = ring(8, **CABLE)
    paths = Routes(net).between(np.arange(8), (np.arange(8) + 4) % 8)
    assert set(np.bincount(paths.links).tolist()) == {2}


def test_ecmp_spreads_over_all_paths_and_changes_with_its_seed():
    net = leaf_spine(2, 4, 64, **CABLE)
    sources, targets = np.arange(64), 64 + np.arange(64)
    by_seed = [
        Routes(net, Routing("ecmp", seed)).between(sources, targets).links.reshape(64, 4)[:, 1] for seed in (0, 1)
    ]
    spines = Counter((net.targets[by_seed[0]]).tolist())
    assert len(spines) == 4
    # 16 of 64 on each in the mean; a spine with under 4 or over 32 has a chance below 1e-4.
    assert all(4 <= count <= 32 for count in spines.values())
    assert (by_seed[0] != by_seed[1]).any()


# Spraying

SPREADING = ["leaf-spine", "fat-tree", "tree", "torus of routers", "nvswitch"]
WIDE_TREE = tree("2x3x2", "1x9x9", parallel="2x1x1", **CABLE)
"""81 ways between pods."""


def test_spraying_is_an_equal_split_over_all_shortest_paths(plain):
    structured, searched = routes(plain, "spray"), routes(unstructured(plain), "spray")
    for (pair, links, shares), (_, found, split) in zip(structured, searched, strict=True):
        assert len(set(links)) == len(links)
        assert dict(zip(links, shares, strict=True)) == pytest.approx(dict(zip(found, split, strict=True)), rel=1e-12)
        if pair[0] != pair[1]:
            assert_conserved(plain, pair, links, shares)


@pytest.mark.parametrize("name", SPREADING)
def test_spraying_with_a_failed_link_is_what_a_search_finds(name):
    net, searched_networks = NETS[name], 0
    for link in range(0, net.link_count, 7):
        bandwidths = net.bandwidths.copy()
        bandwidths[link] = 0.0
        faulty = net.with_bandwidths(bandwidths)
        try:
            searched = routes(unstructured(faulty), "spray")
        except InputError:
            continue
        searched_networks += 1
        for (_, links, shares), (_, found, split) in zip(routes(faulty, "spray"), searched, strict=True):
            assert dict(zip(links, shares, strict=True)) == pytest.approx(dict(zip(found, split, strict=True)))
    assert searched_networks > 0


@given(seed=st.integers(0, 2**32), failed=st.integers(1, 12), name=st.sampled_from(["wide tree", *SPREADING]))
def test_spraying_with_any_failed_links_is_what_a_search_finds_where_a_shortest_path_is_left(seed, failed, name):
    net = {**NETS, "wide tree": WIDE_TREE}[name]
    draw = np.random.default_rng(seed)
    bandwidths = net.bandwidths.copy()
    bandwidths[draw.choice(net.link_count, failed, replace=False)] = 0.0
    faulty = net.with_bandwidths(bandwidths)
    sources, targets = draw.integers(0, net.endpoint_count, (2, 40))
    try:
        searched = Routes(unstructured(faulty), Routing("spray")).between(sources, targets)
    except InputError:
        with pytest.raises(InputError, match=r"has no path from .* failed: the network is cut in two"):
            Routes(faulty, Routing("spray")).between(sources, targets)
        return
    found = Routes(faulty, Routing("spray")).between(sources, targets)
    np.testing.assert_array_equal(found.offsets, searched.offsets)
    np.testing.assert_array_equal(found.links, searched.links)
    np.testing.assert_allclose(found.shares, searched.shares, rtol=1e-12)
    np.testing.assert_allclose(found.latency, searched.latency, rtol=1e-12)


@given(seed=st.integers(0, 2**32), name=st.sampled_from(["wide tree", *SPREADING]))
def test_a_sprayed_flow_has_the_latency_of_its_slowest_path(seed, name):
    net = {**NETS, "wide tree": WIDE_TREE}[name]
    draw = np.random.default_rng(seed)
    latencies = np.where(draw.random(net.link_count) < 0.2, draw.integers(2, 9, net.link_count) * 1e-6, net.latencies)
    changed = replace(net, latencies=latencies)
    sources, targets = draw.integers(0, net.endpoint_count, (2, 40))
    found, searched = (
        Routes(one, Routing("spray")).between(sources, targets) for one in (changed, unstructured(changed))
    )
    np.testing.assert_array_equal(found.links, searched.links)
    np.testing.assert_allclose(found.shares, searched.shares, rtol=1e-12)
    np.testing.assert_allclose(found.latency, searched.latency, rtol=1e-12)


# Links that have failed


def test_the_next_path_is_taken_where_a_link_has_failed():
    net = without(leaf_spine(2, 2, 2, **CABLE), "leaf:0-spine:1")
    paths = Routes(net).between([0], [3])
    assert net.link(int(paths.links[1])).name == "leaf:0>spine:0"


def test_a_path_is_searched_where_every_shortest_path_has_a_failed_link():
    net = without(leaf_spine(3, 2, 1, **CABLE), "leaf:0-spine:0", "leaf:1-spine:1")
    paths = Routes(net).between([0], [1])
    found = [net.node_name(int(node)) for node in net.targets[paths.links]]
    assert found == ["leaf:0", "spine:1", "leaf:2", "spine:0", "leaf:1", "host:1"]


def test_only_flows_that_meet_the_failed_link_change():
    net = NETS["fat-tree"]
    faulty = without(net, "aggregation:0-core:0")
    gone = set(net.link_numbers("aggregation:0-core:0"))
    changed = 0
    for (pair, before, _), (_, after, _) in zip(routes(net), routes(faulty), strict=True):
        assert_connected(faulty, pair, after)
        assert before == after or gone & set(before)
        changed += before != after
    assert changed > 0


@pytest.mark.parametrize("rule", ["shortest", "ecmp", "spray"])
def test_a_network_that_is_cut_in_two_says_so_in_one_line(rule):
    net = without(leaf_spine(2, 2, 3, **CABLE), "leaf:1-spine:0", "leaf:1-spine:1")
    for one in (net, unstructured(net)):
        with pytest.raises(
            InputError,
            match=r"no path from host:0 to host:4 with .*: the network is cut in two; host:0 reaches 3 of 6 endpoints",
        ) as refused:
            Routes(one, Routing(rule)).between([1, 0], [2, 4])
        assert "\n" not in str(refused.value)


def test_endpoints_that_were_never_joined_have_no_path():
    net = without(star(2, **CABLE), "host:0-switch:0")
    with pytest.raises(InputError, match="no path from host:0 to host:1"):
        Routes(net).between([0], [1])


@given(seed=st.integers(0, 2**32), name=st.sampled_from([*NETS]), rule=st.sampled_from(["shortest", "ecmp:1", "spray"]))
@settings(max_examples=60, deadline=None)
def test_with_any_links_failed_flows_still_arrive_or_the_cut_is_named(seed, name, rule):
    net, random = NETS[name], np.random.default_rng(seed)
    bandwidths = np.where(random.random(net.link_count) < random.choice([0.02, 0.1, 0.3]), 0.0, net.bandwidths)
    faulty = net.with_bandwidths(bandwidths)
    source, target = (int(place) for place in random.integers(0, net.endpoint_count, 2))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(net.node_count))
    graph.add_edges_from(zip(net.sources[bandwidths > 0].tolist(), net.targets[bandwidths > 0].tolist(), strict=True))
    nodes = net.endpoint_nodes().tolist()
    if nx.has_path(graph, nodes[source], nodes[target]):
        paths = Routes(faulty, parse_routing(rule)).between([source], [target])
        assert not faulty.failed[paths.links].any()
        if source != target:
            assert_conserved(net, (source, target), paths.links, paths.shares)
    else:
        with pytest.raises(InputError, match=r"reaches .* of .* endpoints"):
            Routes(faulty, parse_routing(rule)).between([source], [target])


# Dragonflies


def group_of(net, name):
    kind, _, index = name.partition(":")
    return int(index) * net.arguments["groups"] // net.kinds[kind][1]


def test_minimal_paths_are_the_shortest_within_the_two_groups(grouped):
    graph, (sources, targets) = grouped.graph(), pairs(grouped)
    within = {}
    for one in range(grouped.arguments["groups"]):
        for other in range(grouped.arguments["groups"]):
            within[one, other] = graph.subgraph(node for node in graph if group_of(grouped, node) in (one, other))
    counts = grouped.paths.counts(sources, targets)
    for pair, (source, target) in enumerate(zip(sources, targets, strict=True)):
        ends = f"host:{source}", f"host:{target}"
        part = within[group_of(grouped, ends[0]), group_of(grouped, ends[1])]
        ways = nx.all_shortest_paths(part, *ends)
        assert counts[pair] == sum(
            int(np.prod([part.number_of_edges(*hop) for hop in pairwise(way)], dtype=np.int64)) for way in ways
        )


@pytest.mark.parametrize(("rule", "most"), [("minimal", 1), ("spray", 1), ("valiant:4", 2), ("adaptive:4", 2)])
def test_flows_cross_between_groups_at_most(grouped, rule, most):
    crossing = np.zeros(grouped.link_count)
    crossing[grouped.paths.global_links] = 1
    for pair, links, shares in routes(grouped, rule):
        apart = group_of(grouped, f"host:{pair[0]}") != group_of(grouped, f"host:{pair[1]}")
        crossed = float(np.dot(crossing[links], shares))
        assert crossed == pytest.approx(1) if apart and most == 1 else crossed in ({1.0, 2.0} if apart else {0.0})
        if pair[0] != pair[1]:
            assert_conserved(grouped, pair, links, shares)


def test_valiant_goes_through_every_other_group(grouped):
    crossing, groups = set(grouped.paths.global_links.tolist()), grouped.arguments["groups"]
    per_group = grouped.endpoint_count // groups
    met = set()
    for seed in range(200):
        paths = Routes(grouped, Routing("valiant", seed)).between([0], [per_group])
        assert_connected(grouped, (0, per_group), paths.links.tolist())
        ends = [
            group_of(grouped, grouped.node_name(int(grouped.targets[link]))) for link in paths.links if link in crossing
        ]
        assert len(ends) == 2
        assert ends[1] == 1
        met.add(ends[0])
    assert met == set(range(2, groups))


def test_two_groups_have_no_non_minimal_path():
    net = dragonfly(2, 3, 2, 2, **CABLE)
    crossing = set(net.paths.global_links.tolist())
    assert {sum(link in crossing for link in links) for _, links, _ in routes(net, "valiant")} == {0, 1}


def test_valiant_on_a_torus_goes_through_any_router():
    net = torus("4x4", **CABLE)
    lengths = Counter(len(Routes(net, Routing("valiant", seed)).between([0], [1]).links) for seed in range(300))
    # From 0 by way of all sixteen routers to its neighbour; every parity of hops is odd.
    assert set(lengths) == {1, 3, 5, 7}


def test_valiant_draws_again_where_a_link_has_failed():
    net = dragonfly(5, 2, 2, 2, **CABLE)
    faulty = without(net, *(net.link(int(link)).name for link in net.paths.global_links[[0, 5, 7]]))
    assert any(set(links) & set(np.flatnonzero(faulty.failed)) for _, links, _ in routes(net, "valiant"))
    for pair, links, _ in routes(faulty, "valiant"):
        assert_connected(faulty, pair, links)


@pytest.mark.parametrize("rule", ["valiant", "adaptive"])
@pytest.mark.parametrize("name", ["star", "leaf-spine", "fat-tree", "rails", "full", "nvswitch"])
def test_non_minimal_rules_are_refused_without_non_minimal_paths(name, rule):
    with pytest.raises(InputError, match=f"routing {rule}: topology .* has no (non-minimal paths|groups); .*dragonfly"):
        Routes(NETS[name], Routing(rule)).between([0], [1])


def test_balanced_puts_a_share_on_every_path_between_two_groups(grouped):
    """With traffic in all groups, 1 : 1/2 for the minimal way and each detour; flows within groups go straight."""
    crossing = np.zeros(grouped.link_count)
    crossing[grouped.paths.global_links] = 1
    groups = grouped.arguments["groups"]
    minimal = 1 / (groups / 2)
    straight = {pair: links for pair, links, _ in routes(grouped, "minimal")}
    for pair, links, shares in routes(grouped, "balanced"):
        assert_conserved(grouped, pair, links, shares) if pair[0] != pair[1] else None
        if group_of(grouped, f"host:{pair[0]}") == group_of(grouped, f"host:{pair[1]}"):
            assert sorted(links) == sorted(straight[pair])
            continue
        assert float(np.dot(crossing[links], shares)) == pytest.approx(minimal + 2 * (1 - minimal))
        own = [share for link, share in zip(links, shares, strict=True) if link in straight[pair] and crossing[link]]
        assert own == [pytest.approx(minimal)]


def test_balanced_loads_all_cables_equally_where_each_group_sends_to_the_next():
    """Of 74 groups 3 have traffic: each gets 74 - 3/2 cables, all as full."""
    net = machine("frontier").topology(3 * 1024)
    sources = np.arange(3 * 1024)
    paths = Routes(net, Routing("balanced")).between(sources, (sources + 1024) % len(sources))
    load = np.bincount(paths.links, paths.shares, minlength=net.link_count)[net.paths.fabric.global_links]
    assert load.max() == pytest.approx(1024 / (74 - 3 / 2))
    assert (load > 0.999 * load.max()).sum() == 3 * 2 + 2 * 3 * 71
    np.testing.assert_array_equal(paths.latency, Routes(net).between(sources, (sources + 1024) % len(sources)).latency)


def test_balanced_avoids_a_failed_path():
    net = DRAGONFLIES["dragonfly"]
    direct = Routes(net).between([0], [net.endpoint_count // 5]).links
    faulty = net.with_bandwidths(np.where(np.isin(np.arange(net.link_count), direct[1:-1]), 0.0, net.bandwidths))
    paths = Routes(faulty, Routing("balanced")).between([0], [net.endpoint_count // 5])
    assert not faulty.failed[paths.links].any()
    assert_conserved(faulty, (0, net.endpoint_count // 5), paths.links.tolist(), paths.shares.tolist())
    assert len(paths.links) > len(direct)


@pytest.mark.parametrize("name", ["star", "torus"])
def test_balanced_is_for_groups(name):
    with pytest.raises(InputError, match="has no groups; it is for dragonfly and dragonfly"):
        Routes(NETS[name], Routing("balanced")).between([0], [1])


def test_adaptive_is_refused_on_a_torus():
    with pytest.raises(InputError, match="has no groups; it is for dragonfly and dragonfly"):
        Routes(NETS["torus"], Routing("adaptive")).between([0], [1])


def test_adaptive_follows_its_rule_pair_by_pair(grouped):
    sources, targets = pairs(grouped)
    adaptive = Routes(grouped, Routing("adaptive", 2))
    taken = adaptive.between(sources, targets)
    straight = Routes(grouped, Routing("shortest")).between(sources, targets)
    around = Routes(grouped, Routing("valiant", 2)).between(sources, targets)
    load, detours = Counter(), 0
    crossing = set(grouped.paths.global_links.tolist())

    def links(paths, flow):
        return paths.links[paths.offsets[flow] : paths.offsets[flow + 1]].tolist()

    for flow in range(len(sources)):
        short, long = ([link for link in links(paths, flow) if link in crossing] for paths in (straight, around))
        longer = max((load[link] for link in short), default=0) > 2 * max((load[link] for link in long), default=0)
        if len(long) < 2:
            assert links(taken, flow) == links(straight, flow) or len(long) == len(short) == 1
        else:
            assert links(taken, flow) == links(around if longer else straight, flow)
            detours += longer
        load.update(set(links(taken, flow)) & crossing)
    assert detours > 0


def test_adaptive_keeps_to_its_choices():
    net = DRAGONFLIES["dragonfly"]
    sources, targets = pairs(net)
    one_by_one, at_once = Routes(net, Routing("adaptive")), Routes(net, Routing("adaptive"))
    whole = at_once.between(sources, targets)
    again = at_once.between(sources, targets)
    single = [one_by_one.between([s], [t]).links for s, t in zip(sources, targets, strict=True)]
    assert whole.links.tolist() == again.links.tolist() == np.concatenate(single).tolist()


def test_adaptive_relieves_a_pair_of_groups_that_sends_alone():
    """All hosts of one group to those of the next: minimal ways share few links, detours take others."""
    net = dragonfly(9, 4, 4, 2, **CABLE)
    sources, targets = np.arange(16), 16 + np.arange(16)
    most = {
        rule: np.bincount(Routes(net, Routing(rule)).between(sources, targets).links)[
            net.paths.global_links.min() :
        ].max()
        for rule in ("minimal", "adaptive")
    }
    assert most["minimal"] == 16
    assert most["adaptive"] < 8


def test_non_minimal_paths_pass_through_a_cluster():
    net = machine("perlmutter").topology(7168)
    sources = np.arange(0, 256, 8)
    for rule in ("valiant", "adaptive"):
        paths = Routes(net, Routing(rule)).between(sources, sources + 4096)
        for flow, (a, b) in enumerate(pairwise(paths.offsets.tolist())):
            assert_connected(net, (sources[flow], sources[flow] + 4096), paths.links[a:b].tolist())


# What cannot be


@pytest.mark.parametrize("place", [-1, 1])
def test_a_place_that_is_not_there_is_refused(place):
    with pytest.raises(InputError, match=f"place {place}: topology 'host:cores=1' has 1, from 0"):
        Routes(host()).between([0], [place])


@pytest.mark.parametrize(
    "text", ["shortest", "minimal", "spray", "ecmp:0", "ecmp:7", "valiant:3", "adaptive:0", "balanced"]
)
def test_a_rule_is_read_as_it_is_written(text):
    assert str(parse_routing(text)) == text


@pytest.mark.parametrize(
    "text", ["", "short", "ecmp:", "ecmp:-1", "ecmp:x", "shortest:1", "spray:0", "ecmp:" + "9" * 5000]
)
def test_a_rule_that_is_not_one_is_refused(text):
    with pytest.raises(
        InputError, match=r"accepted are shortest, minimal, spray, ecmp, valiant, adaptive, balanced, and ecmp:SEED"
    ):
        parse_routing(text)


@pytest.mark.parametrize("rule", ["shortest", "ecmp", "spray", "valiant"])
def test_a_cut_is_reported_at_once_however_many_paths_there_were(rule):
    # Two corners have 155,117,520 shortest ways, all of which begin at the cable that has failed.
    net = torus("31x31", hosts_per_router=1, bandwidth=1e9, latency=1e-6)
    faulty = without(net, "host:0>router:0")

    def find_paths():
        with pytest.raises(InputError, match=r"no path from host:0 to host:480 with .*in two; host:0 reaches 1 of 961"):
            Routes(faulty, Routing(rule)).between([481, 0], [482, 480])

    assert python_calls(find_paths) < 100_000


@pytest.mark.parametrize("rule", ["shortest", "ecmp", "spray"])
def test_where_all_of_many_paths_have_failed_longer_ones_are_taken(rule):
    net = torus("31x31", bandwidth=1e9, latency=1e-6)
    faulty = without(net, "host:0>host:1", "host:0>host:31")
    paths = Routes(faulty, Routing(rule)).between([0], [15 + 15 * 31])
    assert np.bincount(paths.links, paths.shares).sum() == pytest.approx(31)


def test_components_of_a_network_are_each_still_routed():
    net = ring(8, bandwidth=1e9, latency=1e-6)
    faulty = without(net, "host:0-host:1", "host:4-host:5")
    paths = Routes(faulty).between([1, 5, 0], [4, 0, 6])
    assert np.diff(paths.offsets).tolist() == [3, 3, 2]
    with pytest.raises(InputError, match=r"no path from host:4 to host:5 .* reaches 4 of 8 endpoints"):
        Routes(faulty).between([1, 4], [4, 5])


@pytest.mark.parametrize("rule", ["shortest", "ecmp", "spray"])
@pytest.mark.parametrize("name", NETS)
def test_no_flows_and_flows_to_themselves_take_nothing(name, rule):
    routes = Routes(NETS[name], Routing(rule))
    assert routes.between([], []).offsets.tolist() == [0]
    assert routes.between([1, 2], [1, 2]).offsets.tolist() == [0, 0, 0]


def test_flows_within_a_node_need_no_network_to_spray_over():
    net = gpu_cluster(2, "dgx-1v", network="ring")
    paths = Routes(net, Routing("spray")).between([0, 8], [1, 9])
    assert net.link_names(paths.links) == ["gpu:0>gpu:1", "gpu:8>gpu:9"]
