"""What NCCL knows of a group on a machine: nodes, NICs, and what it counts on from each link."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from algorithms.machine import Machine
from algorithms.nccl import Communicator, communicator
from algorithms.nccl.tables import NVLINK, Generation
from simulator.collectives.programs import Floats, Ints
from topologies.network import Network
from topologies.routes.routing import Routes

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
    return _gpu_generation(machine).startswith("cdna")


def _gpu_generation(machine: Machine) -> str:
    from topologies.machines.named import MACHINES
    from topologies.nodes.node_kinds import NODE_KINDS

    family = str(machine.topology.get("family", ""))
    kind = MACHINES[family].node if family in MACHINES else NODE_KINDS.get(str(machine.topology.get("node", "")))
    return kind.gpu.generation if kind is not None and kind.gpu is not None else ""


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


def group_seen(routes: Routes, places: Ints, generation: Generation) -> Communicator:
    """What NCCL knows of groups that lie on these places; of several, the first stands for all."""
    net = routes.net
    ranks = places.shape[1]
    nodes = len(np.unique(places[0] // net.per_node))
    inside = inside_links(net)
    home = int(net.place_nodes()[places[0, 0]])
    to_gpus = float(net.bandwidths[inside & (net.sources == home)].sum())
    links = max(1, round(to_gpus / (DATA_SHEET_NVLINK[generation] * 1e9)))
    cards, rate = _cards(routes, places[0]) if nodes > 1 else (1, 0.0)
    return communicator(
        ranks,
        nodes,
        generation,
        nvlinks=links,
        cards=cards,
        card_bandwidth=rate,
        nvls="nvswitch" in net.kinds and generation in ("hopper", "blackwell"),
    )


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
