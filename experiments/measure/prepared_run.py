"""`PreparedRun`: a run after all checks and automatic choices, before anything is measured.

All checks come before a matrix is allocated: sizes and names on every rank, then the number
of ranks, files, and memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.experiments.measure.message_options import choose_message_options
from quadrille.experiments.output.destinations import Destinations, check_paths_differ
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.runtime.carriers.message_options import MessageOptions
from quadrille.runtime.execution.execution_results import Execution
from quadrille.runtime.execution.rank_environment import (
    RankEnvironment,
    check_memory,
    find_rank_environment,
    hosts_of_ranks,
    start_world,
)
from quadrille.runtime.host.console import remark, remark_all, remark_if_long
from quadrille.runtime.host.progress_reports import collective_work, local_work
from quadrille.runtime.operands.input_sources import InputSource

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from quadrille.experiments.predict.collectives_choice import ChosenCollective
    from quadrille.experiments.predict.order_choice import ChosenOrder
    from quadrille.experiments.workloads.experiment import Experiment
    from quadrille.runtime.verifying.verify import Verification
    from quadrille.topologies.machines.machine import Machine

Answer = TypeVar("Answer")


class Job(Protocol):
    """The inputs, the verification and the files of a run, on one rank; all ranks call each method together."""

    schedule: Schedule

    @property
    def verify_bytes(self) -> int:
        """Bytes that verification needs on this rank."""

    @property
    def source(self) -> InputSource:
        """Source of inputs and parameters, after `open`."""

    def open(self) -> None:
        """Opens the inputs and checks that all outputs can be written (InputError)."""

    def verified(self, execution: Execution, site: RankEnvironment) -> "Verification":
        """The result of the verification, equal on all ranks."""

    def write(self, execution: Execution, site: RankEnvironment) -> None:
        """Writes the files of the run, all or none."""

    def losses(self, execution: Execution, site: RankEnvironment) -> tuple[float, ...] | None:
        """The loss of every training step, on every rank; None for a matmul."""

    @property
    def not_written(self) -> str:
        """The part of an error message about files that were not written; empty if there are none."""


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run on one rank, after all checks and automatic choices.

    Parameters
    ----------
    experiment : experiment with its collectives and its order of ranks
    site : host, arrays and communicator of the rank
    job : inputs, verification and files of the run
    machine : machine that the user named, at rank 0; else None
    chosen, order : automatic choices of collectives and of the order of ranks, with reasons
    """

    experiment: "Experiment"
    options: RunOptions
    site: RankEnvironment
    job: Job
    message_options: MessageOptions
    machine: "Machine | None"
    chosen: "Sequence[ChosenCollective]"
    order: "ChosenOrder | None"


def _with_own_default(experiment: "Experiment") -> "Experiment":
    """The experiment with Quadrille's own collectives if it names none: they run on any machine."""
    execution = experiment.execution
    return (
        replace(experiment, execution=replace(execution, choices=Choices()))
        if execution.choices.by_machine
        else experiment
    )


def _check_measurable(experiment: "Experiment") -> None:
    """Raises InputError for options that only predictions have."""
    if experiment.execution.shards == "even":
        raise InputError("shards 'even': no rank has shards of mean size; a run accepts exact")
    if experiment.execution.jitter is not None:
        raise InputError(
            f"jitter {experiment.execution.jitter}: a run has the noise of its machine; simulate accepts it"
        )
    products = getattr(experiment.problem, "products", "dtype")
    if products != "dtype":
        raise InputError(
            f"--products {products}: no array library of a run multiplies numbers of 8 or 4 bits; simulate predicts "
            "them, and a run accepts --products dtype"
        )


def _check_runnable(experiment: "Experiment", options: RunOptions) -> None:
    """Checks that a run can do what an experiment and its options ask for.

    Raises
    ------
    InputError : an option of predictions, or of other experiments
    """
    experiment.execution.choices.check_runnable()
    experiment.check_run(options)
    if (load := getattr(experiment.problem, "expert_load", None)) is not None:
        raise InputError(f"--expert-load {load}: is for predictions; in a run, the router chooses: leave it out")


def prepare_run(
    experiment: "Experiment", machine: "Machine | None", options: RunOptions, destinations: Destinations
) -> PreparedRun:
    """The run of an experiment after all checks and automatic choices; all ranks call it together.

    Parameters
    ----------
    machine : machine for which collectives and the order of ranks are chosen; only rank 0 uses it
    options : repeats, verification, files and other options of a run
    destinations : files that rank 0 writes

    Raises
    ------
    InputError : an experiment that cannot run
    """
    _check_measurable(experiment)
    experiment = _with_own_default(experiment)
    _check_runnable(experiment, options)
    communicator = start_world()
    with local_work("preparations"):
        if communicator.size != experiment.grid.size:
            from quadrille.experiments.workloads.fitting_grids import check_ranks

            check_ranks(experiment, communicator.size)
        used_machine = None
        if communicator.rank == 0:
            check_paths_differ(options.written, destinations.read)
            destinations.check(options.files)
            used_machine = None if machine is None else _prepared_machine(machine, experiment, options)
        execution = experiment.execution
        site = find_rank_environment(communicator, options.backend, experiment.dtype, execution.threads, options.blas)
        order = None
        if execution.any_order:
            order = _choose_order_on_rank_0(experiment, options, site, used_machine)
            experiment = order.with_chosen_order(experiment)
        job = _job(experiment, options, communicator)
        job.open()
        hosts = hosts_of_ranks(communicator)
        if used_machine is not None:
            remark_all(_host_grouping_remark(used_machine, experiment, hosts))
        experiment = experiment.on_nodes(hosts)
        chosen: list[ChosenCollective] = []
        if experiment.execution.choices.auto:
            from quadrille.experiments.predict.collectives_choice import with_choices

            chosen = _choose_collectives_on_rank_0(experiment, job.schedule, options, hosts, site, used_machine)
            experiment = with_choices(experiment, chosen)
        if options.device_memory_bytes is not None:
            from quadrille.experiments.measure.device_memory import check_device_memory

            check_device_memory(experiment, job.schedule, options.device_memory_bytes)
        verify_bytes = job.verify_bytes if options.verify else 0
        check_memory(job.schedule, experiment.execution.choices, site, verify_bytes=verify_bytes)
        if site.is_root:
            remark_all(experiment.remarks(job.schedule))
        message_options = choose_message_options(site, options, job.schedule, used_machine)
    return PreparedRun(experiment, options, site, job, message_options, used_machine, chosen, order)


def _job(experiment: "Experiment", options: RunOptions, communicator: "Intracomm") -> Job:
    """The job of an experiment: a matmul or training."""
    if isinstance(experiment, MatmulExperiment):
        from quadrille.experiments.measure.matmul_job import MatmulJob

        return MatmulJob(experiment, options, communicator)
    from quadrille.experiments.measure.training_job import TrainingJob

    return TrainingJob(experiment, options, communicator)


def _prepared_machine(machine: "Machine", experiment: "Experiment", options: RunOptions) -> "Machine":
    """The machine with the message size of the options, after a check that its devices hold the ranks."""
    from quadrille.experiments.workloads.fullest_device import fullest_device
    from quadrille.topologies.machines.what_if import in_chunks

    fullest_device(machine, experiment.grid.size, experiment.execution.placement, experiment.grid)
    return in_chunks(machine, options.chunk_bytes)


def _host_grouping_remark(machine: "Machine", experiment: "Experiment", hosts: Sequence[int]) -> Iterator[str]:
    """A remark if the run groups ranks on hosts otherwise than the machine does."""
    from quadrille.experiments.workloads.fullest_device import host_grouping_remark, nodes_of_ranks
    from quadrille.simulator.machine.placement import place_ranks

    placement = place_ranks(machine, len(hosts), experiment.execution.placement, experiment.grid)
    return host_grouping_remark(machine, nodes_of_ranks(placement), hosts)


def _choose_order_on_rank_0(
    experiment: "Experiment", options: RunOptions, site: RankEnvironment, machine: "Machine | None"
) -> "ChosenOrder":
    """The rank order that rank 0 chooses, with its reason; all ranks call it.

    Parameters
    ----------
    machine : machine to predict on, at rank 0; None to keep the order of the experiment
    """
    from quadrille.experiments.predict.order_choice import NO_MACHINE, unchanged_order

    def choose_on_rank_0() -> "ChosenOrder":
        if machine is None:
            return unchanged_order(experiment)
        from quadrille.experiments.predict.predict import choose_order

        return choose_order(experiment, machine, options.backend, "auto")

    order = _answer_of_rank_0("choosing the order of ranks", choose_on_rank_0, site)
    if site.is_root:
        remark(order.line() if machine is not None else NO_MACHINE)
    return order


def _choose_collectives_on_rank_0(
    experiment: "Experiment",
    schedule: Schedule,
    options: RunOptions,
    nodes: Sequence[int],
    site: RankEnvironment,
    machine: "Machine | None",
) -> "list[ChosenCollective]":
    """The collectives that rank 0 chooses for each op, with their reasons; all ranks call it.

    Parameters
    ----------
    nodes : node of each rank, for hierarchical algorithms
    machine : machine to predict on, at rank 0; None to choose nothing
    """
    from quadrille.experiments.predict.collectives_choice import NO_MACHINE, choose_collectives

    def choose_on_rank_0() -> "list[ChosenCollective]":
        return [] if machine is None else choose_collectives(experiment, schedule, machine, nodes, options.backend)[1]

    choices = _answer_of_rank_0("choosing collectives", choose_on_rank_0, site)
    if site.is_root:
        remark_all([choice.line() for choice in choices] if machine is not None else [NO_MACHINE])
    return choices


def _answer_of_rank_0(words: str, choose_on_rank_0: Callable[[], Answer], site: RankEnvironment) -> Answer:
    """The result of a function that only rank 0 calls, broadcast to every rank; all ranks call it.

    Parameters
    ----------
    words : description of the work, for progress reports
    ask : function that rank 0 calls
    """
    answer = None
    if site.is_root:
        with remark_if_long(words), local_work(words):
            answer = choose_on_rank_0()
    with collective_work(words):
        shared: Answer = site.communicator.bcast(answer)
    return shared
