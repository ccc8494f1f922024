"""Entries that predicted and measured records share: workload, volumes, and ops."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast, get_args

from quadrille.algorithms.analysis.volumes import OpVolume, Volumes
from quadrille.algorithms.collectives.lowered_collective import CollectiveAlgorithm
from quadrille.algorithms.formats import record
from quadrille.algorithms.formats.record import MachineName, OpRecord
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.timelines.op_times import OpTimes

if TYPE_CHECKING:  # a rank imports no simulator
    from quadrille.experiments.workloads.experiment import Experiment
    from quadrille.simulator.simulate import Prediction
    from quadrille.topologies.machines.machine import Machine

NO_MESSAGES = OpVolume(0, 0, 0)


def named(machine: "Machine", placement_rule: str) -> MachineName:
    """The entry of a record that names a machine."""
    return MachineName(machine.name, machine.sha256, machine.routing, machine.faults, placement_rule)


def what(experiment: "Experiment", threads: int) -> dict[str, Any]:
    """Fields of a record that describe the workload and its execution, the same for both kinds of records."""
    grid = experiment.grid
    return {
        "workload": experiment.workload,
        "dtype": experiment.dtype,
        "passes": experiment.passes,
        "algorithm": experiment.name,
        "grid": grid.lengths,
        "order": tuple(axis for axis in grid.order if axis in grid.lengths),
        "ranks": grid.size,
        "options": experiment.options(threads),
    }


def amounts_of(experiment: "Experiment", amounts: Volumes) -> dict[str, Any]:
    """Fields of a record with work, bytes and memory, from the schedule."""
    return {
        "flops_per_rank_max": amounts.flops_per_rank_max,
        "bytes_sent_per_rank_max": amounts.sent_per_rank_max,
        "bytes_sent_total": amounts.sent_total,
        "bytes_lower_bound_per_rank": experiment.lower_bound_bytes,
        "peak_bytes_per_rank_max": amounts.peak_bytes_per_rank_max,
    }


def op_record(
    times: OpTimes, experiment: "Experiment", amounts: Volumes, prediction: "Prediction | None" = None
) -> OpRecord:
    """The entry of an op: its volumes and its times."""
    moved = amounts.by_op.get(times.name, NO_MESSAGES)
    parts = prediction.parts.get(times.name, {}) if prediction is not None else {}
    return OpRecord(
        name=times.name,
        kind=times.kind,
        axis=times.axis,
        algorithm=_label(times, experiment, prediction.labels if prediction is not None else {}, moved.algorithm),
        count=times.count,
        bytes_sent_per_rank_max=moved.sent_per_rank_max,
        bytes_sent_total=moved.sent_total,
        seconds=times.seconds,
        waiting_seconds=times.waiting_seconds,
        exposed_seconds=times.exposed_seconds,
        extrapolated=prediction is not None and times.name in prediction.extrapolated,
        seconds_by_part=cast(dict[record.Cause, float], dict(parts)),
        contention_seconds=prediction.contention.get(times.name, 0.0) if prediction is not None else 0.0,
    )


def _label(
    times: OpTimes, experiment: "Experiment", chosen: Mapping[str, str], carried: CollectiveAlgorithm | None
) -> str | None:
    """The algorithm of a collective; None for other ops, and for groups of one rank, which send nothing."""
    if times.name in chosen:
        return chosen[times.name]
    if times.kind not in get_args(CollectiveKind) or times.axis is None or experiment.grid.length(times.axis) == 1:
        return None
    return experiment.execution.choices.of(times.name).label(cast(CollectiveKind, times.kind), times.axis, carried)
