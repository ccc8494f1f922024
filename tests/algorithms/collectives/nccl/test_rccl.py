"""RCCL's own tables: what AMD's tuner has, chooses and predicts."""

from dataclasses import replace

import pytest

from quadrille.algorithms.collectives.nccl.communicator import communicator
from quadrille.algorithms.collectives.nccl.costs import latency, predicted_seconds
from quadrille.algorithms.collectives.nccl.tuner import choose

MIB, GIB = 1 << 20, 1 << 30
MI300X = communicator(8, 1, "cdna3", nvlinks=7, cpu="amd")
FRONTIER_NODE = communicator(8, 1, "cdna2", nvlinks=8, cpu="amd")
FRONTIER = communicator(64, 8, "cdna2", nvlinks=8, cards=4, card_bandwidth=25e9, cpu="amd")


def test_a_ring_by_simple_takes_the_channels_bandwidth_and_the_tables_latency():
    """17 us before, 14 steps of 2.1 us, and 14/8 of the buffer at the bandwidth of all channels."""
    bus = MI300X.ring_bandwidth
    assert bus == pytest.approx(330e9)  # 11 channels of 30 of 7 x 48 GB/s
    expected = 17e-6 + 14 * 2.1e-6 + GIB * (14 / 8) / bus
    assert predicted_seconds("all_reduce", GIB, MI300X, "ring", "Simple") == pytest.approx(expected, rel=1e-12)


def test_on_several_nodes_a_factor_of_the_table_divides_the_bandwidth():
    """At 8 MiB, 2**17 x 64 B, a ring by Simple has the factor 0.3; 2 x 8 of the 126 steps leave a node."""
    steps, crossing = 2 * 63, 2 * 8
    delays = 17e-6 + (steps - crossing) * 6e-6 + crossing * 19.8e-6  # posts of AMD's processors take 3 x 2 us
    expected = delays + 8 * MIB * (steps / 64) / (0.3 * FRONTIER.ring_bandwidth)
    assert predicted_seconds("all_reduce", 8 * MIB, FRONTIER, "ring", "Simple") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("group", [MI300X, FRONTIER_NODE, FRONTIER])
@pytest.mark.parametrize("size", [64, 4096, MIB, 64 * MIB, 8 * GIB])
def test_it_has_neither_ll128_nor_nvls_nor_pat(group, size):
    for algorithm, protocol in (("ring", "LL128"), ("tree", "LL128"), ("nvls", "Simple"), ("pat", "Simple")):
        assert predicted_seconds("all_reduce", size, group, algorithm, protocol) == float("inf")
    assert choose("all_reduce", size, group).protocol in ("LL", "Simple")


def test_a_node_of_mi300x_has_no_trees_by_simple_and_a_node_of_mi250x_has():
    assert predicted_seconds("all_reduce", GIB, MI300X, "tree", "Simple") == float("inf")
    assert predicted_seconds("all_reduce", GIB, FRONTIER_NODE, "tree", "Simple") < 1


@pytest.mark.parametrize("nodes", [1, 8])
def test_nccl_s_rows_are_not_taken(nodes):
    group = FRONTIER if nodes > 1 else FRONTIER_NODE
    other = replace(group, generation="ampere")
    for kind in ("all_reduce", "all_gather"):
        pair = [latency(kind, one, "ring", "Simple", MIB) for one in (group, other)]
        assert pair[0] != pair[1]
