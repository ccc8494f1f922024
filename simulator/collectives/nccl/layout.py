"""What NCCL knows of a group on a machine: nodes, NICs, and what it counts on from each link."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.collectives.nccl.communicator import Communicator, communicator
from quadrille.algorithms.collectives.nccl.plan import NcclPlan
from quadrille.algorithms.collectives.nccl.tables import NVLINK, Generation
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.simulator.collectives.collective import CollectiveResult, SimulationOptions
from quadrille.simulator.collectives.node_layouts import ring_orders
from quadrille.simulator.collectives.programs import Floats, Ints
from quadrille.simulator.collectives.run import Causes
from quadrille.simulator.engine.flows import FlowSet, simulate_flows
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.processors import Vendor, vendor
from quadrille.topologies.network import Network
from quadrille.topologies.nodes.gpu_node import NodeKind
from quadrille.topologies.routes.paths import Paths
from quadrille.topologies.routes.routing import Routes

DATA_SHEET_NVLINK: Mapping[Generation, float] = {"volta": 25.0, "ampere": 25.0, "hopper": 25.0, "blackwell": 50.0}
"""One NVLink each way by NVIDIA's data sheets [GB/s]; `NVLINK` is what NCCL counts of it."""

XGMI_COUNTED = 0.75
"""What is reached of an xGMI link: 48 of 64 GB/s each way.

Source: Kolla, Alizadeh, Lee, "Understanding RCCL Bandwidth and xGMI Performance
on AMD Instinct MI300X", ROCm blogs, 2 March 2025.
"""


def generation_of(machine: Machine) -> Generation:
    """Of the machine's GPUs; AMD's and unknown ones go by the table of ampere."""
    found = _gpu_generation(machine)
    return found if found in NVLINK else "ampere"


def is_amd(machine: Machine) -> bool:
    """Whether its GPUs are AMD's."""
    return _gpu_generation(machine).startswith("cdna")


def vendor_of(machine: Machine) -> Vendor:
    """Of the processors that host the machine's GPUs."""
    kind = _node_kind(machine)
    return vendor(kind.name if kind is not None else "")


def _gpu_generation(machine: Machine) -> str:
    kind = _node_kind(machine)
    return kind.gpu.generation if kind is not None and kind.gpu is not None else ""


def _node_kind(machine: Machine) -> NodeKind | None:
    from quadrille.topologies.machines.named import MACHINES
    from quadrille.topologies.nodes.node_kinds import NODE_KINDS

    family = str(machine.topology.get("family", ""))
    return MACHINES[family].node if family in MACHINES else NODE_KINDS.get(str(machine.topology.get("node", "")))


def inside_links(net: Network) -> NDArray[np.bool_]:
    """Which links join GPUs, or a GPU and the switch between GPUs [links]."""
    inside = np.zeros(net.node_count, dtype=bool)
    for kind in ("gpu", "nvswitch"):
        first, count = net.kinds.get(kind, (0, 0))
        inside[first : first + count] = True
    return np.asarray(inside[net.sources] & inside[net.targets])


def counted_bandwidths(net: Network, generation: Generation, *, xgmi: bool = False) -> Floats:
    """What NCCL counts on for each link: of links between GPUs, the rate of data beside headers [B/s]."""
    share = XGMI_COUNTED if xgmi else NVLINK[generation] / DATA_SHEET_NVLINK[generation]
    return np.where(inside_links(net), net.bandwidths * share, net.bandwidths)


def communicator_of(routes: Routes, places: Ints, generation: Generation, cpu: Vendor = "intel") -> Communicator:
    """What NCCL knows of groups that lie on these places; of several, the first stands for all."""
    net = routes.net
    ranks = places.shape[1]
    nodes = len(np.unique(places[0] // net.per_node))
    cards, rate = _cards(routes, places[0]) if nodes > 1 else (1, 0.0)
    return communicator(
        ranks,
        nodes,
        generation,
        nvlinks=_nvlinks(net, places[0], generation),
        cards=cards,
        card_bandwidth=rate,
        cpu=cpu,
        nvls="nvswitch" in net.kinds and generation in ("hopper", "blackwell"),
    )


def _nvlinks(net: Network, places: Ints, generation: Generation) -> int:
    """From the first member to the others in its node, or to the switch between them; 0 where it is alone there."""
    here = places[places // net.per_node == places[0] // net.per_node]
    if len(here) < 2:
        return 0
    nodes = net.place_nodes()[here]
    first, count = net.kinds.get("nvswitch", (0, 0))
    onward = np.isin(net.targets, nodes) | ((net.targets >= first) & (net.targets < first + count))
    to_them = float(net.bandwidths[(net.sources == nodes[0]) & onward].sum())
    return max(1, round(to_them / (DATA_SHEET_NVLINK[generation] * 1e9)))


def _cards(routes: Routes, places: Ints) -> tuple[int, float]:
    """NICs by which the members of the first node leave it, and the rate of one [B/s]."""
    net = routes.net
    node = places // net.per_node
    here, there = places[node == node[0]], places[node != node[0]][:1]
    paths = routes.between(here, np.repeat(there, len(here)))
    outside = ~inside_links(net)
    first, least = [], np.inf
    for a, b in zip(paths.offsets[:-1].tolist(), paths.offsets[1:].tolist(), strict=True):
        out = [int(link) for link in paths.links[a:b] if outside[link]]
        # the cable to the network is the last that only this node's traffic can take: NIC or GPU to switch
        door = next((link for link in out if _leaves(net, link)), out[0] if out else -1)
        first.append(door)
        least = min(least, min((float(net.bandwidths[link]) for link in out), default=least))
    return max(1, len(set(first))), float(least)


def _leaves(net: Network, link: int) -> bool:
    """Whether a link goes from a NIC, or from a GPU without one, to the network."""
    kind = "nic" if "nic" in net.kinds else net.places[0]
    first, count = net.kinds[kind]
    return bool(first <= net.sources[link] < first + count)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclSettings:
    """What a site adds to NCCL's model: all neutral unless measured there.

    Parameters
    ----------
    launch_seconds : before anything moves
    network_latency : of every hop between nodes, beside what NCCL's tables have
    inside, between : of what NCCL counts of the links inside and between nodes, the share that is reached
    ll128 : whether LL128 may be taken; between nodes that takes NICs close to the GPUs
    as_root : a broadcast's time is the root's alone, one after the other, as nccl-tests took it until 2021
    planned : what NCCL takes for a group and size, where it is another version's choice
    """

    launch_seconds: float = 0.0
    network_latency: float = 0.0
    inside: float = 1.0
    between: float = 1.0
    ll128: bool = True
    as_root: bool = False
    planned: Callable[[CollectiveKind, float, Communicator], NcclPlan] | None = None


NEUTRAL_SETTINGS = NcclSettings()


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPlan:
    """A plan and where it is carried out.

    Parameters
    ----------
    idle, capacities : what NCCL counts on from each link, and what of that the site reaches when all of them are
        loaded both ways [B/s]
    """

    kind: CollectiveKind
    bytes: float
    groups: Ints
    places: Ints
    routes: Routes
    idle: Floats
    capacities: Floats
    group: Communicator
    plan: NcclPlan
    root: int
    ways: SimulationOptions
    settings: NcclSettings

    @property
    def before(self) -> float:
        """What passes before the first byte counts [s]."""
        return self.plan.base_latency + self.plan.steps * self.plan.mean_step_latency

    def cap(self, ways: int) -> float:
        """Most that one of so many different ways carries, for all channels that it stands for [B/s]."""
        return self.plan.channel_rate * self.plan.wire_factor * self.plan.channels / ways

    def without_latency(self, sources: Ints, targets: Ints) -> Paths:
        paths = self.routes.between(sources, targets)
        return replace(paths, latency=np.zeros_like(paths.latency))

    def orders(self) -> list[Ints]:
        """Different ways through the nodes; a plan with more channels takes each several times."""
        found = ring_orders(self.routes, self.places[self.groups])
        return found[: max(1, self.plan.channels)]


def simulate_concurrently(
    on: PlacedPlan, paths: Paths, sizes: Floats, cap: float, *, before: float | None = None, correction: float = 1.0
) -> CollectiveResult:
    """Everything at once, after what comes before: NCCL's latency if nothing else is given.

    Parameters
    ----------
    cap : most that each flow carries [B/s]
    correction : of the rates, what short pipelines leave
    """
    flows = len(sizes)
    zero, one = np.zeros(flows), np.ones(flows)
    # a flow over no link (a GPU to itself) takes no time
    sizes = np.where(np.diff(paths.offsets) > 0, sizes, 0.0)
    traffic = FlowSet(paths.offsets, paths.links, paths.shares, sizes, zero, zero, one, np.full(flows, cap))
    ran = simulate_flows(on.capacities, traffic)
    whole = float(ran.finish.max(initial=0.0)) / correction
    single = _alone_seconds(on, paths, sizes, cap) / correction
    causes = Causes.together(single, max(0.0, whole - single)) if on.ways.causes else None
    seconds = (on.before if before is None else before) + whole
    return _result(on, seconds, ran.carried, ran.busy, ran.events, flows, causes)


def _alone_seconds(on: PlacedPlan, paths: Paths, sizes: Floats, cap: float) -> float:
    """The longest that any flow would take if it were the only one [s]."""
    flow = np.repeat(np.arange(len(sizes)), np.diff(paths.offsets))
    rate = np.full(len(sizes), cap)
    np.minimum.at(rate, flow, on.capacities[paths.links] / paths.shares)
    return float((sizes / rate).max(initial=0.0))


def unplaced(on: PlacedPlan) -> CollectiveResult:
    """What NCCL predicts for itself, for PAT, whose steps are not laid on links."""
    links = np.zeros(len(on.capacities))
    causes = Causes.together(max(0.0, on.plan.seconds - on.before), 0.0) if on.ways.causes else None
    return _result(on, on.plan.seconds, links, links, 0, 0, causes)


def _result(
    on: PlacedPlan, seconds: float, carried: Floats, busy: Floats, events: int, flows: int, causes: Causes | None
) -> CollectiveResult:
    return CollectiveResult(
        seconds=seconds,
        ends=np.full(int(on.groups.max()) + 1, seconds),
        method="events",
        events=events,
        transfers=flows,
        rank_classes=on.groups.size,
        flow_classes=flows,
        rounds=0,
        folded=False,
        why_not="all edges carry at once: nothing repeats to be folded",
        link_bytes=carried,
        busy_seconds=busy,
        error_seconds=0.0,
        causes=causes,
    )
