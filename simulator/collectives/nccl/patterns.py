"""Simulation of an NCCL collective on the links: as rings or chains, as trees, or as sums in the NVSwitch (NVLS).

Each function takes NCCL's plan with the places of its ranks and returns the result and the number of different paths
that the channels take. A *slot* is one chunk of NCCL's buffer that is in flight on a channel.
"""

from dataclasses import replace

import numpy as np

from quadrille.algorithms.collectives.lowered_collective import Lowered
from quadrille.algorithms.collectives.lowering import all_gather, all_reduce, all_to_all, reduce_scatter, send_receive
from quadrille.algorithms.collectives.nccl.costs import bandwidth
from quadrille.algorithms.collectives.nccl.tuning_constants import BYTES_PER_THREAD, MOST_THREADS, NVLS_ARITY
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.simulator.collectives.collective import CollectiveResult, simulate_collective
from quadrille.simulator.collectives.nccl.layout import PlacedPlan, simulate_concurrently, switch_links
from quadrille.simulator.collectives.nccl.pxn import RailPaths
from quadrille.simulator.collectives.node_layouts import NodeBlocks, node_blocks, tree_edges
from quadrille.simulator.collectives.programs import CollectiveJob, Floats, Ints, PairBytes
from quadrille.topologies.routes.paths import Paths


def simulate_rings(placed: PlacedPlan) -> tuple[CollectiveResult, int]:
    """Rings step by step; broadcast and reduce as chains. Returns the result and the number of ring orders."""
    orders = placed.orders()
    if placed.kind in ("broadcast", "reduce"):
        return _chains(placed, [_from_root(order, placed.root) for order in orders]), len(orders)
    lowered = _ring(placed.kind, placed.groups.shape[1])
    jobs = [
        CollectiveJob(
            lowered.runs(),
            np.take_along_axis(placed.groups, order, axis=1),
            placed.bytes / len(orders),
            wire_factor=placed.plan.wire_factor,
            cap=placed.cap(len(orders)),
            latency=placed.plan.mean_step_latency,
        )
        for order in orders
    ]
    ring_result = simulate_collective(
        jobs,
        placed.capacities,
        placed.without_latency,
        endpoints=placed.endpoints,
        options=placed.options,
        link_name=lambda number: placed.routes.net.link(number).name,
    )
    return replace(ring_result, seconds=ring_result.seconds + placed.plan.base_latency), len(orders)


def simulate_sends(placed: PlacedPlan, *, relays: bool) -> CollectiveResult:
    """An all-to-all or a send-receive as messages in one group, all at once.

    Parameters
    ----------
    relays : whether messages to another node leave by the NIC of the receiver's rail (PXN)
    """
    members, is_crosswise = placed.groups.shape[1], placed.kind == "all_to_all"
    lowered = all_to_all(members, "direct") if is_crosswise else send_receive(members, "shift")
    job = CollectiveJob(
        lowered.runs(),
        placed.groups,
        placed.bytes,
        wire_factor=placed.plan.wire_factor,
        cap=placed.cap(1),
        latency=placed.plan.mean_step_latency,
        crosswise=is_crosswise,
        at_once=True,
    )
    result = simulate_collective(
        [job],
        placed.capacities,
        RailPaths(placed) if relays else placed.without_latency,
        endpoints=placed.endpoints,
        options=placed.options,
        link_name=lambda number: placed.routes.net.link(number).name,
    )
    return replace(result, seconds=result.seconds + placed.plan.base_latency)


def busiest_bytes(pairs: PairBytes) -> float:
    """The most bytes that a member sends or receives, its own piece included.

    >>> busiest_bytes(((1.0, 3.0), (1.0, 3.0)))
    6.0
    """
    pieces = np.array(pairs)
    return float(max(pieces.sum(axis=0).max(), pieces.sum(axis=1).max()))


def simulate_pairs(placed: PlacedPlan, pairs: PairBytes, *, relays: bool) -> CollectiveResult:
    """An all-to-all whose pieces differ, as messages in one group, all at once.

    Parameters
    ----------
    pairs : bytes from each member of a group to each
    relays : whether messages to another node leave by the NIC of the receiver's rail (PXN)
    """
    sender, receiver = np.nonzero(~np.eye(len(pairs), dtype=bool))
    endpoints = placed.endpoints[placed.groups]
    sources, targets = endpoints[:, sender].ravel(), endpoints[:, receiver].ravel()
    sizes = np.tile(np.array(pairs)[sender, receiver], len(endpoints)) * placed.plan.wire_factor
    paths = RailPaths(placed) if relays else placed.without_latency
    before = placed.plan.base_latency + placed.plan.mean_step_latency
    return simulate_concurrently(placed, paths(sources, targets), sizes, placed.cap(1), before=before)


def _ring(kind: CollectiveKind, members: int) -> Lowered:
    """The ring algorithm of a collective."""
    match kind:
        case "all_reduce":
            return all_reduce(members, "ring")
        case "all_gather":
            return all_gather(members, "ring")
        case "reduce_scatter":
            return reduce_scatter(members, "ring")
        case _:
            raise InputError(f"NCCL has no {kind}")


def _chains(placed: PlacedPlan, orders: list[Ints]) -> CollectiveResult:
    """Chains from the root, or towards it: all hops are active at once when the first slot has come through.

    If only the root's time counts, it does not contain that latency where all channels
    use one path: broadcast after broadcast the root is done when the rest is in
    buffers. Where channels cross its node differently, a GPU that comes next to the
    root in one channel comes last in another, and takes up the next broadcast only then.
    """
    nccl_plan, endpoints = placed.plan, placed.endpoints[placed.groups]
    rows = [np.take_along_axis(endpoints, order, axis=1) for order in orders]
    hops = np.stack([row[:, :-1].ravel() for row in rows]), np.stack([row[:, 1:].ravel() for row in rows])
    sources, targets = hops if placed.kind == "broadcast" else hops[::-1]
    paths = placed.without_latency(sources.ravel(), targets.ravel())
    sizes = np.full(sources.size, placed.bytes / len(orders) * nccl_plan.wire_factor)
    flow_result = simulate_concurrently(placed, paths, sizes, placed.cap(len(orders)), before=0.0)
    slot_seconds = _first_slot(placed, paths, sources.ravel(), targets.ravel(), len(orders)).reshape(
        len(orders), len(endpoints), -1
    )
    root_leaves = placed.settings.as_root and placed.kind == "broadcast" and len(orders) == 1
    fill_seconds = 0.0 if root_leaves else float(slot_seconds[:, :, :-1].sum(axis=2).max(initial=0.0))
    return replace(flow_result, seconds=nccl_plan.base_latency + fill_seconds + flow_result.seconds)


def _first_slot(placed: PlacedPlan, paths: Paths, sources: Ints, targets: Ints, paths_count: int) -> Floats:
    """Seconds of the first slot on each hop, while all channels' first slots are in progress.

    The slots are on one hop after another, so links carry only the other channels' first
    slots, and in one direction only. Between nodes a slot is one message, which must
    be complete first; inside, LL and LL128 pass on line by line, and Simple whole slots.
    """
    net, nccl_plan = placed.routes.net, placed.plan
    crossing = sources // net.per_node != targets // net.per_node
    flow = np.repeat(np.arange(len(sources)), np.diff(paths.offsets))
    # first slots are in the same hop of their chains: only there do they share links
    hop = flow % (placed.groups.shape[1] - 1)
    _, same, meeting = np.unique(hop * net.link_count + paths.links, return_inverse=True, return_counts=True)
    rate = np.full(len(sources), np.inf)
    np.minimum.at(rate, flow, placed.idle[paths.links] / meeting[same])
    slot = nccl_plan.chunk_bytes * nccl_plan.wire_factor * nccl_plan.channels / paths_count / rate
    simple = nccl_plan.protocol == "Simple"
    passing = 0.0 if simple else nccl_plan.chunk_bytes / nccl_plan.channel_rate
    if nccl_plan.protocol == "LL":  # its threads write 8 bytes each, as often as flags come back
        passing = nccl_plan.chunk_bytes / (MOST_THREADS["LL"] * BYTES_PER_THREAD["LL"]) * nccl_plan.step_latency_intra
    step = np.where(crossing, nccl_plan.step_latency_inter + passing, nccl_plan.step_latency_intra)
    return np.asarray(step + np.where(crossing | simple, slot, 0.0))


def _from_root(order: Ints, root: int) -> Ints:
    """Rings rotated so that the root comes first."""
    start = np.argmax(order == root, axis=1)
    rotated = (start[:, None] + np.arange(order.shape[1])) % order.shape[1]
    return np.take_along_axis(order, rotated, axis=1)


MOST_FLOWS = 1 << 21
"""Flows of trees that are simulated at most, about 1 kB each."""


def simulate_trees(placed: PlacedPlan) -> tuple[CollectiveResult, int]:
    """Trees: one flow up and one flow down each edge, all at once. Returns the result and the number of tree orders."""
    orders = placed.orders()
    if (flows := tree_flows(placed)) > MOST_FLOWS:
        raise InputError(
            f"NCCL's trees over {placed.groups.size} GPUs have {flows} flows; at most {MOST_FLOWS} are simulated: "
            "--collectives nccl:ring is folded"
        )
    part = placed.bytes / len(orders) / 2 * placed.plan.wire_factor
    endpoints = placed.endpoints[placed.groups]
    ends = []
    for group, child, parent, _ in tree_edges(placed.routes, endpoints, orders):
        down, up = endpoints[group, child], endpoints[group, parent]
        ends += [(down, up), (up, down)]
    sources, targets = (np.concatenate(column) for column in zip(*ends, strict=True))
    caps = placed.cap(len(orders)) / 2
    paths = placed.without_latency(sources, targets)
    return simulate_concurrently(placed, paths, np.full(len(sources), part), caps, correction=_correction(placed)), len(
        orders
    )


def tree_flows(placed: PlacedPlan) -> int:
    """The number of flows of NCCL's trees: two edges a member and channel in each of two trees, up and down."""
    return 4 * len(placed.orders()) * placed.groups.size


def _correction(placed: PlacedPlan) -> float:
    """Share of a tree's rate that NCCL's correction for short pipelines leaves; 1 if another version's plan has it."""
    if placed.settings.planned is not None:
        return 1.0
    assert placed.plan.algorithm != "sendrecv", "only trees are corrected"
    speed = bandwidth(placed.kind, placed.group, placed.plan.algorithm, placed.plan.protocol)
    plan_seconds = placed.plan.seconds - placed.before
    return min(1.0, placed.bytes / speed / plan_seconds) if plan_seconds > 0 and placed.bytes and speed > 0 else 1.0


def simulate_nvls(placed: PlacedPlan) -> tuple[CollectiveResult, int]:
    """Sums in the switch, and trees from rail to rail. Returns the result, and 1 as the number of paths."""
    net, endpoints = placed.routes.net, placed.endpoints[placed.groups]
    flat = endpoints.ravel()
    nodes = node_blocks(endpoints, net.per_node)
    share = np.empty(len(flat))
    owner = np.repeat(np.arange(len(endpoints)), endpoints.shape[1])
    share[owner * endpoints.shape[1] + nodes.slots.ravel()] = _parts_of_heads(nodes)
    up, down = switch_links(net)
    sent, received = _nvls_parts(placed.kind, share)
    links = np.concatenate([up[flat], down[flat]])
    sizes = np.concatenate([sent, received]) * placed.bytes * placed.plan.wire_factor
    offsets = np.arange(len(links) + 1)
    paths = Paths(offsets, links, np.ones(len(links)), np.zeros(len(links)))
    if placed.plan.algorithm == "nvls":
        return simulate_concurrently(placed, paths, sizes, np.inf), 1
    rails, rail_sizes = _rails(placed, nodes, endpoints)
    all_paths = Paths(
        np.concatenate([paths.offsets, paths.offsets[-1] + rails.offsets[1:]]),
        np.concatenate([paths.links, rails.links]),
        np.concatenate([paths.shares, rails.shares]),
        np.concatenate([paths.latency, rails.latency]),
    )
    all_sizes = np.concatenate([sizes, rail_sizes])
    return simulate_concurrently(placed, all_paths, all_sizes, np.inf, least=_least_of_nvls_trees(placed)), 1


def _parts_of_heads(nodes: NodeBlocks) -> Floats:
    """Part of the buffer that each member of a node sums up: equal parts for the first 32 members, 0 for the others."""
    column = np.arange(nodes.slots.size) - np.repeat(nodes.first, nodes.length)
    heads = np.minimum(np.repeat(nodes.length, nodes.length), NVLS_ARITY)
    return np.where(column < heads, 1.0 / heads, 0.0)


def _least_of_nvls_trees(placed: PlacedPlan) -> float:
    """Shortest time of in-switch sums with trees over the nodes, whatever the links: all channels at NCCL's limit [s].

    The limit is of the bus bandwidth of each channel.
    """
    members = int(placed.groups.shape[1])
    return placed.bytes * 2 * (members - 1) / members / (placed.plan.channel_rate * placed.plan.channels)


def _nvls_parts(kind: CollectiveKind, share: Floats) -> tuple[Floats, Floats]:
    """Part of the buffer that each GPU sends up to its switch and gets from it."""
    match kind:
        case "all_reduce":
            return 1 + share, 1 + share
        case "all_gather":
            return share, np.ones_like(share)
        case _:
            return np.ones_like(share), share


def _rails(placed: PlacedPlan, nodes: NodeBlocks, endpoints: Ints) -> tuple[Paths, Floats]:
    """Two trees over the nodes for each GPU of a node that sums up a part, each with half of that GPU's part."""
    column = np.arange(endpoints.size) - np.repeat(nodes.first, nodes.length)
    owner = np.repeat(np.arange(len(endpoints)), endpoints.shape[1])
    slots = nodes.slots.ravel()
    sources, targets, sizes = [], [], []
    rails = min(int(nodes.length.max()), NVLS_ARITY)
    for rail in range(rails):
        chosen = np.flatnonzero(column == rail)
        rail_endpoints = _regular(owner[chosen], endpoints[owner[chosen], slots[chosen]], len(endpoints))
        width = 1.0 / rails
        order = np.tile(np.arange(rail_endpoints.shape[1]), (len(rail_endpoints), 1))
        for group, child, parent, _ in tree_edges(placed.routes, rail_endpoints, [order]):
            down, up = rail_endpoints[group, child], rail_endpoints[group, parent]
            sources += [down, up]
            targets += [up, down]
            sizes += [np.full(2 * len(down), placed.bytes * width / 2)]
    paths = placed.without_latency(np.concatenate(sources), np.concatenate(targets))
    return paths, np.concatenate(sizes)


def _regular(owner: Ints, endpoints: Ints, groups: int) -> Ints:
    """The endpoints of one rail as a table [groups, nodes].

    Raises
    ------
    InputError : the groups lie differently on the nodes
    """
    if len(endpoints) % groups or not (np.bincount(owner, minlength=groups) == len(endpoints) // groups).all():
        raise InputError("NCCL nvls_tree: the groups lie unlike each other on the nodes; --collectives nccl:ring does")
    return endpoints.reshape(groups, -1)
