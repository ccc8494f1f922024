"""Hosts on one switch."""

from dataclasses import dataclass

from quadrille.topologies.builder import Builder, reverse
from quadrille.topologies.limits import check_cable, check_counts, check_size
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.structured_paths import SinglePath, side_by_side


def star(hosts: int, *, bandwidth: float, latency: float, cores: int = 1) -> Network:
    """`hosts` hosts, each on its own cable to switch:0, which blocks nothing.

    >>> star(4, bandwidth=25e9, latency=1e-6).link_count
    8

    Parameters
    ----------
    bandwidth : of each cable, each direction [B/s]
    latency : of each cable [s]
    cores : of each host

    Raises
    ------
    InputError : fewer than one host or core; a cable that cannot be
    """
    arguments = {"hosts": hosts, "bandwidth": bandwidth, "latency": latency, "cores": cores}
    check_counts("star", hosts=hosts, cores=cores)
    check_size("star", hosts, 2 * hosts)
    builder = Builder("star", arguments)
    paths = add_star(builder, builder.nodes("host", hosts), bandwidth=bandwidth, latency=latency)
    return builder.network(("host", hosts), paths, cores=cores)


def add_star(builder: Builder, endpoints: Ints, *, bandwidth: float, latency: float) -> "StarPaths":
    """Joins the endpoints by one switch that blocks nothing."""
    check_cable("star", bandwidth, latency)
    up = builder.cables(endpoints, builder.nodes("switch", 1), bandwidth=bandwidth, latency=latency)
    return StarPaths(up)


@dataclass(frozen=True)
class StarPaths(SinglePath):
    """Up by the source's cable, down by the target's."""

    up: Ints

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        same = sources == targets
        return side_by_side(self.up[sources], reverse(self.up[targets]), absent=[same, same])
