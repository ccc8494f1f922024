from math import prod

import networkx as nx
import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.lattice import orders
from quadrille.topologies.families.torus import add_torus, mesh, ring, torus
from quadrille.topologies.network_builder import Builder
from quadrille.topologies.routes.routing import Routes, Routing

CABLE = {"bandwidth": 3.0, "latency": 1e-6}


@pytest.mark.parametrize("dims", [(5,), (4, 3), (3, 4, 5), (3, 3, 3, 3)])
def test_a_torus_has_a_cable_a_vertex_and_dimension(dims):
    net = torus(dims, **CABLE)
    assert net.node_count == net.endpoint_count == prod(dims)
    assert net.link_count == 2 * len(dims) * prod(dims)
    assert {degree for _, degree in net.graph().out_degree()} == {2 * len(dims)}
    assert nx.diameter(net.graph()) == sum(length // 2 for length in dims)


@pytest.mark.parametrize("dims", [(5,), (4, 3), (3, 4, 2)])
def test_a_mesh_lacks_the_cables_that_close_its_lines(dims):
    net = mesh(dims, **CABLE)
    assert net.link_count == 2 * sum((length - 1) * prod(dims) // length for length in dims)
    assert nx.diameter(net.graph()) == sum(length - 1 for length in dims)
    assert nx.is_isomorphic(nx.Graph(net.graph()), nx.grid_graph(dims))


def test_a_torus_is_the_periodic_grid():
    assert nx.is_isomorphic(nx.Graph(torus("3x4x5", **CABLE).graph()), nx.grid_graph((3, 4, 5), periodic=True))


def test_dimensions_of_one_and_two_have_no_and_one_cable():
    assert torus("2x1x2", **CABLE).link_count == 2 * 4
    assert ring(2, **CABLE).link_count == 2
    assert ring(1, **CABLE).link_count == 0


def test_hosts_on_routers_have_cables_of_their_own():
    net = torus("3x3", hosts_per_router=4, host_bandwidth=9.0, host_latency=5e-6, **CABLE)
    assert net.kinds == {"host": (0, 36), "router": (36, 9)}
    assert set(net.bandwidths[:72]) == {9.0}
    assert set(net.latencies[72:]) == {1e-6}
    assert net.link(0).name == "host:0>router:0"
    assert net.link_number("host:35>router:8") >= 0


def test_vertices_are_numbered_with_the_first_dimension_fastest():
    net = mesh("4x3", **CABLE)
    assert net.link_numbers("host:0-host:1")
    assert net.link_numbers("host:0-host:4")


@pytest.mark.parametrize(
    ("per_router", "message"), [(0, "has 6 vertices, not 5"), (2, "room for 12 endpoints, not 13")]
)
def test_endpoints_must_fit(per_router, message):
    builder = Builder("torus", {})
    endpoints = builder.nodes("host", 13 if per_router else 5)
    with pytest.raises(InputError, match=message):
        add_torus(builder, endpoints, dims="3x2", per_router=per_router, **CABLE)


def test_orders_are_multinomials_and_large_ones_are_bounded():
    assert orders(np.array([[2, 2, 2], [10, 5, 0], [17, 17, 0], [60, 60, 60]])).tolist() == [90, 3003, 2**31, 2**31]


def test_paths_of_a_large_torus_are_distinct_though_not_all_are_counted():
    net = torus("81x81", **CABLE)
    sources, targets = np.zeros(4, dtype=np.int64), np.full(4, 40 * 81 + 40)
    table = net.paths.links(sources, targets, np.array([0, 1, 2**30, 2**31 - 1]))
    assert len({tuple(row) for row in table.tolist()}) == 4
    assert (table >= 0).all()
    ends = net.targets[table]
    assert (net.sources[table[:, 1:]] == ends[:, :-1]).all()
    assert (ends[:, -1] == targets).all()


def test_routes_that_would_fill_the_memory_are_refused():
    net = ring(100_000, **CABLE)
    with pytest.raises(InputError, match="routes of up to 50000 hops for 10000 flows are too many"):
        Routes(net).between([0] * 10_000, [50_000] * 10_000)
    assert len(Routes(net).between(np.arange(100_000), (np.arange(100_000) + 1) % 100_000).links) == 100_000


def test_all_neighbours_together_load_every_link_of_a_ring_equally():
    net = ring(7, **CABLE)
    paths = Routes(net, Routing("spray")).between(np.arange(7), (np.arange(7) + 2) % 7)
    assert sorted(np.bincount(paths.links, paths.shares, minlength=14).tolist()) == [0.0] * 7 + [2.0] * 7
