"""An all-to-all posts all messages at once: it takes as long as the same messages as independent flows."""

import csv
import random

import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.experiments.network.flows_command import flows
from quadrille.experiments.output.destinations import Destinations
from quadrille.simulator.collectives.collective import SimulationOptions
from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.topologies.find_machine import find_machine_or_topology

GIB, MIB = 1 << 30, 1 << 20
MACHINES = [
    ("full:hosts=5,bandwidth=1e9,latency=1e-6", 5),
    ("ring:hosts=6,bandwidth=1e9,latency=1e-6", 6),
    ("dumbbell:hosts=6,bandwidth=1e9,latency=1e-6,waist_bandwidth=1e9", 6),
    ("fat-tree:ports=4,bandwidth=1e9,latency=1e-6", 16),
    ("dragonfly:groups=5,routers=2,hosts_per_router=2,global_links=2,bandwidth=1e9,latency=1e-6", 20),
    ("torus:dims=4x3,bandwidth=1e9,latency=1e-6", 12),
    ("h100-superpod", 24),
    ("frontier", 20),
]


def all_to_all(machine, ranks, size, *, collectives="own", **given):
    question = CollectiveQuestion(
        kind="all_to_all", bytes=size, gpus=ranks, group=ranks, choices=parse_choices(collectives), **given
    )
    return predict_collective(question, find_machine_or_topology(machine, gpus=ranks))


def seconds_of_flows(machine, ranks, size, folder):
    """The same messages as rows of `quadrille flows`: rank i sends piece j of its buffer to rank j."""
    traffic = folder / "messages.csv"
    pieces = [size // ranks + (number < size % ranks) for number in range(ranks)]
    rows = [(i, j, pieces[j], 0.0) for i in range(ranks) for j in range(ranks) if i != j and pieces[j]]
    with traffic.open("w") as file:
        csv.writer(file).writerows([("source", "destination", "bytes", "start_s"), *rows])
    answer = flows(
        str(traffic),
        lambda _: find_machine_or_topology(machine, gpus=ranks),
        destinations=Destinations(json=str(folder / "a.json")),
    )
    return answer.makespan_s


@pytest.mark.parametrize(("machine", "ranks"), MACHINES)
def test_it_takes_as_long_as_the_same_messages_as_flows(machine, ranks, tmp_path):
    size = ranks * random.Random(machine).randrange(1, 8 * MIB)
    assert all_to_all(machine, ranks, size).seconds == pytest.approx(
        seconds_of_flows(machine, ranks, size, tmp_path), rel=1e-9
    )


@pytest.mark.parametrize("size", [1, 7, 24, 29, 1003])
def test_messages_of_unequal_size_take_as_long_as_flows_too(size, tmp_path):
    machine, ranks = "fat-tree:ports=4,bandwidth=1e9,latency=1e-6", 7
    assert all_to_all(machine, ranks, size).seconds == pytest.approx(
        seconds_of_flows(machine, ranks, size, tmp_path), rel=1e-9
    )


@pytest.mark.parametrize(("machine", "ranks"), MACHINES)
def test_folding_changes_no_answer(machine, ranks):
    options = [SimulationOptions(fold=fold, causes=True) for fold in (True, False)]
    folded, whole = (all_to_all(machine, ranks, ranks * MIB, options=option) for option in options)
    assert folded.seconds == pytest.approx(whole.seconds, rel=1e-9)
    assert folded.seconds_by_part == pytest.approx(whole.seconds_by_part, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("gpus", "others"), [(16, 8), (32, 24), (64, 56)])
def test_each_gpu_of_full_nodes_sends_to_other_nodes_through_its_own_card(gpus, others):
    """The formula of nccl-tests' maintainers: bytes to other nodes / 50 GB/s of each GPU's card (issue 130)."""
    expected = others * (GIB / gpus) / 50e9
    assert all_to_all("h100-superpod", gpus, GIB).seconds == pytest.approx(expected, rel=2e-3)


def test_on_links_of_its_own_to_everybody_it_takes_one_message():
    machine = "full:hosts=8,bandwidth=50e9,latency=5e-7"
    assert all_to_all(machine, 8, 64 * MIB).seconds == pytest.approx(5e-7 + 8 * MIB / 50e9, rel=1e-12)
    pairwise = all_to_all(machine, 8, 64 * MIB, collectives="own:pairwise")
    assert pairwise.algorithm == "pairwise"
    assert pairwise.seconds == pytest.approx(7 * (5e-7 + 8 * MIB / 50e9), rel=1e-12)


# By NCCL


@pytest.mark.parametrize(("gpus", "others"), [(16, 8), (32, 24), (64, 56)])
def test_nccl_sends_to_other_nodes_through_the_cards_of_all_gpus(gpus, others):
    """The formula of nccl-tests' maintainers (issue 130), and the latency of a message to each other node."""
    latency = (8.4 + 14.0 * (gpus // 8 - 1)) * 1e-6
    expected = latency + others * (GIB / gpus) / 50e9
    answer = all_to_all("h100-superpod", gpus, GIB, collectives="nccl")
    assert answer.seconds == pytest.approx(expected, rel=1e-9)
    assert answer.algorithm.startswith("nccl (sendrecv, Simple")


def test_nccl_inside_a_node_is_limited_by_the_nvlinks_rate_that_nccl_counts():
    answer = all_to_all("h100-superpod", 8, GIB, collectives="nccl", nccl=NcclSettings(measured=False))
    latency = (8.4 + 3.4) * 1e-6
    assert answer.seconds == pytest.approx(latency + 7 / 8 * GIB / (18 * 20.6e9), rel=1e-9)


@pytest.mark.parametrize(("size", "protocol"), [(16 * 16384, "LL"), (16 * 16384 + 16, "Simple")])
def test_small_messages_go_by_ll(size, protocol):
    assert all_to_all("h100-superpod", 16, size, collectives="nccl").protocol == protocol


RAILS = "gpu-cluster:nodes=4,node=hgx-h100,network=rail-optimised,nodes_per_unit=2,spines=1"


def test_a_message_leaves_by_the_card_on_its_receivers_rail():
    """So no message of a group on the nodes of one unit crosses the spine (PXN)."""
    links = [link.link for link in all_to_all(RAILS, 16, GIB, collectives="nccl").bottlenecks]
    assert any(link.startswith("nic:") for link in links)
    assert not any("spine" in link for link in links)
    assert any("spine" in link.link for link in all_to_all(RAILS, 16, GIB).bottlenecks), "our own goes across"


def test_an_amd_gpu_runs_rccl_by_its_own_cards():
    answer = all_to_all("frontier", 16, GIB, collectives="rccl")
    assert answer.algorithm.startswith("rccl (sendrecv")
    assert answer.seconds == pytest.approx(8.4e-6 + 14e-6 + 2 * 8 * (GIB / 16) / 25e9, rel=1e-3), "two GCDs a card"


def test_nothing_calls_an_amd_gpu_ampere():
    with pytest.raises(InputError, match="cdna3"):
        all_to_all("mi300x-node", 8, GIB, collectives="nccl:ring")


@pytest.mark.parametrize("ranks", [12, 23, 28])
def test_nccl_takes_as_long_as_flows_where_the_last_node_is_partly_filled(ranks, tmp_path):
    """Every card of the last node is known by its own number, so messages leave by the card on the receiver's rail."""
    seconds = all_to_all("selene", ranks, GIB, collectives="nccl").seconds
    assert seconds == pytest.approx(seconds_of_flows("selene", ranks, GIB, tmp_path), rel=0.01)
