"""The dragonfly+: groups of leaf and spine switches, and cables between the spines of different groups."""

from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.families.global_links import GlobalLinks, GroupPaths, global_cables, local_and_global
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.network_builder import Builder, reverse
from quadrille.topologies.size_limits import check_counts, check_size
from quadrille.topologies.structured_paths import link_table


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
    """A dragonfly+ of `groups` groups; each leaf of a group has a cable to each of the `spines` spines of the group.

    Hosts are connected to leaves.  Each spine has `global_links` ports to other
    groups.  Each pair of groups is joined by spines × global_links // (groups - 1)
    cables, arranged as described in `global_links.py`.  The network has

        hosts           groups · leaves · hosts_per_leaf
        local cables    groups · leaves · spines
        global cables   groups (groups - 1) / 2 · (spines · global_links // (groups - 1))

    >>> net = dragonfly_plus(5, 2, 2, 2, 2, bandwidth=25e9, latency=1e-6)
    >>> net.endpoint_count, net.link_count // 2
    (20, 50)

    Parameters
    ----------
    bandwidth, latency : rates of the cable of a host, per direction, and default of all other cables [B/s, s]
    local_bandwidth, local_latency : rates of the cables within a group [B/s, s]
    global_bandwidth, global_latency : rates of the cables between groups [B/s, s]
    cores : number of cores of each host

    Raises
    ------
    InputError : a count below one; more groups than the global links reach; a bandwidth or latency out of range

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
    """Number of nodes and number of links of a dragonfly+."""
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
    """Connects the endpoints by a dragonfly+: `per_leaf` on each leaf in order; the last may have fewer.

    The other arguments are those of `dragonfly_plus`.

    Parameters
    ----------
    groups : number of groups; by default as few as hold the endpoints

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
    """The paths of a dragonfly+.

    A minimal path goes over any spine within a group, and over any global link
    between two groups.  A non-minimal path leads minimally to a random other group
    and minimally from there: directly from the spine at which it arrives if this
    spine has a link to the target's group, else over a leaf to a spine that has
    one.  Within a group, and with only two groups, all paths are minimal.

    Parameters
    ----------
    leaves : number of leaves in a group
    local : links from each leaf to the spines of its group [leaves, spines of a group]
    """

    leaves: int
    local: Ints

    @property
    def most_hops(self) -> int:
        """Upper bound of the hops of a minimal path: the cables of both hosts, up, down, and one global hop."""
        return 4 + (self.between.groups > 1)

    @property
    def _spines(self) -> int:
        """Number of spines in a group."""
        return int(self.local.shape[1])

    # Between leaves

    def _across(self, first: Ints, last: Ints, chosen: Ints) -> Ints:
        """Links of the chosen minimal paths between leaves: up, between groups, down [pairs, 3]."""
        start, end = first // self.leaves, last // self.leaves
        crossing = self.between.between_groups.at(self.between.joining(start, end)[0] + chosen)
        near = start == end
        exits = np.where(near, chosen, self._spine(self.between.sources, crossing)) % self._spines
        enters = np.where(near, chosen, self._spine(self.between.targets, crossing)) % self._spines
        return link_table(
            self.local[first, exits],
            self._spine(self.between.links, crossing),
            reverse(self.local[last, enters]),
            absent=[first == last, near, first == last],
        )

    @staticmethod
    def _spine(ends: Ints, crossing: Ints) -> Ints:
        """Entries of `ends` at the positions `crossing`; arbitrary numbers if there are no global links."""
        return ends[crossing] if len(ends) else crossing

    def _around(self, first: Ints, last: Ints, random: Ints) -> Ints:
        """Links of the non-minimal paths that `random` draws [pairs, 6].

        The hops are: up, between groups, down and up unless one spine has both global links, between groups, down.
        """
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
        table = link_table(
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
        """Number of minimal paths between two leaves [pairs]."""
        start, end = first // self.leaves, last // self.leaves
        return np.select([first == last, start == end], [1, self._spines], self.between.joining(start, end)[1])

    @staticmethod
    def _padded(across: Ints) -> Ints:
        """The minimal paths in a table with as many columns as that of non-minimal paths [pairs, 6]."""
        return np.concatenate([across, np.full_like(across, -1)], axis=1)
