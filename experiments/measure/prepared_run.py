"""What is settled before anything is measured: the experiment as it will be run, and where its data come from and go.

Whatever can be refused is refused here, before a matrix is allocated: sizes and
names by every rank alike, then the number of ranks, files, and memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.experiments.measure.message_options import delivery_at
from quadrille.experiments.options.machine_flags import MachineFlags
from quadrille.experiments.options.memory_check import lying_otherwise
from quadrille.experiments.options.run_options import Plan, RunFlags, files_read, parse_plan
from quadrille.experiments.output.destinations import Destinations, check_apart
from quadrille.experiments.predict.collectives_choice import NO_MACHINE, Chosen, with_choices, with_chosen
from quadrille.experiments.predict.order_choice import NO_MACHINE as NO_MACHINE_FOR_ORDER
from quadrille.experiments.predict.order_choice import ChosenOrder, as_it_is
from quadrille.experiments.workloads.fitting_grids import check_ranks
from quadrille.experiments.workloads.matmul import Experiment, Flags
from quadrille.experiments.workloads.workloads import AnyExperiment, experiment_of
from quadrille.runtime.carriers.message_options import MessageOptions
from quadrille.runtime.execution.rank_environment import (
    RankEnvironment,
    check_memory,
    find_rank_environment,
    hosts_of_ranks,
    start_world,
)
from quadrille.runtime.execution.results import Execution
from quadrille.runtime.host.console import remark, remark_all, remark_if_long
from quadrille.runtime.host.progress_reports import collective_work, local_work
from quadrille.runtime.operands.sources import InputSource
from quadrille.runtime.verifying.verify import Verification

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from quadrille.topologies.machines.machine import Machine

Answered = TypeVar("Answered")


class Job(Protocol):
    """What a run reads, checks and writes, on one rank; all ranks have one and take every step together."""

    schedule: Schedule
    verify_bytes: int

    @property
    def source(self) -> InputSource:
        """Where inputs and parameters come from, once it is open."""

    def open(self) -> None:
        """Opens what is read and looks whether all can be written (InputError)."""

    def verified(self, execution: Execution, site: RankEnvironment) -> Verification:
        """The verdict of all ranks, the same on each."""

    def write(self, execution: Execution, site: RankEnvironment) -> None:
        """Writes what was asked for, all or nothing."""

    def losses(self, execution: Execution, site: RankEnvironment) -> tuple[float, ...] | None:
        """The loss of every step, where there is one, on every rank."""

    @property
    def not_written(self) -> str:
        """What is said of files where the result is wrong."""


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """All that a run needs to know, on one rank.

    Parameters
    ----------
    experiment : with what was left to be chosen
    machine : that was named for it, at rank 0
    chosen, order : what was chosen for collectives and for the order of ranks, and why
    """

    experiment: AnyExperiment
    plan: Plan
    site: RankEnvironment
    job: Job
    message_options: MessageOptions
    machine: "Machine | None"
    chosen: Sequence[Chosen]
    order: ChosenOrder | None


def prepared_run(flags: Flags, run_flags: RunFlags, on: MachineFlags, destinations: Destinations) -> PreparedRun:
    """What the flags ask for; all ranks call it.

    Raises
    ------
    InputError : an experiment that cannot be
    """
    experiment = experiment_of(flags)
    if experiment.manner.shards == "even":
        raise InputError("shards 'even': no rank has shards of mean size; a run accepts exact")
    experiment.manner.choices.check_runnable()
    plan = parse_plan(run_flags, experiment)
    communicator = start_world()
    with local_work("preparations"):
        check_ranks(experiment, communicator.size)
        machine = None
        if communicator.rank == 0:
            read = on.files | files_read(flags)
            check_apart(plan.written, read)
            destinations.check(plan.files | read, ranks=experiment.grid.size)
            machine = _machine(on, experiment, plan)
        site = find_rank_environment(communicator, plan.backend, experiment.dtype, experiment.manner.threads, plan.blas)
        order = None
        if experiment.manner.any_order:
            order = _chosen_order(experiment, plan, site, machine)
            experiment = order.laid_out(experiment)
        job = _job(experiment, plan, communicator)
        job.open()
        nodes = hosts_of_ranks(communicator)
        if machine is not None:
            remark_all(lying_otherwise(machine, nodes, experiment.manner.placement, experiment.grid))
        experiment = experiment.on_nodes(nodes)
        chosen = list[Chosen]()
        if experiment.manner.choices.auto:
            chosen = _chosen(experiment, job.schedule, plan, nodes, site, machine)
            experiment = with_choices(experiment, chosen)
        verify_bytes = job.verify_bytes if plan.checked else 0
        check_memory(job.schedule, experiment.manner.choices, site, verify_bytes=verify_bytes)
        if site.is_root:
            remark_all(experiment.remarks())
        message_options = delivery_at(site, plan, job.schedule, machine)
    return PreparedRun(experiment, plan, site, job, message_options, machine, chosen, order)


def _job(experiment: AnyExperiment, plan: Plan, communicator: "Intracomm") -> Job:
    """What a run of the experiment reads, checks and writes."""
    if isinstance(experiment, Experiment):
        from quadrille.experiments.measure.matmul_job import MatmulJob

        return MatmulJob(experiment, plan, communicator)
    from quadrille.experiments.measure.training_job import TrainingJob

    return TrainingJob(experiment, plan, communicator)


def _machine(on: MachineFlags, experiment: AnyExperiment, plan: Plan) -> "Machine | None":
    """The machine that the flags name, if they do; checked and changed as for a prediction."""
    if not on.given:
        return None
    from quadrille.experiments.predict.predict import fitting_machine  # a rank has no use for the simulator otherwise

    return fitting_machine(on, experiment, plan.chunk_bytes)


def _chosen_order(
    experiment: AnyExperiment, plan: Plan, site: RankEnvironment, machine: "Machine | None"
) -> ChosenOrder:
    """The order of ranks that rank 0 chooses, and why; all ranks call it.

    Parameters
    ----------
    machine : to predict on, at rank 0
    """

    def ask() -> ChosenOrder:
        if machine is None:
            return as_it_is(experiment)
        from quadrille.experiments.predict.predict import order_on

        return order_on(experiment, machine, plan.backend, "auto")

    found = _asked_of_first("choosing the order of ranks", ask, site)
    if site.is_root:
        remark(found.line() if machine is not None else NO_MACHINE_FOR_ORDER)
    return found


def _chosen(
    experiment: AnyExperiment,
    schedule: Schedule,
    plan: Plan,
    nodes: Sequence[int],
    site: RankEnvironment,
    machine: "Machine | None",
) -> list[Chosen]:
    """What rank 0 chooses for each op, and why; all ranks call it.

    Parameters
    ----------
    machine : to predict on, at rank 0
    """

    def ask() -> list[Chosen]:
        return [] if machine is None else with_chosen(experiment, schedule, machine, nodes, plan.backend)[1]

    found = _asked_of_first("choosing collectives", ask, site)
    if site.is_root:
        remark_all([one.line() for one in found] if machine is not None else [NO_MACHINE])
    return found


def _asked_of_first(words: str, ask: Callable[[], Answered], site: RankEnvironment) -> Answered:
    """What rank 0 answers, on every rank; all ranks call it.

    Parameters
    ----------
    words : what is done meanwhile
    """
    found = None
    if site.is_root:
        with remark_if_long(words), local_work(words):
            found = ask()
    with collective_work(words):
        told: Answered = site.communicator.bcast(found)
    return told
