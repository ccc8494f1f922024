"""`quadrille run`: from an experiment to a measured record, on every rank of an MPI world or alone as one rank."""

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from quadrille.algorithms.errors import RunError
from quadrille.experiments.measure.measured import KernelSeconds, Measured, mean_over_ranks, typical
from quadrille.experiments.measure.prepared_run import PreparedRun, prepared_run
from quadrille.experiments.output.destinations import Destinations
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.execution.rank_environment import open_carrier
from quadrille.runtime.execution.results import Execution
from quadrille.runtime.host.console import remark_if_long
from quadrille.runtime.host.progress_reports import collective_work, local_work, own_reporter

if TYPE_CHECKING:
    from quadrille.algorithms.formats.record import Record
    from quadrille.experiments.workloads.experiment import Experiment
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
    """Runs the experiment on all ranks; rank 0 writes its record, or prints it.

    Parameters
    ----------
    machine : the machine that the record names, and that order and collectives are chosen for, if any; rank 0 reads it
    command : the words of the command line, for provenance

    Raises
    ------
    InputError : an experiment that cannot be
    RunError : a result that did not verify, or could not be written; a loss that is not a number
    """
    destinations = destinations or Destinations()
    prepared = prepared_run(experiment, machine, options or RunOptions(), destinations)
    job, site = prepared.job, prepared.site
    measured, execution = _measure(prepared)
    fault = _fault(measured, job.not_written)
    with local_work("writing results"):
        if not fault:
            job.write(execution, site)
        if site.is_root:
            from quadrille.experiments.records.results import write_results

            write_results(destinations, _record(prepared, measured, command), typical(measured.timelines))
            if fault:
                raise RunError(fault)


def _measure(prepared: PreparedRun) -> tuple[Measured, Execution]:
    """What was measured, complete at rank 0 only, and the rank's results."""
    experiment, options, site, job = prepared.experiment, prepared.options, prepared.site, prepared.job
    choices = experiment.execution.choices
    with local_work("set-up of the run"):
        from threadpoolctl import threadpool_limits

        from quadrille.runtime.measuring.reference_kernels import ReferenceBenchmark

        at_once = min(site.host.cores, site.host.sharing)
        beside = KernelsBesideRuns(ReferenceBenchmark(), at_once or site.communicator.size)
    with (
        np.errstate(over="ignore", invalid="ignore", divide="ignore"),  # a loss or an error that is not finite is told
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
            library=site.library,
            between=beside.measure,
            reporter=own_reporter(),
            progress=prepared.message_options.progress,
        )
        with remark_if_long("verifying the result", is_root=site.is_root), local_work("checking the result"):
            losses = job.losses(execution, site)
            verification = job.verified(execution, site) if options.verify else None
    with collective_work("gathering of what was measured"):
        by_rank = site.communicator.gather(beside.seconds[options.warmups :])
    reference = mean_over_ranks(by_rank) if by_rank is not None else []
    measured = Measured(
        execution.timelines,
        execution.bytes_sent,
        reference,
        at_once,
        verification,
        options.warmups,
        site.threads,
        options.backend,
        losses,
        prepared.message_options,
        execution.overlap_fractions,
    )
    return measured, execution


def _record(prepared: PreparedRun, measured: Measured, command: Sequence[str]) -> "Record":
    """The measured record, with what was chosen and why."""
    from quadrille.algorithms.provenance import provenance
    from quadrille.experiments.measure.measured_record import measured_record
    from quadrille.runtime.arrays.blas import describe_blas

    made = measured_record(
        prepared.experiment,
        prepared.job.schedule,
        measured,
        provenance(command, blas=describe_blas(prepared.site.library)),
        prepared.machine,
    )
    if prepared.chosen:
        from quadrille.experiments.predict.collectives_choice import told

        made = told(made, prepared.chosen)
    return prepared.order.told(made) if prepared.order is not None else made


def _fault(measured: Measured, not_written: str) -> str:
    """Why what was computed is not to be kept; empty if it is right."""
    verification, diverged = measured.verification, first_diverged(measured.losses or ())
    if verification is not None and not verification.ok:
        return f"{verification}{not_written}"
    if diverged is not None:
        return (
            f"the loss of step {diverged} is not a finite number{not_written}; a smaller --learning-rate, or "
            "--clip, keeps steps small"
        )
    return ""


def first_diverged(losses: Sequence[float]) -> int | None:
    """The first step of this run, from 0, whose loss is infinite or not a number; None where all are finite.

    >>> first_diverged([5.6, float("inf"), float("nan")]), first_diverged([5.6])
    (1, None)
    """
    return next((step for step, loss in enumerate(losses) if not isfinite(loss)), None)


class KernelsBesideRuns:
    """The reference kernels as they were beside each run, warm-ups included.

    Parameters
    ----------
    at_once : so many ranks time them, the first ones; the others wait, on cores that all share
    """

    def __init__(self, kernels: "ReferenceBenchmark", at_once: int) -> None:
        self._kernels, self._at_once = kernels, at_once
        self.seconds: list[KernelSeconds] = []

    def measure(self, rank: int) -> None:
        if rank < self._at_once:
            self.seconds.append(self._kernels.measure())
