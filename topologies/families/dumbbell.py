"""Two switches joined by one cable, hosts on both: the smallest network with a bottleneck of its own."""

from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.builder import Builder, reverse
from quadrille.topologies.limits import check_cable, check_counts, check_size
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.structured_paths import SinglePath, side_by_side


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
