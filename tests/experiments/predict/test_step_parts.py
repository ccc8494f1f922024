"""The parts of a sampled step: what the overlap of sums over data moves into a loop of its own still counts."""

from dataclasses import replace

import pytest

from quadrille.algorithms.passes.overlap import OVERLAPS
from quadrille.algorithms.schedule.ops import Communication
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.sampled_step import closed_form_step, sample_costs, sampled_step
from quadrille.experiments.predict.step_parts import NEITHER, OF_BOTH, OF_LAYERS, loops_by_op, sample_experiment
from quadrille.experiments.predict.training_step import simulated_ops, simulated_step
from quadrille.experiments.sweep.layouts import Layout
from quadrille.experiments.sweep.sweep_points import OneGrid, with_point_choices
from quadrille.topologies.find_machine import find_machine

GPT = "layers=6,hidden=1024,heads=16,sequence=1024,vocabulary=4096"


def step(microbatches, overlaps, layers=6, grid="data=8,x=2"):
    options = {"zero": 1, "micro_batch": 1}
    layout = Layout(name="", gpt=GPT.replace("layers=6", f"layers={layers}"), grid=grid, options=options).experiment(
        8 * microbatches
    )
    execution = replace(layout.execution, overlaps=frozenset(overlaps))
    return with_point_choices(OneGrid(replace(layout, execution=execution), find_machine("h100-superpod", gpus=16)))


@pytest.mark.parametrize("overlaps", [("ogr",), OVERLAPS])
def test_the_closed_form_of_many_microbatches_is_that_of_the_simulated_step(overlaps):
    point = step(8, overlaps)
    experiment, machine = point.experiment, point.machine
    model = ClosedFormModel(machine, experiment.dtype, 16, experiment.execution.choices, experiment.execution.threads)
    modelled = closed_form_step(experiment, lambda sampled: sample_costs(sampled, model), model)
    assert modelled.seconds == pytest.approx(simulated_step(experiment, machine).seconds, rel=0.15)


@pytest.mark.parametrize("microbatches", [2, 3])
def test_ops_of_microbatches_count_in_both_loops_and_sums_over_data_once(microbatches):
    schedule = step(microbatches, ("ogr",)).experiment.applied_schedule()
    loops, plain = loops_by_op(schedule), loops_by_op(step(microbatches, ()).experiment.applied_schedule())
    sums = {op.name for op in all_ops(schedule) if isinstance(op, Communication) and op.overlap == "ogr"}
    assert {name: loops[name] for name in plain} == plain
    assert sums
    assert OF_BOTH in loops.values()
    assert {loops[name] for name in sums} <= {OF_LAYERS, NEITHER}


@pytest.mark.parametrize("overlaps", [("ogr",), OVERLAPS])
def test_sums_over_data_stay_outside_the_passes_of_a_pipeline_in_a_sample_and_in_the_step(overlaps):
    """The microbatches of four stages are eight for each data rank."""
    point = step(2, overlaps, layers=12, grid="pipeline=4,data=2,x=2")
    experiment, machine = point.experiment, point.machine
    of_sample = sample_experiment(experiment).execution.overlaps
    assert of_sample == {*overlaps} - {"ogr"}
    model = ClosedFormModel(machine, experiment.dtype, 16, experiment.execution.choices, experiment.execution.threads)
    sampled = sampled_step(experiment, lambda sample: simulated_ops(sample, machine, "auto"), model)
    whole = simulated_step(experiment, machine)
    assert sampled.seconds == pytest.approx(whole.seconds, rel=0.05)
    assert sampled.exposed_seconds_by_axis["data"] == pytest.approx(whole.exposed_seconds_by_axis["data"], rel=0.25)
