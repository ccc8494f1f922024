"""The network of a machine: built from its topology, with its faults, routing, compute speeds and token buckets."""

import json
import re
from functools import lru_cache

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.measured_rows import Faults
from quadrille.topologies.build import build
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Floats, Ints, Network
from quadrille.topologies.routes.routing import Routes, parse_routing

MAX_CACHED = 4
"""Largest number of cached networks; successive predictions for one machine share its network."""
ENDPOINT_NUMBER = re.compile("0|[1-9][0-9]{0,11}")


def network_of(machine: Machine) -> Network:
    """The network of a machine, with its faults applied.

    Raises
    ------
    InputError : a topology that cannot be built; a fault at a link that does not exist, or a wrong share of its rate
    """
    share = machine.network.payload_share if machine.network is not None else 1.0
    if "file" in machine.topology:
        from quadrille.topologies.files.topology_file import kept_topology

        return _with_faults(kept_topology(str(machine.topology["file"])), machine.faults, share)
    faults = machine.faults or Faults()
    return _built(json.dumps((machine.topology, faults.fail, faults.degrade, share)))


@lru_cache(MAX_CACHED)
def _built(description: str) -> Network:
    """The network of a topology family, with its faults.

    Parameters
    ----------
    description : topology, failed links, degraded links and payload share as JSON, a hashable key of the cache
    """
    topology, fail, degrade, share = json.loads(description)
    arguments = {name: value for name, value in topology.items() if name != "family"}
    return _with_faults(build(topology["family"], arguments), Faults(fail=tuple(fail), degrade=degrade), share)


def _with_faults(net: Network, faults: Faults | None, payload_share: float | dict[str, float]) -> Network:
    if payload_share != 1.0:
        net = net.with_bandwidths(net.bandwidths * _by_link(net, payload_share, default=1.0))
    if faults is None or not (faults.fail or faults.degrade):
        return net
    from quadrille.topologies.link_patterns import matching_links  # needed only for faults

    if faults.degrade:
        shares = np.ones(net.link_count)
        for name, share in faults.degrade.items():
            shares[matching_links(net, name)] *= share
        net = net.degraded(shares)
    bandwidths = net.bandwidths.copy()
    for name in faults.fail:
        bandwidths[matching_links(net, name)] = 0.0
    return net.with_bandwidths(bandwidths)


def routes_of(machine: Machine, net: Network) -> Routes:
    """Routes through a machine's network, by the machine's routing rule."""
    return Routes(net, parse_routing(machine.routing))


def speeds_of(machine: Machine, net: Network) -> Floats:
    """Fraction of its full speed at which each endpoint works [endpoints].

    Raises
    ------
    InputError : a slow node that is not a endpoint
    """
    speeds = np.ones(net.endpoint_count)
    for name, share in (machine.faults.slow if machine.faults is not None else {}).items():
        speeds[endpoint_number(net, name, "--slow")] = share
    return speeds


def bursts_of(machine: Machine, net: Network) -> Floats:
    """Bytes that each link carries at once after an idle time [links] [B]; empty if no link has a token bucket.

    Raises
    ------
    InputError : a link that does not exist
    """
    value = machine.emulated.burst_bytes
    if value is None:
        return np.zeros(0)
    return _by_link(net, value, default=0.0)


def _by_link(net: Network, value: float | dict[str, float], *, default: float) -> Floats:
    """Value of each link, from one value for all links or a value by link name [links].

    Raises
    ------
    InputError : a link that does not exist
    """
    if not isinstance(value, dict):
        return np.full(net.link_count, value)
    values = np.full(net.link_count, default)
    for name, link_value in value.items():
        values[net.link_numbers(name)] = link_value
    return values


def endpoint_number(net: Network, name: str, who: str) -> int:
    """Number of the endpoint with this name.

    Raises
    ------
    InputError : no such endpoint
    """
    kind, count = net.endpoints
    word, _, text = name.partition(":")
    if word == kind and ENDPOINT_NUMBER.fullmatch(text) and int(text) < count:
        return int(text)
    if name in net.host_names:
        return list(net.host_names).index(name)
    raise InputError(f"{who} {name}: {net.name} computes on {kind}:0 to {kind}:{count - 1}")


def cores_of_endpoints(machine: Machine, net: Network) -> Ints:
    """Cores of every endpoint; a GPU counts as one."""
    if net.endpoints[0] == "gpu":
        cores = np.array([1])
    else:
        cores = np.array([machine.host.cores]) if machine.host is not None else np.asarray(net.cores)
    return np.broadcast_to(cores, (net.endpoint_count,))
