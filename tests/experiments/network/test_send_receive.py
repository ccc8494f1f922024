"""A send-receive: every rank sends its whole buffer to the next, as `sendrecv_perf` of nccl-tests does."""

import json

import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.topologies.find_machine import find_machine_or_topology
from tests.support.quadrille import called

GIB = 1 << 30


def send_receive(machine, ranks, size=GIB, *, collectives="own", **given):
    question = CollectiveQuestion(
        kind="send_receive", bytes=size, gpus=ranks, group=ranks, choices=parse_choices(collectives), **given
    )
    return predict_collective(question, find_machine_or_topology(machine, gpus=ranks))


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_each_link_carries_the_buffer_once_in_each_direction(ranks):
    """Latency of two hops, and the buffer at the rate of a link: t = 2 alpha + n / beta."""
    answer = send_receive(f"star:hosts={ranks},bandwidth=1e9,latency=1e-3", ranks, 10**9)
    assert answer.seconds == pytest.approx(2e-3 + 1.0, rel=1e-9)
    assert answer.bus_bandwidth == pytest.approx(10**9 / answer.seconds, rel=1e-9)
    assert answer.algorithm == "shift"


def test_a_ring_of_cables_carries_each_message_on_its_own_cable():
    assert send_receive("ring:hosts=6,bandwidth=1e9,latency=0", 6, 10**9).seconds == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize(
    ("machine", "gpus", "collectives", "rate"),
    [
        ("h100-superpod", 16, "own", 50e9),
        ("h100-superpod", 24, "own", 50e9),
        ("selene", 24, "nccl", 25e9),
        ("h100-superpod", 16, "nccl", 40.7e9),
        ("h100-superpod", 24, "nccl", 25.0e9),
        ("h100-superpod", 72, "nccl", 15.2e9),
    ],
)
def test_between_nodes_one_card_carries_the_buffer_at_most_at_nccl_s_rate_of_a_message(
    machine, gpus, collectives, rate
):
    assert send_receive(machine, gpus, collectives=collectives).bus_bandwidth == pytest.approx(rate, rel=5e-3)


@pytest.mark.parametrize(("mebibytes", "channels"), [(32, 8), (64, 8), (128, 16), (256, 32)])
def test_inside_a_node_of_h100_a_message_takes_channels_by_its_size(mebibytes, channels):
    answer = send_receive("h100-superpod", 8, mebibytes << 20, collectives="nccl")
    assert answer.seconds == pytest.approx((8.4 + 3.4) * 1e-6 + (mebibytes << 20) / (channels * 10.2e9), rel=1e-9)


def test_inside_a_node_it_runs_at_the_nvlinks_rate_of_data():
    """18 links of 20.6 GB/s, what NCCL counts of 25."""
    assert send_receive("h100-superpod", 8, collectives="nccl").bus_bandwidth == pytest.approx(370.8e9, rel=1e-2)


@pytest.mark.parametrize("word", ["send-receive", "sendrecv", "SendRecv", "send_receive"])
def test_its_names_are_those_of_nccl_tests_too(capsys, word):
    words = ["collective", word, "--bytes", "1MiB", "--gpus", "4", "--machine", "perlmutter", "--json", "-"]
    answer = json.loads(called(capsys, *words).out)
    assert answer["kind"] == "send_receive"
    assert answer["bus_bandwidth_formula"] == "bytes / seconds"


def test_the_idle_cards_are_explained(capsys):
    ended = called(capsys, "collective", "sendrecv", "--bytes", "1GiB", "--gpus", "16", "--machine", "h100-superpod")
    assert "1 of the 8 network cards" in ended.err
    assert "each node sends one message in the ring" in ended.err


def test_it_has_no_channels_and_no_algorithms_of_nccl():
    with pytest.raises(InputError, match="rings are laid in channels"):
        send_receive("perlmutter", 8, channels=2)
    with pytest.raises(InputError, match="NCCL has no send_receive by ring"):
        send_receive("perlmutter", 8, collectives="nccl:ring")
