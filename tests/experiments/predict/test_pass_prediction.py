"""Predictions at the granularity of passes: agreement with simulations of every op, what is said, what is refused."""

import json
from collections import Counter

import pytest

from quadrille.algorithms.training.single_passes import sections, with_single_passes
from quadrille.cli.parsing.experiment import experiment_of
from quadrille.cli.parsing.flags import TrainingFlags
from quadrille.cli.parsing.machines import MachineFlags, chosen_machine
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.simulator.simulate import Limits
from tests.support.quadrille import called

GPT = "layers=8,hidden=256,heads=8,sequence=256,vocabulary=1024"


def training(grid, schedule, *, microbatches=8, batch=None, **flags):
    lengths = dict(part.split("=") for part in grid.split(","))
    shards = int(lengths.get("data", 1)) * int(lengths.get("z", 1))
    words = {"collectives": "own", "dtype": "float16", "micro_batch": "1", **flags}
    return experiment_of(
        TrainingFlags(
            gpt=GPT, batch=str(batch or microbatches * shards), grid=grid, pipeline_schedule=schedule, **words
        )
    )


def predicted(experiment, granularity, *, machine="perlmutter", slow=(), **options):
    on = chosen_machine(MachineFlags(machine=machine, slow=slow), gpus=16)
    return predict_record_and_timeline(experiment, on, granularity=granularity, **options)


@pytest.mark.parametrize(
    ("grid", "schedule", "flags", "within"),
    [
        ("pipeline=4,x=2", "1f1b", {}, 1e-6),
        ("pipeline=4,data=2,z=2", "1f1b", {}, 1e-6),
        ("pipeline=4,data=2", "1f1b", {"stages": "3,1,2,2"}, 0.005),
        ("pipeline=2,x=2,data=2", "zb-h1", {}, 1e-6),
        ("pipeline=4,x=2", "zb-v", {}, 0.01),
        ("pipeline=3,data=2", "zb-v", {"stages": "3,2,3"}, 1e-6),
        ("pipeline=4,x=2", "gpipe", {}, 0.02),
        ("pipeline=4,x=2", "interleaved", {"interleave": "2"}, 0.03),
        ("pipeline=4,x=2", "message-driven", {}, 1e-6),
        ("pipeline=3,data=2", "message-driven", {"stages": "3,1,4"}, 1e-6),
        ("pipeline=4", "message-driven", {"pipeline_limit": "2"}, 1e-6),
        ("pipeline=2,data=2", "message-driven", {"zero": "2", "recompute": "full"}, 1e-6),
        ("pipeline=2,z=2", "1f1b", {"overlap": "oar,ors,oag"}, 0.04),
    ],
)
def test_a_walk_through_passes_ends_when_the_simulation_of_every_op_does(grid, schedule, flags, within):
    check_passes(training(grid, schedule, **flags), within)


@pytest.mark.parametrize("collectives", ["own", "nccl"])
def test_groups_on_two_nodes_are_slower_than_those_of_the_first_rank_of_their_stage(collectives):
    experiment = training("pipeline=2,data=4,z=3", "1f1b", collectives=collectives)
    on = chosen_machine(MachineFlags(machine="h100-superpod"), gpus=24)
    every = "exact" if collectives == "own" else "collective"
    simulated, passes = (predict_record_and_timeline(experiment, on, granularity=each)[0] for each in (every, "passes"))
    assert simulated.simulation.granularity == every
    assert passes.seconds == pytest.approx(simulated.seconds, rel=0.005)


@pytest.mark.parametrize(("grid", "microbatches", "steps"), [("pipeline=4", 5, "1"), ("pipeline=2", 3, "2")])
def test_long_rounds_of_interleaved_chunks_have_bounds_that_meet_the_simulation_of_every_op(grid, microbatches, steps):
    experiment = training(
        grid, "interleaved", interleave="2", microbatches=microbatches, collectives="nccl", steps=steps
    )
    (chosen, _), (exact, _) = (predicted(experiment, granularity) for granularity in ("auto", "exact"))
    assert chosen.simulation.granularity == "collective"
    assert chosen.seconds == pytest.approx(exact.seconds, rel=1e-9)


def check_passes(experiment, within):
    exact, _ = predicted(experiment, "exact")
    record, timeline = predicted(experiment, "passes")
    assert record.simulation.granularity == "passes" and record.simulation.approximation
    assert record.seconds == pytest.approx(exact.seconds, rel=within)
    assert record.pass_orders == exact.pass_orders
    assert timeline.makespan == pytest.approx(record.seconds)
    assert sum(segment.seconds for segment in record.critical_path) == pytest.approx(record.seconds)
    return exact, record


@pytest.mark.parametrize(
    ("grid", "schedule", "batch", "flags", "within"),
    [
        ("pipeline=4,data=2", "1f1b", 50, {"stages": "3,1,2,2"}, 0.005),
        ("pipeline=2,data=2", "1f1b", 51, {}, 0.001),
        ("pipeline=4", "zb-h1", 29, {}, 0.002),
        ("pipeline=4,x=2", "gpipe", 29, {}, 0.01),
        ("pipeline=4,x=2", "interleaved", 37, {"interleave": "2"}, 0.03),
        ("pipeline=2,data=2", "message-driven", 50, {"zero": "2", "recompute": "full"}, 1e-6),
    ],
)
def test_the_passes_of_a_smaller_last_microbatch_have_times_of_their_own(grid, schedule, batch, flags, within):
    exact, record = check_passes(training(grid, schedule, batch=batch, micro_batch="4", **flags), within)
    by_name = {op.name: op for op in exact.ops}
    assert {op.name: op.count for op in record.ops} == {name: op.count for name, op in by_name.items()}
    for op in record.ops:
        assert op.bytes_sent_total == by_name[op.name].bytes_sent_total
    for name in ("attention", "up multiply"):
        seconds = {op.name: op.seconds for op in record.ops}
        assert seconds[name] == pytest.approx(by_name[name].seconds, rel=0.04 if batch % 2 else 1e-6)


@pytest.mark.parametrize("schedule", ["zb-h1", "message-driven"])
def test_ops_run_as_often_and_as_long_as_in_the_simulation_of_every_op(schedule):
    experiment = training("pipeline=4,x=2", schedule)
    exact, record = (predicted(experiment, granularity)[0] for granularity in ("exact", "passes"))
    by_name = {op.name: op for op in exact.ops}
    assert {op.name: op.count for op in record.ops} == {name: op.count for name, op in by_name.items()}
    for op in record.ops:
        of_exact = by_name[op.name]
        assert op.bytes_sent_total == of_exact.bytes_sent_total
        if op.axis is None:
            assert op.seconds == pytest.approx(of_exact.seconds, rel=1e-6), op.name


@pytest.mark.parametrize(
    ("grid", "schedule", "flags"), [("pipeline=2,x=2", "1f1b", {}), ("pipeline=3", "zb-v", {"stages": "3,2,3"})]
)
def test_the_noise_of_passes_is_that_of_their_ops(grid, schedule, flags):
    usual, _ = predicted(training(grid, schedule, **flags), "passes")
    noisy = training(grid, schedule, jitter="compute=0.2,seed=1", **flags)
    exact, _ = predicted(noisy, "exact")
    record, timeline = predicted(noisy, "passes")
    assert exact.seconds > 1.01 * usual.seconds and record.seconds > 1.01 * usual.seconds
    assert record.seconds == pytest.approx(exact.seconds, rel=0.015)
    assert timeline.makespan == pytest.approx(record.seconds)
    assert sum(segment.seconds for segment in record.critical_path) == pytest.approx(record.seconds)


def test_noise_depends_on_the_seed_and_is_none_with_a_sigma_of_zero():
    def noisy(jitter, granularity="passes"):
        return predicted(training("pipeline=2,data=2", "1f1b", microbatches=4, jitter=jitter), granularity)[0].seconds

    seconds = {jitter: noisy(jitter) for jitter in ("", "compute=0", "compute=0.1", "compute=0.1,seed=1", "gpus=0.1")}
    assert seconds["compute=0"] == seconds[""] < seconds["compute=0.1"] != seconds["compute=0.1,seed=1"]
    assert noisy("compute=0.1") == seconds["compute=0.1"]
    assert (
        seconds["gpus=0.1"] == pytest.approx(noisy("gpus=0.1", "exact"), rel=1e-6) and seconds["gpus=0.1"] > seconds[""]
    )


def test_more_data_shards_wait_for_a_slower_one():
    few, many = (
        predicted(training(f"pipeline=2,data={data}", "1f1b", jitter="compute=0.2"), "passes")[0].seconds
        / predicted(training(f"pipeline=2,data={data}", "1f1b"), "passes")[0].seconds
        for data in (1, 8)
    )
    assert many > few


def test_a_long_step_with_noise_is_walked_through_by_its_passes():
    experiment = training("pipeline=2,x=2", "1f1b", jitter="compute=0.1")
    short, long = (predicted(experiment, "auto", limits=Limits(long_seconds=seconds))[0] for seconds in (1e9, 1e-9))
    assert short.simulation.granularity == "exact" and long.simulation.granularity == "passes"


def test_a_slow_gpu_in_one_data_shard_is_found():
    experiment = training("pipeline=2,x=2,data=2", "message-driven")
    usual, _ = predicted(experiment, "passes")
    exact, record = (predicted(experiment, granularity, slow=("gpu:5=0.5",))[0] for granularity in ("exact", "passes"))
    assert record.seconds > 1.02 * usual.seconds
    assert record.seconds == pytest.approx(exact.seconds, rel=0.02)


def test_the_simulation_of_flows_does_not_grow_with_microbatches():
    few, many = (
        predicted(training("pipeline=4,x=2", "message-driven", microbatches=count), "passes")[0] for count in (8, 32)
    )
    assert few.simulation.events == many.simulation.events and many.seconds > 3 * few.seconds
    assert len(many.pass_orders[0]) == 64


@pytest.mark.parametrize(
    ("schedule", "interleave"), [("1f1b", "1"), ("zb-h1", "1"), ("interleaved", "2"), ("zb-v", "2")]
)
def test_a_schedule_of_single_passes_has_each_pass_once(schedule, interleave):
    experiment = training("pipeline=4", schedule, interleave=interleave)
    single = with_single_passes(experiment.schedule(), experiment.stages)
    for rank in range(4):
        phases = {section for _, _, section in sections(single, rank)}
        counts = Counter(section.kind for section in phases if section.phase == "passes")
        assert counts == dict.fromkeys("FBW" if schedule.startswith("zb") else "FB", int(interleave))


@pytest.mark.parametrize(("schedule", "collectives"), [("message-driven", "own"), ("1f1b", "nccl")])
def test_what_would_take_long_is_walked_through_by_its_passes(schedule, collectives):
    experiment = training("pipeline=4,x=2", schedule, collectives=collectives)
    short, long = (
        predicted(experiment, "auto", machine="selene", limits=Limits(long_seconds=seconds))[0]
        for seconds in (1e9, 1e-9)
    )
    assert short.simulation.granularity != "passes" and long.simulation.granularity == "passes"
    assert long.seconds == pytest.approx(short.seconds, rel=1e-6)


def test_ranks_of_a_trace_are_those_that_were_asked_for(capsys, tmp_path):
    words = ["--gpt", GPT, "--batch", "8", "--micro-batch", "1", "--grid", "pipeline=4,x=2", "--machine", "perlmutter"]
    asked = ["--granularity", "passes", "--trace", tmp_path / "t.json", "--ranks", "1,6", "--json", tmp_path / "r.json"]
    ended = called(capsys, "simulate", *words, *asked)
    assert ended.status == 0 and "granularity of passes: 8 ranks are not simulated one by one" in ended.err
    traced = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {event["pid"] for event in traced if event["ph"] == "X"} == {1, 6}
    assert "critical path" in called(capsys, "explain", tmp_path / "r.json").out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--matmul", "64,64,64", "--grid", "x=2"], "granularity passes: is for training on a grid with pipeline=2"),
        (
            ["--gpt", GPT, "--batch", "2", "--grid", "x=2"],
            "granularity passes: is for training on a grid with pipeline",
        ),
        (["--gpt", GPT, "--batch", "2", "--grid", "pipeline=2", "--steps", "3"], "predicts one step, and there are 3"),
        (
            ["--gpt", GPT, "--batch", "2", "--grid", "pipeline=2", "--jitter", "network=0.1"],
            "knows no single message, and jitter network=0.1",
        ),
    ],
)
def test_what_has_no_passes_is_refused(capsys, words, line):
    ended = called(capsys, "simulate", *words, "--machine", "perlmutter", "--granularity", "passes")
    assert ended.status == 2 and line in ended.err and ended.err.count("\n") == 1


def test_the_rank_with_the_most_rows_of_experts_stands_for_its_stage():
    sizes = "layers=4,hidden=256,heads=4,sequence=256,vocabulary=512,experts=4,top_k=1,expert_ffn=4096"
    flags = {"batch": "16", "micro_batch": "1", "dtype": "bfloat16", "collectives": "own", "expert_load": "1,1,20,1"}
    experiment = experiment_of(TrainingFlags(gpt=sizes, grid="pipeline=2,data=4,expert=4", **flags))
    exact, passes = (predicted(experiment, granularity, machine="h100-node")[0] for granularity in ("exact", "passes"))
    assert passes.seconds_per_iteration == pytest.approx(exact.seconds_per_iteration, rel=0.02)
    ranks = {segment.rank for segment in passes.critical_path if segment.rank is not None}
    assert {rank % 4 for rank in ranks} == {2}


def test_rows_to_a_hot_expert_take_as_long_as_rows_from_it_by_nccl():
    sizes = "layers=1,hidden=256,heads=4,sequence=1024,vocabulary=512,experts=4,top_k=1,expert_ffn=256"
    flags = {"batch": "32", "micro_batch": "8", "dtype": "bfloat16", "collectives": "nccl"}
    shortest = {}
    for load in ("1,1,1,1", "1,1,17,1", "17,1,1,1"):
        experiment = experiment_of(TrainingFlags(gpt=sizes, grid="data=4,expert=4", expert_load=load, **flags))
        _, timeline = predicted(experiment, "auto", machine="h100-node")
        for name in ("send to experts", "return from experts"):
            shortest[load, name] = min(span.seconds for span in timeline.spans if span.op == name)
    even = shortest["1,1,1,1", "send to experts"]
    hot = [shortest[load, name] for load, name in shortest if load != "1,1,1,1"]
    assert hot == pytest.approx([hot[0]] * 4, rel=1e-3)
    assert hot[0] > 1.3 * even
