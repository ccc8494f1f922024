"""Memory remedies: options with which a training step needs less memory, for steps that do not fit.

A refusal for lack of memory names the options with which the step fits.  Each option is tried with the overlaps and all
other options of the step.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.offload import Offload
from quadrille.algorithms.training.recompute import WHOLE_LAYERS
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.experiments.workloads.training_figures import experiment_peak_bytes
from quadrille.topologies.machines.machine import Machine

SPARSITY = 0.9
"""Sparsity of the pruned model that is tried if the user names none."""
Changes = dict[str, Any]
"""Fields of the model that an option changes, with their new values."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A step with an option that makes its memory smaller.

    Parameters
    ----------
    flags : flags of the option
    experiment : step with the option
    rank_bytes : largest memory of a rank [B]
    """

    flags: str
    experiment: TrainingExperiment
    rank_bytes: int


def remedies(experiment: TrainingExperiment) -> Iterator[Remedy]:
    """The step with each option that it lacks, and with two options; steps that are not possible are left out."""
    for flags, changes in _missing_options(experiment).items():
        try:
            changed = replace(experiment, problem=replace(experiment.problem, **changes))
            yield Remedy(flags, changed, experiment_peak_bytes(changed))
        except InputError:
            continue


def remedy_texts(experiment: TrainingExperiment, machine: Machine, sharing: int) -> Iterator[str]:
    """The options with which a step fits in the memory of its devices and hosts, each with its bytes on a device.

    Parameters
    ----------
    sharing : number of ranks that share a device
    """
    for remedy in remedies(experiment):
        size = sharing * remedy.rank_bytes
        if size <= machine.device.memory_bytes and _fits_on_hosts(remedy.experiment, machine):
            yield f"with {remedy.flags} it fits, in {format_bytes(size)}"


def _missing_options(experiment: TrainingExperiment) -> dict[str, Changes]:
    """The options of the table that a step lacks, by their flags."""
    problem = experiment.problem
    offload: Changes = {"offload": Offload()}
    recompute: Changes = {"recompute": "full"}
    sparse: Changes = {"sparsity": problem.sparsity or SPARSITY, "sparse_states": True}
    sparse_flags = "--sparse-states" if problem.sparsity else f"--sparsity {SPARSITY:g} --sparse-states"
    lacks_offload, lacks_sparse = problem.offload is None, not problem.pruning.compressed
    lacks_recompute = isinstance(problem, Gpt) and problem.recompute not in WHOLE_LAYERS
    table: tuple[tuple[str, Changes, bool], ...] = (
        ("--zero 1", {"zero": 1}, experiment.grid.data * experiment.grid.context > 1 and problem.zero < 1),
        ("--recompute full", recompute, lacks_recompute),
        ("--offload optimizer", offload, lacks_offload),
        ("--offload optimizer --recompute full", offload | recompute, lacks_offload and lacks_recompute),
        (sparse_flags, sparse, lacks_sparse),
    )
    return {flags: changes for flags, changes, is_missing in table if is_missing}


def _fits_on_hosts(experiment: TrainingExperiment, machine: Machine) -> bool:
    """Whether the hosts of a machine have the link and the memory that an offloaded optimizer needs."""
    if experiment.problem.offload is None:
        return True
    if machine.host_link is None:
        return False
    from quadrille.simulator.machine.placement import place_ranks
    from quadrille.simulator.ranks.host_links import host_memory_shortage

    placement = place_ranks(machine, experiment.grid.size)
    schedule, choices = experiment.applied_schedule(), experiment.execution.choices
    return not host_memory_shortage(schedule, placement, machine.host_link, choices)
