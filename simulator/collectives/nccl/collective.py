"""`nccl_collective`: simulates a collective of NCCL, by NCCL's own choice of algorithm, as flows that share links.

NCCL's tuning model (`algorithms/collectives/nccl`) decides algorithm (ring, tree, sums
in the switch), protocol and number of channels; the time on this network, with all
groups at once, comes from the links:

    ring        every channel's ring, step by step, each step with NCCL's mean step latency
    chain       for broadcast and reduce: one flow down each hop, all at once, after the first slot has come through
    tree        one flow up and one down each edge, all at once: chunks are many, so every edge is busy; depth is
                paid once, as NCCL's latency; NCCL's correction for short pipelines divides the rate
    nvls        a GPU sends the buffer up to the switch and gets the sums of its own part back, then the reverse:
                (1 + 1/g) of the buffer goes each way over every GPU's links for an all-reduce
    nvls_tree   nvls inside the nodes; each GPU's part goes through a tree over the nodes, by its own NIC
    sendrecv    for all-to-all and send-receive: all messages at once; between nodes by the NIC of the receiver's rail
                (`pxn.py`)
    two levels  for all-to-all, if it is asked for: once to each node over the network, then inside (`two_level.py`)

Inside a node whose GPUs' collectives were measured, a table says how long this takes
(`measured.py`), and the links say which bytes go where.

NCCL's latencies are of whole hops and replace those of the links. Of an NVLink's
data-sheet rate NCCL counts what arrives beside headers (`layout.py`).
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from quadrille.algorithms.collectives.nccl.communicator import NcclGroup
from quadrille.algorithms.collectives.nccl.tuner import NcclPlan, choose, plan, send_receive_plan
from quadrille.algorithms.collectives.nccl.tuning_constants import AMD, Algorithm, Protocol
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.units import format_seconds
from quadrille.simulator.collectives.collective import CollectiveResult, SimulationOptions
from quadrille.simulator.collectives.nccl.layout import (
    NEUTRAL_SETTINGS,
    NcclSettings,
    PlacedPlan,
    communicator_of,
    counted_bandwidths,
    generation_of,
    is_amd,
    unplaced,
    vendor_of,
)
from quadrille.simulator.collectives.nccl.patterns import (
    MOST_FLOWS,
    busiest_bytes,
    simulate_nvls,
    simulate_pairs,
    simulate_rings,
    simulate_sends,
    simulate_trees,
    tree_flows,
)
from quadrille.simulator.collectives.programs import Ints, PairBytes
from quadrille.topologies.joined_gpus import links_between_gpus
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.routes.routing import Routes

if TYPE_CHECKING:
    from quadrille.algorithms.schedule.routed_rows import RoutedRows

__all__ = ["DEFAULT_OPTIONS", "NEUTRAL_SETTINGS", "NcclResult", "NcclSettings", "nccl_collective"]

DEFAULT_OPTIONS = SimulationOptions()
Library = Literal["nccl", "rccl"]


@dataclass(frozen=True, slots=True)
class NcclResult:
    """The result, NCCL's choice, the number of different paths over the links, and the reason of the choice.

    Parameters
    ----------
    library : name of the library: RCCL, NCCL's fork, on AMD's GPUs
    two_level : whether an all-to-all goes once to each node, which NCCL itself does not do
    """

    result: CollectiveResult
    plan: NcclPlan
    path_count: int
    why: str
    library: Library = "nccl"
    two_level: bool = False

    @property
    def label(self) -> str:
        """NCCL's choice in words."""
        if self.two_level:
            return "two-level exchange (as DeepEP)"
        return f"{self.library}{self.plan.label.removeprefix('nccl')}"


def nccl_collective(
    kind: CollectiveKind,
    size_bytes: float,
    groups: Ints,
    endpoints: Ints,
    machine: Machine,
    routes: Routes,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
    root: int = 0,
    item_bytes: int = 1,
    settings: NcclSettings = NEUTRAL_SETTINGS,
    options: SimulationOptions = DEFAULT_OPTIONS,
    two_level: bool = False,
    routed: "RoutedRows | None" = None,
    pairs: PairBytes | None = None,
) -> NcclResult:
    """Simulates the collective by NCCL, by all groups at once.

    Parameters
    ----------
    groups : ranks of each group [groups, members]
    endpoints : endpoint of each rank
    item_bytes : size of an element [B]; 1 if it is not known
    two_level : whether an all-to-all goes once to each node, and inside to its members
    routed : how a router spread the rows of the buffer, of which two levels send fewer; None for other buffers
    pairs : bytes of an all-to-all from each member to each; None for equal pieces

    Raises
    ------
    InputError : NCCL does not have this collective
    """
    if pairs is not None:
        size_bytes = busiest_bytes(pairs)
    group = communicator_of(routes, endpoints[groups], generation_of(machine), vendor_of(machine))
    group = replace(group, network_latency=settings.network_latency, ll128=settings.ll128)
    nccl_plan = _plan(kind, size_bytes, group, settings, algorithm, protocol)
    idle_bandwidths = counted_bandwidths(routes.net, group.generation)
    reached = np.where(links_between_gpus(routes.net), settings.inside, settings.between)
    placed = PlacedPlan(
        kind,
        size_bytes,
        groups,
        endpoints,
        routes,
        idle_bandwidths,
        idle_bandwidths * reached,
        group,
        nccl_plan,
        root,
        options,
        settings,
    )
    unplaced_why = ""
    in_levels = two_level and nccl_plan.algorithm == "sendrecv" and kind == "all_to_all"
    match nccl_plan.algorithm:
        case "ring":
            result, paths = simulate_rings(placed)
        case "tree" if algorithm is None and tree_flows(placed) > MOST_FLOWS:
            result, paths = unplaced(placed), nccl_plan.channels
            unplaced_why = f"; too many flows to simulate ({tree_flows(placed)}): NCCL's own estimate"
        case "tree":
            result, paths = simulate_trees(placed)
        case "nvls" | "nvls_tree":
            result, paths = simulate_nvls(placed)
        case "pat":
            result, paths = unplaced(placed), nccl_plan.channels
        case "sendrecv":
            result, paths = _sends(placed, routed, pairs, in_levels=in_levels, relays=not is_amd(machine)), 1
    why = _reason(nccl_plan, paths, group, algorithm, protocol, in_levels=in_levels) + unplaced_why
    if algorithm is None and protocol is None and not in_levels and "nvswitch" in routes.net.kinds:
        from quadrille.simulator.collectives.nccl.measured import measured_time, with_time  # of nodes with NVSwitches

        measured = measured_time(
            kind, size_bytes, endpoints[groups], machine, routes.net, settings, wide=item_bytes > 1
        )
        if measured is not None:
            result, why = with_time(result, measured), why + measured.why
    library: Library = "rccl" if is_amd(machine) else "nccl"
    launched = replace(result, seconds=result.seconds + settings.launch_seconds)
    return NcclResult(launched, nccl_plan, paths, why, library, in_levels)


def _plan(
    kind: CollectiveKind,
    size_bytes: float,
    group: NcclGroup,
    settings: NcclSettings,
    algorithm: Algorithm | None,
    protocol: Protocol | None,
) -> NcclPlan:
    """What NCCL does: the choice of its tuner, or messages in one group for an all-to-all and a send-receive."""
    if kind in ("all_to_all", "send_receive") and algorithm is None:
        if kind == "send_receive":
            return send_receive_plan(size_bytes, group)
        turns = 1 if group.generation in AMD else group.nodes - 1  # of RCCL no measurement across nodes is at hand
        return send_receive_plan(size_bytes / group.ranks, group, turns=turns)
    if settings.planned is not None:
        return settings.planned(kind, size_bytes, group)
    return plan(kind, size_bytes, group, choose(kind, size_bytes, group, algorithm=algorithm, protocol=protocol))


def _sends(
    placed: PlacedPlan,
    routed: "RoutedRows | None",
    pairs: PairBytes | None,
    *,
    in_levels: bool,
    relays: bool,
) -> CollectiveResult:
    """Messages in one group: in two levels, or each from its sender to its receiver."""
    if in_levels:
        from quadrille.simulator.collectives.nccl.two_level import simulate_two_levels  # rarely asked for

        return simulate_two_levels(placed, routed, pairs)
    return simulate_sends(placed, relays=relays) if pairs is None else simulate_pairs(placed, pairs, relays=relays)


def _reason(
    nccl_plan: NcclPlan,
    paths: int,
    group: NcclGroup,
    algorithm: Algorithm | None,
    protocol: Protocol | None,
    *,
    in_levels: bool,
) -> str:
    """The reason for a plan, in words."""
    if in_levels:
        inside = "once to each rank over the links inside"
        if group.nodes == 1:
            return f"asked for: {inside}; 1 node"
        return f"asked for: once to each of {group.nodes} nodes over the network, then {inside}"
    if nccl_plan.algorithm == "sendrecv":
        return f"all messages in one group, which NCCL sends at once; {group.nodes} nodes"
    requested = " and ".join(word for word in (algorithm, protocol) if word)
    why = f"held to {requested}" if requested else "least of the times that NCCL predicts for what it has"
    return why + f" ({format_seconds(nccl_plan.seconds)}); {group.nodes} nodes, {paths} different paths simulated"
