"""NCCL's rings: step by step for what goes around, and as chains of slots from a root or to it."""

from dataclasses import replace

import numpy as np

from quadrille.algorithms.collectives.flat import all_gather, all_reduce, reduce_scatter
from quadrille.algorithms.collectives.lowered import Lowered
from quadrille.algorithms.collectives.nccl.tables import BYTES_PER_THREAD, MOST_THREADS
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.simulator.collectives.collective import CollectiveResult, simulate_collective
from quadrille.simulator.collectives.nccl.layout import Laid, fluid
from quadrille.simulator.collectives.programs import Floats, Ints, Job
from quadrille.topologies.routes.paths import Paths


def rings(on: Laid) -> tuple[CollectiveResult, int]:
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


def _chains(on: Laid, orders: list[Ints]) -> CollectiveResult:
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
    carried = fluid(on, paths, sizes, on.cap(len(orders)), before=0.0)
    hops = _first_slot(on, paths, sources.ravel(), targets.ravel(), len(orders)).reshape(len(orders), len(places), -1)
    leaves = on.settings.as_root and on.kind == "broadcast" and len(orders) == 1
    fill = 0.0 if leaves else float(hops[:, :, :-1].sum(axis=2).max(initial=0.0))
    return replace(carried, seconds=made.base_latency + fill + carried.seconds)


def _first_slot(on: Laid, paths: Paths, sources: Ints, targets: Ints, ways: int) -> Floats:
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
