"""Nodes of IBM's Power System AC922: GPUs and processors joined by NVLink2, two sockets by the X bus."""

from itertools import combinations

from quadrille.topologies.nodes.gpu_node import Cable, NodeKind, named_node
from quadrille.topologies.nodes.gpus import V100_16GB
from quadrille.topologies.nodes.sources import INSIDE_LATENCY, LATENCY, NVLINK2, network_numbers

CORAL = (
    'Vazhkudai et al., "The Design, Deployment, and Evaluation of the CORAL Pre-Exascale Systems", SC18, '
    "figure of a Summit node"
)
OLCF = 'OLCF, "Summit User Guide", docs.olcf.ornl.gov'
TACC = 'TACC, "Longhorn User Guide": IBM AC922, 4 V100 a node, InfiniBand EDR'
X_BUS = 64e9
PCIE4_X8 = 15.75e9


def ac922(name: str, gpus: int, links: int, nics: int, *, node: str, nic: str) -> NodeKind:
    """Half of the GPUs at each of two processors, `links` NVLinks between any two parts of a socket.

    With two NICs each socket has its own; one NIC is reached from both.
    """
    each = gpus // 2
    cables = []
    for socket in range(2):
        local = range(socket * each, (socket + 1) * each)
        cables += [Cable(f"gpu:{a}", f"gpu:{b}", links * 25e9, LATENCY) for a, b in combinations(local, 2)]
        cables += [Cable(f"gpu:{g}", f"cpu:{socket}", links * 25e9, LATENCY) for g in local]
    cables.append(Cable("cpu:0", "cpu:1", X_BUS, 0.0))
    cables += [Cable(f"cpu:{socket}", f"nic:{socket * nics // 2}", PCIE4_X8, 0.0) for socket in range(2)]
    return named_node(
        name,
        V100_16GB,
        gpus=gpus,
        nics=nics,
        cables=cables,
        between={"cpu": 2},
        quantities={
            "node": ("", node),
            "nvlink_bandwidth_bytes_per_second": (
                links * 25e9,
                f"{NVLINK2}; {links} between any two GPUs of a socket, and from each of them to its processor",
            ),
            "nvlink_latency_seconds": (LATENCY, INSIDE_LATENCY),
            "x_bus_bandwidth_bytes_per_second": (X_BUS, f"{CORAL}: between the processors"),
            "pcie_bandwidth_bytes_per_second": (
                PCIE4_X8,
                f"PCIe 4.0 x8: 16 GT/s, 128b/130b, 8 lanes; {CORAL}: 16 GB/s from each processor to the NIC",
            ),
            **network_numbers(12.5e9, nic),
        },
    )


SUMMIT = ac922(
    "summit",
    6,
    2,
    2,
    node=OLCF,
    nic=f"{OLCF}: dual-rail InfiniBand EDR, 100 Gb/s each way (23e9 B/s of a node reached)",
)
LONGHORN = ac922("longhorn", 4, 3, 1, node=TACC, nic=f"{TACC}, 100 Gb/s each way; one port: an assumption")

POWER9 = (SUMMIT, LONGHORN)
