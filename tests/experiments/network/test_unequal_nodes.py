"""NCCL on nodes that are filled unequally: every channel has cards of its own in every node."""

import numpy as np
import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_command import CONTRADICTION, contradiction_remark
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.collectives.nccl.layout import communicator_of, exit_cards
from quadrille.simulator.collectives.node_layouts import ring_orders
from quadrille.simulator.machine.placement import place_ranks
from quadrille.topologies.build import build
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.routes.routing import Routes

GIB = 1 << 30


def all_reduce(machine, gpus, *, size=GIB, collectives="nccl:ring", modelled=None, **given):
    question = CollectiveQuestion(
        kind="all_reduce",
        bytes=size,
        gpus=gpus,
        group=given.pop("group", gpus),
        choices=parse_choices(collectives),
        **given,
    )
    return predict_collective(question, find_machine(machine, gpus=modelled or gpus))


@pytest.mark.parametrize("gpus", [10, 11, 12, 13, 14, 15, 16, 17, 20, 23, 31, 39])
def test_a_ring_takes_the_cards_of_the_emptiest_node(gpus):
    """2 (g - 1) / g of the buffer through the cards of the node with fewest GPUs: 25 GB/s each on Selene."""
    cards = gpus % 8 or 8
    wire = 2 * (gpus - 1) / gpus * GIB / (cards * 25e9)
    answer = all_reduce("selene", gpus)
    longest_steps = 8.4e-6 + 2 * (gpus - 1) * 1.4 * 14e-6
    assert wire < answer.seconds < wire + longest_steps
    assert answer.different_paths == cards


@pytest.mark.parametrize("machine", ["selene", "h100-superpod", "perlmutter"])
@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_the_machine_behind_the_group_changes_nothing(machine, missing):
    """GPUs that are there and take no part do not change the answer."""
    per_node = 4 if machine == "perlmutter" else 8
    gpus = 2 * per_node - missing
    alone, among = (all_reduce(machine, gpus, modelled=modelled) for modelled in (gpus, 4 * per_node))
    assert alone.seconds == pytest.approx(among.seconds, rel=1e-9)


@pytest.mark.parametrize("counts", [(8, 7), (7, 8), (8, 6, 7), (4, 8, 8), (3, 5), (8, 1), (2, 2, 1)])
def test_channels_leave_each_node_by_different_cards(counts):
    on = Routes(build("gpu-cluster", {"nodes": len(counts), "node": "dgx-a100"}))
    places = np.concatenate([8 * node + np.arange(count) for node, count in enumerate(counts)])[None]
    card_of = dict(zip(places[0].tolist(), exit_cards(on, places[0]).tolist(), strict=True))
    orders = ring_orders(on, places)
    assert len(orders) == min(counts)
    for node in range(len(counts)):
        last = []
        for order in orders:
            ring = places[0][order[0]]
            last.append(int(ring[ring // 8 == node][-1]))
        assert len({card_of[gpu] for gpu in last}) == len(orders)


def test_each_gpu_has_its_own_card_beside_compute_nodes_that_a_machine_sets_aside():
    """A SuperPOD of 128 nodes computes on 127 of them."""
    net = place_ranks(find_machine("h100-superpod"), 1016).net
    assert net.kinds["gpu"][1] > net.endpoint_count
    assert exit_cards(Routes(net), np.arange(128)).tolist() == 16 * list(range(8))


def test_groups_of_different_shapes_each_have_their_own_channels():
    """Eight GPUs of one node beside a group over two nodes: neither takes its number of channels from the other."""
    on = Routes(build("gpu-cluster", {"nodes": 3, "node": "dgx-a100"}))
    places = np.array([[0, 1, 2, 8, 9, 10], [3, 4, 5, 16, 17, 18]])
    together = ring_orders(on, places)
    alone = [ring_orders(on, row[None]) for row in places]
    assert len(together) % len(alone[0]) == len(together) % len(alone[1]) == 0


def test_nccl_itself_counts_the_cards_of_the_emptiest_node():
    on = Routes(build("gpu-cluster", {"nodes": 2, "node": "dgx-a100"}))
    for count in (1, 3, 6, 8):
        places = np.concatenate([np.arange(8), 8 + np.arange(count)])[None]
        group = communicator_of(on, places, "ampere")
        assert (group.nodes, group.channels) == (2, count)
        assert communicator_of(on, places[:, ::-1], "ampere").channels == count


@pytest.mark.parametrize("gpus", [12, 13, 14, 15, 16, 24, 28])
@pytest.mark.parametrize("machine", ["selene", "h100-superpod"])
def test_the_simulation_and_nccl_s_own_estimate_agree_on_idle_links(machine, gpus):
    answer = all_reduce(machine, gpus, collectives="nccl")
    assert contradiction_remark(answer) is None
    assert max(answer.seconds, answer.library_seconds) < CONTRADICTION * min(answer.seconds, answer.library_seconds)


def test_an_answer_that_contradicts_nccl_s_estimate_says_so_in_one_line():
    """Two groups share each card, of which NCCL's estimate knows nothing."""
    answer = all_reduce("frontier", 64, group=8, stride=8, concurrent="all")
    assert answer.seconds > CONTRADICTION * answer.library_seconds
    remark = contradiction_remark(answer)
    assert "NCCL's own estimate" in remark
    assert "\n" not in remark
