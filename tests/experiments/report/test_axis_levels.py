"""The network by axis of a report: how far messages along each axis go, beside where the ranks stand."""

import numpy as np
import pytest

from quadrille.algorithms.formats.record import load_record
from quadrille.cli.main import main
from quadrille.experiments.report.axis_levels import MOST_PAIRS, axis_traffic, shares_by_level
from quadrille.experiments.report.record_sections import record_part
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.build import build
from quadrille.topologies.find_machine import find_machine

TRAINING = "simulate --gpt tiny --batch 16 --machine h100-superpod --micro-batch 1 --quiet"


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A step pass by pass on 2 nodes of 8 GPUs: x and data stay in a node, pipeline joins both."""
    path = str(tmp_path_factory.mktemp("records") / "step.json")
    words = [*TRAINING.split(), "--grid", "data=4,x=2,pipeline=2", "--granularity", "passes", "--json", path]
    assert main(words) == 0
    return load_record(path)


def test_each_axis_goes_as_far_as_its_ranks_stand_apart(record):
    traffic, levels = axis_traffic(record, find_machine("h100-superpod", gpus=16), {"x": 2.0})
    farthest = {each.axis: each.farthest.name for each in traffic}
    assert farthest == {"x": "in a node", "data": "in a node", "pipeline": "leaf"}
    assert [level.name for level in levels][:2] == ["in a node", "leaf"]
    sent = {each.axis: each.sent_bytes for each in traffic}
    assert sum(sent.values()) == sum(op.bytes_sent_per_rank_max for op in record.ops)
    assert {each.axis: each.exposed_seconds for each in traffic} == {"x": 2.0, "data": 0.0, "pipeline": 0.0}


def test_an_all_to_all_goes_between_all_members_of_a_group_and_not_to_the_next_one_only(tmp_path):
    path = tmp_path / "experts.json"
    words = "simulate --gpt qwen3-30b-a3b --batch 16 --machine h100-superpod --gpus 16 --micro-batch 1 --quiet"
    assert main([*words.split(), "--grid", "data=16,expert=16", "--json", str(path)]) == 0
    traffic, _ = axis_traffic(load_record(path), find_machine("h100-superpod", gpus=16), {})
    shares = {each.axis: {level.name: share for level, share in each.share_by_level.items()} for each in traffic}
    assert shares["expert"]["leaf"] == pytest.approx(8 / 15, rel=1e-3)  # of 15 partners, 8 are in the second node
    assert set(shares["expert"]) == {"in a node", "leaf"}  # NCCL lets no message cross from rail to rail
    assert shares["data"]["leaf"] == pytest.approx(2 / 16)


def test_a_prediction_by_passes_has_the_drawing_though_it_counts_no_links(record):
    sections = {section.title: section for section in record_part(record, "step.json", None).sections}
    assert not sections["Busiest links"].charts
    (chart,) = sections["Network by axis"].charts
    assert "pipeline up to leaf" in chart.label


def test_shares_are_those_of_a_tree_counted_by_hand():
    net = build("leaf-spine", {"leaves": 2, "spines": 1, "hosts_per_leaf": 2, "bandwidth": 1e9, "latency": 1e-6})
    pairs = np.array([[0, 1], [0, 2], [1, 3], [0, 3]])
    assert {level.name: share for level, share in shares_by_level(net, pairs).items()} == {"leaf": 0.25, "spine": 0.75}


def test_every_eighth_pair_along_data_crosses_nodes_however_many_ranks_there_are():
    machine = find_machine("h100-superpod", gpus=4096)
    first = np.arange(4095)
    shares = shares_by_level(network_of(machine), np.stack([first, first + 1], axis=1))
    inside = {level.name: share for level, share in shares.items()}["in a node"]
    assert inside == pytest.approx(512 * 7 / 4095) and sum(shares.values()) == pytest.approx(1)


def test_pairs_that_are_drawn_still_cross_leaves():
    first = np.arange(MOST_PAIRS + 100)
    net = build("leaf-spine", {"leaves": 600, "spines": 1, "hosts_per_leaf": 4, "bandwidth": 1e9, "latency": 1e-6})
    shares = {level.name: share for level, share in shares_by_level(net, np.stack([first, first + 1], axis=1)).items()}
    assert shares["spine"] == pytest.approx(0.25, abs=0.02) and sum(shares.values()) == pytest.approx(1)
