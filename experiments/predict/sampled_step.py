"""A training step from a sample of it: few layers and microbatches, by the closed form or by simulation.

The sample runs on the ranks of one stage.  Its ops are divided into parts (`step_parts.py`), and the parts are put
together as the slots of the pipeline follow each other (`pipeline_slots.py`).
"""

from collections.abc import Mapping

from quadrille.algorithms.formats.record import Granularity
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import Communication
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import ITEM_BYTES
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.vocabulary import TABLE
from quadrille.experiments.predict.closed_form import Yardstick
from quadrille.experiments.predict.depths import FEW, straight
from quadrille.experiments.predict.step_parts import hops_of, loops_of, parts_of, sample, stages_of
from quadrille.experiments.predict.training_step import TrainingStep, noticed, of_layers, ran_step
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.topologies.machines.machine import Machine


def closed_form_step(experiment: TrainingExperiment, yardstick: Yardstick) -> TrainingStep:
    """The step of a configuration from the closed form of its sample; communication is not hidden."""
    sampled = sample(experiment)
    schedule = sampled.applied_schedule()
    loops, priced = loops_of(schedule), list(yardstick.priced(schedule))
    local, moving = (
        parts_of(((loops[op.name], cost) for op, _, cost in priced if isinstance(op, Communication) is moves), sampled)
        for moves in (False, True)
    )
    stages, hop = stages_of(experiment), _hop(experiment, yardstick)
    seconds = (local + moving).step(stages, hop) + _exchange(experiment, schedule, yardstick)
    compute, transfer = local.reporting(stages), moving.reporting(stages) + hops_of(stages) * hop
    waiting = noticed(seconds - compute - transfer, seconds)
    return TrainingStep(
        seconds=seconds, compute=compute, transfer=transfer, waiting=waiting, exposed_seconds_by_axis={}
    )


def _hop(experiment: TrainingExperiment, yardstick: Yardstick) -> float:
    """Seconds that a microbatch's activations take from a stage to the next."""
    problem, grid, stream = experiment.problem, experiment.grid, experiment.scheme.stream
    if grid.pipeline == 1:
        return 0.0
    assert isinstance(problem, Gpt)
    elements = problem.tokens // stages_of(experiment).microbatches * problem.hidden
    for axis in (*stream.rows, *stream.finer, stream.columns):
        elements = -(-elements // grid.length(axis))
    size = elements * ITEM_BYTES[problem.dtype]
    return yardstick.hops.axis_link(grid, "pipeline", 1, size).seconds(size)


def _exchange(experiment: TrainingExperiment, sampled: Schedule, yardstick: Yardstick) -> float:
    """Seconds in which the first and the last stage exchange their parts of a shared table's gradient."""
    assert isinstance(experiment.problem, Gpt)
    if experiment.grid.pipeline == 1 or not experiment.problem.architecture.shared_table:
        return 0.0
    gradient = f"d{TABLE}"
    size = sampled.tensors[gradient].block(sampled.coordinates(0)).elements * sampled.item_bytes(gradient)
    return 2 * yardstick.hops.axis_link(experiment.grid, "pipeline", experiment.grid.pipeline - 1, size).seconds(size)


def sampled_step(
    experiment: TrainingExperiment, machine: Machine, granularity: Granularity, yardstick: Yardstick
) -> TrainingStep:
    """The step of a configuration from a simulation of its sample.

    Waiting for the last member of a group belongs to no op; it is spread over all parts in proportion.
    """
    sampled = sample(experiment)
    ran = ran_step(sampled, machine, granularity)
    loops, stages, hop = loops_of(ran.schedule), stages_of(experiment), _hop(experiment, yardstick)

    def reporting(seconds: Mapping[str, float]) -> float:
        return parts_of(((loops[name], each) for name, each in seconds.items()), sampled).reporting(stages)

    local = {op.name: op.seconds for op in ran.every.ops if op.axis is None}
    moving = {op.name: op for op in ran.every.ops if op.axis is not None}
    exposed = {name: op.exposed_seconds for name, op in moving.items()}
    charged = parts_of(((loops[name], each) for name, each in (local | exposed).items()), sampled)
    waits = ran.every.seconds / sum((local | exposed).values())
    seconds = charged.times(waits).step(stages, hop) + _exchange(experiment, ran.schedule, yardstick)
    compute, busy = reporting(local), reporting({name: op.seconds for name, op in moving.items()})
    latency, sent = reporting(ran.latency), hops_of(stages) * hop
    hidden = noticed(busy - reporting(exposed), busy)
    by_axis: dict[Axis, float] = {
        axis: reporting({name: each for name, each in exposed.items() if moving[name].axis == axis})
        for axis in sampled.grid.lengths
        if sampled.grid.length(axis) > 1
    }
    return TrainingStep(
        seconds=seconds,
        compute=compute,
        latency=latency,
        transfer=busy - latency + sent,
        hidden=hidden,
        waiting=noticed(seconds - compute - busy - sent + hidden, seconds),
        contention=noticed(reporting({name: ran.contention.get(name, 0.0) for name in moving}), seconds),
        exposed_seconds_by_axis=by_axis | ({"pipeline": sent} if sent else {}),
        layers=stages_of(sampled).layers,
        bounded=ran.bounded,
        even=ran.even,
    )


def closed_form_seconds(experiment: TrainingExperiment, yardstick: Yardstick) -> float:
    """Seconds of a step by the closed form, from a few of its layers."""
    if not isinstance(experiment.problem, Gpt) or experiment.problem.layers <= max(FEW):
        return yardstick.closed_form(experiment.unchecked_schedule()).seconds
    few, more = (yardstick.closed_form(of_layers(experiment, count).unchecked_schedule()).seconds for count in FEW)
    return straight(few, more, FEW, experiment.problem.layers)
