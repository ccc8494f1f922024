"""SimGrid beside Quadrille on the same traffic, where it is installed."""

import subprocess

import numpy as np
import pytest

from quadrille.simulator.engine.flow_simulation import FlowSet, simulate_flows
from quadrille.studies.simulator_speed import simgrid_runner as runner
from quadrille.studies.simulator_speed.simgrid_runner import (
    SimgridMissing,
    compile_driver,
    describe_rings,
    describe_traffic,
    run_driver,
)
from quadrille.studies.simulator_speed.workloads import GPUS, hand_seconds, random_pairs
from quadrille.topologies.machines.machine_catalogue import machine
from quadrille.topologies.routes.routing import Routes


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    try:
        return compile_driver(tmp_path_factory.mktemp("simgrid"))
    except SimgridMissing as missing:
        pytest.skip(f"SimGrid is {missing}")


@pytest.mark.parametrize("sizes", ["equal", "random"])
def test_all_ends_of_w3_are_those_of_simgrid_with_its_weights(driver, tmp_path, sizes):
    describe_traffic(tmp_path / "w3.txt", 1000, sizes)
    net = machine("bench-2to1").topology(GPUS)
    sources, targets, volumes = random_pairs(1000, sizes)
    paths, zero = Routes(net).between(sources, targets), np.zeros(1000)
    traffic = FlowSet(
        paths.offsets, paths.links, paths.shares, volumes, zero, paths.latency, 1 / paths.latency, zero + np.inf
    )
    ours = simulate_flows(net.bandwidths, traffic).finish
    assert run_driver(driver, tmp_path / "w3.txt").finish == pytest.approx(ours, rel=1e-6)


@pytest.mark.parametrize(("workload", "size"), [("W1", 64), ("W2", 64), ("W2", 512)])
def test_simgrid_agrees_with_the_hand_formulas(driver, tmp_path, workload, size):
    path = tmp_path / "rings.txt"
    describe_rings(path, workload, size)
    assert run_driver(driver, path).finish.max() == pytest.approx(hand_seconds(workload, size), rel=1e-6)


def test_a_truncated_description_is_refused(driver, tmp_path):
    path = tmp_path / "cut.txt"
    path.write_text("2 1 5 0\n1e9 1e-6\n0 1 8 0 1 0\n")
    with pytest.raises(runner.RunError, match="truncated"):
        run_driver(driver, path)


def test_it_says_when_simgrid_is_not_there(monkeypatch, tmp_path):
    missing = subprocess.CompletedProcess([], 1, "", "fatal error: simgrid/s4u.hpp: No such file or directory\n")
    monkeypatch.setattr(runner.shutil, "which", lambda _: "g++")
    monkeypatch.setattr(runner.subprocess, "run", lambda *_, **__: missing)
    with pytest.raises(SimgridMissing, match="libsimgrid-dev"):
        compile_driver(tmp_path)
    monkeypatch.setattr(runner.shutil, "which", lambda _: None)
    with pytest.raises(SimgridMissing, match=r"g\+\+ is missing"):
        compile_driver(tmp_path)
