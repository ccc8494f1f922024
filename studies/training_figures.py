"""What a record says of training steps beside all runs' figures: rates, exposed communication, memory by kind."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from algorithms.formats.machine import Machine
from algorithms.formats.record import OpRecord
from algorithms.grid import AXES
from algorithms.schedule import Repeat, Schedule, ops
from algorithms.training.adam import STEP
from algorithms.training.flops import flops_per_second_per_gpu
from algorithms.training.memory import fullest
from studies.experiment import Experiment
from studies.placement import placement
from studies.workloads import AnyExperiment


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run, or a prediction of one, took.

    Parameters
    ----------
    seconds : of all steps
    machine : where it is known
    losses : of every step, where it was run
    """

    seconds: float
    ops: Sequence[OpRecord]
    machine: Machine | None
    losses: tuple[float, ...] | None = None


def figures_of(experiment: AnyExperiment, schedule: Schedule, spent: Spent) -> dict[str, Any]:
    """Fields of the record that only training steps have; none of a multiplication."""
    if isinstance(experiment, Experiment):
        return {}
    steps, ranks = experiment.problem.steps, experiment.grid.size
    each = max(0.0, spent.seconds - _once(schedule, spent.ops)) / steps
    counted = experiment.step_flops
    model, hardware = (
        flops_per_second_per_gpu(flops, each, ranks) if each else None for flops in (counted.model, counted.hardware)
    )
    peak = spent.machine.device.peak_flops_per_second.get(experiment.dtype) if spent.machine else None
    kept = {str(kind): size for kind, size in fullest(schedule, experiment.choices).items()}
    losses = () if spent.losses is None else tuple(one if isfinite(one) else None for one in spent.losses)
    return {
        **({"losses": losses} if losses else {}),
        "seconds_per_iteration": each,
        "model_flops_per_second_per_gpu": model,
        "hardware_flops_per_second_per_gpu": hardware,
        "percent_of_peak": 100 * hardware / peak if peak and hardware is not None else None,
        "exposed_seconds_by_axis": _exposed(spent.ops, experiment),
        "memory_bytes_by_kind": kept,
        "fits": _fits(experiment, spent.machine, sum(kept.values())),
    }


def _once(schedule: Schedule, ops_of_run: Sequence[OpRecord]) -> float:
    """Of the mean rank, what happens once before the first step."""
    before = {
        op.name
        for role in schedule.roles
        for entry in role.program
        for op in (ops((entry,)) if not isinstance(entry, Repeat) or entry.loop != STEP else ())
    }
    return sum(op.seconds for op in ops_of_run if op.name in before)


def _exposed(ops: Sequence[OpRecord], experiment: AnyExperiment) -> dict[str, float]:
    """Communication of each long axis that nothing hides, of the mean rank."""
    return {
        axis: sum(op.exposed_seconds for op in ops if op.axis == axis)
        for axis in AXES
        if experiment.grid.length(axis) > 1
    }


def _fits(experiment: AnyExperiment, machine: Machine | None, peak_bytes: int) -> bool | None:
    if machine is None:
        return None
    return placement(machine, experiment.grid.size, experiment.placement, experiment.grid).fits(machine, peak_bytes)
