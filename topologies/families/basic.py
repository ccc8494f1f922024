"""Simple topologies: a single host, a star, a dumbbell and a full mesh."""

from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.network_builder import Builder, reverse
from quadrille.topologies.size_limits import check_cable, check_counts, check_size
from quadrille.topologies.structured_paths import SinglePath, link_table


def host(cores: int = 1) -> Network:
    """A single node, host:0, with `cores` cores and no links.

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
    """A star: `hosts` hosts, each with one cable to the non-blocking switch:0.

    >>> star(4, bandwidth=25e9, latency=1e-6).link_count
    8

    Parameters
    ----------
    bandwidth : bandwidth of each cable, per direction [B/s]
    latency : latency of each cable [s]
    cores : number of cores of each host

    Raises
    ------
    InputError : fewer than one host or core; a bandwidth or latency out of range
    """
    arguments = {"hosts": hosts, "bandwidth": bandwidth, "latency": latency, "cores": cores}
    check_counts("star", hosts=hosts, cores=cores)
    check_size("star", hosts, 2 * hosts)
    builder = Builder("star", arguments)
    paths = add_star(builder, builder.nodes("host", hosts), bandwidth=bandwidth, latency=latency)
    return builder.network(("host", hosts), paths, cores=cores)


def add_star(builder: Builder, endpoints: Ints, *, bandwidth: float, latency: float) -> "StarPaths":
    """Connects the endpoints to one non-blocking switch, and returns the paths between them."""
    check_cable("star", bandwidth, latency)
    up = builder.cables(endpoints, builder.nodes("switch", 1), bandwidth=bandwidth, latency=latency)
    return StarPaths(up)


@dataclass(frozen=True)
class StarPaths(SinglePath):
    """The paths of a star: the cables of source and target.

    Parameters
    ----------
    up : link from each endpoint to the switch [endpoints]
    """

    up: Ints

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        same = sources == targets
        return link_table(self.up[sources], reverse(self.up[targets]), absent=[same, same])


def dumbbell(
    hosts: int, *, bandwidth: float, latency: float, waist_bandwidth: float | None = None, cores: int = 1
) -> Network:
    """A dumbbell: the first half of the hosts on switch:0, the others on switch:1, and one cable between the switches.

    If all hosts of one side send to the other side, the cable between the switches
    is oversubscribed by ⌈hosts / 2⌉ × bandwidth / waist_bandwidth.

    >>> dumbbell(4, bandwidth=25e6, latency=0.0).link_count
    10

    Parameters
    ----------
    bandwidth : bandwidth of each cable, per direction [B/s]
    latency : latency of each cable [s]
    waist_bandwidth : bandwidth of the cable between the switches [B/s]; by default `bandwidth`
    cores : number of cores of each host

    Raises
    ------
    InputError : fewer than two hosts or one core; a bandwidth or latency out of range
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
    endpoints = builder.nodes("host", hosts)
    paths = add_dumbbell(builder, endpoints, bandwidth=bandwidth, latency=latency, waist_bandwidth=waist_bandwidth)
    return builder.network(("host", hosts), paths, cores=cores)


def add_dumbbell(
    builder: Builder, endpoints: Ints, *, bandwidth: float, latency: float, waist_bandwidth: float | None = None
) -> "DumbbellPaths":
    """Connects the first half of the endpoints to one switch, the others to another, and the two switches."""
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
    """The paths of a dumbbell: the cables of source and target, and the cable between the switches if they differ.

    Parameters
    ----------
    up : link from each endpoint to its switch [endpoints]
    side : switch of each endpoint, 0 or 1 [endpoints]
    across : link from switch:0 to switch:1
    """

    up: Ints
    side: Ints
    across: int

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        first, last = self.side[sources], self.side[targets]
        there = np.full(len(sources), self.across)
        waist = np.where(first == 0, there, reverse(there))
        same = sources == targets
        return link_table(self.up[sources], waist, reverse(self.up[targets]), absent=[same, first == last, same])


def full(hosts: int, *, bandwidth: float, latency: float, cores: int = 1) -> Network:
    """A full mesh: `hosts` hosts and a cable between any two, hosts (hosts - 1) / 2 cables.

    >>> full(5, bandwidth=25e9, latency=1e-6).link_count
    20

    Parameters
    ----------
    bandwidth, latency : bandwidth and latency of each cable, per direction [B/s, s]
    cores : number of cores of each host

    Raises
    ------
    InputError : fewer than one host or core; a bandwidth or latency out of range
    """
    check_counts("full", hosts=hosts, cores=cores)
    check_size("full", hosts, hosts * (hosts - 1))
    builder = Builder("full", {"hosts": hosts, "bandwidth": bandwidth, "latency": latency, "cores": cores})
    paths = add_full(builder, builder.nodes("host", hosts), bandwidth=bandwidth, latency=latency)
    return builder.network(("host", hosts), paths, cores=cores)


def add_full(builder: Builder, endpoints: Ints, *, bandwidth: float, latency: float) -> "FullPaths":
    """Connects every two endpoints by a cable."""
    check_cable("full", bandwidth, latency)
    count = len(endpoints)
    check_size("full", count, count * (count - 1))
    first, second = np.triu_indices(count, 1)
    cables = builder.cables(endpoints[first], endpoints[second], bandwidth=bandwidth, latency=latency)
    return FullPaths(count, int(cables[0]) if len(cables) else 0)


@dataclass(frozen=True)
class FullPaths(SinglePath):
    """The paths of a full mesh: the cable between source and target.

    Parameters
    ----------
    count : number of endpoints
    first : first link of the mesh; the cables follow in the order (0, 1), (0, 2), …, (1, 2), …
    """

    count: int
    first: int

    def links(self, sources: Ints, targets: Ints, chosen: Ints) -> Ints:
        low, high = np.minimum(sources, targets), np.maximum(sources, targets)
        cable = low * (2 * self.count - low - 1) // 2 + high - low - 1
        links = self.first + 2 * cable + (sources > targets)
        return np.where(sources == targets, -1, links)[:, None]
