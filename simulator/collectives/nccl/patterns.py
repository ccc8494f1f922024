"""NCCL's rings: step by step for what goes around, and as chains of slots from a root or to it."""

from dataclasses import replace

import numpy as np

from quadrille.algorithms.collectives.lowered import Lowered
from quadrille.algorithms.collectives.lowering import all_gather, all_reduce, reduce_scatter
from quadrille.algorithms.collectives.nccl.costs import bandwidth
from quadrille.algorithms.collectives.nccl.tables import BYTES_PER_THREAD, MOST_THREADS
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.simulator.collectives.collective import CollectiveResult, simulate_collective
from quadrille.simulator.collectives.nccl.layout import PlacedPlan, simulate_concurrently
from quadrille.simulator.collectives.node_layouts import NodeBlocks, by_node, tree_edges
from quadrille.simulator.collectives.programs import CollectiveJob, Floats, Ints
from quadrille.topologies.network import Network
from quadrille.topologies.routes.paths import Paths


def rings(on: PlacedPlan) -> tuple[CollectiveResult, int]:
    orders = on.orders()
    if on.kind in ("broadcast", "reduce"):
        return _chains(on, [_from_root(order, on.root) for order in orders]), len(orders)
    lowered = _ring(on.kind, on.groups.shape[1])
    jobs = [
        CollectiveJob(
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


def _chains(on: PlacedPlan, orders: list[Ints]) -> CollectiveResult:
    """Slots down chains from the root, or up to it: all hops carry at once when the first slot has come through.

    A root that measures alone does not wait for that where all channels take one
    way: broadcast after broadcast it is gone when the rest is in buffers.  Where
    channels pass its node differently, a GPU that comes next to the root in one
    comes last in another, and takes up the next broadcast only then.
    """
    made, places = on.plan, on.places[on.groups]
    rows = [np.take_along_axis(places, order, axis=1) for order in orders]
    ends = np.stack([row[:, :-1].ravel() for row in rows]), np.stack([row[:, 1:].ravel() for row in rows])
    sources, targets = ends if on.kind == "broadcast" else ends[::-1]
    paths = on.without_latency(sources.ravel(), targets.ravel())
    sizes = np.full(sources.size, on.bytes / len(orders) * made.wire_factor)
    carried = simulate_concurrently(on, paths, sizes, on.cap(len(orders)), before=0.0)
    hops = _first_slot(on, paths, sources.ravel(), targets.ravel(), len(orders)).reshape(len(orders), len(places), -1)
    leaves = on.settings.as_root and on.kind == "broadcast" and len(orders) == 1
    fill = 0.0 if leaves else float(hops[:, :, :-1].sum(axis=2).max(initial=0.0))
    return replace(carried, seconds=made.base_latency + fill + carried.seconds)


def _first_slot(on: PlacedPlan, paths: Paths, sources: Ints, targets: Ints, ways: int) -> Floats:
    """How long the first slot takes over each hop, when all channels' first slots are on their way [s].

    They come to one hop after the other, so links are idle but for the other channels' first slots, and one way only.

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
    np.minimum.at(rate, flow, on.idle[paths.links] / meeting[same])
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


MOST_FLOWS = 1 << 21
"""Of trees, about 1 kB each."""


def trees(on: PlacedPlan) -> tuple[CollectiveResult, int]:
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
    return simulate_concurrently(on, paths, np.full(len(sources), part), caps, correction=_correction(on)), len(orders)


def _correction(on: PlacedPlan) -> float:
    """Of a tree's rate, what NCCL's own correction for short pipelines leaves; another version's plan has its own."""
    if on.settings.planned is not None:
        return 1.0
    speed = bandwidth(on.kind, on.group, on.plan.algorithm, on.plan.protocol)
    carried = on.plan.seconds - on.before
    return min(1.0, on.bytes / speed / carried) if carried > 0 and on.bytes and speed > 0 else 1.0


def nvls(on: PlacedPlan) -> tuple[CollectiveResult, int]:
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
        return simulate_concurrently(on, paths, sizes, np.inf), 1
    rails, rail_sizes = _rails(on, nodes, places)
    both = Paths(
        np.concatenate([paths.offsets, paths.offsets[-1] + rails.offsets[1:]]),
        np.concatenate([paths.links, rails.links]),
        np.concatenate([paths.shares, rails.shares]),
        np.concatenate([paths.latency, rails.latency]),
    )
    return simulate_concurrently(on, both, np.concatenate([sizes, rail_sizes]), np.inf), 1


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


def _rails(on: PlacedPlan, nodes: NodeBlocks, places: Ints) -> tuple[Paths, Floats]:
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
