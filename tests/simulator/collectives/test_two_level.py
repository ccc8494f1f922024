"""All-to-alls in two levels: bytes into each node and inside it, and DeepEP's published results."""

import numpy as np
import pytest

from quadrille.algorithms.schedule.routed_rows import RoutedRows
from quadrille.simulator.collectives.nccl.collective import nccl_collective
from quadrille.simulator.collectives.nccl.two_level import two_level_flows
from quadrille.simulator.machine.network import network_of, routes_of
from quadrille.topologies.find_machine import find_machine

DEEPSEEK_V3 = RoutedRows(256, 8, 8, 4)
HIDDEN = 7168


def all_to_all(gpus, size, *, two_level=True, routed=None, pairs=None):
    machine = find_machine("h100-superpod", gpus=gpus)
    routes, members = routes_of(machine, network_of(machine)), np.arange(gpus)
    answer = nccl_collective(
        "all_to_all",
        size,
        members[None],
        members,
        machine,
        routes,
        two_level=two_level,
        routed=routed,
        pairs=pairs,
    )
    return answer, routes.net


def delivered(flows, group, per_node):
    """Bytes that enter the node of each member from other nodes, and bytes that each member gets from its node."""
    over, inside = np.zeros(len(group)), np.zeros(len(group))
    for sources, targets, sizes in flows:
        crosses = sources // per_node != targets // per_node
        np.add.at(over, np.searchsorted(group, targets[crosses]), sizes[crosses])
        np.add.at(inside, np.searchsorted(group, targets[~crosses]), sizes[~crosses])
    return over, inside


@pytest.mark.parametrize("group", [np.arange(12), np.array([0, 1, 2, 3, 4, 5, 6, 8, 9])])
def test_every_byte_comes_once_into_its_node_and_to_its_rank(group):
    pieces, per_node = np.ones((len(group), len(group))), 4
    over, inside = delivered(two_level_flows(group, per_node, pieces, None), group, per_node)
    nodes, counts = np.unique(group // per_node, return_counts=True)
    for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
        here = group // per_node == node
        assert over[here].sum() == pytest.approx(count * (len(group) - count))
        held = over[here] / count + 1  # rows for each rank of the node at each of its members, the own ones included
        assert inside[here] == pytest.approx(held.sum() - held)


def test_links_carry_the_rows_that_are_counted():
    answer, net = all_to_all(32, 32e6, routed=DEEPSEEK_V3)
    first, count = net.kinds["nic"]
    leaves = (net.sources >= first) & (net.sources < first + count) & (net.bandwidths < 100e9)
    to_nodes = answer.result.link_bytes[leaves & (net.targets >= first + count)].sum()
    per_rank = to_nodes / 32
    assert per_rank == pytest.approx(3 * 8e6 * DEEPSEEK_V3.distinct_share(64))


def test_a_single_node_has_one_level_in_which_a_row_goes_once_to_each_rank():
    answer, net = all_to_all(8, 1e8, routed=DEEPSEEK_V3)
    first, count = net.kinds["gpu"]
    leaves = (net.sources >= first) & (net.sources < first + count)
    assert answer.result.link_bytes[leaves].sum() == pytest.approx(8 * 7 / 8 * 1e8 * DEEPSEEK_V3.distinct_share(32))
    assert answer.two_level and answer.why.endswith("1 node")


UNEVEN = tuple(tuple(float((row + 1) * (column == 3) * 4e6 + 1e6) for column in range(16)) for row in range(16))
"""Pieces of which those to member 3 are the largest."""


@pytest.mark.parametrize("two_level", [False, True])
def test_equal_pieces_take_the_time_of_an_even_all_to_all(two_level):
    even, uneven, hot = (
        all_to_all(16, 16e6, two_level=two_level, pairs=pairs)[0] for pairs in (None, ((1e6,) * 16,) * 16, UNEVEN)
    )
    assert uneven.result.seconds == pytest.approx(even.result.seconds, rel=1e-3)
    assert uneven.result.link_bytes == pytest.approx(even.result.link_bytes)
    assert hot.result.seconds > 5 * even.result.seconds


def test_a_hot_member_receives_its_bytes_over_its_own_links():
    answer, net = all_to_all(16, 16e6, two_level=False, pairs=UNEVEN)
    into_hot = answer.result.link_bytes[net.targets == 3].sum()
    from_others = sum(UNEVEN[row][3] for row in range(16) if row != 3)
    relayed = sum(UNEVEN[row][column] for row in range(8) for column in range(8, 16) if row != 3 and column % 8 == 3)
    assert into_hot >= from_others and into_hot == pytest.approx(from_others + relayed, rel=0.05)


@pytest.mark.parametrize(
    ("nodes", "tokens", "item", "measured"), [(2, 8192, 1, 90e9), (4, 8192, 1, 61e9), (4, 8192, 2, 61e9)]
)
def test_deep_ep_reaches_nine_tenths_of_the_prediction(nodes, tokens, item, measured):
    """Rates count a token once for each node that it visits, its own included; nothing is fitted.

    Source: DeepSeek-AI, DeepEP, README.md of V2, table of performance (SM90, CX7, EP 8 x 2 and 8 x 4).
    """
    answer, _ = all_to_all(8 * nodes, tokens * 8 * HIDDEN * item, routed=DEEPSEEK_V3)
    visited = 8 * DEEPSEEK_V3.distinct_share(256 // nodes)
    rate = tokens * HIDDEN * item * visited / answer.result.seconds
    assert measured < rate < 1.1 * measured
    assert answer.label == "two-level exchange (as DeepEP)"
