"""`simulate --granularity`: what is said, where it is written, and what is refused."""

import json

import pytest

from quadrille.cli.parsing.flags import MatmulFlags
from quadrille.cli.parsing.machines import MachineFlags, chosen_machine
from quadrille.cli.parsing.matmul import parse_matmul
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.simulator.simulate import Limits
from tests.support.quadrille import called

SMALL = [
    "simulate",
    "--matmul",
    "512,512,512",
    "--grid",
    "z=4,x=2",
    "--machine",
    "frontier",
    "--slow",
    "gpu:5=0.8",
    "--collectives",
    "own",
]
ON_NCCL = ["simulate", "--matmul", "4096,4096,4096", "--grid", "z=4,x=8", "--machine", "h100-superpod"]


def predicted(capsys, *words):
    ended = called(capsys, *words, "--json", "-")
    assert ended.status == 0, ended.err
    return json.loads(ended.out), ended.err


def test_a_prediction_at_the_granularity_of_collectives_states_its_bound(capsys):
    exact, _ = predicted(capsys, *SMALL)
    made, said = predicted(capsys, *SMALL, "--granularity", "collective")
    how = made["simulation"]
    assert exact["simulation"]["granularity"] == "exact" and exact["simulation"]["bound_low_seconds"] is None
    assert how["granularity"] == "collective" and how["bound_proven"] and "proven" in how["approximation"]
    assert how["bound_low_seconds"] * (1 - 1e-9) <= exact["seconds"] <= how["bound_high_seconds"] * (1 + 1e-9)
    assert made["seconds_low"] < how["bound_low_seconds"] <= made["seconds"]  # the interval of the GPU comes on top
    assert made["seconds"] <= how["bound_high_seconds"] < made["seconds_high"]
    assert made["bytes_sent_total"] == exact["bytes_sent_total"]
    assert [one["name"] for one in made["ops"]] == [one["name"] for one in exact["ops"]]
    assert "collective granularity: 8 ranks are not simulated one by one" in said
    assert "--granularity exact simulates it" in said


def test_what_would_take_long_is_bounded_and_says_why_nothing_folds(capsys):
    words = ["--grid", "z=40,x=6", "--machine", "frontier"]
    made, said = predicted(capsys, *SMALL, *words, "--granularity", "collective")
    reason = made["simulation"]["not_folded_reason"]
    assert reason and f"240 ranks are not simulated one by one ({reason})" in said
    experiment = parse_matmul(MatmulFlags(matmul="512,512,512", grid="z=40,x=6", collectives="own"))
    machine = chosen_machine(MachineFlags(machine="frontier", slow=("gpu:5=0.8",)), gpus=240)
    limits = Limits(long_seconds=1e-9)
    record, _ = predict_record_and_timeline(experiment, machine, granularity="auto", limits=limits)
    assert record.simulation.granularity == "collective"
    assert "rank 5 differs in speed" in record.simulation.not_folded_reason


def test_the_total_says_that_it_is_bounded(capsys):
    ended = called(capsys, *SMALL, "--granularity", "collective")
    assert "90 % interval: " in ended.out and "the exact time lies between " in ended.err


def test_ranks_of_a_trace_are_those_that_were_asked_for(capsys, tmp_path):
    words = ["--granularity", "collective", "--trace", tmp_path / "t.json", "--ranks", "2-3"]
    assert called(capsys, *SMALL, *words).status == 0
    traced = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {one["pid"] for one in traced if one["ph"] == "X"} == {2, 3}


def test_its_record_is_explained(capsys, tmp_path):
    assert called(capsys, *SMALL, "--granularity", "collective", "--json", tmp_path / "r.json").status == 0
    ended = called(capsys, "explain", tmp_path / "r.json")
    assert ended.status == 0 and "critical path" in ended.out


@pytest.mark.parametrize("command", [SMALL, ["run", "--matmul", "8,8,8", "--grid", "x=1"]])
def test_another_word_is_refused(capsys, command):
    ended = called(capsys, *command, "--granularity", "coarse")
    assert ended.status == 2
    assert "granularity 'coarse': accepted are auto, exact, collective" in ended.err


def test_collectives_of_nccl_are_predicted_by_its_own_model(capsys):
    made, said = predicted(capsys, *ON_NCCL, "--collectives", "nccl", "--passes", "training")
    asked, _ = predicted(capsys, "collective", "all_reduce", *same_question(made), "--collectives", "nccl")
    op = next(one for one in made["ops"] if one["name"] == "sum dA")
    assert op["seconds"] == pytest.approx(asked["seconds"], rel=1e-9)
    assert op["algorithm"] == asked["algorithm"]
    assert not made["simulation"]["bound_proven"] and "not proven" in made["simulation"]["approximation"]
    assert "NCCL's model knows collectives, not the steps of ranks" in said
    ringed, _ = predicted(capsys, *ON_NCCL, "--collectives", "nccl", "--passes", "training", "--granularity", "exact")
    assert {one["algorithm"] for one in ringed["ops"] if one["name"] == "sum dA"} == {"nccl (as ring)"}


def same_question(made):
    """What `sum dA` does: 1024 x 4096 numbers of 4 bytes over x, all four groups at once."""
    assert made["grid"] == {"data": 1, "z": 4, "y": 1, "x": 8}
    flags = ["--bytes", str(1024 * 4096 * 4), "--gpus", "32", "--group", "8", "--stride", "1", "--concurrent", "all"]
    return [*flags, "--machine", "h100-superpod", "--dtype", "float32"]


def test_an_algorithm_of_nccl_is_held_to_where_there_is_one(capsys):
    made, _ = predicted(capsys, *ON_NCCL, "--collectives", "nccl:tree", "--passes", "training")
    algorithms = {one["name"]: one["algorithm"] for one in made["ops"] if one["algorithm"]}
    assert algorithms["sum dA"].startswith("nccl (tree") and algorithms["gather B"].startswith("nccl (ring")
    gathers = ["simulate", "--matmul", "512,512,512", "--grid", "z=8", "--machine", "h100-superpod"]
    refused = called(capsys, *gathers, "--collectives", "nccl:tree")
    assert refused.status == 2 and "NCCL has no all_gather by tree" in refused.err
    exact = called(capsys, *ON_NCCL, "--collectives", "nccl:tree", "--granularity", "exact")
    assert exact.status == 2 and "rings of single ranks" in exact.err
