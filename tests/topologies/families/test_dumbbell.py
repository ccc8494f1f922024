from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.basic import dumbbell
from quadrille.topologies.routes.routing import Routes, Routing


@pytest.mark.parametrize(("hosts", "left"), [(2, 1), (5, 3), (8, 4)])
def test_the_first_half_of_the_hosts_is_on_one_switch_and_the_rest_on_the_other(hosts, left):
    graph = dumbbell(hosts, bandwidth=3.0, latency=1e-6).graph()
    beside = [next(iter(graph.successors(f"host:{host}"))) for host in range(hosts)]
    assert beside == ["switch:0"] * left + ["switch:1"] * (hosts - left)


def test_the_waist_is_the_only_cut_between_the_sides_and_has_its_own_bandwidth():
    net = dumbbell(6, bandwidth=3.0, latency=0.0, waist_bandwidth=7.0)
    graph = nx.Graph(net.graph())
    assert ("switch:0", "switch:1") in set(nx.bridges(graph))
    waist = [net.link_names([link])[0] for link in np.flatnonzero(net.bandwidths == 7.0)]
    assert waist == ["switch:0>switch:1", "switch:1>switch:0"]


def test_paths_are_those_of_a_search():
    net = dumbbell(5, bandwidth=3.0, latency=1e-6)
    graph = net.graph()
    sources, targets = map(np.ravel, np.meshgrid(range(5), range(5)))
    paths = Routes(net, Routing()).between(sources, targets)
    for flow, (source, target) in enumerate(zip(sources, targets, strict=True)):
        links = net.link_names(paths.links[paths.offsets[flow] : paths.offsets[flow + 1]])
        names = nx.shortest_path(graph, f"host:{source}", f"host:{target}")
        assert list(links) == [f"{one}>{other}" for one, other in pairwise(names)]


def test_a_dumbbell_with_one_host_or_a_waist_without_bandwidth_is_refused():
    with pytest.raises(InputError, match="hosts=1 must be at least 2"):
        dumbbell(1, bandwidth=1.0, latency=0.0)
    with pytest.raises(InputError, match=r"waist_bandwidth=-2\.0"):
        dumbbell(2, bandwidth=1.0, latency=0.0, waist_bandwidth=-2.0)
