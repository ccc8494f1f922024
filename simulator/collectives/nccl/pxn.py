"""PXN: a message to another node first goes over NVLink to the GPU whose network card is on the receiver's rail.

    gpu:0 of node 0 to gpu:3 of node 1     gpu:0 → NVLink → gpu:3 of node 0 → nic:3 → rail 3 → nic:3 → gpu:3 of node 1

So no message crosses from rail to rail in the network. The GPU in between must be a member of the group, and be joined
to the sender by links between GPUs alone; otherwise the message leaves by the sender's own card.

Source: NVIDIA, NCCL 2.28, src/graph/paths.cc, ncclTopoGetIntermediateRank and ncclTopoGetPxnRanks; NVIDIA, "Doubling
all2all Performance with NVIDIA Collective Communication Library 2.12", 2022. RCCL does not by default (issue 1209).
"""

from dataclasses import replace

import numpy as np

from quadrille.simulator.collectives.nccl.layout import PlacedPlan, exit_cards
from quadrille.simulator.collectives.programs import Ints
from quadrille.topologies.joined_gpus import links_between_gpus
from quadrille.topologies.routes.paths import Paths
from quadrille.topologies.routes.routing import Routes


class RailRelays:
    """The GPUs on the rail of the receiver by which the members of groups send to another node.

    Parameters
    ----------
    members : endpoints of all members, in order, each once
    """

    def __init__(self, routes: Routes, members: Ints) -> None:
        self._routes, self._members = routes, members
        self._per_node = routes.net.per_node
        self._cards = exit_cards(routes, members)
        self._count = int(self._cards.max(initial=0)) + 1
        keys = members // self._per_node * self._count + self._cards
        self._keys, first = np.unique(keys, return_index=True)
        self._of_key = members[first]
        self._inside = links_between_gpus(routes.net)

    def __call__(self, sources: Ints, targets: Ints) -> Ints:
        """The GPU in between on each path, -1 for none [paths]."""
        source_card, target_card = (self._cards[np.searchsorted(self._members, ends)] for ends in (sources, targets))
        wanted = sources // self._per_node * self._count + target_card
        place = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        apart = (sources // self._per_node != targets // self._per_node) & (source_card != target_card)
        candidates = np.flatnonzero(apart & (self._keys[place] == wanted))
        relay = np.full(len(sources), -1)
        if len(candidates):
            ends = self._of_key[place[candidates]]
            paths = self._routes.between(sources[candidates], ends)
            outside = np.add.reduceat(np.append(~self._inside[paths.links], False), paths.offsets[:-1])
            relay[candidates[outside == 0]] = ends[outside == 0]
        return relay


class RailPaths:
    """Paths between the members of groups, over the GPU on the receiver's rail where there is one.

    Parameters
    ----------
    placed : plan of NCCL and the endpoints of its ranks
    """

    def __init__(self, placed: PlacedPlan) -> None:
        self._placed = placed
        self._relays = RailRelays(placed.routes, np.unique(placed.endpoints[placed.groups]))

    def __call__(self, sources: Ints, targets: Ints) -> Paths:
        """The paths, without the latency of links."""
        relay = self._relays(sources, targets)
        relayed = np.flatnonzero(relay >= 0)
        direct = self._placed.without_latency(np.where(relay >= 0, relay, sources), targets)
        if not len(relayed):
            return direct
        return _after(self._placed.without_latency(sources[relayed], relay[relayed]), relayed, direct)


def _after(first: Paths, rows: Ints, paths: Paths) -> Paths:
    """The paths with those of `first` put before them in these rows."""
    lengths = np.diff(paths.offsets)
    before = np.zeros_like(lengths)
    before[rows] = np.diff(first.offsets)
    offsets = np.concatenate([[0], np.cumsum(lengths + before)])
    own = np.arange(len(paths.links)) + np.repeat(offsets[:-1] + before - paths.offsets[:-1], lengths)
    added = np.arange(len(first.links)) + np.repeat(offsets[rows] - first.offsets[:-1], np.diff(first.offsets))
    links, shares = np.empty(offsets[-1], dtype=np.int64), np.empty(offsets[-1])
    links[own], links[added] = paths.links, first.links
    shares[own], shares[added] = paths.shares, first.shares
    return replace(paths, offsets=offsets, links=links, shares=shares)
