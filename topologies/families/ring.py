"""Hosts in a ring, each wired to its two neighbours."""

from quadrille.topologies.builder import Builder
from quadrille.topologies.families.lattice import LatticePaths
from quadrille.topologies.families.torus import add_torus
from quadrille.topologies.limits import check_counts, check_size
from quadrille.topologies.network import Ints, Network


def ring(hosts: int, *, bandwidth: float, latency: float, cores: int = 1) -> Network:
    """`hosts` hosts, host:i wired to host:i+1 and the last to host:0; two hosts have one cable.

    >>> ring(5, bandwidth=25e9, latency=1e-6).link_count
    10

    Parameters
    ----------
    bandwidth, latency : of each cable, each direction [B/s, s]
    cores : of each host

    Raises
    ------
    InputError : fewer than one host or core; a cable that cannot be
    """
    check_counts("ring", hosts=hosts, cores=cores)
    check_size("ring", hosts, 2 * hosts)
    builder = Builder("ring", {"hosts": hosts, "bandwidth": bandwidth, "latency": latency, "cores": cores})
    paths = add_ring(builder, builder.nodes("host", hosts), bandwidth=bandwidth, latency=latency)
    return builder.network(("host", hosts), paths, cores=cores)


def add_ring(builder: Builder, endpoints: Ints, *, bandwidth: float, latency: float) -> LatticePaths:
    """Wires each endpoint to the next and the last to the first."""
    return add_torus(builder, endpoints, dims=len(endpoints), bandwidth=bandwidth, latency=latency, family="ring")
