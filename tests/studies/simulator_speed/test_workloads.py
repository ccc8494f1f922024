"""The pinned traffic is drawn as it was first."""

import hashlib

import numpy as np
import pytest

from quadrille.studies.simulator_speed.workloads import EQUAL_BYTES, GPUS, hand_seconds, random_pairs, write_traffic

SHA256 = {  # of the files that other simulators were given
    (1000, "equal"): "5f3f8e455faf13a2bbe702ce5de29176297b97cbe47510e2b4c9d7d647ac3542",
    (1000, "random"): "418d2ab3c5b8e9b6ef54c3e81fc2829aff2210d8ed87f410484b5535039f1388",
    (10000, "equal"): "84f06ff5ddb0ff419899204de415518d3a9d661a981b9fe391b7d175096476b1",
    (10000, "random"): "5a8513587c5951f52f7925d94c7fe0f3473be0228802f599822ec2b521643d90",
}


@pytest.mark.parametrize(("flows", "sizes"), SHA256)
def test_the_files_are_the_pinned_ones_to_the_byte(flows, sizes, tmp_path):
    write_traffic(tmp_path / "w3.csv", flows, sizes)
    assert hashlib.sha256((tmp_path / "w3.csv").read_bytes()).hexdigest() == SHA256[flows, sizes]


def test_longer_traffic_goes_on_where_shorter_ends():
    for one, other in zip(random_pairs(100, "equal"), random_pairs(3000, "equal"), strict=True):
        assert np.array_equal(one, other[:100])


def test_pairs_are_of_two_different_gpus():
    sources, targets, sizes = random_pairs(20_000, "random")
    assert (sources != targets).all()
    assert set(sources) == set(targets) == set(range(GPUS))
    assert 10**6 <= sizes.min() < 1.1e6 < 100.9e6 < sizes.max() < 101e6
    assert set(random_pairs(10, "equal")[2]) == {EQUAL_BYTES}


def test_hand_formulas_are_those_of_the_peers():
    assert [round(1e3 * hand_seconds("W1", size), 3) for size in (64, 256, 1024, 4096)] == [
        42.783, 44.822, 51.092, 75.699,
    ]  # fmt: skip
    assert [round(1e3 * hand_seconds("W2", size), 3) for size in (64, 256, 512, 131_072)] == [
        20.193, 20.193, 40.325, 40.325,
    ]  # fmt: skip
    assert hand_seconds("W1", 32) is hand_seconds("W2", 100) is None
