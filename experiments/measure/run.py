"""`quadrille run`: executes an experiment on all ranks of an MPI world, and writes or prints the measured record."""

from collections.abc import Sequence
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from quadrille.algorithms.errors import RunError
from quadrille.algorithms.timelines.timeline import median_timeline
from quadrille.experiments.measure.measured_record import (
    KernelSeconds,
    RunMeasurements,
    mean_over_ranks,
)
from quadrille.experiments.measure.prepared_run import PreparedRun, prepare_run
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.execution.execution_results import Execution
from quadrille.runtime.execution.rank_environment import open_carrier
from quadrille.runtime.host.console import remark_if_long
from quadrille.runtime.host.progress_reports import collective_work, local_work, own_reporter

if TYPE_CHECKING:
    from quadrille.algorithms.formats.record import Record
    from quadrille.algorithms.timelines.counters import Counter
    from quadrille.algorithms.timelines.timeline import Timeline
    from quadrille.experiments.workloads.experiment import Experiment
    from quadrille.runtime.arrays.array_library import ArrayLibrary
    from quadrille.runtime.measuring.reference_kernels import ReferenceBenchmark
    from quadrille.topologies.machines.machine import Machine


def run(
    experiment: "Experiment",
    machine: "Machine | None" = None,
    *,
    options: RunOptions | None = None,
    destinations: Destinations | None = None,
    command: Sequence[str] = (),
) -> None:
    """Runs the experiment on all ranks; rank 0 writes or prints the record.

    Parameters
    ----------
    machine : machine that the record names, and for which automatic choices of order and collectives are made; only
        rank 0 uses it
    options : repeats, verification, files and other options of a run
    destinations : files that rank 0 writes
    command : words of the command line, for provenance

    Raises
    ------
    InputError : an experiment that cannot run
    RunError : a result that fails verification or cannot be written, or a loss that is not finite
    """
    destinations = destinations or Destinations()
    prepared = prepare_run(experiment, machine, options or RunOptions(), destinations)
    job, site = prepared.job, prepared.site
    measured, execution = _measure(prepared)
    fault = _fault_message(measured, job.not_written)
    with local_work("writing results"):
        if not fault:
            job.write(execution, site)
        if site.is_root:
            from quadrille.experiments.records.results import write_results

            record, timeline = _record(prepared, measured, command), median_timeline(measured.timelines)
            write_results(destinations, record, timeline, partial(_memory_counters, prepared))
            if fault:
                raise RunError(fault)


def _memory_counters(prepared: PreparedRun, shown: "Timeline") -> "Sequence[Counter]":
    """The memory counters of a trace of a measured timeline."""
    from quadrille.experiments.records.memory_counters import memory_counters  # few runs write a trace

    return memory_counters(prepared.experiment, prepared.job.schedule, shown)


def _measure(prepared: PreparedRun) -> tuple[RunMeasurements, Execution]:
    """The measurements, complete at rank 0 only, and the results of this rank."""
    experiment, options, site, job = prepared.experiment, prepared.options, prepared.site, prepared.job
    choices = experiment.execution.choices
    with local_work("set-up of the run"):
        from threadpoolctl import threadpool_limits

        from quadrille.runtime.measuring.reference_kernels import ReferenceBenchmark

        concurrent_ranks = min(site.host.cores, site.host.sharing)
        kernels = KernelsBesideRuns(ReferenceBenchmark(), concurrent_ranks or site.communicator.size)
    with (
        np.errstate(over="ignore", invalid="ignore", divide="ignore"),  # non-finite values are reported
        threadpool_limits(site.threads, user_api="blas"),
        open_carrier(
            options.carrier, site, experiment.execution.choices, experiment.dtype, prepared.message_options
        ) as carrier,
    ):
        execution = execute(
            job.schedule,
            job.source,
            carrier,
            repeats=options.repeats,
            warmups=options.warmups,
            choices=choices,
            library=_library(prepared),
            between=kernels.measure,
            reporter=own_reporter(),
            progress=prepared.message_options.progress,
        )
        with remark_if_long("verifying the result", is_root=site.is_root), local_work("checking the result"):
            losses = job.losses(execution, site)
            verification = job.verified(execution, site) if options.verify else None
    with collective_work("gathering of what was measured"):
        by_rank = site.communicator.gather(kernels.seconds[options.warmups :])
    reference = mean_over_ranks(by_rank) if by_rank is not None else []
    measured = RunMeasurements(
        execution.timelines,
        execution.bytes_sent,
        reference,
        concurrent_ranks,
        verification,
        options.warmups,
        site.threads,
        options.backend,
        losses,
        prepared.message_options,
        execution.overlap_fractions,
    )
    return measured, execution


def _record(prepared: PreparedRun, measured: RunMeasurements, command: Sequence[str]) -> "Record":
    """The measured record, with the automatic choices and their reasons."""
    from quadrille.algorithms.provenance import provenance
    from quadrille.experiments.measure.measured_record import measured_record
    from quadrille.runtime.arrays.blas import describe_blas

    record = measured_record(
        prepared.experiment,
        prepared.job.schedule,
        measured,
        provenance(command, blas=describe_blas(prepared.site.library)),
        prepared.machine,
    )
    if prepared.chosen:
        from quadrille.experiments.predict.collectives_choice import with_collective_choices

        record = with_collective_choices(record, prepared.chosen)
    return prepared.order.with_order_choice(record) if prepared.order is not None else record


def _fault_message(measured: RunMeasurements, not_written: str) -> str:
    """The message of a run with a failed verification or a loss that is not finite; empty if the run succeeded."""
    verification, diverged = measured.verification, first_diverged_step(measured.losses or ())
    if verification is not None and not verification.ok:
        return f"{verification}{not_written}"
    if diverged is not None:
        return (
            f"the loss of step {diverged} is not a finite number{not_written}; a smaller --learning-rate, or "
            "--clip, keeps steps small"
        )
    return ""


def first_diverged_step(losses: Sequence[float]) -> int | None:
    """Index of the first step of this run whose loss is infinite or not a number; None if all losses are finite.

    >>> first_diverged_step([5.6, float("inf"), float("nan")]), first_diverged_step([5.6])
    (1, None)
    """
    return next((step for step, loss in enumerate(losses) if not isfinite(loss)), None)


class KernelsBesideRuns:
    """A benchmark that times the reference kernels after each repeat of a run, warm-ups included.

    Parameters
    ----------
    kernels : benchmark of the reference kernels
    concurrent_ranks : number of ranks, from rank 0, that time the kernels; other ranks wait, because all share cores
    """

    def __init__(self, kernels: "ReferenceBenchmark", concurrent_ranks: int) -> None:
        self._kernels, self._concurrent_ranks = kernels, concurrent_ranks
        self.seconds: list[KernelSeconds] = []

    def measure(self, rank: int) -> None:
        """Times the kernels if this rank is one of the ranks that time them."""
        if rank < self._concurrent_ranks:
            self.seconds.append(self._kernels.measure())


def _library(prepared: PreparedRun) -> "ArrayLibrary":
    """The array library of this rank, in a device arena if its size is limited."""
    if prepared.options.device_memory_bytes is None:
        return prepared.site.library
    from quadrille.runtime.arrays.device_arena import DeviceArena

    return DeviceArena(prepared.options.device_memory_bytes)
