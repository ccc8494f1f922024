"""Kinds of nodes with AMD GPUs, joined by Infinity Fabric (xGMI)."""

from dataclasses import replace
from itertools import combinations

from quadrille.topologies.nodes.gpu_node import (
    INSIDE_LATENCY,
    LATENCY,
    PCIE5,
    Cable,
    NodeKind,
    named_node,
    network_numbers,
)
from quadrille.topologies.nodes.gpus import MI250X_GCD, MI300X_OAM, MI325X_OAM, MI355X_OAM, Gpu

OLCF = 'OLCF, "Frontier User Guide", docs.olcf.ornl.gov, Frontier Compute Nodes'
MI300X = 'AMD, "Instinct MI300X Platform" data sheet, 2023'
MI325X = 'AMD, "Instinct MI325X Platform" data sheet, 2024'
MI355X = 'AMD, "Instinct MI355X Platform" data sheet, 2025'
MORI = (
    "AMD, ROCm documentation, distributed inference with MoRI, prerequisites: 8 NICs a node, one for each GPU "
    "(Pollara 400, ConnectX-7 or Thor 2), 400 Gb/s each way"
)

# Links by pair of GCDs: inside a package, and between packages two or one.
XGMI_LINKS = {
    **dict.fromkeys(((0, 1), (2, 3), (4, 5), (6, 7)), 4),
    **dict.fromkeys(((0, 6), (2, 4)), 2),
    **dict.fromkeys(((0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)), 1),
}

FRONTIER = named_node(
    "frontier",
    MI250X_GCD,
    gpus=8,
    nics=4,
    cables=[
        *(Cable(f"gpu:{a}", f"gpu:{b}", 50e9 * count, LATENCY) for (a, b), count in XGMI_LINKS.items()),
        *(Cable(f"gpu:{2 * n + 1}", f"nic:{n}", 50e9, 0.0) for n in range(4)),
    ],
    quantities={
        "node": ("", OLCF),
        "package_bandwidth_bytes_per_second": (200e9, f"{OLCF}: the two GCDs of an MI250X, 4 links"),
        "xgmi_bandwidth_bytes_per_second": (
            "50e9 or 100e9",
            f"{OLCF}: 50 to 100 GB/s between packages.  Links of 50e9: GCDs 0-6 and 2-4 two, 0-2, 1-3, 1-5, 3-7, 4-6 "
            "and 5-7 one; the pairs follow the guide's node diagram as we know it, use up each GCD's eight ports, and "
            'agree with Pearson, "Interconnect Bandwidth Heterogeneity on AMD MI250x and Infinity Fabric", arXiv '
            "2302.14827 (four links to 1, two to 6, one to 2 from GCD 0)",
        ),
        "xgmi_latency_seconds": (LATENCY, f"{INSIDE_LATENCY}; taken over for xGMI"),
        "nic_attachment_bandwidth_bytes_per_second": (
            50e9,
            "assumption: PCIe 4.0 ESM, 50 GB/s each way, at the odd GCD of each package, whose eighth port it takes",
        ),
        **network_numbers(25e9, f"{OLCF}: Slingshot, 200 Gb/s each way"),
    },
)
MI250X_NODE = replace(FRONTIER, name="mi250x")
"""AMD's reference node of four MI250X, which Frontier and LUMI use."""


def meshed_platform(name: str, gpu: Gpu, xgmi: float, *, node: str, link: str, nic: str) -> NodeKind:
    """A platform of eight GPUs with one xGMI link between any two, and a NIC of 400 Gb/s for each.

    Parameters
    ----------
    xgmi : bandwidth of a link in each direction [B/s]
    node, link, nic : sources of the node, of the links and of the NICs
    """
    return named_node(
        name,
        gpu,
        gpus=8,
        nics=8,
        cables=[
            *(Cable(f"gpu:{a}", f"gpu:{b}", xgmi, LATENCY) for a, b in combinations(range(8), 2)),
            *(Cable(f"gpu:{g}", f"nic:{g}", PCIE5[0], 0.0) for g in range(8)),
        ],
        quantities={
            "node": ("", node),
            "xgmi_bandwidth_bytes_per_second": (xgmi, link),
            "xgmi_latency_seconds": (LATENCY, f"{INSIDE_LATENCY}; taken over for xGMI"),
            "pcie_bandwidth_bytes_per_second": (PCIE5[0], f"{PCIE5[1]}; GPU i beside NIC i; costs no time"),
            **network_numbers(50e9, nic),
        },
    )


MI300X_NODE = meshed_platform(
    "mi300x",
    MI300X_OAM,
    64e9,
    node=f"{MI300X}: 8 GPUs; a NIC beside each GPU: an assumption",
    link=f"{MI300X}: 128 GB/s both paths together between any two GPUs",
    nic="assumption: 400 Gb/s each way, as in vendors' MI300X servers",
)
MI325X_NODE = meshed_platform(
    "mi325x",
    MI325X_OAM,
    64e9,
    node=f"{MI325X}: 8 GPUs; {MORI}",
    link=f"{MI325X}: 128 GB/s both paths together between any two GPUs",
    nic=MORI,
)
MI355X_NODE = meshed_platform(
    "mi355x",
    MI355X_OAM,
    76.8e9,
    node=f"{MI355X}: 8 GPUs; {MORI}",
    link=f"{MI355X}: 153.6 GB/s both paths together between any two GPUs",
    nic=MORI,
)

AMD = (FRONTIER, MI250X_NODE, MI300X_NODE, MI325X_NODE, MI355X_NODE)
