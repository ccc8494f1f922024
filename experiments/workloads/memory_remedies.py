"""Options that make a training step fit: optimizer state on the host, and compressed states of a pruned model."""

from collections.abc import Iterator
from dataclasses import replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.offload import Offload
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from quadrille.topologies.machines.machine import Machine

SPARSITY = 0.9
"""Sparsity of the pruned model that is tried if the user names none."""


def remedy_texts(experiment: TrainingExperiment, machine: Machine, sharing: int) -> Iterator[str]:
    """The options, each alone, with which a step fits in the memory of its devices and hosts, with its bytes a rank.

    Parameters
    ----------
    sharing : number of ranks that share a device
    """
    for flags, changed in _changed_steps(experiment, machine):
        try:
            rank_bytes = experiment_peak_bytes(changed)
            fits = sharing * rank_bytes <= machine.device.memory_bytes and not _host_shortage(changed, machine)
        except InputError:
            continue
        if fits:
            yield f"with {flags} it fits, in {format_bytes(sharing * rank_bytes)}"


def _changed_steps(experiment: TrainingExperiment, machine: Machine) -> Iterator[tuple[str, TrainingExperiment]]:
    """The step with each option that it lacks, after the option's flags."""
    problem = experiment.problem
    if problem.offload is not None or problem.pruning.compressed:
        return  # neither option can be combined with the other
    if machine.host_link is not None:
        yield "--offload optimizer", replace(experiment, problem=replace(problem, offload=Offload()))
    sparsity = problem.sparsity or SPARSITY
    flags = "--sparse-states" if problem.sparsity else f"--sparsity {SPARSITY:g} --sparse-states"
    yield flags, replace(experiment, problem=replace(problem, sparsity=sparsity, sparse_states=True))


def _host_shortage(experiment: TrainingExperiment, machine: Machine) -> str:
    """The bytes that the memory of a host does not hold, as text; empty if it holds all."""
    if experiment.problem.offload is None or machine.host_link is None:
        return ""
    from quadrille.simulator.machine.placement import place_ranks
    from quadrille.simulator.ranks.host_links import host_memory_shortage

    placement = place_ranks(machine, experiment.grid.size)
    return host_memory_shortage(
        experiment.applied_schedule(), placement, machine.host_link, experiment.execution.choices
    )
