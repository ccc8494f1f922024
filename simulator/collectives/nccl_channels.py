"""NCCL on the links of a machine: its own choice of algorithm, carried out by flows that share what links have.

What NCCL decides (ring or tree or sums in the switch, protocol, channels) comes
from its tuning model (`algorithms/nccl`); what that costs on this network, with
all groups at once, comes from the links:

    ring        every channel's ring, step by step, each step as late as NCCL's mean step
    chain       for broadcast and reduce, one flow down each hop, all at once, when the first slot has come through
    tree        one flow up and one down each edge, all at once: chunks are many, so every edge is busy;
                depth is paid once, as NCCL's latency; NCCL's correction for short pipelines divides the rate
    nvls        a GPU sends the buffer up to the switch and gets the sums of its own part back, then the same
                in reverse: (1 + 1/g) of the buffer goes each way over every GPU's links for an all-reduce
    nvls_tree   nvls inside the nodes; each GPU's part goes through a tree over the nodes, by its own NIC

NCCL's latencies are of whole hops and stand in place of the links' own.  Of an
NVLink's data-sheet rate it counts what arrives beside headers (`nccl_group.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from algorithms.collectives import all_gather, all_reduce, reduce_scatter
from algorithms.errors import InputError
from algorithms.lowered import Lowered
from algorithms.machine import Machine
from algorithms.nccl import Communicator, NcclPlan, choose, plan
from algorithms.nccl.costs import bandwidth
from algorithms.nccl.tables import BYTES_PER_THREAD, MOST_THREADS, STEPS, Algorithm, Protocol
from algorithms.ops import CollectiveKind
from simulator.collectives.channels import Nodes, by_node, ring_orders, tree_edges
from simulator.collectives.collective import CollectiveResult, Ways, simulate_collective
from simulator.collectives.nccl_group import counted, generation_of, group_seen, inside_links, is_amd
from simulator.collectives.programs import Floats, Ints, Job
from simulator.sharing.flows import Traffic, simulate_flows
from topologies.network import Network
from topologies.routes.routing import Paths, Routes


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclSettings:
    """What a site adds to NCCL's model: all neutral unless measured there.

    Parameters
    ----------
    launch_seconds : before anything moves
    network_latency : of every hop between nodes, beside what NCCL's tables have
    inside, between : of what NCCL counts of the links inside and between nodes, the share that is reached
    ll128 : whether LL128 may be taken; between nodes that takes NICs close to the GPUs
    as_root : a broadcast's time is the root's, who leaves when the rest is in buffers, as nccl-tests took it long
    planned : what NCCL takes for a group and size, where it is another version's choice
    """

    launch_seconds: float = 0.0
    network_latency: float = 0.0
    inside: float = 1.0
    between: float = 1.0
    ll128: bool = True
    as_root: bool = False
    planned: Callable[[CollectiveKind, float, Communicator], NcclPlan] | None = None


MOST_FLOWS = 1 << 21
"""Of trees, about 1 kB each."""
NEUTRAL = NcclSettings()
EXACTLY = Ways()


@dataclass(frozen=True, slots=True)
class NcclCarried:
    """What came of it, what NCCL chose, and why."""

    result: CollectiveResult
    plan: NcclPlan
    channels: int
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
    settings: NcclSettings = NEUTRAL,
    ways: Ways = EXACTLY,
) -> NcclCarried:
    """The collective by NCCL, by all groups at once.

    Parameters
    ----------
    groups : ranks of each group [groups, members]
    places : compute place of each rank

    Raises
    ------
    InputError : NCCL has nothing of the kind
    """
    group = group_seen(routes, places[groups], generation_of(machine))
    group = replace(group, network_latency=settings.network_latency, ll128=settings.ll128)
    if settings.planned is not None:
        made = settings.planned(kind, size_bytes, group)
    else:
        made = plan(kind, size_bytes, group, choose(kind, size_bytes, group, algorithm=algorithm, protocol=protocol))
    capacities = counted(routes.net, group.generation, xgmi=is_amd(machine)) * 1.0
    inside = inside_links(routes.net)
    capacities[inside] *= settings.inside
    capacities[~inside] *= settings.between
    on = _On(kind, size_bytes, groups, places, routes, capacities, group, made, root, ways, settings)
    match made.algorithm:
        case "ring":
            result, channels = _rings(on)
        case "tree":
            result, channels = _trees(on)
        case "nvls" | "nvls_tree":
            result, channels = _nvls(on)
        case "pat":
            result, channels = _alone(on), made.channels
    held = " and ".join(word for word in (algorithm, protocol) if word)
    why = f"held to {held}" if held else "least of the times that NCCL predicts for what it has"
    why += f" ({made.seconds * 1e6:.3g} us); {group.nodes} nodes, {channels} different ways simulated"
    return NcclCarried(replace(result, seconds=result.seconds + settings.launch_seconds), made, channels, why)


# How it goes over the links


@dataclass(frozen=True, slots=True, eq=False)
class _On:
    """A plan and where it is carried out."""

    kind: CollectiveKind
    bytes: float
    groups: Ints
    places: Ints
    routes: Routes
    capacities: Floats
    group: Communicator
    plan: NcclPlan
    root: int
    ways: Ways
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


def _rings(on: _On) -> tuple[CollectiveResult, int]:
    orders = on.orders()
    if on.kind in ("broadcast", "reduce"):
        return _chains(on, [_from_root(order, on.root) for order in orders]), len(orders)
    lowered = _ring(on.kind, on.groups.shape[1])
    jobs = [
        Job(
            lowered.runs(),
            np.take_along_axis(on.groups, order, axis=1),
            on.bytes / len(orders),
            wire_factor=on.plan.wire_factor,
            cap=on.cap(len(orders)),
            latency=on.plan.mean_step_latency,
        )
        for order in orders
    ]
    ran = simulate_collective(
        jobs,
        on.capacities,
        on.without_latency,
        places=on.places,
        ways=on.ways,
        link_name=lambda number: on.routes.net.link(number).name,
    )
    return replace(ran, seconds=ran.seconds + on.plan.base_latency), len(orders)


def _ring(kind: CollectiveKind, members: int) -> Lowered:
    match kind:
        case "all_reduce":
            return all_reduce(members, "ring")
        case "all_gather":
            return all_gather(members, "ring")
        case "reduce_scatter":
            return reduce_scatter(members, "ring")
        case _:
            raise InputError(f"NCCL has no {kind}")


def _chains(on: _On, orders: list[Ints]) -> CollectiveResult:
    """Slots down chains from the root, or up to it: all hops carry at once when the first slot has come through."""
    made, places = on.plan, on.places[on.groups]
    rows = [np.take_along_axis(places, order, axis=1) for order in orders]
    ends = np.stack([row[:, :-1].ravel() for row in rows]), np.stack([row[:, 1:].ravel() for row in rows])
    sources, targets = ends if on.kind == "broadcast" else ends[::-1]
    paths = on.without_latency(sources.ravel(), targets.ravel())
    sizes = np.full(sources.size, on.bytes / len(orders) * made.wire_factor)
    carried = _fluid(on, paths, sizes, on.cap(len(orders)), before=0.0)
    hops = _first_slot(on, paths, sources.ravel(), targets.ravel(), len(orders)).reshape(len(orders), len(places), -1)
    slots = STEPS * made.chunk_bytes * made.channels
    leaves = on.settings.as_root and on.kind == "broadcast" and made.protocol == "LL" and on.bytes <= slots
    fill = 0.0 if leaves else float(hops[:, :, :-1].sum(axis=2).max(initial=0.0))
    return replace(carried, seconds=made.base_latency + fill + carried.seconds)


def _first_slot(on: _On, paths: Paths, sources: Ints, targets: Ints, ways: int) -> Floats:
    """How long the first slot takes over each hop, when all channels' first slots are on their way [s].

    Between nodes a slot goes as one message, which must be whole first; inside,
    LL and LL128 pass on line by line, and Simple whole slots.
    """
    net, made = on.routes.net, on.plan
    crossing = sources // net.per_node != targets // net.per_node
    flow = np.repeat(np.arange(len(sources)), np.diff(paths.offsets))
    # first slots are in the same hop of their chains: only there do they share links
    hop = flow % (on.groups.shape[1] - 1)
    _, same, meeting = np.unique(hop * net.link_count + paths.links, return_inverse=True, return_counts=True)
    rate = np.full(len(sources), np.inf)
    np.minimum.at(rate, flow, counted(net, on.group.generation)[paths.links] / meeting[same])
    slot = made.chunk_bytes * made.wire_factor * made.channels / ways / rate
    simple = made.protocol == "Simple"
    whole = 0.0 if simple else made.chunk_bytes / made.channel_rate
    if made.protocol == "LL":  # its threads write 8 bytes each, as often as flags come back
        whole = made.chunk_bytes / (MOST_THREADS["LL"] * BYTES_PER_THREAD["LL"]) * made.step_latency_intra
    step = np.where(crossing, made.step_latency_inter + whole, made.step_latency_intra)
    return np.asarray(step + np.where(crossing | simple, slot, 0.0))


def _from_root(order: Ints, root: int) -> Ints:
    """Rings turned so that the root comes first."""
    start = np.argmax(order == root, axis=1)
    turned = (start[:, None] + np.arange(order.shape[1])) % order.shape[1]
    return np.take_along_axis(order, turned, axis=1)


def _trees(on: _On) -> tuple[CollectiveResult, int]:
    orders = on.orders()
    if (flows := 4 * len(orders) * on.groups.size) > MOST_FLOWS:
        raise InputError(
            f"NCCL's trees over {on.groups.size} GPUs have {flows} flows; at most {MOST_FLOWS} are simulated: "
            "--collectives nccl:ring is folded"
        )
    part = on.bytes / len(orders) / 2 * on.plan.wire_factor
    places = on.places[on.groups]
    ends = []
    for group, child, parent, _ in tree_edges(on.routes, places, orders):
        down, up = places[group, child], places[group, parent]
        ends += [(down, up), (up, down)]
    sources, targets = (np.concatenate(column) for column in zip(*ends, strict=True))
    caps = on.cap(len(orders)) / 2
    paths = on.without_latency(sources, targets)
    return _fluid(on, paths, np.full(len(sources), part), caps, correction=_correction(on)), len(orders)


def _correction(on: _On) -> float:
    """Of a tree's rate, what NCCL's own correction for short pipelines leaves; another version's plan has its own."""
    if on.settings.planned is not None:
        return 1.0
    speed = bandwidth(on.kind, on.group, on.plan.algorithm, on.plan.protocol)
    carried = on.plan.seconds - on.before
    return min(1.0, on.bytes / speed / carried) if carried > 0 and on.bytes and speed > 0 else 1.0


def _nvls(on: _On) -> tuple[CollectiveResult, int]:
    """Sums in the switch, and trees from rail to rail."""
    net, places = on.routes.net, on.places[on.groups]
    flat = places.ravel()
    nodes = by_node(places, net.per_node)
    per_node = np.repeat(nodes.length, nodes.length)
    share = np.empty(len(flat))
    owner = np.repeat(np.arange(len(places)), places.shape[1])
    share[owner * places.shape[1] + nodes.slots.ravel()] = 1.0 / per_node
    up, down = _switch_links(net)
    sent, received = _nvls_parts(on.kind, share)
    links = np.concatenate([up[flat], down[flat]])
    sizes = np.concatenate([sent, received]) * on.bytes * on.plan.wire_factor
    offsets = np.arange(len(links) + 1)
    paths = Paths(offsets, links, np.ones(len(links)), np.zeros(len(links)))
    if on.plan.algorithm == "nvls":
        return _fluid(on, paths, sizes, np.inf), 1
    rails, rail_sizes = _rails(on, nodes, places)
    both = Paths(
        np.concatenate([paths.offsets, paths.offsets[-1] + rails.offsets[1:]]),
        np.concatenate([paths.links, rails.links]),
        np.concatenate([paths.shares, rails.shares]),
        np.concatenate([paths.latency, rails.latency]),
    )
    return _fluid(on, both, np.concatenate([sizes, rail_sizes]), np.inf), 1


def _nvls_parts(kind: CollectiveKind, share: Floats) -> tuple[Floats, Floats]:
    """Of the buffer, what each GPU sends up to its switch and gets from it."""
    match kind:
        case "all_reduce":
            return 1 + share, 1 + share
        case "all_gather":
            return share, np.ones_like(share)
        case _:
            return np.ones_like(share), share


def _switch_links(net: Network) -> tuple[Ints, Ints]:
    """The link of each place to its NVSwitch, and the one back."""
    first, count = net.kinds["nvswitch"]
    nodes = net.place_nodes()
    place = np.full(net.node_count, -1)
    place[nodes] = np.arange(len(nodes))
    up, down = np.full(len(nodes), -1), np.full(len(nodes), -1)
    to = (net.targets >= first) & (net.targets < first + count) & (place[net.sources] >= 0)
    back = (net.sources >= first) & (net.sources < first + count) & (place[net.targets] >= 0)
    up[place[net.sources[to]]] = np.flatnonzero(to)
    down[place[net.targets[back]]] = np.flatnonzero(back)
    return up, down


def _rails(on: _On, nodes: Nodes, places: Ints) -> tuple[Paths, Floats]:
    """Two trees over the nodes for each GPU of a node, each with half of that GPU's part."""
    column = np.arange(places.size) - np.repeat(nodes.first, nodes.length)
    owner = np.repeat(np.arange(len(places)), places.shape[1])
    slots = nodes.slots.ravel()
    sources, targets, sizes = [], [], []
    for rail in range(int(nodes.length.max())):
        chosen = np.flatnonzero(column == rail)
        one = _regular(owner[chosen], places[owner[chosen], slots[chosen]], len(places))
        width = 1.0 / int(nodes.length.max())
        order = np.tile(np.arange(one.shape[1]), (len(one), 1))
        for group, child, parent, _ in tree_edges(on.routes, one, [order]):
            down, up = one[group, child], one[group, parent]
            sources += [down, up]
            targets += [up, down]
            sizes += [np.full(2 * len(down), on.bytes * width / 2)]
    paths = on.without_latency(np.concatenate(sources), np.concatenate(targets))
    return paths, np.concatenate(sizes)


def _regular(owner: Ints, places: Ints, groups: int) -> Ints:
    """Places of one rail as a table [groups, nodes].

    Raises
    ------
    InputError : groups that lie unlike each other on the nodes
    """
    if len(places) % groups or not (np.bincount(owner, minlength=groups) == len(places) // groups).all():
        raise InputError("NCCL nvls_tree: the groups lie unlike each other on the nodes; --collectives nccl:ring does")
    return places.reshape(groups, -1)


def _fluid(
    on: _On, paths: Paths, sizes: Floats, cap: float, *, before: float | None = None, correction: float = 1.0
) -> CollectiveResult:
    """Everything at once, after what comes before: NCCL's latency if nothing else is given."""
    flows = len(sizes)
    zero, one = np.zeros(flows), np.ones(flows)
    # a flow over no link (a GPU to itself) takes no time
    sizes = np.where(np.diff(paths.offsets) > 0, sizes, 0.0)
    traffic = Traffic(paths.offsets, paths.links, paths.shares, sizes, zero, zero, one, np.full(flows, cap))
    ran = simulate_flows(on.capacities, traffic)
    seconds = (on.before if before is None else before) + float(ran.finish.max(initial=0.0)) / correction
    return _result(on, seconds, ran.carried, ran.busy, ran.events, flows)


def _alone(on: _On) -> CollectiveResult:
    """What NCCL predicts for itself, for PAT, whose steps are not laid on links."""
    links = np.zeros(len(on.capacities))
    return _result(on, on.plan.seconds, links, links, 0, 0)


def _result(on: _On, seconds: float, carried: Floats, busy: Floats, events: int, flows: int) -> CollectiveResult:
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
    )
