"""One question has one answer: `simulate`, `sweep`, `rank`, the studies and Python predict the same seconds."""

import json
import random
from dataclasses import replace

import pytest

import quadrille
from quadrille.algorithms.collectives.collective_choices import DEFAULT_CHOICES, parse_choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import gpt_from_shape
from quadrille.algorithms.training.model_files import find_shape
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.cli.parsing.flags import RankFlags, TrainingFlags
from quadrille.experiments.measure.prepared_run import _with_own_default
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.experiments.predict.predict import prediction_record
from quadrille.experiments.predict.prepared_experiment import prepare, with_machine_choices
from quadrille.experiments.rank.candidate_grids import GridLimits
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.sweep.point_predictions import predict_point
from quadrille.experiments.sweep.sweep_points import OneGrid
from quadrille.experiments.sweep.training_point import predict_training_point
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import iteration_times
from quadrille.simulator.machine.default_collectives import machine_choices
from quadrille.topologies.find_machine import find_machine, find_machine_or_topology
from quadrille.topologies.machines.machine import Host, Machine
from tests.support.quadrille import called
from tests.support.rank_questions import simulated_step
from tests.support.toy_machines import device

SAME = 1e-9
MODEL = "layers=3,hidden=384,heads=6,sequence=64,vocabulary=1031"
SHARED_GPUS = Machine(
    name="shared", topology={"family": "perlmutter", "gpus": 1}, device=device(), host=Host(cores=1, ranks=2)
)
MACHINES = ("perlmutter", "selene", "frontier", "h100-superpod")


def drawn(seed):
    """A training step and a machine, drawn by the seed."""
    draw = random.Random(seed)
    lengths = {axis: draw.choice([1, 1, 2, 3] if axis == "data" else [1, 1, 2]) for axis in ("data", "z", "y", "x")}
    grid = Grid(**lengths)
    layers, vocabulary = draw.choice([3, 5]), draw.choice([1024, 1031])
    shape = find_shape(f"layers={layers},hidden=384,heads=6,sequence=64,vocabulary={vocabulary}")
    overlaps = frozenset(draw.choice([(), (), ("oar", "ors", "oag"), ("oar",)]))
    choices = parse_choices(draw.choice(["default", "default", "own", "own:doubling", "nccl"]))
    problem = gpt_from_shape(
        shape,
        lengths["data"] * lengths["z"] * draw.choice([1, 2]),
        dtype="bfloat16",
        recompute=draw.choice(["none", "full"]),
    )
    execution = ExecutionOptions(overlaps=overlaps, choices=choices)
    experiment = TrainingExperiment(problem, grid, find_scheme("4d"), execution, shape)
    return experiment, find_machine(draw.choice(MACHINES), gpus=grid.size)


def iteration_seconds(experiment, machine):
    record = prediction_record(experiment, machine)
    return iteration_times(experiment, experiment.unchecked_schedule(), record.seconds, record.ops).seconds


def ranked_step(experiment, machine):
    question = RankQuestion(
        training=experiment,
        shape=experiment.shape,
        gpus=experiment.grid.size,
        machine=machine,
        top=1,
        form="exact",
        limits=GridLimits(None, False, 1),
    )
    return simulated_step(question, experiment.grid)


@pytest.mark.parametrize("seed", range(5))
def test_all_routes_predict_the_same_seconds(seed):
    experiment, machine = drawn(seed)
    seconds = iteration_seconds(experiment, machine)
    answers = {
        "sweep": predict_point(OneGrid(experiment, machine)).seconds,
        "a study": predict_training_point(OneGrid(experiment, machine)).seconds,
        "rank": ranked_step(experiment, machine).seconds,
    }
    assert answers == pytest.approx(dict.fromkeys(answers, seconds), rel=SAME)
    record = prediction_record(experiment, machine)
    alone = quadrille.simulate(experiment.schedule(), machine, choices=experiment.execution.choices)
    assert alone.timeline.makespan == pytest.approx(record.seconds, rel=SAME)


@pytest.mark.parametrize(
    ("words", "vary"),
    [
        ("--matmul 1999,1777,1555 --passes training --machine perlmutter", "grid=z=4,x=2;data=2,z=2,x=2"),
        (
            f"--gpt {MODEL} --batch 12 --machine selene",
            "grid=data=12;z=6",
        ),
        (
            f"--gpt {MODEL} --batch 4 --machine h100-superpod --micro-batch 1",
            "grid=pipeline=2,data=2;data=4",
        ),
    ],
)
def test_the_commands_simulate_and_sweep_answer_alike(capsys, words, vary):
    rows = json.loads(called(capsys, "sweep", *words.split(), "--vary", vary, "--json", "-").out)["rows"]
    for row in rows:
        grid = row["point"]["grid"]
        record = json.loads(called(capsys, "simulate", *words.split(), "--grid", grid, "--json", "-").out)
        assert record["options"]["collectives"] == "nccl"
        seconds = record.get("seconds_per_iteration") or record["seconds"]
        assert row["answer"]["seconds"] == pytest.approx(seconds, rel=SAME)


def test_a_sweep_ranks_two_grids_as_simulate_does():
    """Of Llama-like steps on 64 GPUs the sweep took NCCL's collectives through one of eight cards."""
    shape = find_shape("layers=2,hidden=1024,heads=8,sequence=256,vocabulary=1024")
    machine = find_machine("h100-superpod", gpus=64)
    for lengths in ({"data": 8, "z": 8}, {"data": 8, "x": 8}):
        problem = gpt_from_shape(shape, 64, dtype="bfloat16", micro_batch=1)
        experiment = TrainingExperiment(problem, Grid(**lengths), find_scheme("4d"), ExecutionOptions(), shape)
        assert predict_point(OneGrid(experiment, machine)).seconds == pytest.approx(
            iteration_seconds(experiment, machine), rel=SAME
        )


# The default


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (find_machine("perlmutter", gpus=8), "nccl"),
        (find_machine("frontier", gpus=8), "nccl"),
        (find_machine("mi300x-node", gpus=8), "nccl"),
        (find_machine("bench-1to1", gpus=8), "own:ring"),
        (find_machine_or_topology("star:hosts=4,bandwidth=1e9,latency=0"), "own:ring"),
        (SHARED_GPUS, "own:ring"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_default_is_what_the_machine_runs(machine, expected):
    assert str(machine_choices(DEFAULT_CHOICES, machine)) == expected
    for named in ("own:doubling", "library", "nccl:ring"):
        assert str(machine_choices(parse_choices(named), machine)) == named


def test_every_verb_resolves_the_default_by_the_machine():
    experiment, _ = drawn(0)
    experiment = replace(experiment, execution=ExecutionOptions(), grid=Grid(x=2))
    machine = find_machine("perlmutter", gpus=2)
    assert experiment.execution.choices == DEFAULT_CHOICES
    assert str(prepare(experiment, machine).experiment.execution.choices) == "nccl"
    assert str(with_machine_choices(experiment, machine).execution.choices) == "nccl"
    assert prediction_record(experiment, machine).options.collectives == "nccl"
    question = CollectiveQuestion(kind="all_reduce", bytes=1 << 20, gpus=8, group=8)
    assert predict_collective(question, find_machine("perlmutter", gpus=8)).algorithm.startswith("nccl (")
    assert str(_with_own_default(experiment).execution.choices) == "own:ring", "what runs here are our own"


@pytest.mark.parametrize(("attention", "recompute"), [("fused", "none"), ("unfused", "selective")])
def test_rank_recomputes_the_inner_activations_of_unfused_attention_by_default(capsys, attention, recompute):
    assert RankFlags().collectives == TrainingFlags().collectives
    model = "layers=3,hidden=384,heads=6,sequence=64,vocabulary=1024"
    words = f"rank --gpt {model} --batch 8 --gpus 4 --machine perlmutter --top 1 --attention {attention} --json -"
    words += " --search none"
    best = json.loads(called(capsys, *words.split()).out)["simulated"][0]
    named = json.loads(called(capsys, *words.split(), "--recompute", recompute).out)["simulated"][0]
    assert best == named
    assert best["recompute"] == recompute


def test_rank_searches_what_is_recomputed(capsys):
    words = "rank --gpt layers=3,hidden=384,heads=6,sequence=64,vocabulary=1024 --batch 8 --gpus 4 --machine perlmutter"
    found = json.loads(called(capsys, *words.split(), "--recompute", "full,none", "--top", "3", "--json", "-").out)
    assert {entry["recompute"] for entry in found["analytical"]} == {"none", "full"}
    alone = {}
    for word in ("full", "none"):
        answer = called(capsys, *words.split(), "--recompute", word, "--zero", "0", "--top", "1", "--json", "-")
        alone[word] = json.loads(answer.out)["simulated"][0]["seconds"]
    assert found["simulated"][0]["seconds"] == pytest.approx(min(alone.values()), rel=1e-9)


def test_rings_that_leave_most_cards_idle_are_said(capsys):
    words = "collective all-reduce --bytes 1GiB --gpus 64 --machine h100-superpod"
    said = called(capsys, *words.split(), "--collectives", "own").err
    assert "1 of the 8 network cards of a node" in said
    assert "network cards" not in called(capsys, *words.split()).err
    simulated = "simulate --matmul 4096,4096,4096 --machine h100-superpod --collectives own --grid"
    assert "1 of the 8 network cards" in called(capsys, *simulated.split(), "z=16").err
    assert "network cards" not in called(capsys, *simulated.split(), "z=2,x=8").err
    assert "network cards" not in called(capsys, *simulated.split(), "z=8").err, "one node"
