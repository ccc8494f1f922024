"""Patterns of the links of each sort in a network, as `--degrade` takes them.

Without GPUDirect RDMA every byte of a message goes through the memory of both hosts: it is written and read there
once on each side.  A network card then has at most the rate of a GPU's host link, and its share of the host
memory's bandwidth, of which a byte sent and a byte received take two each.
"""

from functools import cached_property

import numpy as np

from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network

USES_OF_MEMORY = 4
"""Bytes that host memory moves for a byte sent and a byte received: each is written and read."""


def share_without_gpudirect(machine: Machine, net: Network) -> float:
    """Share of its rate that a network card has when messages go through host memory; 1 if the host is not known."""
    host = machine.host_link
    cards = [number for number, kind in enumerate(net.link_names(np.arange(net.link_count))) if _leaves_card(kind)]
    if host is None or not cards:
        return 1.0
    rate = float(net.bandwidths[cards].max())
    through = min(host.bytes_per_second, host.memory_bytes_per_second / USES_OF_MEMORY / net.cards_per_node)
    return min(1.0, through / rate)


def _leaves_card(name: str) -> bool:
    return name.startswith("nic:") and ">gpu:" not in name


class Links:
    """Patterns of the links of each sort in a network; empty where it has none."""

    def __init__(self, net: Network) -> None:
        self._names = net.link_names(np.arange(net.link_count))
        self._cards = net.kinds["nic"][1] if "nic" in net.kinds else 0
        self.switched = any(name.startswith("gpu:0>nvswitch:") for name in self._names)

    def _first(self, source: str, *targets: str) -> str:
        """The cable of the first link from a node to a node of one of these kinds."""
        for name in self._names:
            start, _, end = name.partition(">")
            if start == source and end.partition(":")[0] in targets:
                return f"{start}-{end.partition('#')[0]}"
        return ""

    @cached_property
    def one_inside(self) -> str:
        return self._first("gpu:0", "nvswitch") or self._first("gpu:0", "gpu")

    @cached_property
    def all_inside(self) -> str:
        return _every(self.one_inside)

    def _card(self, name: str) -> str:
        """The cable between a network card and the network."""
        ends = {name.partition(">")[2].partition(":")[0] for name in self._names if _leaves_card(name)}
        return self._first(name, *ends)

    @cached_property
    def one_card(self) -> str:
        return self._card("nic:0")

    @cached_property
    def last_card(self) -> str:
        return self._card(f"nic:{self._cards - 1}")

    @cached_property
    def all_cards(self) -> str:
        return _every(self.one_card)

    @cached_property
    def one_host(self) -> str:
        return self._first("nic:0", "gpu")

    @cached_property
    def all_hosts(self) -> str:
        return _every(self.one_host)


def _every(cable: str) -> str:
    """The pattern of all cables between nodes of the same kinds.

    >>> _every("nic:0-leaf:3")
    'nic:*-leaf:*'
    """
    return "-".join(f"{end.partition(':')[0]}:*" for end in cable.split("-")) if cable else ""
