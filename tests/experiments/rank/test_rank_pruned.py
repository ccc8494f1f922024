"""`quadrille rank` of pruned models: compressed states fit on fewer ranks, and the answer says what that gains."""

import json
from dataclasses import replace

import pytest

from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.offload import Offload
from quadrille.cli.parsing.flags import RankFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.ranking import parse_question
from quadrille.experiments.rank.dense_states import with_dense_states
from quadrille.experiments.rank.lower_estimates import least_bytes
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from tests.support.by_words import ranked
from tests.support.quadrille import called

ON = MachineFlags(machine="perlmutter")
MODEL = "layers=6,hidden=1024,heads=8,sequence=512,vocabulary=6400"
SIZES = {"gpt": MODEL, "batch": "16", "gpus": "8", "sparsity": "0.9"}
FEW = {"zero": "0", "micro_batch": "1", "order": "x,y,z,data", "top": "1"}
"""What is searched, so that few configurations are evaluated."""
SMALL_MEMORY = ("device.memory_bytes=2200000000",)


@pytest.fixture(scope="module")
def answer():
    flags = RankFlags(**SIZES, **FEW, sparse_states=True, pipeline="1,2", search="none")
    return ranked(flags, replace(ON, settings=SMALL_MEMORY), json="-")


def test_compressed_states_fit_on_fewer_ranks_than_dense_ones(answer):
    fastest, dense = answer.simulated[0], answer.dense_states
    assert fastest.grid["data"] > dense.grid["data"]
    assert dense.gain == pytest.approx(1 - fastest.seconds / dense.seconds)
    assert max(fastest.memory_bytes, dense.memory_bytes) <= 2.2e9
    assert answer.options["states"] == "compressed"


def test_dense_states_of_the_answer_are_those_of_the_dense_question(answer):
    flags = RankFlags(**SIZES, **FEW, pipeline="1,2", search="none")
    dense = ranked(flags, replace(ON, settings=SMALL_MEMORY), json="-")
    assert dense.simulated[0].seconds == answer.dense_states.seconds
    assert dense.simulated[0].grid == answer.dense_states.grid
    assert "dense_states" not in json.loads(json.dumps(dense.options))


def test_the_printed_answer_says_what_compressed_states_gain(capsys):
    words = ["rank", "--gpt", MODEL, "--batch", "16", "--gpus", "4", "--machine", "perlmutter", "--top", "1"]
    words += ["--search", "none", "--order", FEW["order"], "--micro-batch", "1"]
    words += ["--sparsity", "0.9", "--sparse-states", "--set", *SMALL_MEMORY]
    ended = called(capsys, *words)
    line = next(line for line in ended.out.splitlines() if line.startswith("with dense states"))
    assert "a copy of the model" in line
    assert "--sparsity 0.9 --sparse-states" in ended.out.splitlines()[-1]
    nothing = called(capsys, *words[:-1], "device.memory_bytes=400000000")
    assert nothing.status == 0
    assert "with dense states (without --sparse-states) nothing fits: no grid fits: model" in nothing.out


def test_a_search_tries_compressed_states_in_host_memory():
    flags = RankFlags(**SIZES | {"gpus": "4"}, **FEW, sparse_states=True, search="offload")
    answer = ranked(flags, ON, json="-")
    assert {entry.offload for entry in answer.analytical} == {"none", "optimizer"}
    least = min(answer.analytical, key=lambda entry: entry.memory_bytes)
    assert least.offload == "optimizer"
    assert answer.options["states"] == "compressed"


@pytest.mark.parametrize("offload", [None, Offload()], ids=["device", "host"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("grid", [Grid(data=4), Grid(data=2, x=2), Grid(data=2, z=2)], ids=str)
def test_the_lower_estimate_of_compressed_memory_is_below_it(zero, dtype, grid, offload):
    question = parse_question(RankFlags(**SIZES, sparse_states=True, dtype=dtype), ON)
    for asked in (question, with_dense_states(question)):
        problem = replace(asked.problem, zero=zero, micro_batch=1, offload=offload)
        experiment = replace(asked.training, grid=grid, problem=problem)
        least, peak = least_bytes(experiment, asked.shape), experiment_peak_bytes(experiment)
        assert peak / 50 < least <= peak


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--sparsity 1.5", "--sparsity '1.5': a number from 0 and below 1"),
        ("--sparse-states", "--sparse-states: nothing is pruned without --sparsity S"),
        ("--prune random", "--prune random: nothing is pruned without --sparsity S"),
    ],
)
def test_pruning_that_cannot_be_is_refused(capsys, words, line):
    ended = called(capsys, "rank", "--gpt", "20b", "--batch", "32", "--gpus", "32", "--machine", "alps", *words.split())
    assert ended.status == 2
    assert line in ended.line
