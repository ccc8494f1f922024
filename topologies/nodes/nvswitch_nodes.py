"""Kinds of nodes whose GPUs are joined by NVSwitches: DGX, HGX, NVL72 racks, and nodes of sites and clouds.

The NVSwitches of a node are modelled as one non-blocking switch.  A node is one NVLink domain: the 18 trays of an
NVL72 rack are one node of 72 GPUs, as they are for NCCL.
"""

from quadrille.topologies.nodes.gpu_node import (
    HALF_INSIDE_LATENCY,
    LATENCY,
    NVLINK3,
    NVLINK4,
    NVLINK5,
    PCIE4,
    PCIE5,
    PCIE6,
    Cable,
    NodeKind,
    named_node,
    network_numbers,
)
from quadrille.topologies.nodes.gpus import (
    A100_40GB,
    A100_80GB,
    B200_SXM,
    B300_SXM,
    GB200_GPU,
    GB300_GPU,
    H100_SXM,
    H200_SXM,
    Gpu,
)

ABCI = 'AIST, "ABCI 2.0 User Guide", docs.abci.ai, Compute Node (A)'
AWS_P4 = 'AWS, "Amazon EC2 P4 Instances", aws.amazon.com/ec2/instance-types/p4, p4d.24xlarge'
AWS_P6 = 'AWS, "Amazon EC2 P6 Instances", aws.amazon.com/ec2/instance-types/p6, p6-b200.48xlarge'
DGX_A100 = 'NVIDIA, "DGX A100 System User Guide", docs.nvidia.com'
DGX_B200 = 'NVIDIA, "DGX B200" data sheet, 2024'
DGX_B300 = 'NVIDIA, "DGX B300" data sheet, 2025'
DGX_H100 = 'NVIDIA, "DGX H100/H200 System User Guide", docs.nvidia.com'
SUPERPOD_GB200 = (
    'NVIDIA, "DGX SuperPOD: Next Generation Scalable Infrastructure for AI Factories, Featuring DGX GB200", '
    "docs.nvidia.com/dgx-superpod"
)
SUPERPOD_GB300 = 'NVIDIA, "DGX SuperPOD Featuring DGX GB300", docs.nvidia.com/pdf/dgx-spod-gb300-ra.pdf'
TRAYS = "a rack has 18 compute trays of four GPUs and two Grace, and 18 NVLink switches with one link to each GPU"
IDRIS_A100 = 'IDRIS, "Jean Zay: machine hardware", idris.fr, partition gpu_p5'
HDR = "InfiniBand HDR, 200 Gb/s each way"
NDR = "InfiniBand NDR, 400 Gb/s each way"
XDR = "InfiniBand XDR, 800 Gb/s each way"

HALF_LATENCY = LATENCY / 2
LINKS = {
    "ampere": (300e9, NVLINK3, PCIE4),
    "hopper": (450e9, NVLINK4, PCIE5),
    "blackwell": (900e9, NVLINK5, PCIE5),
}


def switched_node(
    name: str,
    gpu: Gpu,
    nics: int,
    nic_bandwidth: float,
    *,
    node: str,
    nic: str,
    gpus: int = 8,
    to_nic: tuple[float, str] | None = None,
) -> NodeKind:
    """A kind of node with all NVLinks of its GPUs to the NVSwitch; each NIC serves gpus / nics GPUs over PCIe.

    Parameters
    ----------
    gpus, nics : numbers of GPUs and NICs
    nic_bandwidth : bandwidth of a NIC's cable to the network [B/s]
    node, nic : sources of the node and of the NIC
    to_nic : bandwidth [B/s] and source of the link between a GPU and its NIC; by default the PCIe of the generation

    >>> switched_node("toy", A100_40GB, 4, 25e9, node="data sheet", nic="HDR").nvlink_bandwidth
    300000000000.0
    """
    nvlink, nvlink_source, pcie = LINKS[gpu.generation]
    pcie = to_nic or pcie
    cables = [Cable(f"gpu:{g}", "nvswitch:0", nvlink, HALF_LATENCY) for g in range(gpus)]
    cables += [Cable(f"gpu:{g}", f"nic:{g * nics // gpus}", pcie[0], 0.0) for g in range(gpus)]
    return named_node(
        name,
        gpu,
        gpus=gpus,
        nics=nics,
        cables=cables,
        between={"nvswitch": 1},
        quantities={
            "node": ("", node),
            "nvlink_bandwidth_bytes_per_second": (nvlink, nvlink_source),
            "nvlink_latency_seconds": (HALF_LATENCY, HALF_INSIDE_LATENCY),
            "pcie_bandwidth_bytes_per_second": (pcie[0], f"{pcie[1]}; between a GPU and its NIC, which costs no time"),
            **network_numbers(nic_bandwidth, nic),
        },
    )


DGX_A100_NODE = switched_node("dgx-a100", A100_80GB, 8, 25e9, node=DGX_A100, nic=f"{DGX_A100}: {HDR}")
HGX_H100 = switched_node("hgx-h100", H100_SXM, 8, 50e9, node=DGX_H100, nic=f"{DGX_H100}: {NDR}")
HGX_H200 = switched_node("hgx-h200", H200_SXM, 8, 50e9, node=DGX_H100, nic=f"{DGX_H100}: {NDR}")
HGX_B200 = switched_node("hgx-b200", B200_SXM, 8, 50e9, node=DGX_B200, nic=f"{DGX_B200}: {NDR}")
HGX_B300 = switched_node(
    "hgx-b300",
    B300_SXM,
    8,
    100e9,
    node=DGX_B300,
    nic=f"{DGX_B300}: 8 ConnectX-8, {XDR}",
    to_nic=PCIE6,
)
GB200_NVL72 = switched_node(
    "gb200-nvl72",
    GB200_GPU,
    72,
    50e9,
    node=f"{SUPERPOD_GB200}: {TRAYS}",
    nic=f"{SUPERPOD_GB200}: one ConnectX-7 for each GPU, {NDR}",
    gpus=72,
)
GB300_NVL72 = switched_node(
    "gb300-nvl72",
    GB300_GPU,
    72,
    100e9,
    node=f"{SUPERPOD_GB300}: {TRAYS}",
    nic=f"{SUPERPOD_GB300}: one ConnectX-8 for each GPU, {XDR}",
    gpus=72,
    to_nic=PCIE6,
)
ABCI_A = switched_node("abci-a", A100_40GB, 4, 25e9, node=ABCI, nic=f"{ABCI}: {HDR}")
JEAN_ZAY_A100 = switched_node(
    "jean-zay-a100", A100_80GB, 4, 12.5e9, node=IDRIS_A100, nic=f"{IDRIS_A100}: Omni-Path, 100 Gb/s each way"
)
AWS_P4D = switched_node("aws-p4d", A100_40GB, 4, 12.5e9, node=AWS_P4, nic=f"{AWS_P4}: EFA, 400 Gb/s of 4 NICs")
AWS_P6_B200 = switched_node("aws-p6-b200", B200_SXM, 8, 50e9, node=AWS_P6, nic=f"{AWS_P6}: EFAv4, 3.2 Tb/s of 8 NICs")

SWITCHED = (
    *(DGX_A100_NODE, HGX_H100, HGX_H200, HGX_B200, HGX_B300, GB200_NVL72, GB300_NVL72),
    *(ABCI_A, JEAN_ZAY_A100, AWS_P4D, AWS_P6_B200),
)
