"""Records from timelines: what a schedule does in numbers, joined with how long it took, predicted or measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import mean, median
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec

from algorithms.collectives.lowered import Name
from algorithms.costs.volumes import OpVolume, Volumes, volumes
from algorithms.formats import record
from algorithms.formats.machine import Machine
from algorithms.formats.percentiles import percentiles
from algorithms.formats.record import (
    MachineName,
    OpRecord,
    Provenance,
    Record,
    Reference,
    Simulation,
    Verified,
)
from algorithms.ops import CollectiveKind
from algorithms.schedule import Schedule
from algorithms.timelines.op_times import OpTimes, op_times
from algorithms.timelines.timeline import Timeline
from studies.experiments.placement import placement
from studies.experiments.workloads import AnyExperiment
from studies.explain.critical_path import stations
from studies.training.figures import Spent, figures_of

if TYPE_CHECKING:  # a rank imports no simulator
    from runtime.verify import Verification
    from simulator.simulate import Prediction

KernelSeconds = tuple[float, float, float]
"""Seconds of the reference kernels: gemm, copy, add."""
NOTHING_SENT = OpVolume(0, 0, 0)
NCCL_ALONE = (
    "collectives take what NCCL's model says of all groups of an op at once, from when the last member has come; ops "
    "of different axes do not slow each other at bound_low_seconds, and those that may be under way together go one "
    "after the other at bound_high_seconds: an estimate, not proven; bytes sent are those of rings"
)
STEADY_RATES = (
    "every transfer of a collective keeps one rate, that of all its groups at once; the exact simulation, in which "
    "rates change whenever a transfer begins or ends, lies between bound_low_seconds (every transfer alone) and "
    "bound_high_seconds (every transfer beside all that may be under way with it): proven, not estimated"
)


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a run, at rank 0.

    Parameters
    ----------
    timelines : one a repeat
    bytes_sent : counted, of every rank
    reference : seconds of the reference kernels (gemm, copy, add) beside each repeat, means over ranks
    losses : of every training step
    """

    timelines: Sequence[Timeline]
    bytes_sent: Mapping[int, int]
    reference: Sequence[KernelSeconds]
    verification: "Verification | None"
    warmups: int
    threads: int
    backend: str
    losses: tuple[float, ...] | None = None


def measured_record(
    experiment: AnyExperiment,
    schedule: Schedule,
    run: Measured,
    provenance: Provenance,
    machine: Machine | None = None,
) -> Record:
    """The record of a run; its bytes are those that were counted.

    Parameters
    ----------
    machine : the one that the user named beside the run, if any
    """
    makespans = [timeline.makespan for timeline in run.timelines]
    over_repeats = percentiles(makespans)
    amounts = volumes(schedule, experiment.choices)
    ops = _measured_ops(experiment, amounts, run.timelines)
    spent = Spent(median(makespans), ops, machine, run.losses)
    return Record(
        kind="measured",
        **_what(experiment, run.threads),
        **_amounts(experiment, amounts) | _counted(run.bytes_sent),
        backend=run.backend,
        machine=None if machine is None else _named(machine, experiment.placement),
        seconds=median(makespans),
        seconds_low=over_repeats.low,
        seconds_high=over_repeats.high,
        repeats=len(makespans),
        warmups=run.warmups,
        seconds_of_repeats=tuple(makespans),
        ops=ops,
        reference=_reference(run.reference),
        verified=None if run.verification is None else _verified(run.verification),
        provenance=provenance,
        **figures_of(experiment, schedule, spent),
    )


def predicted_record(
    experiment: AnyExperiment,
    schedule: Schedule,
    machine: Machine,
    prediction: "Prediction",
    *,
    threads: int,
    provenance: Provenance,
    backend: str = "numpy",
    even_within: float | None = None,
) -> Record:
    """The record of a prediction; low and high are its 90 % interval, around its bound where it is not exact.

    Parameters
    ----------
    backend : of the runs it is to be compared with; a prediction has no arrays
    even_within : where all shards were given the mean size, how far off that puts the makespan at most, relative
    """
    makespan = prediction.timeline.makespan
    least, most = (makespan, makespan) if prediction.bound is None else (prediction.bound.low, prediction.bound.high)
    amounts = volumes(schedule, experiment.choices)
    ops = tuple(_op(times, experiment, amounts, prediction) for times in prediction.op_times().values())
    return Record(
        kind="predicted",
        **_what(experiment, threads),
        **_amounts(experiment, amounts),
        backend=backend,
        machine=_named(machine, experiment.placement),
        seconds=makespan,
        seconds_low=max(0.0, least * (1 - prediction.relative_uncertainty)),
        seconds_high=most * (1 + prediction.relative_uncertainty),
        ops=ops,
        links=prediction.links,
        critical_path=stations(prediction.timeline, prediction.parts_of),
        simulation=_simulation(prediction, even_within),
        reference=_calibrated(machine, experiment),
        provenance=provenance,
        **figures_of(experiment, schedule, Spent(makespan, ops, machine)),
    )


def _named(machine: Machine, placement_rule: str) -> MachineName:
    return MachineName(machine.name, machine.sha256, machine.routing, machine.faults, placement_rule)


def _simulation(prediction: "Prediction", even_within: float | None) -> Simulation:
    extent, bound = prediction.extent, prediction.bound
    return Simulation(
        folded=extent.folded,
        why_not=extent.why_not,
        rank_classes=extent.rank_classes,
        flow_classes=extent.flow_classes,
        link_classes=extent.link_classes,
        events=extent.events,
        iterations_skipped=extent.iterations_skipped,
        shards="exact" if even_within is None else "even",
        shards_bound=even_within or 0.0,
        granularity="exact" if bound is None else "collective",
        bound_low_seconds=None if bound is None else bound.low,
        bound_high_seconds=None if bound is None else bound.high,
        bound_proven=bound is not None and bound.proven,
        approximation="" if bound is None else STEADY_RATES if bound.proven else NCCL_ALONE,
    )


def typical(timelines: Sequence[Timeline]) -> Timeline:
    """The timeline whose makespan is nearest to the median of all."""
    middle = median(timeline.makespan for timeline in timelines)
    return min(timelines, key=lambda timeline: abs(timeline.makespan - middle))


def _what(experiment: AnyExperiment, threads: int) -> dict[str, Any]:
    """What was computed and how: the same keys for both kinds."""
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


def _amounts(experiment: AnyExperiment, amounts: Volumes) -> dict[str, Any]:
    return {
        "flops_per_rank_max": amounts.flops_per_rank_max,
        "bytes_sent_per_rank_max": amounts.sent_per_rank_max,
        "bytes_sent_total": amounts.sent_total,
        "bytes_lower_bound_per_rank": experiment.lower_bound_bytes,
        "peak_bytes_per_rank_max": amounts.peak_bytes_per_rank_max,
    }


def _counted(bytes_sent: Mapping[int, int]) -> dict[str, int]:
    return {"bytes_sent_per_rank_max": max(bytes_sent.values()), "bytes_sent_total": sum(bytes_sent.values())}


def _measured_ops(experiment: AnyExperiment, amounts: Volumes, timelines: Sequence[Timeline]) -> tuple[OpRecord, ...]:
    """Every op over all repeats, and its seconds in each."""
    each = [op_times(timeline) for timeline in timelines]
    return tuple(
        msgspec.structs.replace(
            _op(times, experiment, amounts),
            seconds_of_repeats=tuple(of_repeat[name].seconds if name in of_repeat else 0.0 for of_repeat in each),
        )
        for name, times in op_times(*timelines).items()
    )


def _op(
    times: OpTimes, experiment: AnyExperiment, amounts: Volumes, prediction: "Prediction | None" = None
) -> OpRecord:
    moved = amounts.by_op.get(times.name, NOTHING_SENT)
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


def _label(times: OpTimes, experiment: AnyExperiment, chosen: Mapping[str, str], carried: Name | None) -> str | None:
    """The algorithm that carried out a collective; None for other ops and for groups of one, which move nothing."""
    if times.name in chosen:
        return chosen[times.name]
    if times.kind not in get_args(CollectiveKind) or times.axis is None or experiment.grid.length(times.axis) == 1:
        return None
    return experiment.choices.label(cast(CollectiveKind, times.kind), times.axis, carried)


def _reference(beside: Sequence[KernelSeconds]) -> Reference | None:
    if not beside:
        return None
    gemm, copy, add = zip(*beside, strict=True)
    return Reference(gemm, copy, add)


def mean_over_ranks(by_rank: Sequence[Sequence[KernelSeconds]]) -> list[KernelSeconds]:
    """Seconds of the reference kernels beside each repeat, from those of every rank.

    >>> mean_over_ranks([[(1.0, 2.0, 3.0)], [(3.0, 2.0, 1.0)]])
    [(2.0, 2.0, 2.0)]
    """
    return [
        (mean(gemm), mean(copy), mean(add))
        for gemm, copy, add in (zip(*of_ranks, strict=True) for of_ranks in zip(*by_rank, strict=True))
    ]


def _calibrated(machine: Machine, experiment: AnyExperiment) -> Reference | None:
    """The reference kernels as they were beside the machine's calibration.

    None where ranks of a place outnumber its cores: kernels that take turns show no drift.
    """
    ranks = experiment.grid.size
    kernels = machine.reference if ranks > 1 else machine.reference_alone or machine.reference
    if kernels is None or placement(machine, ranks, experiment.placement, experiment.grid).crowded:
        return None
    return Reference((kernels.gemm_seconds,), (kernels.copy_seconds,), (kernels.add_seconds,))


def _verified(verdict: "Verification") -> Verified:
    return Verified(
        method=verdict.method,
        max_error=verdict.max_error if isfinite(verdict.max_error) else None,
        bound=verdict.bound,
        ok=verdict.ok,
        vectors=verdict.vectors or None,
        smallest_error_seen=verdict.smallest_error_seen,
        reason=verdict.reason or None,
    )
