import networkx as nx
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.tree import fat_tree


@pytest.fixture(params=[2, 4, 6])
def ports(request):
    return request.param


@pytest.fixture
def net(ports):
    return fat_tree(ports, bandwidth=3.0, latency=1e-6)


def test_counts_are_those_of_the_paper(net, ports):
    half = ports // 2
    kinds = {kind: count for kind, (_, count) in net.kinds.items()}
    assert kinds == {"host": ports**3 // 4, "edge": ports * half, "aggregation": ports * half, "core": half**2}
    assert net.link_count == 2 * 3 * ports**3 // 4


def test_every_switch_uses_all_its_ports(net, ports):
    degrees = {degree for node, degree in net.graph().out_degree() if not node.startswith("host")}
    assert degrees == {ports}


def test_the_diameter_is_six_hops(net):
    assert nx.diameter(net.graph()) == 6


def test_the_bisection_is_full(net, ports):
    hosts = ports**3 // 4
    flat = nx.DiGraph()
    for source, target, edge in net.graph().edges(data=True):
        flat.add_edge(source, target, capacity=edge["bandwidth"])
    for host in range(hosts):
        one, other = ("source", f"host:{host}") if host < hosts // 2 else (f"host:{host}", "sink")
        flat.add_edge(one, other, capacity=3.0)
    assert nx.maximum_flow_value(flat, "source", "sink") == pytest.approx(3.0 * (hosts // 2))


@pytest.mark.parametrize("ports", [0, 3, -2])
def test_odd_or_absent_ports_are_refused(ports):
    with pytest.raises(InputError, match=f"ports={ports} must be"):
        fat_tree(ports, bandwidth=1.0, latency=0.0)
