"""NCCL's view of a group on a machine (nodes, NICs, link bandwidths), and a plan of NCCL placed on the links."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from quadrille.algorithms.collectives.nccl.communicator import NcclGroup, communicator
from quadrille.algorithms.collectives.nccl.tuner import NcclPlan
from quadrille.algorithms.collectives.nccl.tuning_constants import AMD, GENERATIONS, NVLINK, Generation
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.simulator.collectives.collective import CollectiveResult, SimulationOptions
from quadrille.simulator.collectives.node_layouts import node_blocks, ring_orders
from quadrille.simulator.collectives.programs import Floats, Ints
from quadrille.simulator.collectives.run import Causes
from quadrille.simulator.engine.flow_simulation import FlowSet, simulate_flows
from quadrille.topologies.gpu_kind import gpu_generation, node_kind_of
from quadrille.topologies.joined_gpus import links_between_gpus
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network
from quadrille.topologies.nodes.cpu_vendors import Vendor, cpu_vendor
from quadrille.topologies.routes.paths import Paths
from quadrille.topologies.routes.routing import Routes

DATA_SHEET_NVLINK: Mapping[Generation, float] = dict.fromkeys(GENERATIONS, 25.0) | {
    "blackwell": 50.0,
    "cdna2": 50.0,
    "cdna3": 64.0,
    "cdna4": 76.8,
}
"""Rate of one NVLink or xGMI link in each direction by the data sheets [GB/s]; `NVLINK` is what NCCL and RCCL count of
it.

Source of 48 of 64 GB/s on MI300X, beside RCCL's own constant: Kolla, Alizadeh, Lee, "Understanding RCCL Bandwidth and
xGMI Performance on AMD Instinct MI300X", ROCm blogs, 2 March 2025.
"""
LINK_SHARES: Mapping[Generation, float] = {
    generation: NVLINK[generation] / DATA_SHEET_NVLINK[generation] for generation in GENERATIONS
} | {"cdna4": 0.75}
"""Share of the rate of a link that data reach beside headers.

RCCL's constant for MI355X is still that of MI300X, although its links are 1.2 times as fast: the share of MI300X is
taken, which is an assumption.
"""


def generation_of(machine: Machine) -> Generation:
    """The generation of the machine's GPUs; unknown GPUs are taken for ampere, which is said."""
    return gpu_generation(machine) or "ampere"


def is_amd(machine: Machine) -> bool:
    """Whether the machine's GPUs are AMD's."""
    return generation_of(machine) in AMD


def vendor_of(machine: Machine) -> Vendor:
    """The vendor of the processors that host the machine's GPUs."""
    kind = node_kind_of(machine)
    return cpu_vendor(kind.name if kind is not None else "")


def counted_bandwidths(net: Network, generation: Generation) -> Floats:
    """The bandwidth of each link that NCCL counts on; of links between GPUs, the rate of data beside headers [B/s]."""
    return np.where(links_between_gpus(net), net.bandwidths * LINK_SHARES[generation], net.bandwidths)


def communicator_of(routes: Routes, endpoints: Ints, generation: Generation, cpu: Vendor = "intel") -> NcclGroup:
    """NCCL's view of groups on these endpoints; the first group stands for all.

    NCCL searches channels in each node, and takes the fewest and slowest: a node with fewer GPUs has fewer cards. It
    does not know of degraded links, so a fault changes neither its algorithm nor its channels.
    """
    routes = routes.expected()
    net = routes.net
    group = endpoints[0]
    nodes = np.unique(group // net.per_node)
    samples = _different_nodes(group, net.per_node)
    cards = [_cards(routes, members, group) for members in samples] if len(nodes) > 1 else [(1, 0.0)]
    if any(np.isinf(rate) for _, rate in cards):  # links between GPUs alone join the nodes: NCCL sees a single one
        nodes, samples, cards = nodes[:1], [group], [(1, 0.0)]
    nvlinks = [count for members in samples if (count := _nvlinks(net, members, generation))]
    equal = len(np.unique(node_blocks(endpoints, net.per_node).length)) == 1
    return communicator(
        len(group),
        len(nodes),
        generation,
        nvlinks=min(nvlinks, default=0),
        cards=min(count for count, _ in cards),
        card_bandwidth=min(rate for _, rate in cards),
        cpu=cpu,
        nvls=equal and "nvswitch" in net.kinds and generation in ("hopper", "blackwell"),
    )


def _different_nodes(group: Ints, per_node: int) -> list[Ints]:
    """The members of a group on each node; of nodes with the same places taken, only the first."""
    ordered = np.sort(group)
    begins = np.flatnonzero(np.diff(ordered // per_node, prepend=-1))
    blocks = np.split(ordered, begins[1:])
    by_places = {(block % per_node).tobytes(): block for block in reversed(blocks)}
    return list(by_places.values())


def _nvlinks(net: Network, members: Ints, generation: Generation) -> int:
    """NVLinks from the first member of a node to the others, or to their switch; 0 if it is alone there."""
    if len(members) < 2:
        return 0
    nodes = net.endpoint_nodes()[members]
    first, count = net.kinds.get("nvswitch", (0, 0))
    onward = np.isin(net.targets, nodes) | ((net.targets >= first) & (net.targets < first + count))
    bandwidth = float(net.bandwidths[(net.sources == nodes[0]) & onward].sum())
    return max(1, round(bandwidth / (DATA_SHEET_NVLINK[generation] * 1e9)))


def _cards(routes: Routes, members: Ints, group: Ints) -> tuple[int, float]:
    """NICs by which the members of a node leave it, and the bandwidth of one [B/s]."""
    net, node = routes.net, int(members[0]) // routes.net.per_node
    remote = group[group // net.per_node != members[0] // net.per_node][:1]
    paths = routes.between(members, np.repeat(remote, len(members)))
    outside = ~links_between_gpus(net)
    first, least = [], np.inf
    for a, b in zip(paths.offsets[:-1].tolist(), paths.offsets[1:].tolist(), strict=True):
        outside_path = [int(link) for link in paths.links[a:b] if outside[link]]
        # the cable to the network is the last that only this node's traffic can take: NIC or GPU to switch
        leaving = [link for link in outside_path if _leaves(net, link)] or outside_path or [-1]
        is_sprayed = bool((paths.shares[a:b] < 1).any())
        first += [link for link in leaving if _node_of_source(net, link) == node] if is_sprayed else leaving[:1]
        least = min(least, min((float(net.bandwidths[link]) for link in outside_path), default=least))
    return max(1, len(set(first))), float(least)


def exit_cards(routes: Routes, endpoints: Ints) -> Ints:
    """The network card by which each endpoint leaves its node, numbered within the node [endpoints].

    Endpoints of a single node, and those without a card, have the card 0.
    """
    net = routes.net
    first, count = net.kinds[net.card_kind]
    per_node = net.cards_per_node
    node = endpoints // net.per_node
    remote = np.where(node == node[0], endpoints[np.argmax(node != node[0])], endpoints[0])
    paths = routes.between(endpoints, remote)
    owner = np.repeat(np.arange(len(endpoints)), np.diff(paths.offsets))
    sources = net.sources[paths.links]
    leaves = (sources >= first) & (sources < first + count) & ~links_between_gpus(net)[paths.links]
    mine = np.flatnonzero(leaves & ((sources - first) // per_node == node[owner]))
    cards = np.zeros(len(endpoints), dtype=np.int64)
    cards[owner[mine][::-1]] = ((sources[mine] - first) % per_node)[::-1]
    return cards


def _node_of_source(net: Network, link: int) -> int:
    """The node of the NIC, or of the GPU without one, from which a link goes; -1 for another source."""
    first, count = net.kinds[net.card_kind]
    place = int(net.sources[link]) - first
    per_node = net.cards_per_node
    return place // per_node if 0 <= place < count else -1


def _leaves(net: Network, link: int) -> bool:
    """Whether a link goes from a NIC, or from a GPU without one, to the network."""
    first, count = net.kinds[net.card_kind]
    return bool(first <= net.sources[link] < first + count)


def switch_links(net: Network) -> tuple[Ints, Ints]:
    """The link of each endpoint to its NVSwitch, and the link back."""
    first, count = net.kinds["nvswitch"]
    nodes = net.endpoint_nodes()
    place = np.full(net.node_count, -1)
    place[nodes] = np.arange(len(nodes))
    up, down = np.full(len(nodes), -1), np.full(len(nodes), -1)
    upward = (net.targets >= first) & (net.targets < first + count) & (place[net.sources] >= 0)
    downward = (net.sources >= first) & (net.sources < first + count) & (place[net.targets] >= 0)
    up[place[net.sources[upward]]] = np.flatnonzero(upward)
    down[place[net.targets[downward]]] = np.flatnonzero(downward)
    return up, down


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclSettings:
    """Corrections of NCCL's model for one site; all neutral by default.

    Parameters
    ----------
    launch_seconds : time before anything moves
    network_latency : latency of every hop between nodes beside what NCCL's tables have
    inside, between : share of the bandwidth that NCCL counts on which links inside and between nodes reach
    ll128 : whether LL128 may be used; between nodes it needs NICs close to the GPUs
    as_root : a broadcast's time is the root's alone, one after another, as nccl-tests measured until 2021
    planned : NCCL's choice for a group and size, if it is another version's
    measured : whether collectives inside a node take their times from the node's measured collectives, if there are any
    """

    launch_seconds: float = 0.0
    network_latency: float = 0.0
    inside: float = 1.0
    between: float = 1.0
    ll128: bool = True
    as_root: bool = False
    planned: Callable[[CollectiveKind, float, NcclGroup], NcclPlan] | None = None
    measured: bool = True


NEUTRAL_SETTINGS = NcclSettings()


def machine_settings(machine: Machine, kind: CollectiveKind, settings: NcclSettings = NEUTRAL_SETTINGS) -> NcclSettings:
    """The settings, and beside them what the machine file says of NCCL's collectives.

    A message keeps the whole bandwidth between nodes.
    """
    share = 1.0 if kind == "send_receive" else machine.device.collectives_between_share
    call = machine.device.collective_call_seconds
    if share == 1 and call == 0:
        return settings
    return replace(settings, between=settings.between * share, launch_seconds=settings.launch_seconds + call)


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPlan:
    """A plan of NCCL and the endpoints that execute it.

    Parameters
    ----------
    idle : bandwidth of each link that NCCL counts on [B/s]
    capacities : what of it the site reaches when all links are loaded in both directions [B/s]
    """

    kind: CollectiveKind
    bytes: float
    groups: Ints
    endpoints: Ints
    routes: Routes
    idle: Floats
    capacities: Floats
    group: NcclGroup
    plan: NcclPlan
    root: int
    options: SimulationOptions
    settings: NcclSettings

    @property
    def before(self) -> float:
        """Seconds before the first byte counts."""
        return self.plan.base_latency + self.plan.steps * self.plan.mean_step_latency

    def cap(self, path_count: int) -> float:
        """The highest rate of one of `path_count` different paths, for all channels that the path stands for [B/s]."""
        return self.plan.channel_rate * self.plan.wire_factor * self.plan.channels / path_count

    def without_latency(self, sources: Ints, targets: Ints) -> Paths:
        """Routes without the latency of links, which NCCL's own latencies contain."""
        paths = self.routes.between(sources, targets)
        return replace(paths, latency=np.zeros_like(paths.latency))

    def orders(self) -> list[Ints]:
        """Different paths through the nodes; a plan with more channels uses each several times."""
        orders = ring_orders(self.routes, self.endpoints[self.groups])
        return orders[: max(1, self.plan.channels)]


def simulate_concurrently(
    placed: PlacedPlan,
    paths: Paths,
    sizes: Floats,
    cap: float,
    *,
    before: float | None = None,
    correction: float = 1.0,
    least: float = 0.0,
) -> CollectiveResult:
    """Simulates all flows at once, after what comes before: NCCL's latency by default.

    Parameters
    ----------
    cap : highest rate of each flow [B/s]
    correction : share of the rates that short pipelines leave
    least : shortest time of the flows together, which other limits than links give [s]
    """
    flows = len(sizes)
    zero, weights = np.zeros(flows), np.ones(flows)
    # a flow over no link (a GPU to itself) takes no time
    sizes = np.where(np.diff(paths.offsets) > 0, sizes, 0.0)
    traffic = FlowSet(paths.offsets, paths.links, paths.shares, sizes, zero, zero, weights, np.full(flows, cap))
    flow_times = simulate_flows(placed.capacities, traffic)
    duration = max(least, float(flow_times.finish.max(initial=0.0)) / correction)
    single = max(least, _alone_seconds(placed, paths, sizes, cap) / correction)
    causes = Causes.together(single, max(0.0, duration - single)) if placed.options.causes else None
    seconds = (placed.before if before is None else before) + duration
    return _result(placed, seconds, flow_times.carried, flow_times.busy, flow_times.events, flows, causes)


def _alone_seconds(placed: PlacedPlan, paths: Paths, sizes: Floats, cap: float) -> float:
    """The longest time that any flow would take if it were the only one [s]."""
    flow = np.repeat(np.arange(len(sizes)), np.diff(paths.offsets))
    rate = np.full(len(sizes), cap)
    np.minimum.at(rate, flow, placed.capacities[paths.links] / paths.shares)
    return float((sizes / rate).max(initial=0.0))


def unplaced(placed: PlacedPlan) -> CollectiveResult:
    """NCCL's own prediction, for PAT, whose steps are not placed on links."""
    links = np.zeros(len(placed.capacities))
    causes = Causes.together(max(0.0, placed.plan.seconds - placed.before), 0.0) if placed.options.causes else None
    return _result(placed, placed.plan.seconds, links, links, 0, 0, causes)


def _result(
    placed: PlacedPlan, seconds: float, carried: Floats, busy: Floats, events: int, flows: int, causes: Causes | None
) -> CollectiveResult:
    """The result of flows that are all active at once."""
    return CollectiveResult(
        seconds=seconds,
        ends=np.full(int(placed.groups.max()) + 1, seconds),
        method="events",
        events=events,
        transfers=flows,
        rank_classes=placed.groups.size,
        flow_classes=flows,
        rounds=0,
        folded=False,
        not_folded_reason="all edges carry at once: nothing repeats to be folded",
        link_bytes=carried,
        busy_seconds=busy,
        error_seconds=0.0,
        causes=causes,
    )
