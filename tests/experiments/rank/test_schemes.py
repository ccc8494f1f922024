"""`quadrille rank` over schemes, pipelines, ZeRO and microbatches: what is tried, what it costs, what is left out."""

import json
from dataclasses import replace

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.memory import largest_memory
from quadrille.algorithms.training.pipeline import Stages
from quadrille.algorithms.training.scheme_catalogue import SCHEMES, find_scheme
from quadrille.cli.parsing.flags import RankFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.ranking import parse_question, parse_space
from quadrille.experiments.predict.step_parts import StepParts, sample_experiment
from quadrille.experiments.predict.training_step import simulated_step
from quadrille.experiments.rank.configuration_evaluator import Evaluator
from quadrille.experiments.rank.configuration_search import search_configurations
from quadrille.experiments.rank.configurations import configurations
from quadrille.experiments.rank.work_sharing import WorkSharing
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from tests.support.by_words import ranked as rank
from tests.support.quadrille import called

ON = MachineFlags(machine="perlmutter")
MODEL = "layers=6,hidden=1024,heads=8,sequence=512,vocabulary=6400"
SIZES = {"gpt": MODEL, "batch": "16", "gpus": "8", "search": "none"}


def question(**flags):
    return parse_question(RankFlags(**(SIZES | flags)), ON)


def space(**flags):
    usual = dict.fromkeys(("scheme", "pipeline", "zero", "micro_batch", "interleave"), "")
    return parse_space(RankFlags(**(usual | {"sequence_parallel": False, "search": "none"} | flags)))


@pytest.fixture(scope="module")
def answer():
    flags = RankFlags(**SIZES, scheme="megatron,bian", zero="0,1", top="4")
    return rank(flags, ON, json="-")


@pytest.mark.parametrize(
    ("grid", "changes", "overlap"),
    [
        (Grid(pipeline=2, x=2, data=2), {"micro_batch": 1}, "none"),
        (Grid(pipeline=4, x=2), {"micro_batch": 2}, "none"),
        (Grid(pipeline=2, z=2, x=2), {"micro_batch": 2, "interleave": 3}, "none"),
        (Grid(z=4, x=2), {"micro_batch": 1}, "none"),
        (Grid(pipeline=2, data=4), {"micro_batch": 1, "zero": 2}, "none"),
        (Grid(z=4, x=2), {"micro_batch": 2, "layers": 9}, "oar,ors,oag"),
        (Grid(z=4, x=2), {"micro_batch": 4, "layers": 9}, "oag"),
        (Grid(pipeline=2, data=2, x=2), {"micro_batch": 1, "zero": 1}, "ogr"),
        (Grid(pipeline=2, data=2, x=2), {"micro_batch": 1, "zero": 1}, "opg"),
        (Grid(pipeline=4, x=2), {"micro_batch": 4, "batch": 26}, "none"),
        (Grid(pipeline=2, z=2, x=2), {"micro_batch": 4, "batch": 26}, "none"),
        (Grid(pipeline=2, z=2, x=2), {"micro_batch": 4, "batch": 26, "pipeline_schedule": "zb-h1"}, "none"),
        (Grid(data=4, x=2), {"micro_batch": 2, "batch": 28}, "none"),
        (Grid(pipeline=2, context=2, x=2), {"micro_batch": 2}, "none"),
    ],
)
def test_a_step_put_together_from_its_parts_takes_as_long_as_the_whole_step(grid, changes, overlap):
    asked = question(collectives="own", overlap=overlap)
    one = replace(asked.training, grid=grid, problem=replace(asked.problem, **changes))
    whole = simulated_step(one, asked.machine, granularity="exact")
    step = Evaluator(asked, {}).simulated(one, "exact")
    assert step.seconds == pytest.approx(whole.seconds, rel=0.05)
    assert step.compute == pytest.approx(whole.compute, rel=0.05)
    parts = step.compute + step.latency + step.transfer - step.hidden + step.waiting
    assert parts == pytest.approx(step.seconds)


def test_the_fullest_stage_sets_the_pace_where_layers_do_not_come_out_even():
    parts = StepParts(0.0, 0.0, 0.0, 3.0)
    few, many = (parts.step(Stages(2, 7, count)) for count in (20, 40))
    assert many - few == pytest.approx(20 * 4 * 3.0)


def test_microbatches_beyond_those_walked_take_as_long_as_the_slowest_stage():
    parts = StepParts(1.0, 0.5, 2.0, 3.0)
    walked, more, most = (parts.step(Stages(2, 4, count), hop=0.25) for count in (8, 9, 40))
    assert most - walked == pytest.approx(32 * (more - walked))


def test_a_sample_is_of_one_stage_and_has_few_slots():
    asked = question()
    one = replace(asked.training, grid=Grid(pipeline=2, z=2, x=2), problem=replace(asked.problem, micro_batch=1))
    few = sample_experiment(one)
    assert (few.grid.size, few.problem.layers, few.stages.microbatches) == (4, 3, 2)
    assert few.problem.micro_batch == 1
    deep = replace(one, problem=replace(one.problem, layers=9))
    beside = replace(deep, execution=replace(deep.execution, overlaps=frozenset({"oag"})))
    assert (sample_experiment(deep).problem.layers, sample_experiment(beside).problem.layers) == (3, 6)


def test_every_grid_of_every_scheme_is_looked_at_or_left_out():
    found, left_out = configurations(question(), space(scheme="all", pipeline="auto", micro_batch="1"))
    boxes = 20 + 10 + 4 + 1  # of 8, 4, 2 and 1 ranks over four axes
    assert len(found) + sum(left_out.counts.values()) == boxes * len(SCHEMES)
    assert len({(one.scheme.name, one.grid) for one in found}) == len(found)
    assert all(one.grid.size == 8 for one in found)


def test_grids_with_a_context_axis_are_tried_if_they_are_named():
    asked = question(context_parallel="all-gather")
    without, _ = configurations(asked, space(scheme="megatron,optimus"))
    both, left_out = configurations(asked, space(scheme="megatron,optimus", context="1,4"))
    more = {(str(one.grid), one.problem.context_parallel) for one in both if one.grid.context > 1}
    assert more == {(grid, "all-gather") for grid in ("data=2,context=4", "context=4,x=2")}
    assert [one for one in both if one.grid.context == 1] == without
    assert any("lacks" in reason for reason in left_out.counts)


def test_the_4d_algorithm_on_x_alone_is_tried_once_as_megatrons():
    both, left_out = configurations(question(), space(scheme="4d,megatron"))
    alone, _ = configurations(question(), space(scheme="4d"))
    on_x = [one for one in both if one.grid.z == one.grid.y == 1]
    assert {one.scheme.name for one in on_x} == {"megatron"}
    assert {(one.grid, one.problem) for one in both} == {(one.grid, one.problem) for one in alone}
    assert any("megatron" in reason for reason in left_out.counts)


def test_memory_is_that_of_the_fullest_rank_of_the_schedule():
    asked = question()
    for grid, micro in ((Grid(pipeline=2, z=2, x=2), 2), (Grid(data=4, x=2), 4)):
        one = replace(asked.training, grid=grid, problem=replace(asked.problem, micro_batch=micro))
        assert experiment_peak_bytes(one) == sum(largest_memory(one.schedule(), one.execution.choices).values())


def test_without_a_pipeline_the_largest_microbatch_that_fits_is_taken():
    asked = question()
    roomy = search_configurations(asked, space(scheme="megatron"), WorkSharing())
    assert {one.experiment.problem.micro_batch for one in roomy.best if one.experiment.grid.data == 2} == {8}
    small = min(one.peak_bytes for one in roomy.best)
    tight = replace(asked, machine=with_memory(asked.machine, small))
    for one in search_configurations(tight, space(scheme="megatron"), WorkSharing()).best:
        assert one.peak_bytes <= small
        larger = replace(one.experiment.problem, micro_batch=2 * one.experiment.problem.micro_batch)
        if 16 % (larger.micro_batch * one.experiment.grid.data) == 0:
            assert experiment_peak_bytes(replace(one.experiment, problem=larger)) > small


def with_memory(machine, size):
    import msgspec

    return msgspec.structs.replace(machine, device=msgspec.structs.replace(machine.device, memory_bytes=size))


def test_the_answer_has_both_orders_and_says_what_was_left_out(answer):
    modelled = [one.seconds for one in answer.analytical]
    simulated = [one.seconds for one in answer.simulated]
    assert modelled == sorted(modelled)
    assert simulated == sorted(simulated)
    assert sorted(one.analytical_place for one in answer.simulated) == [1, 2, 3, 4]
    assert {one.zero for one in answer.analytical} == {0, 1}
    assert {one.scheme for one in answer.analytical} == {"megatron", "bian"}
    assert all(one.configurations > 0 and one.example for one in answer.left_out)
    assert "closed form" in answer.analytical_model


def test_rank_orders_are_tried_of_the_best_only_if_none_is_given():
    asked = question(top="1")
    free = search_configurations(asked, space(scheme="4d"), WorkSharing())
    held = search_configurations(question(top="1", order="data,z,x,y"), space(scheme="4d"), WorkSharing())
    assert {one.experiment.grid.order for one in held.best} == {("data", "z", "x", "y", "context", "pipeline")}
    assert free.best[0].step.seconds <= held.best[0].step.seconds
    assert any("rank order" in reason for reason in free.excluded.counts)


def test_the_command_it_names_simulates_the_same_step(capsys):
    flags = ["--gpt", MODEL, "--batch", "16", "--gpus", "8", "--machine", "perlmutter", "--search", "none"]
    named = called(capsys, "rank", *flags, "--scheme", "megatron", "--zero", "1", "--top", "1").out.splitlines()[-1]
    command = named.partition("quadrille ")[2].split()
    again = json.loads(called(capsys, *command, "--json", "-").out)
    said = float(named.partition("simulated, ")[2].split()[0]) * 1e-3
    assert " ms an iteration" in named
    assert again["seconds_per_iteration"] == pytest.approx(said, rel=0.02)


def test_with_a_form_the_answer_is_that_of_the_grids():
    plain = rank(RankFlags(gpt="tiny", batch="8", gpus="4", top="1", form="exact"), ON, json="-")
    assert not hasattr(plain, "left_out")
    assert not hasattr(plain.analytical[0], "scheme")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"scheme": "4d,cube"}, "scheme 'cube'"),
        ({"scheme": "optimus", "sequence_parallel": True}, "it is accepted with megatron"),
        ({"context": "3"}, "context 3: a number of ranks that divides 8 GPUs"),
        ({"pipeline": "3"}, "pipeline 3: a number of stages that divides 8 GPUs"),
        ({"zero": "4"}, "--zero '4': a whole number from 0 to 3"),
        ({"interleave": "2"}, "--pipeline auto or N is needed"),
        ({"interleave": "4", "pipeline": "2"}, "must be a multiple of pipeline=2 times 4"),
        ({"micro_batch": "17"}, "micro-batch 17: at most "),
        ({"pipeline": "8"}, "up to pipeline=6 is accepted"),
        ({"scheme": "bian", "min_model_parallel": "9"}, "min_model_parallel 9: at most the number of GPUs, 8"),
        ({"scheme": "4d", "gpt": "80b"}, "would help"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(flags, said):
    with pytest.raises(InputError) as refused:
        rank(RankFlags(**(SIZES | flags)), ON, json="-")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_microbatches_that_do_not_divide_are_tried_if_they_are_named():
    flags = {"scheme": "megatron", "pipeline": "2", "top": "1", "collectives": "own"}
    unnamed, named = (rank(RankFlags(**SIZES, **flags, **more), ON, json="-") for more in ({}, {"micro_batch": "6"}))
    assert 16 % unnamed.simulated[0].micro_batch == 0
    assert named.simulated[0].micro_batch == 6


def test_the_whole_batch_is_tried_as_a_microbatch_if_data_does_not_divide_it():
    possible, _ = configurations(question(batch="18"), space(scheme="megatron", pipeline="1"))
    assert {one.problem.micro_batch for one in possible if one.grid.data == 8} == {3}


def test_sequence_parallel_is_megatrons_and_leaves_other_schemes_as_they_are():
    schemes = space(scheme="4d,megatron", sequence_parallel=True).schemes
    assert schemes == (find_scheme("4d"), find_scheme("megatron", sequence_parallel=True))
