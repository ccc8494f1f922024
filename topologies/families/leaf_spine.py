"""Leaf-spine networks: hosts under leaf switches, or NICs under rail switches, and spines above them."""

from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.network import Floats, Ints, Network
from quadrille.topologies.network_builder import Builder, reverse
from quadrille.topologies.size_limits import check_cable, check_counts, check_size
from quadrille.topologies.structured_paths import link_table


def leaf_spine(
    leaves: int,
    spines: int,
    hosts_per_leaf: int,
    *,
    bandwidth: float,
    latency: float,
    uplink_bandwidth: float | None = None,
    cores: int = 1,
) -> Network:
    """A leaf-spine network: hosts under `leaves` leaf switches, and a cable from every leaf to every spine.

    host:h is under leaf:(h // hosts_per_leaf).  The fabric is oversubscribed by
    hosts_per_leaf × bandwidth / (spines × uplink_bandwidth).

    >>> leaf_spine(2, 2, 4, bandwidth=50e9, latency=1e-6).link_count
    24

    Parameters
    ----------
    bandwidth : bandwidth of each cable, per direction [B/s]
    latency : latency of each cable [s]
    uplink_bandwidth : bandwidth of the cables between leaf and spine [B/s]; by default `bandwidth`
    cores : number of cores of each host

    Raises
    ------
    InputError : fewer than one leaf, spine, host per leaf or core; a bandwidth or latency out of range
    """
    arguments = {
        "leaves": leaves,
        "spines": spines,
        "hosts_per_leaf": hosts_per_leaf,
        "bandwidth": bandwidth,
        "latency": latency,
        "uplink_bandwidth": uplink_bandwidth,
        "cores": cores,
    }
    check_counts("leaf-spine", leaves=leaves, spines=spines, hosts_per_leaf=hosts_per_leaf, cores=cores)
    hosts = leaves * hosts_per_leaf
    check_size("leaf-spine", hosts + leaves + spines, 2 * (hosts + leaves * spines))
    builder = Builder("leaf-spine", arguments)
    paths = add_leaf_spine(
        builder,
        builder.nodes("host", hosts),
        per_leaf=hosts_per_leaf,
        spines=spines,
        bandwidth=bandwidth,
        latency=latency,
        uplink_bandwidth=uplink_bandwidth,
    )
    return builder.network(("host", hosts), paths, cores=cores)


def add_leaf_spine(
    builder: Builder,
    endpoints: Ints,
    *,
    per_leaf: int,
    spines: int,
    bandwidth: float,
    latency: float,
    uplink_bandwidth: float | None = None,
) -> "LeafSpinePaths":
    """Connects `per_leaf` endpoints to each leaf in order (the last may have fewer), and every leaf to every spine."""
    check_counts("leaf-spine", per_leaf=per_leaf, spines=spines)
    check_cable("leaf-spine", bandwidth, latency)
    uplink = bandwidth if uplink_bandwidth is None else uplink_bandwidth
    check_cable("leaf-spine", uplink, latency, prefix="uplink_")
    leaf_of = np.arange(len(endpoints)) // per_leaf
    check_size("leaf-spine", len(endpoints) + spines, 2 * (len(endpoints) + (int(leaf_of[-1]) + 1) * spines))
    leaves = builder.nodes("leaf", int(leaf_of[-1]) + 1)
    spine_nodes = builder.nodes("spine", spines)
    up = builder.cables(endpoints, leaves[leaf_of], bandwidth=bandwidth, latency=latency)
    across = builder.cables(leaves[:, None], spine_nodes, bandwidth=uplink, latency=latency)
    return LeafSpinePaths(up, leaf_of, across.reshape(len(leaves), spines), np.arange(len(endpoints)) % spines)


@dataclass(frozen=True)
class LeafSpinePaths:
    """The paths of a leaf-spine network: over any spine between leaves; deterministic routing takes the target's spine.

    All traffic to one endpoint then comes down from one spine, and the endpoints
    under a leaf are spread evenly over the spines (destination-modulo routing).

    Parameters
    ----------
    up : link from each endpoint to its leaf [endpoints]
    leaf_of : leaf of each endpoint [endpoints]
    across : links from leaves to spines [leaves, spines]
    spine_of : spine over which deterministic routing reaches each endpoint [endpoints]
    """

    up: Ints
    leaf_of: Ints
    across: Ints
    spine_of: Ints

    def counts(self, sources: Ints, targets: Ints) -> Ints:
        return np.where(self.leaf_of[sources] == self.leaf_of[targets], 1, self.across.shape[1])

    def default(self, sources: Ints, targets: Ints) -> Ints:
        return np.where(self.leaf_of[sources] == self.leaf_of[targets], 0, self.spine_of[targets])

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        first, last = self.leaf_of[sources], self.leaf_of[targets]
        same, near = sources == targets, first == last
        return link_table(
            self.up[sources],
            self.across[first, chosen],
            reverse(self.across[last, chosen]),
            reverse(self.up[targets]),
            absent=[same, near, near, same],
        )

    def spread(self, sources: Ints, targets: Ints) -> tuple[Ints, Ints, Floats]:
        """Pair, link and share of each entry: 1 on the cables of both ends, 1 / spines on the cables of each spine."""
        first, last, spines = self.leaf_of[sources], self.leaf_of[targets], self.across.shape[1]
        apart, across = np.flatnonzero(sources != targets), np.flatnonzero(first != last)
        owners = np.concatenate([apart, apart, np.repeat(across, spines), np.repeat(across, spines)])
        climbing, falling = self.across[first[across]].ravel(), reverse(self.across[last[across]]).ravel()
        links = np.concatenate([self.up[sources[apart]], reverse(self.up[targets[apart]]), climbing, falling])
        return owners, links, np.repeat([1.0, 1.0 / spines], [2 * len(apart), 2 * len(climbing)])


def rail_optimised(
    nodes: int,
    rails: int,
    nodes_per_unit: int,
    spines: int,
    *,
    bandwidth: float,
    latency: float,
    uplink_bandwidth: float | None = None,
    cores: int = 1,
) -> Network:
    """A rail-optimised network: nodes of `rails` NICs, in units of `nodes_per_unit` with a switch for each rail.

    host:h stands for NIC h mod rails of node h // rails, which is connected to rail
    switch rail:(unit × rails + h mod rails).  Every rail switch has a cable to every
    spine.  `gpu-cluster` adds the GPUs behind the NICs.  With
    u = ceil(nodes / nodes_per_unit) units, the network has

        hosts    nodes · rails
        rail switches    u · rails
        cables    nodes · rails + u · rails · spines

    >>> rail_optimised(4, 2, 2, 3, bandwidth=50e9, latency=1e-6).kinds
    {'host': (0, 8), 'rail': (8, 4), 'spine': (12, 3)}

    Parameters
    ----------
    bandwidth, latency : bandwidth and latency of each cable, per direction [B/s, s]
    uplink_bandwidth : bandwidth of the cables between rail switch and spine [B/s]; by default `bandwidth`
    cores : number of cores of each host

    Raises
    ------
    InputError : a count below one; a bandwidth or latency out of range

    Source: NVIDIA, "DGX SuperPOD: Next Generation Scalable Infrastructure for
    AI Leadership, Reference Architecture", 2023, compute fabric.
    """
    arguments = dict(locals())
    counts = {"nodes": nodes, "rails": rails, "nodes_per_unit": nodes_per_unit, "spines": spines}
    check_counts("rail-optimised", **counts, cores=cores)
    hosts, switches = nodes * rails, -(-nodes // nodes_per_unit) * rails
    check_size("rail-optimised", hosts + switches + spines, 2 * (hosts + switches * spines))
    builder = Builder("rail-optimised", arguments)
    paths = add_rail_optimised(
        builder,
        builder.nodes("host", hosts),
        rails=rails,
        nodes_per_unit=nodes_per_unit,
        spines=spines,
        bandwidth=bandwidth,
        latency=latency,
        uplink_bandwidth=uplink_bandwidth,
    )
    return builder.network(("host", hosts), paths, cores=cores)


def add_rail_optimised(
    builder: Builder,
    endpoints: Ints,
    *,
    rails: int,
    nodes_per_unit: int,
    spines: int,
    bandwidth: float,
    latency: float,
    uplink_bandwidth: float | None = None,
) -> LeafSpinePaths:
    """Connects the endpoints, `rails` for each node in order, to rail switches, and every rail switch to every spine.

    Deterministic routing between rails takes the spine with the index of the
    target's node in its unit, so that the nodes of a unit are spread evenly over
    the spines.

    Raises
    ------
    InputError : as `rail_optimised`; a number of endpoints that `rails` does not divide
    """
    check_counts("rail-optimised", rails=rails, nodes_per_unit=nodes_per_unit, spines=spines)
    check_cable("rail-optimised", bandwidth, latency)
    uplink = bandwidth if uplink_bandwidth is None else uplink_bandwidth
    check_cable("rail-optimised", uplink, latency, prefix="uplink_")
    if len(endpoints) % rails:
        raise InputError(f"rail-optimised: rails={rails} must divide the number of endpoints, {len(endpoints)}")
    node, rail = np.divmod(np.arange(len(endpoints)), rails)
    switch_of = node // nodes_per_unit * rails + rail
    switches = builder.nodes("rail", int(switch_of.max(initial=rails - 1)) + 1)
    check_size("rail-optimised", len(endpoints), 2 * (len(endpoints) + len(switches) * spines))
    tops = builder.nodes("spine", spines)
    up = builder.cables(endpoints, switches[switch_of], bandwidth=bandwidth, latency=latency)
    across = builder.cables(switches[:, None], tops, bandwidth=uplink, latency=latency)
    return LeafSpinePaths(up, switch_of, across.reshape(len(switches), spines), node % nodes_per_unit % spines)
