"""Messages between pairs of GPUs, all pairs at once: what a row of kind p2p says, and how long that takes.

Of NCCL's send and receive the path is known: one hop by its Simple protocol, at
what it counts on from each link and what the site reaches of that.  Of MPI's it
is not (UCX chooses protocols, thresholds and staging through the host by its own
tables): what is predicted then is the network's own time, as if NICs read the
memory of GPUs at full rate, and nobody is judged by it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quadrille.algorithms.collectives.nccl.tables import PROTOCOLS, STEP_LATENCY, US
from quadrille.algorithms.errors import InputError
from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.simulator.collectives.nccl.layout import counted_bandwidths, generation_of, inside_links, is_amd
from quadrille.simulator.engine.flow_simulation import FlowSet, simulate_flows
from quadrille.simulator.machine.network import routes_of
from quadrille.studies.published_collectives.rows import CollectiveRow
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
"""The metrics of messages: seconds of one, or bytes a second of all pairs together."""
NOT_MODELLED = (
    "messages between GPUs by MPI (UCX): their GPU path (protocols, thresholds, staging) is not modelled; predicted is "
    "the network's own time, NICs reading GPU memory at full rate"
)


@dataclass(frozen=True, slots=True)
class Pairs:
    """GPUs that send and those that receive, each numbered through the machine.

    >>> Pairs.of(2, 8, apart=True), Pairs.of(2, 8, apart=False)
    (Pairs(sources=(0, 1), targets=(8, 9)), Pairs(sources=(0, 1), targets=(2, 3)))
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]

    @classmethod
    def of(cls, pairs: int, per_node: int, *, apart: bool) -> "Pairs":
        """Rank i with rank i + pairs, as the benchmarks pair them; apart: on two nodes.

        Raises
        ------
        InputError : more than one node, or two, can hold
        """
        most = per_node if apart else per_node // 2
        if not 1 <= pairs <= most:
            raise InputError(
                f"{pairs} pairs of GPUs {'on two nodes' if apart else 'in a node'} of {per_node}: {most} fit"
            )
        first = per_node if apart else pairs
        return cls(tuple(range(pairs)), tuple(range(first, first + pairs)))


def pairs_of(row: CollectiveRow, per_node: int) -> Pairs:
    """The pairs that a row's words name: `8 pair(s), 2 nodes`; half of its GPUs where they say nothing."""
    said = re.search(r"(\d+) pair", row.algorithm)
    pairs = int(said[1]) if said else row.gpus // 2
    apart = bool(re.search(r"\b2 nodes\b|inter-?node", f"{row.algorithm} {row.note}")) or 2 * pairs > per_node
    return Pairs.of(pairs, per_node, apart=apart)


def by_nccl(row: CollectiveRow) -> bool:
    return row.carrier in ("NCCL", "RCCL")


def predicted_message(row: CollectiveRow, machine: Machine, net: Network, settings: NcclSettings) -> float:
    """What the row's metric would be, in its unit."""
    pairs = pairs_of(row, net.per_node)
    before, carried = _seconds(row, pairs, machine, net, settings)
    metric, scale = SCALES[row.metric, row.unit]
    if metric == "time":
        return (before + carried) / scale
    # MPI's benchmarks of bandwidth keep many messages on the way, NCCL's one after the other
    seconds = before + carried if by_nccl(row) else carried
    return len(pairs.sources) * row.size / seconds / scale


def _seconds(
    row: CollectiveRow, pairs: Pairs, machine: Machine, net: Network, settings: NcclSettings
) -> tuple[float, float]:
    """What passes before bytes move, and until all pairs have moved theirs [s]."""
    routes = routes_of(machine, net)
    paths = routes.between(np.array(pairs.sources), np.array(pairs.targets))
    count, zero = len(pairs.sources), np.zeros(len(pairs.sources))
    capacities = net.bandwidths
    before = float(paths.latency.max())
    if by_nccl(row):
        generation = generation_of(machine)
        reached = np.where(inside_links(net), settings.inside, settings.between)
        capacities = counted_bandwidths(net, generation, xgmi=is_amd(machine)) * reached
        apart = pairs.targets[0] >= net.per_node
        hop = STEP_LATENCY["net" if apart else "nvlink"]["ring"][PROTOCOLS.index("Simple")] * US
        before = settings.launch_seconds + hop + (settings.network_latency if apart else 0.0)
    sizes = np.full(count, float(row.size))
    traffic = FlowSet(
        paths.offsets, paths.links, paths.shares, sizes, zero, zero, np.ones(count), np.full(count, np.inf)
    )
    return before, float(simulate_flows(capacities, traffic).finish.max())
