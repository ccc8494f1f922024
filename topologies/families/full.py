"""Every host wired to every other."""

from dataclasses import dataclass

import numpy as np

from quadrille.topologies.builder import Builder
from quadrille.topologies.limits import check_cable, check_counts, check_size
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.structured_paths import SinglePath


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
