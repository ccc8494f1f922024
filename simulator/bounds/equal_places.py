"""Equal places of a network: groups of ranks whose members and routes correspond, so that a collective costs the same.

Pipeline stages run the same collectives on the GPUs of other nodes. Where each route and each link of the one place
corresponds to one of the other, the flows of a collective are the same but for the numbers of their links, and one
simulation serves both. Places are compared by the routes between all their endpoints, so no kind of network has to be
known. Where a route depends on other flows, or links have failed, places are not compared.
"""

from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from quadrille.algorithms.analysis.equality_labels import Ints
from quadrille.simulator.collectives.nccl.collective import NcclResult
from quadrille.simulator.collectives.nccl.layout import exit_cards, switch_links
from quadrille.topologies.joined_gpus import links_between_gpus
from quadrille.topologies.network import Floats, Network
from quadrille.topologies.routes.routing import Routes

MOST_PAIRS = 1 << 16
"""Largest number of pairs of endpoints of a place whose routes are compared."""
RULES = ("shortest", "minimal", "ecmp")
"""Routing rules by which a route depends on its two ends alone."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The endpoints of groups, and the links that join them.

    Parameters
    ----------
    key : equal for places whose endpoints and links correspond
    endpoints : endpoints in rising order
    links : links in the order in which the routes between the endpoints first use them
    """

    key: bytes
    endpoints: Ints
    links: Ints


def place_of(endpoints: Ints, routes: Routes) -> Place | None:
    """The place of these endpoints, in rising order; None where places cannot be compared."""
    net, count = routes.net, len(endpoints)
    if routes.routing.rule not in RULES or net.failed.any() or count * count > MOST_PAIRS:
        return None
    paths = routes.between(np.repeat(endpoints, count), np.tile(endpoints, count))
    used = paths.links
    if "nvswitch" in net.kinds:
        used = np.concatenate([used, *(way[endpoints] for way in switch_links(net))])
    links, numbers = _numbered(used)
    _, node = np.unique(endpoints // net.per_node, return_inverse=True)
    columns = (
        *(node, endpoints % net.per_node, exit_cards(routes, endpoints), _rates(net, endpoints)),
        *(paths.offsets, numbers, paths.shares, paths.latency),
        *(net.bandwidths[links], links_between_gpus(net)[links], _leaves_card(net, links)),
    )
    digest = blake2b()
    for column in columns:
        digest.update(len(column).to_bytes(8, "little") + np.ascontiguousarray(column).tobytes())
    return Place(digest.digest(), endpoints, links)


def _numbered(links: Ints) -> tuple[Ints, Ints]:
    """The links in the order of first use, and the number of each use among them.

    >>> [array.tolist() for array in _numbered(np.array([7, 3, 7, 5]))]
    [[7, 3, 5], [0, 1, 0, 2]]
    """
    values, first, which = np.unique(links, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    return values[order], number[which.ravel()]


def _rates(net: Network, endpoints: Ints) -> Floats:
    """The bandwidth of all links out of each endpoint [B/s]."""
    out = np.bincount(net.sources, net.bandwidths, minlength=net.node_count).astype(np.float64)
    return out[net.endpoint_nodes()[endpoints]]


def _leaves_card(net: Network, links: Ints) -> Ints:
    """The place within its node of the network card from which a link goes, from 1; 0 for another link."""
    first, count = net.kinds[net.card_kind]
    card = net.sources[links] - first
    place: Ints = np.where((card >= 0) & (card < count), 1 + card % net.cards_per_node, 0)
    return place


@dataclass(frozen=True, slots=True, eq=False)
class PlacedResult:
    """NCCL's result for groups in a place, which holds in each equal place."""

    result: NcclResult
    groups: Ints
    place: Place

    def at(self, groups: Ints, place: Place) -> NcclResult:
        """The result for the corresponding groups in an equal place."""
        mine = self.result.result
        ends = np.full(int(groups.max()) + 1, np.nan)
        ends[groups] = mine.ends[self.groups]
        link_bytes, busy = np.zeros_like(mine.link_bytes), np.zeros_like(mine.busy_seconds)
        link_bytes[place.links], busy[place.links] = (
            mine.link_bytes[self.place.links],
            mine.busy_seconds[self.place.links],
        )
        moved = replace(mine, ends=ends, link_bytes=link_bytes, busy_seconds=busy)
        return replace(self.result, result=moved)
