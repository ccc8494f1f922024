"""`step_estimate`: the time and memory of a training step in tenths of a second, before its prediction.

The time is a closed form: a few layers and microbatches, combined in the order of the pipeline's slots.  The command
`quadrille rank` orders configurations by the same combination, with simpler costs of collectives:

    cost                          estimate                                    rank
    bandwidth of a NCCL ring      all cards of the nodes that it crosses      measured, or simulated
    messages of an all-to-all     all at once, on shared links                one after the other
    unequal experts               each message of its own size, NCCL's model  each step as long as its largest message
    stage on two nodes            slower than a stage in one                  every stage as slow as the slowest

The memory is that of the prediction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np

from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.memory import ON_HOST, largest_memory
from quadrille.experiments.predict.closed_form import ClosedFormModel
from quadrille.experiments.predict.prepared_experiment import with_machine_choices
from quadrille.experiments.predict.sampled_step import closed_form_step, sample_costs
from quadrille.experiments.predict.step_parts import sample_experiment
from quadrille.experiments.workloads.product_peak import check_products
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Ints, Network

KEPT = 64
"""Number of samples whose costs are kept for other numbers of stages and microbatches."""
MEMORIES_KEPT = 64
"""Number of experiments whose memory is kept for other bandwidths."""


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """The estimate of a training step of a GPT.

    Parameters
    ----------
    seconds : time of the step by the closed form [s]
    memory_bytes_by_kind : memory of the fullest rank by kind [B]
    """

    seconds: float
    memory_bytes_by_kind: Mapping[str, int]

    @property
    def device_bytes(self) -> int:
        """The memory of the fullest rank on its device [B]."""
        return sum(size for kind, size in self.memory_bytes_by_kind.items() if kind != ON_HOST)


def step_estimate(experiment: TrainingExperiment, machine: Machine) -> StepEstimate:
    """The estimate of a training step of a GPT on a machine.

    Raises
    ------
    InputError : more ranks than the machine has GPUs, or products in a precision that its GPUs lack
    """
    check_products(experiment, machine)
    experiment = with_machine_choices(experiment, machine)
    execution = experiment.execution
    grid, choices = experiment.grid, execution.choices
    stages = grid.pipeline if grid.stride("pipeline") * grid.pipeline == grid.size else 1
    model = ClosedFormModel(machine, experiment.dtype, grid.size, choices, execution.threads, stages=stages)
    slowest = _with_rings(model, experiment, machine)
    costs_of = lru_cache(KEPT)(lambda sampled: sample_costs(sampled, slowest))
    sampled = sample_experiment(experiment)
    costs_of(sampled)
    firsts = model.equal_stages()
    costs = {
        stage: sample_costs(sampled, _with_rings(model.at_stage(stage), experiment, machine))
        for stage in (set(firsts) if len(set(firsts)) > 1 else ())
    }
    step = closed_form_step(experiment, costs_of, slowest, [costs[stage] for stage in firsts] if costs else ())
    return StepEstimate(step.seconds, _memory_bytes_by_kind(experiment))


def _with_rings(model: ClosedFormModel, experiment: TrainingExperiment, machine: Machine) -> ClosedFormModel:
    """The model with rings and all-to-alls as NCCL has them, if NCCL is the library of collectives."""
    if experiment.execution.choices.implementation != "nccl":
        return model
    return model.at_once(ring_bandwidths(experiment.grid, model, network_of(machine)))


@lru_cache(MEMORIES_KEPT)
def _memory_bytes_by_kind(experiment: TrainingExperiment) -> Mapping[str, int]:
    """The memory of the fullest rank by kind, which the bandwidths of the machine do not change [B]."""
    memory = largest_memory(experiment.applied_schedule(), experiment.execution.choices)
    return {str(kind): size for kind, size in memory.items()}


def ring_bandwidths(grid: Grid, model: ClosedFormModel, net: Network) -> dict[tuple[int, int], float]:
    """The bandwidth of NCCL's rings between nodes, by stride and number of members [B/s].

    A ring in rank order leaves a node by one card.  NCCL lays rings in several channels, which leave a node by the
    cards of all members in the node.  A ring in a node limits what its channels carry together:

        β = min(β_node, β_card · max(1, fewest members of a group in a node · cards / GPUs of a node))

    Source: NVIDIA, "NCCL user guide", environment variable NCCL_CROSS_NIC.

    Parameters
    ----------
    model : model with the bandwidths of rings in rank order
    """
    bandwidths: dict[tuple[int, int], float] = {}
    in_node = model.ring_link(Grid(x=gcd(net.per_node, grid.size)), "x").bandwidth
    for axis in grid.axes:
        if axis == "pipeline":
            continue
        card = model.ring_link(grid, axis).bandwidth
        if grid.length(axis) == 1 or card >= in_node or net.cards_per_node == net.per_node == 1:
            continue
        channels = max(1, fewest_members(model.groups(grid, axis), net.per_node) * net.cards_per_node // net.per_node)
        bandwidths[grid.stride(axis), grid.length(axis)] = max(card, min(in_node, card * channels))
    return bandwidths


def fewest_members(groups: Ints, per_node: int) -> int:
    """The fewest members of a group in a node, of the nodes in which it has any.

    >>> fewest_members(np.arange(24).reshape(2, 12), per_node=8)
    4

    Parameters
    ----------
    groups : endpoints of the members of groups [groups, members]
    """
    nodes = groups // per_node + np.arange(len(groups))[:, None] * (groups.max() + 1)
    return int(np.unique(nodes, return_counts=True)[1].min())
