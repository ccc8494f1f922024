"""Kinds of nodes whose GPUs are joined pair by pair by NVLinks; in IBM AC922 nodes the processors too."""

from collections.abc import Mapping
from itertools import combinations

from quadrille.topologies.nodes.gpu_node import (
    INSIDE_LATENCY,
    LATENCY,
    NVLINK2,
    NVLINK3,
    NVLINK4,
    PCIE3,
    PCIE4,
    PCIE5,
    Cable,
    NodeKind,
    Numbers,
    named_node,
    network_numbers,
)
from quadrille.topologies.nodes.gpus import A100_40GB, GH200_96GB, V100_16GB, V100_32GB, Gpu

NERSC = 'NERSC documentation, "Perlmutter Architecture", docs.nersc.gov'
DGX_1 = 'NVIDIA, "DGX-1 With Tesla V100 System Architecture" whitepaper WP-08437, 2017'
IDRIS_V100 = 'IDRIS, "Jean Zay: machine hardware", idris.fr, partition gpu_p13'
ABCI = 'AIST, "ABCI 2.0 User Guide", docs.abci.ai, Compute Node (V)'
CSCS = 'CSCS documentation, "Alps Hardware", docs.cscs.ch'
QUAD_GH200 = (
    'Fusco et al., "Understanding Data Movement in Tightly Coupled Heterogeneous Systems: A Case Study with the Grace '
    'Hopper Superchip", arXiv 2408.11556: each pair of the four GPUs is joined by 6 NVLink4 links'
)

Pairs = Mapping[tuple[int, int], int]


def all_pairs(gpus: int, links: int) -> dict[tuple[int, int], int]:
    """An equal number of NVLinks between any two GPUs, by pair.

    >>> all_pairs(3, 2)
    {(0, 1): 2, (0, 2): 2, (1, 2): 2}
    """
    return dict.fromkeys(combinations(range(gpus), 2), links)


def nvlinks(pairs: Pairs, bandwidth: float = 25e9) -> list[Cable]:
    """One cable for each pair of GPUs, which stands for all its NVLinks."""
    return [Cable(f"gpu:{a}", f"gpu:{b}", count * bandwidth, LATENCY) for (a, b), count in pairs.items()]


def _numbers(nvlink: float | str, source: str, pcie: tuple[float, str], beside: str, network: Numbers) -> Numbers:
    return {
        "nvlink_bandwidth_bytes_per_second": (nvlink, source),
        "nvlink_latency_seconds": (LATENCY, INSIDE_LATENCY),
        "pcie_bandwidth_bytes_per_second": (pcie[0], f"{pcie[1]}; {beside}; costs no time"),
        **network,
    }


def own_nics(gpus: int, pcie: float) -> list[Cable]:
    """PCIe cables from each GPU to a NIC of its own."""
    return [Cable(f"gpu:{g}", f"nic:{g}", pcie, 0.0) for g in range(gpus)]


def shared_nics(gpus: int, pcie: float) -> list[Cable]:
    """PCIe cables from every two GPUs to a switch that they share, and from the switch to their NIC."""
    cables = [Cable(f"gpu:{g}", f"pcie:{g // 2}", pcie, 0.0) for g in range(gpus)]
    return cables + [Cable(f"pcie:{n}", f"nic:{n}", pcie, 0.0) for n in range(gpus // 2)]


PERLMUTTER = named_node(
    "perlmutter",
    A100_40GB,
    gpus=4,
    nics=4,
    cables=[*nvlinks(all_pairs(4, 4)), *own_nics(4, PCIE4[0])],
    quantities={
        "node": ("", NERSC),
        **_numbers(
            100e9,
            f"{NVLINK3}; 4 to each of 3 peers",
            PCIE4,
            "GPU i beside NIC i",
            network_numbers(25e9, f"{NERSC}: Slingshot 11, 200 Gb/s each way"),
        ),
    },
)

CUBE_MESH: Pairs = {
    **dict.fromkeys(((0, 3), (1, 2), (2, 3), (4, 7), (5, 6), (6, 7), (0, 4), (1, 5)), 2),
    **dict.fromkeys(((0, 1), (0, 2), (1, 3), (4, 5), (4, 6), (5, 7), (2, 6), (3, 7)), 1),
}
"""NVLinks by pair in a DGX-1V: six at each GPU, two quads joined corner by corner."""

DGX_1V = named_node(
    "dgx-1v",
    V100_16GB,
    gpus=8,
    nics=4,
    cables=[*nvlinks(CUBE_MESH), *shared_nics(8, PCIE3[0])],
    between={"pcie": 4},
    quantities={
        "node": ("", DGX_1),
        **_numbers(
            "25e9 or 50e9",
            f"{NVLINK2}; hybrid cube mesh of {DGX_1}: two links at 0-3, 1-2, 2-3, 0-4, 1-5 and their mirror "
            "images, one at 0-1, 0-2, 1-3, 2-6, 3-7 and theirs, as we know it from nvidia-smi topo",
            PCIE3,
            "a PCIe switch for two GPUs and a NIC",
            network_numbers(12.5e9, f"{DGX_1}: 4 InfiniBand EDR, 100 Gb/s each way"),
        ),
    },
)


def v100_quad(name: str, gpu: Gpu, *, nics: int, node: str, nic: str) -> NodeKind:
    """A node of four V100 with two NVLinks between any two GPUs, and NICs of 100 Gb/s, one for each or for two GPUs."""
    attached = own_nics(4, PCIE3[0]) if nics == 4 else shared_nics(4, PCIE3[0])
    numbers = _numbers(
        50e9,
        f"{NVLINK2}; 2 to each of 3 peers",
        PCIE3,
        "GPU i beside NIC i" if nics == 4 else "a PCIe switch for two GPUs and a NIC",
        network_numbers(12.5e9, nic),
    )
    return named_node(
        name,
        gpu,
        gpus=4,
        nics=nics,
        cables=[*nvlinks(all_pairs(4, 2)), *attached],
        between={} if nics == 4 else {"pcie": nics},
        quantities={"node": ("", node), **numbers},
    )


JEAN_ZAY_V100 = v100_quad(
    "jean-zay-v100", V100_32GB, nics=4, node=IDRIS_V100, nic=f"{IDRIS_V100}: Omni-Path, 100 Gb/s each way"
)
ABCI_V = v100_quad("abci-v", V100_16GB, nics=2, node=ABCI, nic=f"{ABCI}: 2 InfiniBand EDR, 100 Gb/s each way")

GH200_QUAD = named_node(
    "gh200-4",
    GH200_96GB,
    gpus=4,
    nics=4,
    cables=[*nvlinks(all_pairs(4, 6)), *own_nics(4, PCIE5[0])],
    quantities={
        "node": ("", f"{CSCS}: four Grace-Hopper modules and four NICs a node"),
        **_numbers(
            150e9,
            f"{NVLINK4}; {QUAD_GH200}",
            PCIE5,
            "each superchip has a NIC of its own",
            network_numbers(25e9, "Slingshot 11, 200 Gb/s each way, one NIC for each GH200: CSCS documentation, Alps"),
        ),
    },
)
GH200_ONE = named_node(
    "gh200-1",
    GH200_96GB,
    gpus=1,
    nics=1,
    cables=own_nics(1, PCIE5[0]),
    quantities={
        "node": ("", 'NVIDIA, "GH200 Grace Hopper Superchip" data sheet, 2023: one superchip; NIC: an assumption'),
        "pcie_bandwidth_bytes_per_second": PCIE5,
        **network_numbers(50e9, "assumption: one NIC of 400 Gb/s each way, InfiniBand NDR"),
    },
)


CORAL = (
    'Vazhkudai et al., "The Design, Deployment, and Evaluation of the CORAL Pre-Exascale Systems", SC18, '
    "figure of a Summit node"
)
OLCF = 'OLCF, "Summit User Guide", docs.olcf.ornl.gov'
TACC = 'TACC, "Longhorn User Guide": IBM AC922, 4 V100 a node, InfiniBand EDR'
X_BUS = 64e9
PCIE4_X8 = 15.75e9


def ac922(name: str, gpus: int, links: int, nics: int, *, node: str, nic: str) -> NodeKind:
    """An IBM AC922 node: half of the GPUs at each of two processors, `links` NVLinks between any two parts of a socket.

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

MESHED = (PERLMUTTER, DGX_1V, JEAN_ZAY_V100, ABCI_V, GH200_QUAD, GH200_ONE, SUMMIT, LONGHORN)
