"""What NCCL knows of a group on a machine: nodes, NICs, and what it counts on from each link."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.collectives.nccl import Communicator, communicator
from quadrille.algorithms.collectives.nccl.tables import NVLINK, Generation
from quadrille.simulator.collectives.programs import Floats, Ints
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.processors import Vendor, vendor
from quadrille.topologies.network import Network
from quadrille.topologies.nodes.gpu_node import NodeKind
from quadrille.topologies.routes.routing import Routes

DATA_SHEET_NVLINK: Mapping[Generation, float] = {"volta": 25.0, "ampere": 25.0, "hopper": 25.0, "blackwell": 50.0}
"""One NVLink each way by NVIDIA's data sheets [GB/s]; `NVLINK` is what NCCL counts of it."""
XGMI_COUNTED = 0.75
"""What is reached of an xGMI link: 48 of 64 GB/s each way.

Source: Kolla, Alizadeh, Lee, "Understanding RCCL Bandwidth and xGMI Performance
on AMD Instinct MI300X", ROCm blogs, 2 March 2025.
"""


def generation_of(machine: Machine) -> Generation:
    """Of the machine's GPUs; AMD's and unknown ones go by the table of ampere."""
    found = _gpu_generation(machine)
    return found if found in NVLINK else "ampere"


def is_amd(machine: Machine) -> bool:
    """Whether its GPUs are AMD's."""
    return _gpu_generation(machine).startswith("cdna")


def vendor_of(machine: Machine) -> Vendor:
    """Of the processors that host the machine's GPUs."""
    kind = _node_kind(machine)
    return vendor(kind.name if kind is not None else "")


def _gpu_generation(machine: Machine) -> str:
    kind = _node_kind(machine)
    return kind.gpu.generation if kind is not None and kind.gpu is not None else ""


def _node_kind(machine: Machine) -> NodeKind | None:
    from quadrille.topologies.machines.named import MACHINES
    from quadrille.topologies.nodes.node_kinds import NODE_KINDS

    family = str(machine.topology.get("family", ""))
    return MACHINES[family].node if family in MACHINES else NODE_KINDS.get(str(machine.topology.get("node", "")))


def inside_links(net: Network) -> NDArray[np.bool_]:
    """Which links join GPUs, or a GPU and the switch between GPUs [links]."""
    inside = np.zeros(net.node_count, dtype=bool)
    for kind in ("gpu", "nvswitch"):
        first, count = net.kinds.get(kind, (0, 0))
        inside[first : first + count] = True
    return np.asarray(inside[net.sources] & inside[net.targets])


def counted(net: Network, generation: Generation, *, xgmi: bool = False) -> Floats:
    """What NCCL counts on for each link: of links between GPUs, the rate of data beside headers [B/s]."""
    share = XGMI_COUNTED if xgmi else NVLINK[generation] / DATA_SHEET_NVLINK[generation]
    return np.where(inside_links(net), net.bandwidths * share, net.bandwidths)


def group_seen(routes: Routes, places: Ints, generation: Generation, cpu: Vendor = "intel") -> Communicator:
    """What NCCL knows of groups that lie on these places; of several, the first stands for all."""
    net = routes.net
    ranks = places.shape[1]
    nodes = len(np.unique(places[0] // net.per_node))
    cards, rate = _cards(routes, places[0]) if nodes > 1 else (1, 0.0)
    return communicator(
        ranks,
        nodes,
        generation,
        nvlinks=_nvlinks(net, places[0], generation),
        cards=cards,
        card_bandwidth=rate,
        cpu=cpu,
        nvls="nvswitch" in net.kinds and generation in ("hopper", "blackwell"),
    )


def _nvlinks(net: Network, places: Ints, generation: Generation) -> int:
    """From the first member to the others in its node, or to the switch between them; 0 where it is alone there."""
    here = places[places // net.per_node == places[0] // net.per_node]
    if len(here) < 2:
        return 0
    nodes = net.place_nodes()[here]
    first, count = net.kinds.get("nvswitch", (0, 0))
    onward = np.isin(net.targets, nodes) | ((net.targets >= first) & (net.targets < first + count))
    to_them = float(net.bandwidths[(net.sources == nodes[0]) & onward].sum())
    return max(1, round(to_them / (DATA_SHEET_NVLINK[generation] * 1e9)))


def _cards(routes: Routes, places: Ints) -> tuple[int, float]:
    """NICs by which the members of the first node leave it, and the rate of one [B/s]."""
    net = routes.net
    node = places // net.per_node
    here, there = places[node == node[0]], places[node != node[0]][:1]
    paths = routes.between(here, np.repeat(there, len(here)))
    outside = ~inside_links(net)
    first, least = [], np.inf
    for a, b in zip(paths.offsets[:-1].tolist(), paths.offsets[1:].tolist(), strict=True):
        out = [int(link) for link in paths.links[a:b] if outside[link]]
        # the cable to the network is the last that only this node's traffic can take: NIC or GPU to switch
        door = next((link for link in out if _leaves(net, link)), out[0] if out else -1)
        first.append(door)
        least = min(least, min((float(net.bandwidths[link]) for link in out), default=least))
    return max(1, len(set(first))), float(least)


def _leaves(net: Network, link: int) -> bool:
    """Whether a link goes from a NIC, or from a GPU without one, to the network."""
    kind = "nic" if "nic" in net.kinds else net.places[0]
    first, count = net.kinds[kind]
    return bool(first <= net.sources[link] < first + count)
