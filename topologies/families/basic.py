"""The simplest networks: one host, a star, a dumbbell, and every host wired to every other."""

from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.builder import Builder, reverse
from quadrille.topologies.limits import check_cable, check_counts, check_size
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.structured_paths import SinglePath, side_by_side


def host(cores: int = 1) -> Network:
    """The single node host:0 with `cores` cores, without links.

    >>> host(cores=2).cores.tolist()
    [2]

    Raises
    ------
    InputError : fewer than one core
    """
    check_counts("host", cores=cores)
    builder = Builder("host", {"cores": cores})
    builder.nodes("host", 1)
    return builder.network(("host", 1), cores=cores)


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


def dumbbell(
    hosts: int, *, bandwidth: float, latency: float, waist_bandwidth: float | None = None, cores: int = 1
) -> Network:
    """`hosts` hosts, the first half of them on switch:0, the others on switch:1, and one cable between the switches.

    Where all of one side send to the other, the waist is oversubscribed by
    ⌈hosts / 2⌉ × bandwidth / waist_bandwidth.

    >>> dumbbell(4, bandwidth=25e6, latency=0.0).link_count
    10

    Parameters
    ----------
    bandwidth : of each cable, each direction [B/s]
    latency : of each cable [s]
    waist_bandwidth : of the cable between the switches, where it differs [B/s]
    cores : of each host

    Raises
    ------
    InputError : fewer than two hosts, or one core; a cable that cannot be
    """
    arguments = {
        "hosts": hosts,
        "bandwidth": bandwidth,
        "latency": latency,
        "waist_bandwidth": waist_bandwidth,
        "cores": cores,
    }
    check_counts("dumbbell", hosts=hosts, cores=cores)
    check_size("dumbbell", hosts + 2, 2 * (hosts + 1))
    builder = Builder("dumbbell", arguments)
    hosts_made = builder.nodes("host", hosts)
    paths = add_dumbbell(builder, hosts_made, bandwidth=bandwidth, latency=latency, waist_bandwidth=waist_bandwidth)
    return builder.network(("host", hosts), paths, cores=cores)


def add_dumbbell(
    builder: Builder, endpoints: Ints, *, bandwidth: float, latency: float, waist_bandwidth: float | None = None
) -> "DumbbellPaths":
    """Joins the endpoints by two switches, the first half of them on one, and the cable between these."""
    if len(endpoints) < 2:
        raise InputError(f"dumbbell: hosts={len(endpoints)} must be at least 2, one on each side")
    check_cable("dumbbell", bandwidth, latency)
    waist = bandwidth if waist_bandwidth is None else waist_bandwidth
    check_cable("dumbbell", waist, latency, prefix="waist_")
    side = (2 * np.arange(len(endpoints)) >= len(endpoints)).astype(np.int64)
    switches = builder.nodes("switch", 2)
    up = builder.cables(endpoints, switches[side], bandwidth=bandwidth, latency=latency)
    across = builder.cables(switches[:1], switches[1:], bandwidth=waist, latency=latency)
    return DumbbellPaths(up, side, int(across[0]))


@dataclass(frozen=True)
class DumbbellPaths(SinglePath):
    """Up by the source's cable, through the waist where the target is on the other side, down by the target's.

    Parameters
    ----------
    up : cable of each endpoint
    side : of each endpoint, 0 or 1
    across : the link from switch:0 to switch:1
    """

    up: Ints
    side: Ints
    across: int

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        first, last = self.side[sources], self.side[targets]
        there = np.full(len(sources), self.across)
        waist = np.where(first == 0, there, reverse(there))
        same = sources == targets
        return side_by_side(self.up[sources], waist, reverse(self.up[targets]), absent=[same, first == last, same])


def full(hosts: int, *, bandwidth: float, latency: float, cores: int = 1) -> Network:
    """`hosts` hosts with a cable between any two: hosts (hosts - 1) / 2 cables.

    >>> full(5, bandwidth=25e9, latency=1e-6).link_count
    20

    Parameters
    ----------
    bandwidth, latency : of each cable, each direction [B/s, s]
    cores : of each host

    Raises
    ------
    InputError : fewer than one host or core; a cable that cannot be
    """
    check_counts("full", hosts=hosts, cores=cores)
    check_size("full", hosts, hosts * (hosts - 1))
    builder = Builder("full", {"hosts": hosts, "bandwidth": bandwidth, "latency": latency, "cores": cores})
    paths = add_full(builder, builder.nodes("host", hosts), bandwidth=bandwidth, latency=latency)
    return builder.network(("host", hosts), paths, cores=cores)


def add_full(builder: Builder, endpoints: Ints, *, bandwidth: float, latency: float) -> "FullPaths":
    """Wires every endpoint to every other."""
    check_cable("full", bandwidth, latency)
    count = len(endpoints)
    check_size("full", count, count * (count - 1))
    one, other = np.triu_indices(count, 1)
    cables = builder.cables(endpoints[one], endpoints[other], bandwidth=bandwidth, latency=latency)
    return FullPaths(count, int(cables[0]) if len(cables) else 0)


@dataclass(frozen=True)
class FullPaths(SinglePath):
    """The one cable between two endpoints, among those that `add_full` made row by row."""

    count: int
    first: int

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        low, high = np.minimum(sources, targets), np.maximum(sources, targets)
        cable = low * (2 * self.count - low - 1) // 2 + high - low - 1
        links = self.first + 2 * cable + (sources > targets)
        return np.where(sources == targets, -1, links)[:, None]
