"""Leaf-spine networks: hosts under leaves, or NICs under the switch of their rail, and spines above."""

from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.builder import Builder, reverse
from quadrille.topologies.limits import check_cable, check_counts, check_size
from quadrille.topologies.network import Floats, Ints, Network
from quadrille.topologies.structured_paths import side_by_side


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
    """Hosts under `leaves` leaf switches, every leaf wired to every spine.

    host:h is under leaf:(h // hosts_per_leaf).  The fabric is oversubscribed by
    hosts_per_leaf × bandwidth / (spines × uplink_bandwidth).

    >>> leaf_spine(2, 2, 4, bandwidth=50e9, latency=1e-6).link_count
    24

    Parameters
    ----------
    bandwidth : of each cable, each direction [B/s]
    latency : of each cable [s]
    uplink_bandwidth : of the cables between leaf and spine, where it differs [B/s]
    cores : of each host

    Raises
    ------
    InputError : fewer than one leaf, spine, host per leaf or core; a cable that cannot be
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
    """Joins the endpoints by leaves of `per_leaf` endpoints, the last one perhaps not full, and spines."""
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
    """Across leaves by any spine; deterministically by that of the target.

    All traffic to one endpoint then comes down through one spine, and the
    endpoints under a leaf are spread evenly over the spines (destination-modulo
    routing).

    Parameters
    ----------
    up : cable of each endpoint
    leaf_of : each endpoint
    across : cables from leaves to spines [leaves, spines]
    spine_of : each endpoint as a target
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
        return side_by_side(
            self.up[sources],
            self.across[first, chosen],
            reverse(self.across[last, chosen]),
            reverse(self.up[targets]),
            absent=[same, near, near, same],
        )

    def spread(self, sources: Ints, targets: Ints) -> tuple[Ints, Ints, Floats]:
        """All of a flow on the cables of its ends, and across leaves the same on every spine."""
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
    """`nodes` nodes of `rails` NICs, in units of `nodes_per_unit`; a unit has a switch for each rail.

    host:h stands for NIC h mod rails of node h // rails, on rail switch
    rail:(unit × rails + h mod rails); every rail switch has a cable to every spine.
    `gpu-cluster` puts GPUs behind the NICs.  With u = ceil(nodes / nodes_per_unit)
    units there are

        hosts    nodes · rails
        rail switches    u · rails
        cables    nodes · rails + u · rails · spines

    >>> rail_optimised(4, 2, 2, 3, bandwidth=50e9, latency=1e-6).kinds
    {'host': (0, 8), 'rail': (8, 4), 'spine': (12, 3)}

    Parameters
    ----------
    bandwidth, latency : of each cable, each direction [B/s, s]
    uplink_bandwidth : of the cables between rail switch and spine, where it differs [B/s]
    cores : of each host

    Raises
    ------
    InputError : a count below one; a cable that cannot be

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
    """Joins the endpoints, `rails` for each node in turn, by rail switches and spines.

    Between rails the spine is that of the target's place in its unit, so that
    the nodes of a unit are spread evenly over the spines.

    Raises
    ------
    InputError : as `rail_optimised`; endpoints that are not `rails` for each node
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
