"""NCCL on the links of a machine: its own choice of algorithm, carried out by flows that share what links have.

What NCCL decides (ring or tree or sums in the switch, protocol, channels) comes
from its tuning model (`algorithms/collectives/nccl`); what that costs on this network, with
all groups at once, comes from the links:

    ring        every channel's ring, step by step, each step as late as NCCL's mean step
    chain       for broadcast and reduce, one flow down each hop, all at once, when the first slot has come through
    tree        one flow up and one down each edge, all at once: chunks are many, so every edge is busy;
                depth is paid once, as NCCL's latency; NCCL's correction for short pipelines divides the rate
    nvls        a GPU sends the buffer up to the switch and gets the sums of its own part back, then the same
                in reverse: (1 + 1/g) of the buffer goes each way over every GPU's links for an all-reduce
    nvls_tree   nvls inside the nodes; each GPU's part goes through a tree over the nodes, by its own NIC

NCCL's latencies are of whole hops and stand in place of the links' own.  Of an
NVLink's data-sheet rate it counts what arrives beside headers (`group.py`).
"""

from dataclasses import dataclass, replace

import numpy as np

from quadrille.algorithms.collectives.nccl.plan import NcclPlan, choose, plan
from quadrille.algorithms.collectives.nccl.tables import Algorithm, Protocol
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.simulator.collectives.collective import CollectiveResult, SimulationOptions
from quadrille.simulator.collectives.nccl.layout import (
    NEUTRAL_SETTINGS,
    NcclSettings,
    PlacedPlan,
    communicator_of,
    counted_bandwidths,
    generation_of,
    inside_links,
    is_amd,
    unplaced,
    vendor_of,
)
from quadrille.simulator.collectives.nccl.patterns import nvls, rings, trees
from quadrille.simulator.collectives.programs import Ints
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.routes.routing import Routes

__all__ = ["EXACTLY", "NEUTRAL_SETTINGS", "NcclResult", "NcclSettings", "nccl_collective"]

EXACTLY = SimulationOptions()


@dataclass(frozen=True, slots=True)
class NcclResult:
    """What came of it, what NCCL chose, on how many different ways over the links, and why."""

    result: CollectiveResult
    plan: NcclPlan
    ways: int
    why: str

    @property
    def label(self) -> str:
        return self.plan.label


def nccl_collective(
    kind: CollectiveKind,
    size_bytes: float,
    groups: Ints,
    places: Ints,
    machine: Machine,
    routes: Routes,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
    root: int = 0,
    settings: NcclSettings = NEUTRAL_SETTINGS,
    ways: SimulationOptions = EXACTLY,
) -> NcclResult:
    """The collective by NCCL, by all groups at once.

    Parameters
    ----------
    groups : ranks of each group [groups, members]
    places : compute place of each rank

    Raises
    ------
    InputError : NCCL has nothing of the kind
    """
    group = communicator_of(routes, places[groups], generation_of(machine), vendor_of(machine))
    group = replace(group, network_latency=settings.network_latency, ll128=settings.ll128)
    if settings.planned is not None:
        made = settings.planned(kind, size_bytes, group)
    else:
        made = plan(kind, size_bytes, group, choose(kind, size_bytes, group, algorithm=algorithm, protocol=protocol))
    idle = counted_bandwidths(routes.net, group.generation, xgmi=is_amd(machine))
    reached = np.where(inside_links(routes.net), settings.inside, settings.between)
    on = PlacedPlan(kind, size_bytes, groups, places, routes, idle, idle * reached, group, made, root, ways, settings)
    match made.algorithm:
        case "ring":
            result, different = rings(on)
        case "tree":
            result, different = trees(on)
        case "nvls" | "nvls_tree":
            result, different = nvls(on)
        case "pat":
            result, different = unplaced(on), made.channels
    held = " and ".join(word for word in (algorithm, protocol) if word)
    why = f"held to {held}" if held else "least of the times that NCCL predicts for what it has"
    why += f" ({made.seconds * 1e6:.3g} us); {group.nodes} nodes, {different} different ways simulated"
    return NcclResult(replace(result, seconds=result.seconds + settings.launch_seconds), made, different, why)
