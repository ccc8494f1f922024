"""`fabric_network`: the network of a fabric, with the inside of its nodes if it is known.

    host:0 ─ leaf:0            without a node: each host is an endpoint with a cable for each adapter
    gpu:0 ─ … ─ nic:0 ─ leaf:0    with a node: each host becomes a node of this kind, its adapters the NICs

Switches are called `leaf`, `spine` and `core` by their distance from the hosts.  The
network keeps the names of the file: of hosts in `node_names`, of switches and NICs in `labels`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.topologies.files.imported.fabric import Fabric, FabricCable, NodeDescription
from quadrille.topologies.files.imported.ibnetdiscover import natural_key
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.network_builder import Builder
from quadrille.topologies.nodes.gpu_node import Cable, NodeKind
from quadrille.topologies.size_limits import check_size

LEVELS = ("leaf", "spine", "core")
"""Kinds of switches by their distance from the hosts, the last for all that are further away."""
SWITCH_LATENCY = 130e-9
"""Latency of a cable between switches, by default [s]. Source: NVIDIA, "Quantum QM8700" data sheet."""
HOST_LATENCY = 1.35e-6
"""Latency of a host's cable, by default [s]; the source is `NET_LATENCY` of `nodes/gpu_node.py`."""
ADAPTER = re.compile(r"(.*?)([0-9]{0,9})$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of cables that the file of a fabric does not state.

    Parameters
    ----------
    bandwidth : bandwidth of a host's or NIC's cable [B/s]; None for the NIC's own
    latency, switch_latency : latency of a host's cable, and of a cable between switches [s]
    oversubscription : bandwidth of the hosts below a switch / bandwidth of its cables upwards
    """

    bandwidth: float | None = None
    latency: float = HOST_LATENCY
    switch_latency: float = SWITCH_LATENCY
    oversubscription: float = 1.0


def fabric_network(
    path: str, name: str, fabric: Fabric, node: NodeDescription | None, rates: Rates, ignored: Callable[[str], None]
) -> Network:
    """The network of a fabric.

    Parameters
    ----------
    path : path of the file, for messages
    node : inside of every node; None if each host is an endpoint
    ignored : is called with each thing that is not used

    Raises
    ------
    InputError : cables without a rate, or a network that is too large
    """
    part = fabric.largest_part()
    if len(part.hosts) < len(fabric.hosts) or len(part.switches) < len(fabric.switches):
        lost = len(fabric.hosts) - len(part.hosts), len(fabric.switches) - len(part.switches)
        ignored(f"{lost[0]} hosts and {lost[1]} switches without a path to the others")
    kind = node.kind if node is not None else None
    plugged = _plugged(part, node, ignored)
    parts = kind.parts if kind is not None else {"host": 1}
    check_size(
        path,
        len(part.hosts) * sum(parts.values()) + len(part.switches),
        2 * (len(plugged) + len(part.hosts) * (len(kind.cables) if kind else 0)),
    )
    builder = Builder("file", {})
    numbers = {word: builder.nodes(word, len(part.hosts) * count).reshape(-1, count) for word, count in parts.items()}
    for cable in kind.cables if kind is not None else ():
        _add_inside(builder, numbers, cable)
    levels, switch_numbers = _switches(builder, part)
    _add_cables(builder, path, part, plugged, numbers, switch_numbers, kind, rates)
    per_node = kind.gpus if kind is not None else 1
    endpoints = ("gpu" if kind is not None else "host", per_node * len(part.hosts))
    labels = _labels(part, levels, plugged, numbers)
    net = builder.network(endpoints, name=name, per_node=per_node)
    return replace(net, node_names=part.hosts, labels=labels, host_names=part.hosts if kind is None else ())


def node_network(name: str, node: NodeDescription) -> Network:
    """The network of a single node."""
    kind = node.kind
    builder = Builder("file", {})
    numbers = {word: builder.nodes(word, count).reshape(1, count) for word, count in kind.parts.items()}
    for cable in kind.cables:
        _add_inside(builder, numbers, cable)
    labels = {nic: f"nic:{number}" for number, nic in enumerate(node.nic_names) if nic}
    net = builder.network(("gpu", kind.gpus), name=name, per_node=kind.gpus)
    return replace(net, labels=labels)


def _add_inside(builder: Builder, numbers: dict[str, Ints], cable: Cable) -> None:
    """Adds a cable inside the node to every node."""
    ends = []
    for end in (cable.first, cable.second):
        word, _, index = end.partition(":")
        ends.append(numbers[word][:, int(index)])
    builder.cables(*ends, bandwidth=cable.bandwidth, latency=cable.latency)


@dataclass(frozen=True, slots=True)
class _Plugged:
    """A cable of the fabric and the NIC of its host; -1 for a cable between switches, or without NICs."""

    cable: FabricCable
    nic: int


def _plugged(fabric: Fabric, node: NodeDescription | None, ignored: Callable[[str], None]) -> list[_Plugged]:
    """The cables, with the NICs that adapters are; a cable without an adapter stands for one of each NIC."""
    hosts = {*fabric.hosts}
    ports = node.kind.network_ports if node is not None else 0
    order = _adapter_numbers(fabric, node)
    cables: list[_Plugged] = []
    left = 0
    for cable in fabric.cables:
        if cable.first not in hosts or not ports:
            cables.append(_Plugged(cable, -1))
        elif not cable.adapter:
            cables += [_Plugged(cable, nic) for nic in range(ports)]
        elif (nic := order[cable.first, cable.adapter]) < ports:
            cables.append(_Plugged(cable, nic))
        else:
            left += 1
    if left:
        ignored(f"{left} cables of adapters beyond the {ports} of a node")
    if idle := len(fabric.hosts) * ports - len({(entry.cable.first, entry.nic) for entry in cables if entry.nic >= 0}):
        ignored(f"{idle} of {len(fabric.hosts) * ports} NICs have no cable")
    return cables


def _adapter_numbers(fabric: Fabric, node: NodeDescription | None) -> dict[tuple[str, str], int]:
    """Number of each adapter of each host: the NIC of this name, else its place among the names of its form."""
    hosts = {*fabric.hosts}
    by_host: dict[str, set[str]] = {}
    forms: dict[str, set[str]] = {}
    for cable in fabric.cables:
        if cable.first in hosts and cable.adapter:
            by_host.setdefault(cable.first, set()).add(cable.adapter)
            forms.setdefault(_form(cable.adapter), set()).add(cable.adapter)
    named = {name: number for number, name in enumerate(node.nic_names) if name} if node is not None else {}
    ports = node.kind.network_ports if node is not None else 0
    placed = {
        adapter: number
        for names in forms.values()
        if len(names) <= ports
        for number, adapter in enumerate(sorted(names, key=natural_key))
    }
    numbers: dict[tuple[str, str], int] = {}
    for host, adapters in by_host.items():
        own = sorted(adapters, key=natural_key)
        numbering = named if named.keys() >= adapters else placed if placed.keys() >= adapters else {}
        chosen = [numbering.get(adapter, number) for number, adapter in enumerate(own)]
        if len({*chosen}) < len(chosen):
            chosen = list(range(len(own)))
        numbers |= {(host, adapter): number for adapter, number in zip(own, chosen, strict=True)}
    return numbers


def _form(adapter: str) -> str:
    """The name of an adapter without the number at its end; equal for the adapters of one kind of host."""
    match = ADAPTER.match(adapter)
    return match[1] if match else adapter


def _switches(builder: Builder, fabric: Fabric) -> tuple[dict[str, str], dict[str, int]]:
    """The node `kind:index` and the node number of each switch."""
    near: dict[str, list[str]] = {}
    for cable in fabric.cables:
        near.setdefault(cable.first, []).append(cable.second)
        near.setdefault(cable.second, []).append(cable.first)
    distance = dict.fromkeys(fabric.hosts, 0)
    ring: Sequence[str] = fabric.hosts
    while ring:
        hops = distance[ring[0]] + 1
        ring = list(dict.fromkeys(end for name in ring for end in near.get(name, ()) if end not in distance))
        distance |= dict.fromkeys(ring, hops)
    by_level: dict[str, list[str]] = {}
    for name in fabric.switches:
        by_level.setdefault(LEVELS[min(distance[name], len(LEVELS)) - 1], []).append(name)
    levels: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for level in LEVELS:
        if members := by_level.get(level):
            first = int(builder.nodes(level, len(members))[0])
            levels |= {name: f"{level}:{index}" for index, name in enumerate(members)}
            numbers |= {name: first + index for index, name in enumerate(members)}
    return levels, numbers


def _add_cables(
    builder: Builder,
    path: str,
    fabric: Fabric,
    plugged: Sequence[_Plugged],
    numbers: dict[str, Ints],
    switches: dict[str, int],
    kind: NodeKind | None,
    rates: Rates,
) -> None:
    """Adds the cables of the fabric, each with its rate."""
    ports = numbers["host"] if kind is None else numbers["nic" if kind.nics else "gpu"]
    place = {host: index for index, host in enumerate(fabric.hosts)}
    own = rates.bandwidth or (kind.nic_bandwidth if kind is not None else None)
    of_host = own * (kind.network_ports if kind is not None else 1) / rates.oversubscription if own else None
    sources, targets, bandwidths, latencies = [], [], [], []
    for entry in plugged:
        cable, at_host = entry.cable, entry.cable.first in place
        bandwidth = cable.bandwidth or (own if at_host else of_host and of_host * cable.hosts)
        if not bandwidth:
            raise InputError(f"{path}: has no rates: --bandwidth gives one to the cables of hosts, or --node a NIC's")
        end = int(ports[place[cable.first], max(entry.nic, 0)]) if at_host else switches[cable.first]
        sources.append(end)
        targets.append(switches[cable.second])
        bandwidths.append(bandwidth)
        latencies.append(rates.latency if at_host else rates.switch_latency)
    ends = np.array(sources, dtype=np.int64), np.array(targets, dtype=np.int64)
    builder.cables(*ends, bandwidth=np.array(bandwidths), latency=np.array(latencies))


def _labels(
    fabric: Fabric, levels: dict[str, str], plugged: Sequence[_Plugged], numbers: dict[str, Ints]
) -> dict[str, str]:
    """The node of each name: of switches, of hosts that are endpoints, and of NICs as `host/adapter`."""
    labels = dict(levels)
    if "host" in numbers:
        return {**{host: f"host:{index}" for index, host in enumerate(fabric.hosts)}, **labels}
    if "nic" not in numbers:
        return labels
    per_node = numbers["nic"].shape[1]
    place = {host: index for index, host in enumerate(fabric.hosts)}
    for entry in plugged:
        if entry.nic >= 0:
            adapter = entry.cable.adapter or f"nic{entry.nic}"
            labels[f"{entry.cable.first}/{adapter}"] = f"nic:{place[entry.cable.first] * per_node + entry.nic}"
    return labels
