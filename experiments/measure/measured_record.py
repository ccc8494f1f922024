"""`RunMeasurements` and `measured_record`: the measurements of a run, and the record made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from quadrille.algorithms.analysis.volumes import Volumes, volumes
from quadrille.algorithms.formats.percentiles import percentiles
from quadrille.algorithms.formats.record import Cause, Messages, OpRecord, Provenance, Record, Reference, Verified
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.timelines.op_times import op_times, outside_ops
from quadrille.algorithms.timelines.timeline import Timeline, median_timeline, middle_timelines
from quadrille.experiments.compare.attribution import charged_by_cause
from quadrille.experiments.measure.obtained_overlap import ObtainedOverlap, obtained_overlaps
from quadrille.experiments.records.record_entries import machine_entry, op_entry, volume_fields, workload_fields
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.runtime.carriers.message_options import WHOLE_MESSAGES, MessageOptions

if TYPE_CHECKING:
    from quadrille.experiments.workloads.experiment import Experiment
    from quadrille.runtime.verifying.verify import Verification
    from quadrille.topologies.machines.machine import Machine


KernelSeconds = tuple[float, float, float]
"""Seconds of the reference kernels: gemm, copy, add."""


@dataclass(frozen=True, slots=True)
class RunMeasurements:
    """The measurements of a run, complete at rank 0.

    Parameters
    ----------
    timelines : timeline of each repeat
    bytes_sent : counted bytes that each rank sent, by rank
    reference : times of the reference kernels after each repeat, means over the ranks that time them [s]
    concurrent_ranks : number of ranks that time the reference kernels if hosts share cores; 0 for all ranks
    verification : result of the check of the outputs; None if they were not checked
    losses : loss of every training step; None for a matmul
    message_options : message options of the run
    overlap_fractions : fraction of an op's messages that were sent during local work, from 0 to 1, by the op's name
    """

    timelines: Sequence[Timeline]
    bytes_sent: Mapping[int, int]
    reference: Sequence[KernelSeconds]
    concurrent_ranks: int
    verification: "Verification | None"
    warmups: int
    threads: int
    backend: str
    losses: tuple[float, ...] | None = None
    message_options: MessageOptions = WHOLE_MESSAGES
    overlap_fractions: Mapping[str, float] = field(default_factory=dict)


def mean_over_ranks(by_rank: Sequence[Sequence[KernelSeconds]]) -> list[KernelSeconds]:
    """The times of the reference kernels in each repeat, means over the ranks that timed them [s].

    >>> mean_over_ranks([[(1.0, 2.0, 3.0)], [(3.0, 2.0, 1.0)], []])
    [(2.0, 2.0, 2.0)]
    """
    timed = [repeats for repeats in by_rank if repeats]
    return [
        (mean(gemm), mean(copy), mean(add))
        for gemm, copy, add in (zip(*kernels, strict=True) for kernels in zip(*timed, strict=True))
    ]


def measured_record(
    experiment: "Experiment",
    schedule: Schedule,
    run: RunMeasurements,
    provenance: Provenance,
    machine: "Machine | None" = None,
) -> Record:
    """The record of a run; its sent bytes are counted by the transport, not computed from the schedule.

    Parameters
    ----------
    experiment, schedule : experiment, and its schedule as it ran
    run : measurements of the run
    machine : machine that the user named for the run; None if there is none
    """
    makespans = [timeline.makespan for timeline in run.timelines]
    over_repeats = percentiles(makespans)
    schedule_volumes = volumes(schedule, experiment.execution.choices)
    ops = _measured_ops(experiment, schedule_volumes, run.timelines)
    middle = middle_timelines(run.timelines)
    return Record(
        kind="measured",
        **workload_fields(experiment, run.threads),
        **volume_fields(experiment, schedule_volumes) | _counted_bytes(run.bytes_sent),
        backend=run.backend,
        machine=None if machine is None else machine_entry(machine, experiment.execution.placement),
        seconds=median(makespans),
        seconds_low=over_repeats.low,
        seconds_high=over_repeats.high,
        repeats=len(makespans),
        warmups=run.warmups,
        seconds_of_repeats=tuple(makespans),
        outside_ops_seconds=outside_ops(*middle),
        ops_seconds_by_part=_charged_means(middle),
        ops=ops,
        reference=_reference_entry(run.reference, run.concurrent_ranks),
        verified=None if run.verification is None else _verification_entry(run.verification),
        provenance=provenance,
        messages=_messages_entry(run.message_options, obtained_overlaps(ops, run.overlap_fractions)),
        **_training_fields(experiment, schedule, median(makespans), ops, machine, run),
    )


def _training_fields(
    experiment: "Experiment",
    schedule: Schedule,
    seconds: float,
    ops: Sequence[OpRecord],
    machine: "Machine | None",
    run: RunMeasurements,
) -> dict[str, Any]:
    """The fields that only records of training have; empty for a matmul."""
    if isinstance(experiment, MatmulExperiment):
        return {}
    from quadrille.experiments.workloads.training_figures import RunTimes, training_fields

    timeline = median_timeline(run.timelines)
    times = RunTimes(seconds, ops, machine, run.threads, run.losses, timeline=timeline)
    return training_fields(experiment, schedule, times)


def _messages_entry(message_options: MessageOptions, overlaps: Sequence[ObtainedOverlap]) -> Messages | UnsetType:
    """The message options and the obtained overlap; unset if messages are whole and nothing overlaps."""
    if overlaps:
        share = sum(op.share * op.seconds for op in overlaps) / sum(op.seconds for op in overlaps)
        by_op = {op.op: op.share for op in overlaps}
        return Messages(message_options.chunk_bytes, message_options.progress, min(1.0, share), by_op)
    if not message_options.chunk_bytes and message_options.progress == "none":
        return UNSET
    return Messages(message_options.chunk_bytes, message_options.progress)


def _counted_bytes(bytes_sent: Mapping[int, int]) -> dict[str, int]:
    return {"bytes_sent_per_rank_max": max(bytes_sent.values()), "bytes_sent_total": sum(bytes_sent.values())}


def _measured_ops(
    experiment: "Experiment", schedule_volumes: Volumes, timelines: Sequence[Timeline]
) -> tuple[OpRecord, ...]:
    """The entry of every op over all repeats, with its seconds in each repeat."""
    times_by_repeat = [op_times(timeline) for timeline in timelines]
    return tuple(
        msgspec.structs.replace(
            op_entry(times, experiment, schedule_volumes),
            seconds_of_repeats=tuple(
                op_times_of_repeat[name].seconds if name in op_times_of_repeat else 0.0
                for op_times_of_repeat in times_by_repeat
            ),
        )
        for name, times in op_times(*timelines).items()
    )


def _charged_means(timelines: Sequence[Timeline]) -> dict[Cause, float]:
    """The time in ops that lengthens the makespan of the mean rank, by cause, mean over timelines [s]."""
    of_repeats = [charged_by_cause(op_times(timeline).values()) for timeline in timelines]
    return {cause: mean(seconds[cause] for seconds in of_repeats) for cause in of_repeats[0]}


def _reference_entry(seconds: Sequence[KernelSeconds], concurrent_ranks: int) -> Reference | None:
    """The times of the reference kernels in each repeat; None if they were not measured."""
    if not seconds:
        return None
    gemm, copy, add = zip(*seconds, strict=True)
    return Reference(gemm, copy, add, concurrent_ranks)


def _verification_entry(verdict: "Verification") -> Verified:
    return Verified(
        method=verdict.method,
        max_error=verdict.max_error if isfinite(verdict.max_error) else None,
        bound=verdict.bound,
        ok=verdict.ok,
        vectors=verdict.vectors or None,
        smallest_error_seen=verdict.smallest_error_seen,
        reason=verdict.reason or None,
    )
