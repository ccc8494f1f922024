"""The dragonfly: groups of fully connected routers, and a few cables between each pair of groups."""

from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.global_links import GlobalLinks, GroupPaths, Rates, global_cables, local_and_global
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.network_builder import Builder, reverse
from quadrille.topologies.size_limits import check_counts, check_size
from quadrille.topologies.structured_paths import link_table


def dragonfly(
    groups: int,
    routers: int,
    hosts_per_router: int,
    global_links: int,
    *,
    bandwidth: float,
    latency: float,
    local_bandwidth: float | None = None,
    local_latency: float | None = None,
    local_links: int = 1,
    global_bandwidth: float | None = None,
    global_latency: float | None = None,
    cores: int = 1,
) -> Network:
    """A dragonfly of `groups` groups (g in the paper) of `routers` routers (a) with `hosts_per_router` hosts (p) each.

    Within a group every router has a cable to every other router.  Each router has
    `global_links` ports (h) to other groups.  Each pair of groups is joined by
    routers × global_links // (groups - 1) cables, arranged as described in
    `global_links.py`.  The network has

        hosts           groups · routers · hosts_per_router
        local cables    groups · routers (routers - 1) / 2 · local_links
        global cables   groups (groups - 1) / 2 · (routers · global_links // (groups - 1))

    >>> net = dragonfly(9, 4, 2, 2, bandwidth=25e9, latency=1e-6)
    >>> net.endpoint_count, net.link_count // 2
    (72, 162)

    Parameters
    ----------
    bandwidth, latency : rates of the cable of a host, per direction, and default of all other cables [B/s, s]
    local_bandwidth, local_latency : rates of the cables within a group [B/s, s]
    local_links : number of parallel cables between two routers of a group
    global_bandwidth, global_latency : rates of the cables between groups [B/s, s]
    cores : number of cores of each host

    Raises
    ------
    InputError : a count below one; more groups than the global links reach; a bandwidth or latency out of range

    Source: Kim, Dally, Scott, Abts, "Technology-Driven, Highly-Scalable
    Dragonfly Topology", ISCA 2008, section 3.
    """
    arguments = dict(locals())
    counts = {"groups": groups, "routers": routers, "hosts_per_router": hosts_per_router}
    check_counts("dragonfly", **counts, global_links=global_links, local_links=local_links, cores=cores)
    hosts = groups * routers * hosts_per_router
    check_size("dragonfly", *_size(groups, routers, hosts, global_links, local_links))
    builder = Builder("dragonfly", arguments)
    paths = add_dragonfly(
        builder,
        builder.nodes("host", hosts),
        groups=groups,
        routers=routers,
        per_router=hosts_per_router,
        global_links=global_links,
        bandwidth=bandwidth,
        latency=latency,
        local_bandwidth=local_bandwidth,
        local_latency=local_latency,
        local_links=local_links,
        global_bandwidth=global_bandwidth,
        global_latency=global_latency,
    )
    return builder.network(("host", hosts), paths, cores=cores)


def _size(groups: int, routers: int, hosts: int, global_links: int, local_links: int) -> tuple[int, int]:
    """Number of nodes and number of links of a dragonfly."""
    between = global_cables("dragonfly", groups, routers, global_links)
    cables = hosts + groups * routers * (routers - 1) // 2 * local_links + groups * (groups - 1) // 2 * between
    return hosts + groups * routers, 2 * cables


def add_dragonfly(
    builder: Builder,
    endpoints: Ints,
    *,
    routers: int,
    per_router: int,
    global_links: int,
    bandwidth: float,
    latency: float,
    groups: int | None = None,
    local_bandwidth: float | None = None,
    local_latency: float | None = None,
    local_links: int = 1,
    global_bandwidth: float | None = None,
    global_latency: float | None = None,
) -> "DragonflyPaths":
    """Connects the endpoints by a dragonfly: `per_router` on each router in order; the last may have fewer.

    The other arguments are those of `dragonfly`.

    Parameters
    ----------
    groups : number of groups; by default as few as hold the endpoints.  Groups without endpoints carry non-minimal
        paths

    Raises
    ------
    InputError : as `dragonfly`; more endpoints than the groups have room for
    """
    needed = -(-len(endpoints) // (routers * per_router))
    groups = needed if groups is None else groups
    if groups < needed:
        room = groups * routers * per_router
        raise InputError(f"dragonfly: groups={groups} have room for {room} endpoints, not for {len(endpoints)}")
    check_size("dragonfly", *_size(groups, routers, len(endpoints), global_links, local_links))
    near, far = local_and_global(
        "dragonfly",
        bandwidth,
        latency,
        local_bandwidth=local_bandwidth,
        local_latency=local_latency,
        global_bandwidth=global_bandwidth,
        global_latency=global_latency,
    )
    nodes = builder.nodes("router", groups * routers)
    router_of = np.arange(len(endpoints)) // per_router
    up = builder.cables(endpoints, nodes[router_of], bandwidth=bandwidth, latency=latency)
    grouped = nodes.reshape(groups, routers)
    local = _local(builder, grouped, local_links, near)
    between = GlobalLinks.wire(builder, grouped, global_links, family="dragonfly", cable=far)
    return DragonflyPaths(up, router_of, between, local)


def _local(builder: Builder, grouped: Ints, parallel: int, cable: Rates) -> Ints:
    """Connects all routers of each group; returns the links from each router to the routers of its group.

    The links have the shape [routers, routers of a group, parallel].
    """
    groups, routers = grouped.shape
    first, second = np.triu_indices(routers, 1)
    shape = groups, len(first), parallel
    ends = (np.broadcast_to(grouped[:, side, None], shape) for side in (first, second))
    cables = builder.cables(*ends, bandwidth=cable.bandwidth, latency=cable.latency).reshape(shape)
    local = np.full((groups, routers, routers, parallel), -1, dtype=np.int64)
    local[:, first, second], local[:, second, first] = cables, reverse(cables)
    return local.reshape(groups * routers, routers, parallel)


@dataclass(frozen=True)
class DragonflyPaths(GroupPaths):
    """The paths of a dragonfly.

    A minimal path has at most one global link, and among such paths the fewest
    hops.  From router s to router t of another group it takes, in this order of
    preference: a global link from s to t; a global link from s to t's group, or
    from s's group to t, and one local hop; any global link between the two groups
    and two local hops.  (A path over two global links through a third group may
    have as few hops, but uses twice the global bandwidth, so routers do not take
    it.)  The quotient of a path's number by the number of parallel local links
    selects the global link, its remainder the local links.

    A non-minimal path leads minimally to a random other group, to the router at
    which the global link ends, and minimally from there (Valiant routing, Kim et
    al. 2008, section 4).  Within a group, and with only two groups, all paths are
    minimal.

    Parameters
    ----------
    local : links from each router to the routers of its group [routers, routers of a group, parallel]
    """

    local: Ints

    @property
    def most_hops(self) -> int:
        """Upper bound of the hops of a minimal path: the cables of both hosts, local hops and one global hop."""
        local = int(self._size > 1)
        return 2 + local + (1 + local if self.between.groups > 1 else 0)

    @property
    def _size(self) -> int:
        """Number of routers in a group."""
        return int(self.local.shape[1])

    # Between routers

    def _hops(self, first: Ints, last: Ints) -> tuple[Ints, Ints, Ints]:
        """Local hops of minimal paths; number of possible global links, in total and at router `first` [pairs]."""
        start, end = first // self._size, last // self._size
        own, arriving = self.between.leaving(first, end)[1], self.between.arriving(start, last)[1]
        direct, between = self.between.direct(first, last)[1], self.between.joining(start, end)[1]
        near = start == end
        hops = np.select([first == last, near, direct > 0, own + arriving > 0], [0, 1, 0, 1], 2)
        links = np.select([near, direct > 0, own + arriving > 0], [1, direct, own + arriving], between)
        return hops, links, own

    def _minimal(self, first: Ints, last: Ints) -> Ints:
        """Number of minimal paths between two routers [pairs]."""
        hops, links, _ = self._hops(first, last)
        paths: Ints = links * self.local.shape[2] ** hops
        return paths

    def _across(self, first: Ints, last: Ints, chosen: Ints) -> Ints:
        """Links of the chosen minimal paths between routers: local, global, local [pairs, 3]."""
        between, parallel = self.between, self.local.shape[2]
        start, end = first // self._size, last // self._size
        hops, _, own = self._hops(first, last)
        link, lane = np.divmod(chosen, parallel**hops)
        direct, leaving = between.direct(first, last), between.leaving(first, end)[0]
        arriving, joining = between.arriving(start, last)[0], between.joining(start, end)[0]
        crossing = np.select(
            [direct[1] > 0, (hops == 1) & (link < own), hops == 1],
            [
                between.between_routers.at(direct[0] + link),
                between.from_router.at(leaving + link),
                between.to_router.at(arriving + link - own),
            ],
            between.between_groups.at(joining + link),
        )
        return self._legs(
            first, last, crossing, lane % parallel, np.where(hops == 2, lane // parallel, lane) % parallel
        )

    def _legs(self, first: Ints, last: Ints, crossing: Ints, lane: Ints, other_lane: Ints) -> Ints:
        """Links between two routers over the global link at position `crossing`, or within a group [pairs, 3]."""
        near = first // self._size == last // self._size
        if not len(self.between.links):
            crossing, exits, enters = np.full(len(first), -1), first, first
        else:
            exits = np.where(near, first, self.between.sources[crossing])
            enters = np.where(near, first, self.between.targets[crossing])
            crossing = np.where(near, -1, self.between.links[crossing])
        before = self.local[first, exits % self._size, lane]
        after = self.local[enters, last % self._size, other_lane]
        return link_table(before, crossing, after, absent=[first == exits, near, enters == last])

    def _around(self, first: Ints, last: Ints, random: Ints) -> Ints:
        """Links of the non-minimal paths through another group that `random` draws [pairs, 6]."""
        between, parallel = self.between, self.local.shape[2]
        start, end = first // self._size, last // self._size
        straight = (start == end) | (between.groups < 3)
        random, drawn = np.divmod(random, max(1, between.groups - 2))
        low, high = np.minimum(start, end), np.maximum(start, end)
        group = drawn + (drawn >= low)
        group = np.where(straight, end, group + (group >= high))
        random, lane = np.divmod(random, parallel)
        leaving, joining = between.leaving(first, group), between.joining(start, group)
        own = leaving[1] > 0
        random, link = np.divmod(random, np.maximum(1, np.where(own, leaving[1], joining[1])))
        crossing = np.where(
            own, between.from_router.at(leaving[0] + link), between.between_groups.at(joining[0] + link)
        )
        arrived = np.where(straight, first, between.targets[crossing] if len(between.links) else first)
        there = np.where(straight[:, None], -1, self._legs(first, arrived, crossing, lane, lane))
        onward = self._across(arrived, last, random % self._minimal(arrived, last))
        return np.concatenate([there, onward], axis=1)
