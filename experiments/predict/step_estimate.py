"""`step_estimate`: the time and memory of a training step in tenths of a second, before its prediction.

The time is a closed form: a few layers and microbatches, combined in the order of the pipeline's slots.  The command
`quadrille rank` orders configurations by the same combination, with simpler costs of collectives:

    cost                          estimate                                    rank
    bandwidth of a NCCL ring      all cards of the nodes that it crosses      measured, or simulated
    messages of an all-to-all     all at once, on shared links                one after the other
    unequal experts               each message of its own size, NCCL's model  each step as long as its largest message
    groups on two nodes           slower than those in one, in a chain of     every stage as slow as the slowest
                                  ranks through the pipeline of their own

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
from quadrille.experiments.predict.hop_costs import DATA_AXES
from quadrille.experiments.predict.prepared_experiment import with_machine_choices
from quadrille.experiments.predict.sampled_step import closed_form_step, sample_costs
from quadrille.experiments.predict.step_parts import sample_experiment
from quadrille.experiments.workloads.fullest_device import nodes_of_ranks
from quadrille.experiments.workloads.product_peak import check_products
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.simulator.machine.network import network_of
from quadrille.simulator.machine.placement import place_ranks
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
    nodes = np.array(nodes_of_ranks(place_ranks(machine, grid.size)))
    blocks = separate_blocks(grid, nodes) if stages > 1 else 1
    model = ClosedFormModel(
        machine, experiment.dtype, grid.size, choices, execution.threads, stages=stages, blocks=blocks
    )
    slowest = _with_rings(model, experiment, machine)
    costs_of = lru_cache(KEPT)(lambda sampled: sample_costs(sampled, slowest))
    sampled = sample_experiment(experiment)
    costs_of(sampled)
    firsts = np.array(model.equal_places()).reshape(stages, blocks)
    costs = {
        place: sample_costs(sampled, _with_rings(model.at_place(place), experiment, machine))
        for place in (set(firsts.ravel().tolist()) if len(np.unique(firsts)) > 1 else ())
    }
    chains = {tuple(costs[place] for place in chain) for chain in firsts.T.tolist()} if costs else {()}
    seconds = max(closed_form_step(experiment, costs_of, slowest, chain).seconds for chain in chains)
    return StepEstimate(seconds, _memory_bytes_by_kind(experiment))


def separate_blocks(grid: Grid, nodes: Ints) -> int:
    """The number of blocks of a stage whose ranks have no group but those over data in common; 1 if all are as fast.

    Each microbatch passes one block of each stage.  Blocks differ where some groups lie on several nodes:

    >>> separate_blocks(Grid(pipeline=2, data=4, x=2), np.arange(16) // 3), separate_blocks(
    ...     Grid(pipeline=2, data=4, x=2), np.arange(16) // 4)
    (4, 1)

    Parameters
    ----------
    nodes : node of each rank [ranks]
    """
    ranks, block, differ = np.arange(grid.size), 1, False
    groups = []
    for axis in grid.axes:
        length, stride = grid.length(axis), grid.stride(axis)
        if length > 1 and axis not in (*DATA_AXES, "pipeline"):
            firsts = ranks[ranks // stride % length == 0]
            groups.append((firsts, firsts + (length - 1) * stride))
            block = max(block, length * stride)
            is_on_several = nodes[groups[-1][0]] != nodes[groups[-1][1]]
            differ |= bool(is_on_several.any() and not is_on_several.all())
    is_separate = all((first // block == last // block).all() for first, last in groups)
    of_stage = grid.size // grid.pipeline
    return of_stage // block if differ and is_separate and of_stage % block == 0 else 1


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
