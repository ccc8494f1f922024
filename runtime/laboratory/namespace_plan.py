"""What is made of a topology on one machine: places, cables, addresses and routes, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass

HOST_INTERFACE, SWITCH_INTERFACE = "eth0", "port"
"""The name of a host's only interface, and how those of switches begin."""

Pair = tuple[str, str]
"""Addresses of a host that sends and of one that it sends to."""


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a cable.

    Parameters
    ----------
    place : the node that has it
    interface : its name there
    hardware : its hardware address
    rate : of what leaves by it [B/s]; 0 for no limit
    """

    place: str
    interface: str
    hardware: str
    rate: float


@dataclass(frozen=True, slots=True)
class VethPair:
    """Two ends."""

    one: Port
    other: Port


@dataclass(frozen=True, slots=True)
class ForwardingRoute:
    """Where a place sends packets for a host.

    Parameters
    ----------
    place : the node that forwards
    target : address of the host
    source : address of the host from which they come; empty for any
    interface : by which they leave
    next_hardware : of the other end of that cable
    """

    place: str
    target: str
    source: str
    interface: str
    next_hardware: str


@dataclass(frozen=True, slots=True)
class NamespacePlan:
    """All that is to be made.

    Parameters
    ----------
    name : of the topology
    addresses : of each host, in the order of the topology's places
    switches : the other places
    passing : whose packets leave by a port that keeps a rate: addresses of source and target
    """

    name: str
    addresses: Mapping[str, str]
    switches: tuple[str, ...]
    cables: tuple[VethPair, ...]
    routes: tuple[ForwardingRoute, ...]
    passing: Mapping[Port, tuple[Pair, ...]]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self.addresses)

    @property
    def places(self) -> tuple[str, ...]:
        return (*self.hosts, *self.switches)


def is_of_cable(interface: str) -> bool:
    """Whether an interface is an end of a cable, by its name; the kernel makes others in some namespaces.

    >>> [is_of_cable(name) for name in ("eth0", "port12", "lo", "tunl0")]
    [True, True, False, False]
    """
    return interface == HOST_INTERFACE or interface.startswith(SWITCH_INTERFACE)
