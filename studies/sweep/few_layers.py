"""A training step on one grid of a machine: a few of its layers are simulated, the others follow.

Layers are alike, so from the second on each adds the same to every figure of the
step.  Where ops overlap, this holds once the layers have fallen into step:

    5b, batch 64, 64 GPUs of Perlmutter, oag, oar and ors: a layer's milliseconds after 2, 3, 4, 5, 6, 8 layers

    z=64         52.29  52.31  52.29  52.31  55.14  55.20
    z=32, x=2    28.72  28.74  29.21  30.21  30.24  30.24
    data=4, z=16 52.22  53.49  53.89  53.82  53.82  53.82

so that there six and eight layers are simulated, and elsewhere two and three.
"""

from dataclasses import dataclass, replace
from typing import Literal

from algorithms.formats.machine import Machine
from algorithms.grid import AXES, Axis
from algorithms.training.gpt import Gpt
from algorithms.training.mlp import Mlp
from studies.training_experiment import TrainingExperiment

Granularity = Literal["auto", "exact", "collective"]
FEW = (2, 3)
IN_STEP = (6, 8)
"""The same where ops overlap."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one training step takes; seconds by kind are of the mean rank.

    Parameters
    ----------
    seconds : from the first rank's start to the last one's end
    compute_seconds : the compute lane is busy
    exposed_seconds : communication while it is idle, by axis
    layers : the most that were simulated
    bounded : whether the simulation was one of whole collectives, which is not exact
    """

    seconds: float
    compute_seconds: float
    exposed_seconds: dict[Axis, float]
    layers: int
    bounded: bool = False


def simulated_step(experiment: TrainingExperiment, machine: Machine) -> Step:
    """The step as the simulator predicts it, with shards of mean size.

    Raises
    ------
    InputError : a grid or a machine that cannot be
    """
    match experiment.problem:
        case Mlp():
            return _simulated(experiment, machine)
        case Gpt(layers=layers, steps=steps):
            few, more = IN_STEP if experiment.overlaps else FEW
            if layers <= more or steps > 1 or experiment.grid.pipeline > 1:
                return _simulated(experiment, machine)
            second = _simulated(of_layers(experiment, more), machine)
            first = _simulated(of_layers(experiment, few), machine, "collective" if second.bounded else "exact")
            return continued(first, second, (layers - few) / (more - few))


def of_layers(experiment: TrainingExperiment, layers: int) -> TrainingExperiment:
    """The same with so many layers."""
    assert isinstance(experiment.problem, Gpt)
    return replace(experiment, problem=replace(experiment.problem, layers=layers))


def continued(few: Step, more: Step, times: float) -> Step:
    """The step that is `times` as far from `few` as `more` is.

    >>> continued(Step(1.0, 0.5, {"x": 0.5}, 2), Step(1.75, 1.0, {"x": 0.75}, 3), 10.0)
    Step(seconds=8.5, compute_seconds=5.5, exposed_seconds={'x': 3.0}, layers=3, bounded=False)
    """

    def straight(low: float, high: float) -> float:
        return low + times * (high - low)

    return Step(
        straight(few.seconds, more.seconds),
        straight(few.compute_seconds, more.compute_seconds),
        {axis: straight(seconds, more.exposed_seconds[axis]) for axis, seconds in few.exposed_seconds.items()},
        more.layers,
        few.bounded or more.bounded,
    )


def _simulated(experiment: TrainingExperiment, machine: Machine, granularity: Granularity = "auto") -> Step:
    from simulator.folding.even_shards import evenly
    from simulator.simulate import simulate

    schedule = evenly(experiment.schedule())
    ran = simulate(
        schedule, machine, choices=experiment.choices, placement=experiment.placement, granularity=granularity
    )
    times = ran.op_times().values()
    exposed = {
        axis: sum(one.exposed_seconds for one in times if one.axis == axis)
        for axis in AXES
        if experiment.grid.length(axis) > 1
    }
    layers = experiment.problem.layers if isinstance(experiment.problem, Gpt) else len(experiment.problem.widths) - 1
    compute = sum(one.seconds for one in times if one.axis is None)
    return Step(ran.timeline.makespan, compute, exposed, layers, bounded=ran.bound is not None)
