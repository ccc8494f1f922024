"""Speeds that differ from GPU to GPU: all ranks compute at the expected pace of the slowest GPU."""

import json
from math import exp, log, pi, sqrt
from random import Random
from statistics import fmean

import msgspec
import pytest

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.measured_rows import Faults
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.mlp import Mlp
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.simulator.machine.slowest_device import slowest_factor
from quadrille.simulator.ranks.jitter import Jitter
from quadrille.simulator.simulate import simulate
from quadrille.topologies.find_machine import find_machine
from tests.support.quadrille import called
from tests.support.toy_machines import star

STEP = TrainingExperiment(Mlp((64, 64), 32), Grid(data=4)).schedule()
MACHINE = star(4, peak=1e8, memory=1e10, bandwidth=1e9)
GPT = ["simulate", "--gpt", "tiny", "--batch", "8", "--grid", "data=8", "--machine", "perlmutter"]


def makespan(machine=MACHINE, jitter=None, **options):
    return simulate(STEP, machine, choices=Choices(), jitter=jitter, **options).timeline.makespan


def test_the_expected_slowest_is_that_of_order_statistics():
    assert slowest_factor(0.3, 1) == pytest.approx(exp(0.3**2 / 2), rel=1e-9)
    small = 1e-6
    assert (slowest_factor(small, 2) - 1) / small == pytest.approx(1 / sqrt(pi), rel=1e-4)
    assert (slowest_factor(small, 3) - 1) / small == pytest.approx(1.5 / sqrt(pi), rel=1e-4)
    assert slowest_factor(0.0, 1000) == pytest.approx(1, abs=1e-12)


def test_the_slowest_of_more_gpus_is_slower():
    factors = [slowest_factor(0.02, 2**power) for power in range(16)]
    assert factors == sorted(factors)
    assert log(factors[15]) == pytest.approx(0.02 * 4.1, rel=0.02)  # the largest of 32,768 normal draws is about 4.1


def test_the_pace_is_the_mean_over_machines_whose_gpus_were_drawn():
    """An oracle without the formula: every GPU gets a speed of its own, and the exact simulation waits for it."""
    sigma, draw = 0.1, Random(1)

    def drawn():
        slow = {f"host:{host}": exp(-sigma * draw.gauss(0, 1)) for host in range(4)}
        return makespan(msgspec.structs.replace(MACHINE, faults=Faults(slow=slow)))

    assert makespan(jitter=Jitter(gpus=sigma)) == pytest.approx(fmean(drawn() for _ in range(60)), rel=0.02)
    assert makespan(jitter=Jitter(gpus=sigma)) > 1.1 * makespan()


def test_equal_ranks_stay_equal_at_every_granularity():
    prediction = simulate(STEP, MACHINE, choices=Choices(), jitter=Jitter(gpus=0.1))
    assert prediction.extent.folded
    bounded = simulate(STEP, MACHINE, choices=Choices(), jitter=Jitter(gpus=0.1), granularity="collective")
    assert bounded.bound.low <= prediction.seconds * (1 + 1e-9)
    assert prediction.seconds <= bounded.bound.high * (1 + 1e-9)
    assert not simulate(STEP, MACHINE, choices=Choices(), jitter=Jitter(0.1, gpus=0.1)).extent.folded


def test_messages_keep_their_time():
    """Without local work, nothing waits for a slow GPU."""
    alone = star(4, peak=1e30, memory=1e30, bandwidth=1e6)
    assert makespan(alone, Jitter(gpus=0.5)) == pytest.approx(makespan(alone), rel=1e-6)


def test_the_machine_knows_how_much_its_gpus_differ(capsys, tmp_path):
    record = tmp_path / "record.json"
    said = called(capsys, *GPT, "--jitter", "gpus=machine", "--json", record)
    assert said.status == 0
    assert "pace of the slowest GPU" in said.err
    sigma = find_machine("perlmutter").device.speed_sigma
    assert json.loads(record.read_text())["options"]["jitter"] == f"gpus={sigma}"
    twice = called(capsys, *GPT, "--jitter", "gpus=machine", "--set", "device.speed_sigma=x2", "--json", record)
    assert twice.status == 0
    assert json.loads(record.read_text())["options"]["jitter"] == f"gpus={2 * sigma}"


def test_a_machine_that_does_not_know_is_named():
    with pytest.raises(InputError, match=r"has no device\.speed_sigma"):
        makespan(jitter=Jitter(gpus="machine"))


def test_the_hash_of_a_machine_is_without_the_spread():
    perlmutter = find_machine("perlmutter", gpus=8)
    assert find_machine("perlmutter", ["device.speed_sigma=x2"], gpus=8).sha256 == perlmutter.sha256
