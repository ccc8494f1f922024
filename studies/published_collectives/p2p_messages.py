"""Predictions of point-to-point messages: several pairs of GPUs send at the same time (rows of kind `p2p`).

NCCL's send and receive are modelled as one hop of its Simple protocol, at the bandwidths that NCCL assumes of links and
at the calibrated share of them.  MPI's path is not modelled, because UCX chooses protocols, thresholds and staging
through the host by its own tables.  For MPI the prediction is the time of the network alone, as if NICs read GPU memory
at full rate; such rows are not judged.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quadrille.algorithms.collectives.nccl.tuning_constants import PROTOCOLS, STEP_LATENCY, US
from quadrille.algorithms.errors import InputError
from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.simulator.collectives.nccl.layout import counted_bandwidths, generation_of
from quadrille.simulator.engine.flow_simulation import FlowSet, simulate_flows
from quadrille.simulator.machine.network import routes_of
from quadrille.studies.published_collectives.collective_rows import CollectiveRow
from quadrille.topologies.joined_gpus import links_between_gpus
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network

Metric = Literal["time", "bandwidth"]
SCALES: Mapping[tuple[str, str], tuple[Metric, float]] = {
    **{
        (metric, unit): ("time", scale)
        for metric in ("latency", "time")
        for unit, scale in (("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
    },
    **{
        (metric, unit): ("bandwidth", scale)
        for metric in ("bandwidth", "aggregate_bandwidth", "algbw", "busbw")
        for unit, scale in (("MB/s", 1e6), ("GB/s", 1e9))
    },
}
"""Metrics of messages by the name and unit in the file, with the unit in SI: time of a message, or total bandwidth."""
NOT_MODELLED = (
    "messages between GPUs by MPI (UCX): their GPU path (protocols, thresholds, staging) is not modelled; predicted is "
    "the network's own time, NICs reading GPU memory at full rate"
)


@dataclass(frozen=True, slots=True)
class Pairs:
    """The GPUs that send and the GPUs that receive, by their numbers in the machine; source i sends to target i.

    Parameters
    ----------
    sources : sending GPUs
    targets : receiving GPUs

    >>> Pairs.of(2, 8, apart=True), Pairs.of(2, 8, apart=False)
    (Pairs(sources=(0, 1), targets=(8, 9)), Pairs(sources=(0, 1), targets=(2, 3)))
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]

    @classmethod
    def of(cls, pairs: int, per_node: int, *, apart: bool) -> "Pairs":
        """The pairs of rank i and rank i + `pairs`, as the benchmarks form them.

        Parameters
        ----------
        pairs : number of pairs
        per_node : number of GPUs of a node
        apart : whether the GPUs of a pair are on two nodes

        Raises
        ------
        InputError : more pairs than the node, or the two nodes, can hold
        """
        largest = per_node if apart else per_node // 2
        if not 1 <= pairs <= largest:
            raise InputError(
                f"{pairs} pairs of GPUs {'on two nodes' if apart else 'in a node'} of {per_node}: {largest} fit"
            )
        first = per_node if apart else pairs
        return cls(tuple(range(pairs)), tuple(range(first, first + pairs)))


def pairs_of(row: CollectiveRow, per_node: int) -> Pairs:
    """The pairs that a row names, as in `8 pair(s), 2 nodes`; if it names no number, half of its GPUs send."""
    named_pairs = re.search(r"(\d+) pair", row.algorithm)
    pairs = int(named_pairs[1]) if named_pairs else row.gpus // 2
    apart = bool(re.search(r"\b2 nodes\b|inter-?node", f"{row.algorithm} {row.note}")) or 2 * pairs > per_node
    return Pairs.of(pairs, per_node, apart=apart)


def is_by_nccl(row: CollectiveRow) -> bool:
    """Whether NCCL or RCCL sent the messages."""
    return row.library in ("NCCL", "RCCL")


def predicted_message(row: CollectiveRow, machine: Machine, net: Network, settings: NcclSettings) -> float:
    """The predicted value of a row's metric, in the row's unit.

    Parameters
    ----------
    row : row of kind `p2p`
    machine : machine of the row, with at least two nodes
    net : network of the machine
    settings : calibrated settings of NCCL
    """
    pairs = pairs_of(row, net.per_node)
    startup, transfer = _seconds(row, pairs, machine, net, settings)
    metric, scale = SCALES[row.metric, row.unit]
    if metric == "time":
        return (startup + transfer) / scale
    # MPI's bandwidth benchmarks send many messages at the same time, NCCL's one after the other
    seconds = startup + transfer if is_by_nccl(row) else transfer
    return len(pairs.sources) * row.size / seconds / scale


def _seconds(
    row: CollectiveRow, pairs: Pairs, machine: Machine, net: Network, settings: NcclSettings
) -> tuple[float, float]:
    """The start-up time of a message, and the time of the transfer until all pairs are done [s]."""
    routes = routes_of(machine, net)
    paths = routes.between(np.array(pairs.sources), np.array(pairs.targets))
    count, zero = len(pairs.sources), np.zeros(len(pairs.sources))
    capacities = net.bandwidths
    startup = float(paths.latency.max())
    if is_by_nccl(row):
        generation = generation_of(machine)
        reached = np.where(links_between_gpus(net), settings.inside, settings.between)
        capacities = counted_bandwidths(net, generation) * reached
        apart = pairs.targets[0] >= net.per_node
        hop = STEP_LATENCY["net" if apart else "nvlink"]["ring"][PROTOCOLS.index("Simple")] * US
        startup = settings.launch_seconds + hop + (settings.network_latency if apart else 0.0)
    sizes = np.full(count, float(row.size))
    traffic = FlowSet(
        paths.offsets, paths.links, paths.shares, sizes, zero, zero, np.ones(count), np.full(count, np.inf)
    )
    return startup, float(simulate_flows(capacities, traffic).finish.max())
