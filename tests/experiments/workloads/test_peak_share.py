"""No output has a share of a peak above 100 %: counts are what kernels compute, and no product exceeds the peak."""

import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import gpt_from_shape
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.model_shapes import SHAPES
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.peak_share import measured_peak_share, peak_share
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine_file import load_machine
from tests.support.draws import examples
from tests.support.quadrille import called

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def test_a_predicted_rate_above_the_peak_is_an_error_that_names_both():
    with pytest.raises(QuadrilleError, match=r"2e\+12 flop/s are 200 % of the device's peak of 1e\+12"):
        peak_share(2e12, 1e12)


def test_a_measured_rate_above_the_peak_has_no_share():
    assert measured_peak_share(2e12, 1e12) is None
    assert measured_peak_share(0.5e12, 1e12) == 0.5


def ideal():
    """A machine whose products and attention run at its peak, and whose other work and messages take almost no time."""
    node = find_machine("h100-node")
    changes = {"achieved": None, "kernel_table": "none", "memory_bytes_per_second": 1e30, "overhead_seconds": 0.0}
    device = msgspec.structs.replace(node.device, **changes)
    return msgspec.structs.replace(node, device=device)


@settings(max_examples=examples(40), deadline=None)
@example(262144, "fused", "none", "llama3-8b")
@example(131072, "unfused", "full", "llama3-8b")
@given(
    sequence=st.integers(9, 18).map(lambda power: 2**power),
    attention=st.sampled_from(["fused", "unfused"]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    name=st.sampled_from(["llama3-8b", "gpt3-1.3b", "tiny-llama", "llama2-70b"]),
)
def test_a_step_on_a_device_that_reaches_its_peak_has_at_most_its_peak(sequence, attention, recompute, name):
    """All time is that of products here, so that any product counted but not timed shows as more than 100 %."""
    problem = replace(
        gpt_from_shape(replace(SHAPES[name], sequence=sequence), 1),
        dtype="bfloat16",
        attention=attention,
        recompute=recompute,
    )
    record = predict_record_and_timeline(TrainingExperiment(problem), ideal())[0]
    assert record.percent_of_peak == pytest.approx(100.0, abs=1e-3)
    peak = 100 * record.hardware_flops_per_second_per_gpu / record.percent_of_peak
    assert record.model_flops_per_second_per_gpu <= peak * (1 + 1e-12)  # rounding


@settings(max_examples=examples(20), deadline=None)
@given(widths=st.lists(st.integers(64, 8192), min_size=2, max_size=5), rows=st.integers(64, 8192))
def test_a_stack_of_layers_at_the_peak_has_its_peak(widths, rows):
    record = predict_record_and_timeline(TrainingExperiment(Mlp(tuple(widths), rows, dtype="bfloat16")), ideal())[0]
    assert record.percent_of_peak == pytest.approx(100.0, abs=1e-3)


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("name", ["laboratory", "older-star", "shared-memory"])
def test_a_fit_of_measured_products_never_exceeds_the_peak_of_its_threads(name, threads):
    machine = load_machine(GOLDEN / "machines" / f"{name}.toml")
    problem = Mlp((4096, 4096, 4096), 4096)
    experiment = TrainingExperiment(problem, Grid(), execution=ExecutionOptions(threads=threads))
    record = predict_record_and_timeline(experiment, machine)[0]
    assert 0 < record.percent_of_peak <= 100


@pytest.mark.parametrize("sequence", [2048, 131072, 262144])
def test_what_is_printed_is_at_most_100_percent_and_names_the_convention(capsys, sequence):
    words = (
        "simulate",
        "--gpt",
        f"layers=32,hidden=4096,heads=32,sequence={sequence},vocabulary=128256",
        "--batch",
        "8",
    )
    options = ("--grid", "data=8", "--dtype", "bfloat16", "--machine", "h100-node")
    out = called(capsys, *words, *options).out
    shares = [float(share) for share in re.findall(r"[MH]FU ([0-9.]+) %", out)]
    assert len(shares) == 2 and max(shares) <= 100
    ratio = float(re.search(r"causal half that is computed, as in Megatron-Core; .* is ([0-9.]+) times", out)[1])
    record = json.loads(called(capsys, *words, *options, "--json", "-").out)
    spent = record["seconds_per_iteration"] * 8
    hidden, layers, words, batch = 4096, 32, 128256, 8
    papers = 72 * batch * sequence * layers * hidden**2
    papers *= 1 + sequence / (6 * hidden) + words / (12 * layers * hidden)
    assert ratio * record["model_flops_per_second_per_gpu"] * spent == pytest.approx(papers, rel=1e-3)
