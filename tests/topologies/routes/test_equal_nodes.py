"""Splits between equal nodes are those of a search for each pair."""

import numpy as np
import pytest

from quadrille.topologies.build import build
from quadrille.topologies.files import node_link
from quadrille.topologies.network import Network
from quadrille.topologies.routes.search import SearchedPaths

CLUSTERS = {
    "leaf-spine": {"network": "leaf-spine", "nodes_per_leaf": 2, "spines": 2},
    "rails": {"network": "rail-optimised", "nodes_per_unit": 2, "spines": 2},
}


def searched(kind, node="dgx-a100") -> Network:
    """A cluster as a file has it: without paths in closed form."""
    net = build("gpu-cluster", {"nodes": 6, "node": node, **CLUSTERS[kind]})
    text = node_link.dumps(net).replace('"family": "gpu-cluster"', '"family": "file"')
    return node_link.parse(text, "net.json")


def by_link(spread, links):
    table = np.zeros(links)
    np.add.at(table, spread[0], spread[1])
    return table


@pytest.mark.parametrize("fault", [None, "leaf", "inside"])
@pytest.mark.parametrize("kind", CLUSTERS)
def test_the_split_of_every_pair_is_that_of_its_own_search(kind, fault):
    net = searched(kind)
    if fault is not None:
        bandwidths = net.bandwidths.copy()
        name = "nic:9>*" if fault == "leaf" else "gpu:17>nvswitch:2"
        from quadrille.topologies.link_patterns import matching_links

        bandwidths[matching_links(net, name)] = 0.0
        net = net.with_bandwidths(bandwidths)
    paths, fresh = SearchedPaths(net), SearchedPaths(net)
    kept = 0
    for source in range(0, 48, 5):
        for target in range(48):
            if source != target:
                kept += paths._equal_nodes.ends(source, target) in paths._equal_nodes._kept
                ours, theirs = paths.spread(source, target), fresh._spread(source, target)
                assert ours[2] == pytest.approx(theirs[2])
                np.testing.assert_allclose(by_link(ours, net.link_count), by_link(theirs, net.link_count))
    assert kept > 100
