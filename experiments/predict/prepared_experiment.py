"""`PreparedExperiment`: an experiment on a machine with its schedule and rank placement, built once for predictions."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from quadrille.algorithms.formats.record import Shards
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.experiments.workloads.fullest_device import FullestDevice, fullest_of, nodes_of_ranks
from quadrille.experiments.workloads.product_peak import check_products
from quadrille.simulator.machine.default_collectives import machine_choices
from quadrille.simulator.machine.placement import RankPlacement, place_ranks
from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:
    from quadrille.experiments.workloads.experiment import Experiment

AnyExperiment = TypeVar("AnyExperiment", bound="Experiment")
EVEN_SHARDS_ABOVE = 4096
"""Number of ranks above which shards have the mean size by default."""


@dataclass(frozen=True)
class PreparedExperiment:
    """An experiment on a machine; its schedule is built and checked once, and its ranks are placed once.

    Parameters
    ----------
    experiment : experiment with hierarchical collectives that know the node of each rank
    schedule : checked schedule with overlaps and exact shards
    placement : GPU or host of each rank
    """

    experiment: "Experiment"
    machine: Machine
    schedule: Schedule
    placement: RankPlacement

    @cached_property
    def device(self) -> FullestDevice:
        """The device that the largest number of ranks share."""
        return fullest_of(self.placement)

    @property
    def threads(self) -> int:
        """The number of BLAS threads of each rank."""
        return self.experiment.execution.threads or self.device.threads

    @cached_property
    def nodes(self) -> list[int]:
        """The number of the node of each rank [ranks]."""
        return nodes_of_ranks(self.placement)

    @property
    def pace(self) -> float:
        """Factor on the seconds of local work because ranks wait for the slowest GPU; 1 if GPUs are equal."""
        jitter = self.experiment.execution.jitter
        if jitter is None:
            return 1.0
        return self.placement.at_the_pace_of_the_slowest(jitter.gpus_of(self.machine)).slowdown

    @property
    def shards(self) -> Shards:
        """Size of the simulated shards: exact, or even for the mean size."""
        asked = self.experiment.execution.shards
        return asked or ("even" if self.experiment.grid.size > EVEN_SHARDS_ABOVE else "exact")

    @cached_property
    def simulated_schedule(self) -> Schedule:
        """The schedule that is simulated, with shards of mean size if `shards` is even."""
        if self.shards == "exact":
            return self.schedule
        from quadrille.simulator.symmetry.even_shards import with_even_shards

        return with_even_shards(self.schedule)


def prepare(experiment: "Experiment", machine: Machine) -> PreparedExperiment:
    """The experiment with its schedule and rank placement, for predictions on a machine.

    Raises
    ------
    InputError : more ranks than the machine has GPUs, a placement that does not fit, or products in a precision that
        its GPUs lack
    """
    assert not experiment.execution.any_order, "choose_order chooses the order first"
    check_products(experiment, machine)
    experiment = _with_machine_jitter(with_machine_choices(experiment, machine), machine)
    placement = place_ranks(machine, experiment.grid.size, experiment.execution.placement, experiment.grid)
    if experiment.execution.choices.set_name == "hierarchical":
        experiment = experiment.on_nodes(nodes_of_ranks(placement))
    return PreparedExperiment(experiment, machine, experiment.schedule(), placement)


def with_machine_choices(experiment: AnyExperiment, machine: Machine) -> AnyExperiment:
    """The experiment with the collectives of the machine, if it names none."""
    execution = experiment.execution
    if not execution.choices.by_machine:
        return experiment
    return replace(experiment, execution=replace(execution, choices=machine_choices(execution.choices, machine)))


def _with_machine_jitter(experiment: AnyExperiment, machine: Machine) -> AnyExperiment:
    """The experiment with the number of the machine for `--jitter gpus=machine`."""
    execution = experiment.execution
    if execution.jitter is None:
        return experiment
    jitter = replace(execution.jitter, gpus=execution.jitter.gpus_of(machine))
    return replace(experiment, execution=replace(execution, jitter=jitter))


def even_shards_bound(prepared: PreparedExperiment) -> float | None:
    """The largest relative error of the makespan because shards have the mean size; None for exact shards."""
    if prepared.shards == "exact":
        return None
    from quadrille.simulator.symmetry.even_shards import even_bound

    return even_bound(prepared.schedule, prepared.experiment.execution.choices)
