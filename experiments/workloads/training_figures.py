"""Figures of a training step, measured or predicted: time of an iteration, rates, memory by kind.

Records, sweeps and `rank` use these figures:

    seconds of an iteration = (makespan - time of what happens once before the first step) / steps
    flop/s of a GPU         = flop of a step / (seconds of an iteration · GPUs)
    percent of peak         = 100 · hardware flop/s of a GPU / peak of the device in the dtype

The setup before the first step (zeroed moments of the optimizer) counts with the time of
the mean rank.  Flop of the model and of the hardware: `quadrille.algorithms.training.flops`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from quadrille.algorithms.analysis.storage import storages
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import AXES, Axis
from quadrille.algorithms.schedule.program import Repeat, ops
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.training.adam import STEP
from quadrille.algorithms.training.flops import flops_per_second_per_gpu
from quadrille.algorithms.training.memory import largest_memory
from quadrille.experiments.workloads.fullest_device import FullestDevice, fullest_device
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:
    from quadrille.experiments.workloads.experiment import Experiment


class OpSeconds(Protocol):
    """Times of one op, means over ranks [s]: of a record, or of a prediction."""

    @property
    def name(self) -> str: ...

    @property
    def axis(self) -> str | None: ...

    @property
    def seconds(self) -> float: ...

    @property
    def exposed_seconds(self) -> float: ...


AnyOp = TypeVar("AnyOp", bound=OpSeconds)


@dataclass(frozen=True, slots=True)
class RunTimes:
    """The times of a run, or of a prediction of a run.

    Parameters
    ----------
    seconds : time of all steps [s]
    ops : times of the ops
    machine : machine of the run; None if unknown
    losses : loss of every step; None for a prediction
    device : device that most ranks share; None if unknown
    """

    seconds: float
    ops: Sequence[OpSeconds]
    machine: Machine | None
    losses: tuple[float, ...] | None = None
    device: FullestDevice | None = None


@dataclass(frozen=True, slots=True)
class FlopRates:
    """Operations per second of a GPU, by the module's formulas; the percentage is None if no peak is known."""

    model_flops_per_second_per_gpu: float
    hardware_flops_per_second_per_gpu: float
    percent_of_peak: float | None


def rates(experiment: TrainingExperiment, seconds: float, machine: Machine | None) -> FlopRates:
    """The rates of a step.

    Parameters
    ----------
    seconds : time of an iteration [s], more than 0
    """
    counted, gpus = experiment.step_flops, experiment.grid.size
    model, hardware = (flops_per_second_per_gpu(flops, seconds, gpus) for flops in (counted.model, counted.hardware))
    peak = machine.device.peak_flops_per_second.get(experiment.dtype) if machine is not None else None
    return FlopRates(model, hardware, 100 * hardware / peak if peak else None)


@dataclass(frozen=True, slots=True)
class Iterations(Generic[AnyOp]):
    """The times of all steps.

    Parameters
    ----------
    seconds : time of an iteration, by the module's formula [s]
    ops : times of the ops of the steps, all iterations together
    steps : number of steps
    """

    seconds: float
    ops: tuple[AnyOp, ...]
    steps: int

    def mean(self, seconds: Iterable[float]) -> float:
        """The time of one iteration [s], given times over all iterations."""
        return sum(seconds) / self.steps


def iterations(
    experiment: TrainingExperiment, schedule: Schedule, makespan: float, every: Iterable[AnyOp]
) -> Iterations[AnyOp]:
    """The times of the steps of a run or of a prediction, without the setup before the first step."""
    before = {
        op.name
        for role in schedule.roles
        for entry in role.program
        for op in (ops((entry,)) if not isinstance(entry, Repeat) or entry.loop != STEP else ())
    }
    told, steps = tuple(every), experiment.problem.steps
    once = sum(op.seconds for op in told if op.name in before)
    return Iterations(max(0.0, makespan - once) / steps, tuple(op for op in told if op.name not in before), steps)


def exposed_by_axis(experiment: "Experiment", every: Sequence[OpSeconds]) -> dict[Axis, float]:
    """Exposed communication of the mean rank, by axis with more than one rank [s]."""
    return {
        axis: sum(op.exposed_seconds for op in every if op.axis == axis)
        for axis in AXES
        if experiment.grid.length(axis) > 1
    }


def figures_of(experiment: TrainingExperiment, schedule: Schedule, times: RunTimes) -> dict[str, Any]:
    """Fields of the record that only training has."""
    each = iterations(experiment, schedule, times.seconds, times.ops).seconds
    rated = rates(experiment, each, times.machine) if each else None
    kept = {str(kind): size for kind, size in largest_memory(schedule, experiment.execution.choices).items()}
    losses = () if times.losses is None else tuple(loss if isfinite(loss) else None for loss in times.losses)
    return {
        **({"losses": losses} if losses else {}),
        "seconds_per_iteration": each,
        "model_flops_per_second_per_gpu": rated.model_flops_per_second_per_gpu if rated else None,
        "hardware_flops_per_second_per_gpu": rated.hardware_flops_per_second_per_gpu if rated else None,
        "percent_of_peak": rated.percent_of_peak if rated else None,
        "exposed_seconds_by_axis": exposed_by_axis(experiment, times.ops),
        "memory_bytes_by_kind": kept,
        "fits": _fits(experiment, times, sum(kept.values())),
    }


def peak_bytes(schedule: Schedule, choices: Choices) -> int:
    """Bytes of the fuller one of the first and the last stage: between them there is no table, and less under way."""
    last = schedule.grid.rank_at({"pipeline": schedule.grid.pipeline - 1})
    places = [schedule.coordinates(rank) for rank in sorted({0, last})]
    return max(kept.bytes for kept in storages(schedule, places, choices))


def experiment_peak_bytes(experiment: TrainingExperiment) -> int:
    """The same of the schedule that the experiment is carried out by."""
    return peak_bytes(experiment.applied_schedule(), experiment.execution.choices)


def _fits(experiment: "TrainingExperiment", times: RunTimes, rank_bytes: int) -> bool | None:
    """Whether this number of bytes for each rank fits in memory; None if the machine is unknown."""
    machine, grid = times.machine, experiment.grid
    if machine is None:
        return None
    device = times.device or fullest_device(machine, grid.size, experiment.execution.placement, grid)
    return device.fits(machine, rank_bytes)
