"""Figures of a training step, measured or predicted: time of an iteration, FLOP rates, MFU, memory by kind.

Records, sweeps and `rank` use these figures:

    seconds of an iteration = (makespan - time of the setup before the first step) / steps
    flop/s of a GPU         = flop of a step / (seconds of an iteration · GPUs)
    percent of peak         = 100 · hardware flop/s of a GPU / peak of the device for products (`product_peak.py`)

The setup before the first step (zeroed moments of the optimizer) counts with the time of
the mean rank.  Flop of the model and of the hardware: `quadrille.algorithms.training.flops`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from quadrille.algorithms.analysis.volumes import storages_of_stages
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.formats.record import device_bytes
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.program import Repeat, ops
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.training.adam import STEP
from quadrille.algorithms.training.flops import flops_per_second_per_gpu
from quadrille.algorithms.training.memory import largest_memory
from quadrille.experiments.workloads.fullest_device import FullestDevice, fullest_device
from quadrille.experiments.workloads.peak_share import measured_peak_share, peak_share
from quadrille.experiments.workloads.product_peak import product_peak
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
    threads : BLAS threads of a rank
    losses : loss of every step; None for a prediction
    device : device that most ranks share; None if unknown
    timeline : timeline of the run; None if there is none
    pass_orders : order of passes on each stage, if it is known without the timeline
    """

    seconds: float
    ops: Sequence[OpSeconds]
    machine: Machine | None
    threads: int
    losses: tuple[float, ...] | None = None
    device: FullestDevice | None = None
    timeline: Timeline | None = None
    pass_orders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FlopRates:
    """Operations per second of a GPU, by the module's formulas; the percentage is None if no peak is known."""

    model_flops_per_second_per_gpu: float
    hardware_flops_per_second_per_gpu: float
    percent_of_peak: float | None


def flop_rates(
    experiment: TrainingExperiment, seconds: float, machine: Machine | None, threads: int, *, measured: bool = False
) -> FlopRates:
    """The FLOP rates of a training step, of the model (as in MFU) and of the hardware (as in HFU).

    Parameters
    ----------
    seconds : time of an iteration [s], more than 0
    machine : machine with the peak rate of its devices; None if unknown
    threads : BLAS threads of a rank
    measured : whether the time was measured
    """
    step_flops, gpus = experiment.step_flops, experiment.grid.size
    model, hardware = (
        flops_per_second_per_gpu(flops, seconds, gpus) for flops in (step_flops.model, step_flops.hardware)
    )
    peak = product_peak(experiment, machine, threads) if machine is not None else None
    share = (measured_peak_share if measured else peak_share)(hardware, peak)
    return FlopRates(model, hardware, None if share is None else 100 * share)


@dataclass(frozen=True, slots=True)
class IterationTimes(Generic[AnyOp]):
    """The times of the training steps of a run.

    Parameters
    ----------
    seconds : mean time of an iteration, by the module's formula [s]
    ops : times of the ops of the steps, all iterations together
    steps : number of steps
    """

    seconds: float
    ops: tuple[AnyOp, ...]
    steps: int

    def mean(self, seconds: Iterable[float]) -> float:
        """The sum of times over all iterations [s], divided by the number of iterations [s]."""
        return sum(seconds) / self.steps


def iteration_times(
    experiment: TrainingExperiment, schedule: Schedule, makespan: float, every: Iterable[AnyOp]
) -> IterationTimes[AnyOp]:
    """The times of the steps of a run or of a prediction, without the setup before the first step.

    Parameters
    ----------
    makespan : time of the setup and of all steps [s]
    every : times of all ops of the schedule
    """
    setup_ops = {
        op.name
        for role in schedule.roles
        for entry in role.program
        for op in (ops((entry,)) if not isinstance(entry, Repeat) or entry.loop != STEP else ())
    }
    op_times, steps = tuple(every), experiment.problem.steps
    setup_seconds = sum(op.seconds for op in op_times if op.name in setup_ops)
    return IterationTimes(
        max(0.0, makespan - setup_seconds) / steps, tuple(op for op in op_times if op.name not in setup_ops), steps
    )


def exposed_seconds_by_axis(experiment: "Experiment", every: Sequence[OpSeconds]) -> dict[Axis, float]:
    """Exposed communication of the mean rank [s], for each axis with more than one rank.

    Parameters
    ----------
    every : times of all ops of the schedule
    """
    return {
        axis: sum(op.exposed_seconds for op in every if op.axis == axis)
        for axis in experiment.grid.axes
        if experiment.grid.length(axis) > 1
    }


def training_fields(experiment: TrainingExperiment, schedule: Schedule, times: RunTimes) -> dict[str, Any]:
    """The fields that only records of training have: losses, rates, exposed communication, and memory."""
    iteration_seconds = iteration_times(experiment, schedule, times.seconds, times.ops).seconds
    rates_of_step = None
    if iteration_seconds:
        measured = times.losses is not None
        rates_of_step = flop_rates(experiment, iteration_seconds, times.machine, times.threads, measured=measured)
    memory = _memory_fields(experiment, schedule, times.machine)
    losses = () if times.losses is None else tuple(loss if isfinite(loss) else None for loss in times.losses)
    return {
        **({"losses": losses} if losses else {}),
        "seconds_per_iteration": iteration_seconds,
        "model_flops_per_second_per_gpu": rates_of_step.model_flops_per_second_per_gpu if rates_of_step else None,
        "hardware_flops_per_second_per_gpu": rates_of_step.hardware_flops_per_second_per_gpu if rates_of_step else None,
        "percent_of_peak": rates_of_step.percent_of_peak if rates_of_step else None,
        "exposed_seconds_by_axis": exposed_seconds_by_axis(experiment, times.ops),
        **memory,
        "fits": _fits(experiment, times, device_bytes(memory["memory_bytes_by_kind"])),
        **_orders_of_passes(experiment, schedule, times),
    }


def _memory_fields(experiment: TrainingExperiment, schedule: Schedule, machine: Machine | None) -> dict[str, Any]:
    """The memory by kind of the fullest rank: of the schedule, or of the software of the experiment."""
    if not experiment.software:
        by_kind = largest_memory(schedule, experiment.execution.choices)
        return {"memory_bytes_by_kind": {str(kind): size for kind, size in by_kind.items()}}
    from quadrille.algorithms.training.megatron_software import generation, stage_memories

    peaks = machine.device.peak_flops_per_second if machine is not None else {}
    peak = next((peaks[dtype] for dtype in ("bfloat16", "float16") if dtype in peaks), 0.0)
    memories = stage_memories(experiment.megatron_step(), generation(peak) if peak else "")
    fullest = max(memories, key=lambda memory: memory.peak).by_kind()
    return {
        "memory_bytes_by_kind": {str(kind): int(size) for kind, size in fullest.items()},
        "memory_bytes_by_stage": tuple(int(memory.peak) for memory in memories),
    }


def _orders_of_passes(
    experiment: TrainingExperiment, schedule: Schedule, times: RunTimes
) -> dict[str, tuple[str, ...]]:
    """The order of passes on each stage of a message-driven pipeline, as an entry of a record."""
    if times.timeline is None or not experiment.stages.driven:
        return {}
    from quadrille.algorithms.timelines.pass_orders import pass_orders

    return {"pass_orders": times.pass_orders or pass_orders(schedule, times.timeline)}


def schedule_peak_bytes(schedule: Schedule, choices: Choices) -> int:
    """The largest memory of a rank, on any pipeline stage [B]."""
    return max(storage.bytes for storage in storages_of_stages(schedule, choices))


def experiment_peak_bytes(experiment: TrainingExperiment) -> int:
    """The largest memory of a rank, for the schedule of an experiment with its overlaps [B]."""
    return schedule_peak_bytes(experiment.applied_schedule(), experiment.execution.choices)


def _fits(experiment: "TrainingExperiment", times: RunTimes, rank_bytes: int) -> bool | None:
    """Whether the ranks of the fullest device, each with `rank_bytes`, fit in its memory; None without a machine."""
    machine, grid = times.machine, experiment.grid
    if machine is None:
        return None
    device = times.device or fullest_device(machine, grid.size, experiment.execution.placement, grid)
    return device.fits(machine, rank_bytes)
