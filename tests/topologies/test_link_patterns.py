"""Links by pattern, in the network and as faults of a machine."""

import numpy as np
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.build import build
from quadrille.topologies.find_machine import find_machine_or_topology
from quadrille.topologies.link_patterns import matching_links
from quadrille.topologies.machines.what_if import with_faults

TREE = "leaf-spine:leaves=3,spines=2,hosts_per_leaf=2,bandwidth=1e9,latency=1us"


@pytest.fixture
def net():
    return build("leaf-spine", {"leaves": 3, "spines": 2, "hosts_per_leaf": 2, "bandwidth": 1e9, "latency": 1e-6})


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("host:*>leaf:2", ["host:4>leaf:2", "host:5>leaf:2"]),
        ("leaf:[01]>spine:?", ["leaf:0>spine:0", "leaf:0>spine:1", "leaf:1>spine:0", "leaf:1>spine:1"]),
        ("leaf:2-spine:*", ["leaf:2>spine:0", "leaf:2>spine:1", "spine:0>leaf:2", "spine:1>leaf:2"]),
        ("*:1>leaf:[0-2]", ["host:1>leaf:0", "spine:1>leaf:0", "spine:1>leaf:1", "spine:1>leaf:2"]),
        ("leaf:0>spine:1", ["leaf:0>spine:1"]),
    ],
)
def test_a_pattern_means_all_links_that_match(net, pattern, names):
    assert sorted(net.link_names(matching_links(net, pattern))) == names


def test_parallel_links_all_match_unless_one_is_numbered():
    net = build("tree", {"down": "2x2", "up": "1x1", "parallel": "1x3", "bandwidth": 1e9, "latency": 1e-6})
    assert len(matching_links(net, "leaf:*>spine:0")) == 6
    assert net.link_names(matching_links(net, "leaf:*>spine:0#2")) == ["leaf:0>spine:0#2", "leaf:1>spine:0#2"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("nic:*>leaf:3", "'nic:\\*>leaf:3' matches no link .*; there is for example .*>leaf:"),
        ("leaf:*", "write leaf:\\*>spine:1"),
    ],
)
def test_a_pattern_without_links_is_refused_with_names_that_are_near(net, pattern, message):
    with pytest.raises(InputError, match=message):
        matching_links(net, pattern)


def test_faults_by_pattern_change_the_links_and_stay_as_they_were_asked_for():
    machine = with_faults(
        find_machine_or_topology(TREE), fail=["leaf:0>spine:*"], degrade=["host:*-leaf:1=0.5", "host:2>leaf:1=0.5"]
    )
    assert machine.faults.fail == ("leaf:0>spine:*",)
    assert machine.faults.degrade == {"host:*-leaf:1": 0.5, "host:2>leaf:1": 0.5}
    net = network_of(machine)
    changed = np.flatnonzero(net.bandwidths != 1e9)
    assert dict(zip(net.link_names(changed), net.bandwidths[changed].tolist(), strict=True)) == {
        "leaf:0>spine:0": 0.0,
        "leaf:0>spine:1": 0.0,
        "host:2>leaf:1": 0.25e9,
        "leaf:1>host:2": 0.5e9,
        "host:3>leaf:1": 0.5e9,
        "leaf:1>host:3": 0.5e9,
    }
