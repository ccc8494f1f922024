"""`quadrille run`: from flags to a measured record, on every rank of an MPI world or alone as one rank.

Whatever can be refused is refused before a matrix is allocated: sizes and
names by every rank alike, then the number of ranks, files, and memory.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from algorithms.errors import InputError, RunError
from algorithms.provenance import provenance
from algorithms.schedule import Schedule
from runtime.blas import blas_in_words
from runtime.delivery import Delivery
from runtime.execute import execute
from runtime.execution import Execution, Source
from runtime.verifying.verify import Verification
from runtime.whereabouts import alone, own_watcher, together
from studies.collectives_choice import NO_MACHINE, Chosen, told, with_choices, with_chosen
from studies.destinations import Destinations, check_apart
from studies.experiments.delivery_at import delivery_at
from studies.experiments.measured_record import KernelSeconds, Measured, mean_over_ranks, measured_record, typical
from studies.experiments.results import write_results
from studies.experiments.workloads import AnyExperiment, experiment_of
from studies.flags.machine_flags import MachineFlags
from studies.flags.placement import lying_otherwise
from studies.flags.plan import Plan, RunFlags, files_read, parse_plan
from studies.launching.site import Site, check_memory, find_site, hosts_of_ranks, open_carrier, start_world
from studies.matmuls.experiment import Experiment, Flags
from studies.matmuls.fitting_grids import check_ranks
from studies.order_choice import NO_MACHINE as NO_MACHINE_FOR_ORDER
from studies.order_choice import ChosenOrder, as_it_is
from studies.remarks import remark, remark_all

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from algorithms.formats.machine import Machine
    from runtime.measuring.reference_kernels import ReferenceKernels

Answered = TypeVar("Answered")
PATIENCE_SECONDS = 5.0
"""Of a user, after which a word is said."""


class Job(Protocol):
    """What a run reads, checks and writes, on one rank; all ranks have one and take every step together."""

    schedule: Schedule
    verify_bytes: int

    @property
    def source(self) -> Source:
        """Where inputs and parameters come from, once it is open."""

    def open(self) -> None:
        """Opens what is read and looks whether all can be written (InputError)."""

    def verified(self, execution: Execution, site: Site) -> Verification:
        """The verdict of all ranks, the same on each."""

    def write(self, execution: Execution, site: Site) -> None:
        """Writes what was asked for, all or nothing."""

    def losses(self, execution: Execution, site: Site) -> tuple[float, ...] | None:
        """The loss of every step, where there is one, on every rank."""

    @property
    def not_written(self) -> str:
        """What is said of files where the result is wrong."""


def run(
    flags: Flags,
    run_flags: RunFlags,
    on: MachineFlags,
    *,
    destinations: Destinations,
    command: Sequence[str] = (),
) -> None:
    """Runs the experiment on all ranks; rank 0 writes its record, or prints it.

    Parameters
    ----------
    on : the machine: checked and named in the record; what `auto` leaves to be chosen is chosen for it
    command : the words of the command line, for provenance

    Raises
    ------
    InputError : an experiment that cannot be
    RunError : a result that did not verify, or could not be written; a loss that is not a number
    """
    experiment = experiment_of(flags)
    if experiment.manner.shards == "even":
        raise InputError("shards 'even': no rank has shards of mean size; a run accepts exact")
    experiment.manner.choices.check_runnable()
    plan = parse_plan(run_flags, experiment)
    chosen, order = list[Chosen](), None
    communicator = start_world()
    with alone("preparations"):
        check_ranks(experiment, communicator.size)
        named = None
        if communicator.rank == 0:
            read = on.files | files_read(flags)
            check_apart(plan.written, read)
            destinations.check(plan.files | read, ranks=experiment.grid.size)
            named = _machine(on, experiment, plan)
        site = find_site(communicator, plan.backend, experiment.dtype, experiment.manner.threads, plan.blas)
        job = job_of(experiment, plan, communicator)
        job.open()
        if experiment.manner.any_order:
            experiment, order = _in_chosen_order(experiment, plan, site, named)
            job = job_of(experiment, plan, communicator)
            job.open()
        nodes = hosts_of_ranks(communicator)
        if named is not None:
            remark_all(lying_otherwise(named, nodes, experiment.manner.placement, experiment.grid))
        experiment = experiment.on_nodes(nodes)
        if experiment.manner.choices.auto:
            experiment, chosen = _chosen(experiment, job.schedule, plan, nodes, site, named)
        verify_bytes = job.verify_bytes if plan.checked else 0
        check_memory(job.schedule, experiment.manner.choices, site, verify_bytes=verify_bytes)
        if site.speaks:
            remark_all(experiment.remarks())
        delivery = delivery_at(site, plan, job.schedule, named)
    measured, execution = _measure(experiment, job, plan, site, delivery)
    fault = _fault(measured, job.not_written)
    with alone("writing results"):
        if not fault:
            job.write(execution, site)
        if site.speaks:
            made = measured_record(
                experiment, job.schedule, measured, provenance(command, blas=blas_in_words(site.library)), named
            )
            made = told(made, chosen) if chosen else made
            made = order.told(made) if order is not None else made
            write_results(destinations, made, typical(measured.timelines))
            if fault:
                raise RunError(fault)


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


def job_of(experiment: AnyExperiment, plan: Plan, communicator: "Intracomm") -> Job:
    """What a run of the experiment reads, checks and writes."""
    if isinstance(experiment, Experiment):
        from studies.matmuls.job import MatmulJob

        return MatmulJob(experiment, plan, communicator)
    from studies.training.job import TrainingJob

    return TrainingJob(experiment, plan, communicator)


def _machine(on: MachineFlags, experiment: AnyExperiment, plan: Plan) -> "Machine | None":
    """The machine that the flags name, if they do; checked and changed as for a prediction."""
    if not on.given:
        return None
    from studies.experiments.predict import fitting_machine  # a rank has no use for the simulator otherwise

    return fitting_machine(on, experiment, plan.chunk_bytes)


def _in_chosen_order(
    experiment: AnyExperiment, plan: Plan, site: Site, machine: "Machine | None"
) -> tuple[AnyExperiment, ChosenOrder]:
    """The experiment with its ranks in the order that rank 0 chooses, and why; all ranks call it.

    Parameters
    ----------
    machine : to predict on, at rank 0
    """

    def ask() -> ChosenOrder:
        if machine is None:
            return as_it_is(experiment)
        from studies.experiments.predict import order_on

        return order_on(experiment, machine, plan.backend, "auto")

    found = _asked_of_first("choosing the order of ranks", ask, site)
    if site.speaks:
        remark(found.line() if machine is not None else NO_MACHINE_FOR_ORDER)
    return found.laid_out(experiment), found


def _chosen(
    experiment: AnyExperiment,
    schedule: Schedule,
    plan: Plan,
    nodes: Sequence[int],
    site: Site,
    machine: "Machine | None",
) -> tuple[AnyExperiment, list[Chosen]]:
    """The experiment with what rank 0 chooses for each op, and why; all ranks call it.

    Parameters
    ----------
    machine : to predict on, at rank 0
    """

    def ask() -> list[Chosen]:
        return [] if machine is None else with_chosen(experiment, schedule, machine, nodes, plan.backend)[1]

    found = _asked_of_first("choosing collectives", ask, site)
    if site.speaks:
        remark_all([one.line() for one in found] if machine is not None else [NO_MACHINE])
    return with_choices(experiment, found), found


def _asked_of_first(words: str, ask: Callable[[], Answered], site: Site) -> Answered:
    """What rank 0 answers, on every rank; all ranks call it.

    Parameters
    ----------
    words : what is done meanwhile
    """
    found = None
    if site.speaks:
        with _said_after(PATIENCE_SECONDS, words, site), alone(words):
            found = ask()
    with together(words):
        told: Answered = site.communicator.bcast(found)
    return told


# The run


def _measure(
    experiment: AnyExperiment, job: Job, plan: Plan, site: Site, delivery: Delivery
) -> tuple[Measured, Execution]:
    """What was measured, complete at rank 0 only, and the rank's results."""
    with alone("set-up of the run"):
        from threadpoolctl import threadpool_limits

        from runtime.measuring.reference_kernels import ReferenceKernels

        at_once = min(site.host.cores, site.host.sharing)
        beside = KernelsBesideRuns(ReferenceKernels(), at_once or site.communicator.size)
    with (
        np.errstate(over="ignore", invalid="ignore", divide="ignore"),  # a loss or an error that is not finite is told
        threadpool_limits(site.threads, user_api="blas"),
        open_carrier(plan.carrier, site, experiment.manner.choices, experiment.dtype, delivery) as carrier,
    ):
        execution = execute(
            job.schedule,
            job.source,
            carrier,
            repeats=plan.repeats,
            warmups=plan.warmups,
            choices=experiment.manner.choices,
            library=site.library,
            between=beside.measure,
            watcher=own_watcher(),
            progress=delivery.progress,
        )
        with _said_after(PATIENCE_SECONDS, "verifying the result", site), alone("checking the result"):
            losses = job.losses(execution, site)
            verification = job.verified(execution, site) if plan.checked is not None else None
    with together("gathering of what was measured"):
        by_rank = site.communicator.gather(beside.seconds[plan.warmups :])
    reference = mean_over_ranks(by_rank) if by_rank is not None else []
    measured = Measured(
        execution.timelines,
        execution.bytes_sent,
        reference,
        at_once,
        verification,
        plan.warmups,
        site.threads,
        plan.backend,
        losses,
        delivery,
        execution.beside,
    )
    return measured, execution


@contextmanager
def _said_after(seconds: float, words: str, site: Site) -> Iterator[None]:
    """Has rank 0 say what it does if that takes so long."""
    timer = threading.Timer(seconds, remark, (words,))
    timer.daemon = True
    if site.speaks:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


class KernelsBesideRuns:
    """The reference kernels as they were beside each run, warm-ups included.

    Parameters
    ----------
    at_once : so many ranks time them, the first ones; the others wait, on cores that all share
    """

    def __init__(self, kernels: "ReferenceKernels", at_once: int) -> None:
        self._kernels, self._at_once = kernels, at_once
        self.seconds: list[KernelSeconds] = []

    def measure(self, rank: int) -> None:
        if rank < self._at_once:
            self.seconds.append(self._kernels.measure())
