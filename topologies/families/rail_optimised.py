"""Rails: the j-th NIC of every node of a unit on one switch, and spines above the rails."""

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.builder import Builder
from quadrille.topologies.families.leaf_spine import LeafSpinePaths
from quadrille.topologies.limits import check_cable, check_counts, check_size
from quadrille.topologies.network import Ints, Network


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
