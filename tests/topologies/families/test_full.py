import networkx as nx
import pytest

from quadrille.topologies.families.basic import full


@pytest.mark.parametrize("hosts", [1, 2, 7])
def test_every_host_has_a_cable_to_every_other(hosts):
    net = full(hosts, bandwidth=2.0, latency=1e-6)
    assert net.link_count == hosts * (hosts - 1)
    assert nx.is_isomorphic(nx.Graph(net.graph()), nx.complete_graph(hosts))
