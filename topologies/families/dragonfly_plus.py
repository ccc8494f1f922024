"""The dragonfly+: groups of leaves and spines, and cables between the spines of different groups."""

from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.builder import Builder, reverse
from quadrille.topologies.families.global_links import GlobalLinks, GroupPaths, global_cables, local_and_global
from quadrille.topologies.limits import check_counts, check_size
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.structured_paths import side_by_side


def dragonfly_plus(
    groups: int,
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    global_links: int,
    *,
    bandwidth: float,
    latency: float,
    local_bandwidth: float | None = None,
    local_latency: float | None = None,
    global_bandwidth: float | None = None,
    global_latency: float | None = None,
    cores: int = 1,
) -> Network:
    """`groups` groups of `leaves` leaves, each wired to all `spines` spines of its group.

    Hosts are on leaves; each spine has `global_links` ports to other groups; each
    pair of groups gets spines × global_links // (groups - 1) cables, arranged as
    `global_links.py` says.  So there are

        hosts           groups · leaves · hosts_per_leaf
        local cables    groups · leaves · spines
        global cables   groups (groups - 1) / 2 · (spines · global_links // (groups - 1))

    >>> net = dragonfly_plus(5, 2, 2, 2, 2, bandwidth=25e9, latency=1e-6)
    >>> net.endpoint_count, net.link_count // 2
    (20, 50)

    Parameters
    ----------
    bandwidth, latency : of the cable of a host, each direction, and of all others by default [B/s, s]
    local_bandwidth, local_latency : of the cables within a group [B/s, s]
    global_bandwidth, global_latency : of the cables between groups [B/s, s]
    cores : of each host

    Raises
    ------
    InputError : a count below one; more groups than the global links reach; a cable that cannot be

    Source: Shpiner, Haramaty, Eliad, Zdornov, Gafni, Zahavi, "Dragonfly+: Low
    Cost Topology for Scaling Datacenters", HiPINEB 2017.
    """
    arguments = dict(locals())
    counts = {"groups": groups, "leaves": leaves, "spines": spines, "hosts_per_leaf": hosts_per_leaf}
    check_counts("dragonfly+", **counts, global_links=global_links, cores=cores)
    hosts = groups * leaves * hosts_per_leaf
    check_size("dragonfly+", *_size(groups, leaves, spines, hosts, global_links))
    builder = Builder("dragonfly+", arguments)
    paths = add_dragonfly_plus(
        builder,
        builder.nodes("host", hosts),
        groups=groups,
        leaves=leaves,
        spines=spines,
        per_leaf=hosts_per_leaf,
        global_links=global_links,
        bandwidth=bandwidth,
        latency=latency,
        local_bandwidth=local_bandwidth,
        local_latency=local_latency,
        global_bandwidth=global_bandwidth,
        global_latency=global_latency,
    )
    return builder.network(("host", hosts), paths, cores=cores)


def _size(groups: int, leaves: int, spines: int, hosts: int, global_links: int) -> tuple[int, int]:
    """Nodes and links."""
    between = global_cables("dragonfly+", groups, spines, global_links)
    cables = hosts + groups * leaves * spines + groups * (groups - 1) // 2 * between
    return hosts + groups * (leaves + spines), 2 * cables


def add_dragonfly_plus(
    builder: Builder,
    endpoints: Ints,
    *,
    leaves: int,
    spines: int,
    per_leaf: int,
    global_links: int,
    bandwidth: float,
    latency: float,
    groups: int | None = None,
    local_bandwidth: float | None = None,
    local_latency: float | None = None,
    global_bandwidth: float | None = None,
    global_latency: float | None = None,
) -> "DragonflyPlusPaths":
    """Joins the endpoints by a dragonfly+, `per_leaf` on each leaf in turn, the last perhaps not full.

    Parameters
    ----------
    groups : as many as the endpoints need by default

    Raises
    ------
    InputError : as `dragonfly_plus`; more endpoints than the groups have room for
    """
    counts = {"leaves": leaves, "spines": spines, "per_leaf": per_leaf, "global_links": global_links}
    check_counts("dragonfly+", **counts)
    needed = -(-len(endpoints) // (leaves * per_leaf))
    groups = needed if groups is None else groups
    if groups < needed:
        room = groups * leaves * per_leaf
        raise InputError(f"dragonfly+: groups={groups} have room for {room} endpoints, not for {len(endpoints)}")
    check_size("dragonfly+", *_size(groups, leaves, spines, len(endpoints), global_links))
    near, far = local_and_global(
        "dragonfly+",
        bandwidth,
        latency,
        local_bandwidth=local_bandwidth,
        local_latency=local_latency,
        global_bandwidth=global_bandwidth,
        global_latency=global_latency,
    )
    low, high = builder.nodes("leaf", groups * leaves), builder.nodes("spine", groups * spines)
    leaf_of = np.arange(len(endpoints)) // per_leaf
    up = builder.cables(endpoints, low[leaf_of], bandwidth=bandwidth, latency=latency)
    ends = low.reshape(groups, leaves, 1), high.reshape(groups, 1, spines)
    local = builder.cables(*ends, bandwidth=near.bandwidth, latency=near.latency)
    between = GlobalLinks.wire(builder, high.reshape(groups, spines), global_links, family="dragonfly+", cable=far)
    return DragonflyPlusPaths(up, leaf_of, between, leaves, local.reshape(groups * leaves, spines))


@dataclass(frozen=True)
class DragonflyPlusPaths(GroupPaths):
    """Minimal paths: within a group by any spine, to another group by any global link between the two.

    NonMinimalPaths go minimally to a group drawn from the others and minimally from there:
    from the spine where they arrive if it has a link to the target's group, else by
    a leaf to a spine that has.  Within a group, or with two groups, paths stay minimal.

    Parameters
    ----------
    leaves : of a group
    local : links from a leaf to the spines of its group [leaves, spines of a group]
    """

    leaves: int
    local: Ints

    @property
    def most_hops(self) -> int:
        """No minimal path is longer: the cables of both hosts, up and down, and a global one between groups."""
        return 4 + (self.between.groups > 1)

    @property
    def _spines(self) -> int:
        """Spines in a group."""
        return int(self.local.shape[1])

    # Between leaves

    def _across(self, first: Ints, last: Ints, chosen: Ints) -> Ints:
        """Links of the chosen minimal paths: up to a spine, between groups, down from a spine [pairs, 3]."""
        start, end = first // self.leaves, last // self.leaves
        crossing = self.between.between_groups.at(self.between.joining(start, end)[0] + chosen)
        near = start == end
        exits = np.where(near, chosen, self._spine(self.between.sources, crossing)) % self._spines
        enters = np.where(near, chosen, self._spine(self.between.targets, crossing)) % self._spines
        return side_by_side(
            self.local[first, exits],
            self._spine(self.between.links, crossing),
            reverse(self.local[last, enters]),
            absent=[first == last, near, first == last],
        )

    @staticmethod
    def _spine(ends: Ints, crossing: Ints) -> Ints:
        """Entries of global links; any where there are none."""
        return ends[crossing] if len(ends) else crossing

    def _around(self, first: Ints, last: Ints, random: Ints) -> Ints:
        """Links of detours: up, between groups, down and up where needed, between groups, down [pairs, 6]."""
        between = self.between
        start, end = first // self.leaves, last // self.leaves
        if between.groups < 3:
            return self._padded(self._across(first, last, random % self._minimal(first, last)))
        straight = start == end
        random, drawn = np.divmod(random, between.groups - 2)
        group = drawn + (drawn >= np.minimum(start, end))
        group = np.where(straight, (start + 1) % between.groups, group + (group >= np.maximum(start, end)))
        begin, count = between.joining(start, group)
        random, link = np.divmod(random, np.maximum(1, count))
        there = between.between_groups.at(begin + link)
        arrived = between.targets[there]
        own, joining = between.leaving(arrived, end), between.joining(group, end)
        direct = own[1] > 0
        random, link = np.divmod(random, np.maximum(1, np.where(direct, own[1], joining[1])))
        onward = np.where(direct, between.from_router.at(own[0] + link), between.between_groups.at(joining[0] + link))
        leaf, exits = group * self.leaves + random % self.leaves, between.sources[onward]
        table = side_by_side(
            self.local[first, between.sources[there] % self._spines],
            between.links[there],
            reverse(self.local[leaf, arrived % self._spines]),
            self.local[leaf, exits % self._spines],
            between.links[onward],
            reverse(self.local[last, between.targets[onward] % self._spines]),
            absent=[None, None, arrived == exits, arrived == exits],
        )
        minimal = self._padded(self._across(first, last, random % self._minimal(first, last)))
        return np.where(straight[:, None], minimal, table)

    def _minimal(self, first: Ints, last: Ints) -> Ints:
        """How many minimal paths there are between leaves."""
        start, end = first // self.leaves, last // self.leaves
        return np.select([first == last, start == end], [1, self._spines], self.between.joining(start, end)[1])

    @staticmethod
    def _padded(across: Ints) -> Ints:
        """Minimal paths in a table as wide as that of detours."""
        return np.concatenate([across, np.full_like(across, -1)], axis=1)
