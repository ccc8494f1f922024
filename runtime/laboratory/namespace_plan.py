"""The namespace plan of an emulated network: nodes, cables, addresses and routes, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass

HOST_INTERFACE, SWITCH_INTERFACE = "eth0", "port"
"""The name of a host's only interface, and the prefix of a switch's interface names."""

Pair = tuple[str, str]
"""The addresses of a sending host and of a receiving host."""


@dataclass(frozen=True, slots=True)
class Port:
    """One end of a cable.

    Parameters
    ----------
    place : node that owns it
    interface : interface name on that node
    hardware : hardware address
    rate : rate limit of outgoing packets; 0 for no limit [B/s]
    """

    place: str
    interface: str
    hardware: str
    rate: float


@dataclass(frozen=True, slots=True)
class VethPair:
    """A cable: a pair of virtual Ethernet interfaces."""

    near: Port
    far: Port


@dataclass(frozen=True, slots=True)
class ForwardingRoute:
    """One route of a node's forwarding table: the next hop for packets to a host.

    Parameters
    ----------
    place : forwarding node
    target : address of the receiving host
    source : address of the sending host; empty for any
    interface : outgoing interface
    next_hardware : hardware address of the cable's other end
    """

    place: str
    target: str
    source: str
    interface: str
    next_hardware: str


@dataclass(frozen=True, slots=True)
class NamespacePlan:
    """All namespaces, cables and routes of an emulated network.

    Parameters
    ----------
    name : name of the topology
    addresses : address of each host, in the order of the topology's hosts
    switches : names of all other nodes
    passing : for each rate-limited port, the address pairs of source and target whose packets leave by it
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
    """Whether an interface is the end of a cable, by its name. The kernel creates other interfaces in some namespaces.

    >>> [is_of_cable(name) for name in ("eth0", "port12", "lo", "tunl0")]
    [True, True, False, False]
    """
    return interface == HOST_INTERFACE or interface.startswith(SWITCH_INTERFACE)
