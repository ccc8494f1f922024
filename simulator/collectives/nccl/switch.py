"""NCCL's sums in the switch (NVLS): buffers up to the NVSwitch and sums down, and trees between nodes."""

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.simulator.collectives.channels import Nodes, by_node
from quadrille.simulator.collectives.collective import CollectiveResult
from quadrille.simulator.collectives.nccl.layout import Laid, fluid
from quadrille.simulator.collectives.node_trees import tree_edges
from quadrille.simulator.collectives.programs import Floats, Ints
from quadrille.topologies.network import Network
from quadrille.topologies.routes.paths import Paths


def nvls(on: Laid) -> tuple[CollectiveResult, int]:
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
        return fluid(on, paths, sizes, np.inf), 1
    rails, rail_sizes = _rails(on, nodes, places)
    both = Paths(
        np.concatenate([paths.offsets, paths.offsets[-1] + rails.offsets[1:]]),
        np.concatenate([paths.links, rails.links]),
        np.concatenate([paths.shares, rails.shares]),
        np.concatenate([paths.latency, rails.latency]),
    )
    return fluid(on, both, np.concatenate([sizes, rail_sizes]), np.inf), 1


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


def _rails(on: Laid, nodes: Nodes, places: Ints) -> tuple[Paths, Floats]:
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
