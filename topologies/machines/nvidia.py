"""Named machines of NVIDIA: its own clusters, its reference clusters, and single nodes of its GPUs."""

from quadrille.topologies.machines.named_machine import (
    OVERHEAD,
    QUANTUM_LATENCY,
    SPRAYED,
    NamedMachine,
    host_link,
    single_node,
    sprayed_tree,
)
from quadrille.topologies.nodes.gpu_node import PCIE4, PCIE5, NodeKind
from quadrille.topologies.nodes.nvswitch_nodes import (
    DGX_A100_NODE,
    GB200_NVL72,
    GB300_NVL72,
    HGX_B200,
    HGX_B300,
    HGX_H100,
    HGX_H200,
    SUPERPOD_GB200,
    SUPERPOD_GB300,
)
from quadrille.topologies.quantity import Quantity

SUPERPOD_A100 = 'NVIDIA, "DGX SuperPOD: Scalable Infrastructure for AI Leadership", RA-09950-001, 2020'
SUPERPOD_H100 = 'NVIDIA, "DGX SuperPOD: Next Generation Scalable Infrastructure, DGX H100", RA-11333-001, 2023'
SUPERPOD_H200 = 'NVIDIA, "DGX SuperPOD Featuring DGX H200" reference architecture, docs.nvidia.com/dgx-superpod'
SUPERPOD_B200 = 'NVIDIA, "DGX SuperPOD Featuring DGX B200" reference architecture, docs.nvidia.com/dgx-superpod'
SUPERPOD_B300 = (
    'NVIDIA, "DGX SuperPOD with DGX B300 Systems, Quantum-X800 InfiniBand Switching and AC Power", RA-11339-001, 2025'
)
GB200_SHEET = 'NVIDIA, "GB200 NVL72" data sheet, 2024'
GB300_SHEET = 'NVIDIA, "GB300 NVL72" data sheet, 2025'

DGX = "NVIDIA, DGX data sheets: 2 TB of system memory"
ROME = (2e12, 409.6e9, f"{DGX}; two EPYC 7742 with 8 channels of DDR4-3200 each")
SAPPHIRE_RAPIDS = (2e12, 614.4e9, f"{DGX}; two Xeon 8480C with 8 channels of DDR5-4800 each")
EMERALD_RAPIDS = (2e12, 716.8e9, f"{DGX}; two Xeon 8570 with 8 channels of DDR5-5600 each")
GRANITE_RAPIDS = (2e12, 819.2e9, f"{DGX}; two Xeon 6776P with 8 channels of DDR5-6400 each")
DGX_A100_SWITCHES = (
    2,
    'NVIDIA, "DGX A100 System Architecture" whitepaper, WP-10083-001, 2020: two A100 behind each PCIe switch',
)
DGX_H100_SWITCHES = (2, "assumption: two H100 behind each PCIe switch, as in a DGX A100")
DGX_B200_SWITCHES = (2, "assumption: two B200 behind each PCIe switch, as in a DGX A100")
DGX_B300_SWITCHES = (1, "assumption: each B300 behind the PCIe switch of its ConnectX-8")
GRACE = (2, "two GPUs at each Grace share its NVLink-C2C")


def superpod(
    name: str,
    summary: str,
    node: NodeKind,
    reference: str,
    *,
    unit: tuple[int, str],
    gpus: tuple[int, str],
    switch_latency: Quantity,
    link: tuple[Quantity, ...],
) -> NamedMachine:
    """A cluster with a rail-optimised fat tree, whose scalable units have a leaf for the j-th NIC of each node.

    Parameters
    ----------
    reference : document that describes the cluster
    unit : nodes of a scalable unit, and words of the document on it
    gpus : GPUs of the cluster in the document, and its words on them
    switch_latency : latency of a switch [s]
    link : numbers of the link between a GPU and its host
    """
    nodes, words = unit
    return NamedMachine(
        name=name,
        summary=summary,
        gpus=gpus[0],
        gpus_source=f"{reference}: {gpus[1]}",
        node=node,
        unit=nodes,
        fabric=sprayed_tree((nodes,), switch_latency.number),
        overhead=OVERHEAD,
        notes=(
            Quantity("nodes_per_unit", nodes, f"{reference}: {words}"),
            switch_latency,
            Quantity("network", "full fat tree", f"{reference}; simplification: {SPRAYED}"),
        ),
        host_link=link,
    )


QUANTUM_X800_LATENCY = Quantity(
    "switch_latency_seconds", QUANTUM_LATENCY.number, "assumption: that of a Quantum QM8700, from port to port"
)
SELENE = NamedMachine(
    name="selene",
    summary="NVIDIA Selene: DGX A100 (8 A100 of 80 GB on NVSwitches, 8 HDR NICs), rail-optimised fat tree",
    gpus=4480,
    gpus_source="NVIDIA, Selene in the TOP500 list, November 2020: 560 DGX A100",
    node=DGX_A100_NODE,
    unit=20,
    fabric=sprayed_tree((20,), QUANTUM_LATENCY.number),
    overhead=OVERHEAD,
    notes=(
        Quantity("nodes_per_unit", 20, f"{SUPERPOD_A100}: a scalable unit; each of its 8 leaves takes one NIC a node"),
        QUANTUM_LATENCY,
        Quantity("network", "full fat tree", f"{SUPERPOD_A100}; simplification: {SPRAYED}"),
    ),
    host_link=host_link(PCIE4, ROME, 8, DGX_A100_SWITCHES),
)

EIGHT_LEAVES = "a scalable unit; each of its 8 leaves takes one NIC a node"
H100_SUPERPOD = superpod(
    "h100-superpod",
    "DGX SuperPOD of DGX H100 (8 H100 on NVSwitches, 8 NDR NICs), rail-optimised fat tree",
    HGX_H100,
    SUPERPOD_H100,
    unit=(32, EIGHT_LEAVES),
    gpus=(1016, "4 scalable units, 127 nodes"),
    switch_latency=QUANTUM_LATENCY,
    link=host_link(PCIE5, SAPPHIRE_RAPIDS, 8, DGX_H100_SWITCHES),
)
H200_SUPERPOD = superpod(
    "h200-superpod",
    "DGX SuperPOD of DGX H200 (8 H200 on NVSwitches, 8 NDR NICs), rail-optimised fat tree",
    HGX_H200,
    SUPERPOD_H200,
    unit=(32, EIGHT_LEAVES),
    gpus=(1016, "4 scalable units, 127 nodes"),
    switch_latency=QUANTUM_LATENCY,
    link=host_link(PCIE5, SAPPHIRE_RAPIDS, 8, DGX_H100_SWITCHES),
)
B200_SUPERPOD = superpod(
    "b200-superpod",
    "DGX SuperPOD of DGX B200 (8 B200 on NVSwitches, 8 NDR NICs), rail-optimised fat tree",
    HGX_B200,
    SUPERPOD_B200,
    unit=(32, EIGHT_LEAVES),
    gpus=(1024, "4 scalable units, 128 nodes"),
    switch_latency=QUANTUM_LATENCY,
    link=host_link(PCIE5, EMERALD_RAPIDS, 8, DGX_B200_SWITCHES),
)
B300_SUPERPOD = superpod(
    "b300-superpod",
    "DGX SuperPOD of DGX B300 (8 B300 on NVSwitches, 8 XDR NICs), rail-optimised fat tree",
    HGX_B300,
    SUPERPOD_B300,
    unit=(72, EIGHT_LEAVES),
    gpus=(4608, "8 scalable units, 576 nodes"),
    switch_latency=QUANTUM_X800_LATENCY,
    link=host_link(PCIE5, GRANITE_RAPIDS, 8, DGX_B300_SWITCHES),
)

RACKS = (
    "8 racks of a scalable unit; simplification: a leaf takes the j-th of the 72 NICs of each rack, the real leaves of "
    "a rail take every fourth"
)
GB200_NVL72_MACHINE = superpod(
    "gb200-nvl72",
    "DGX GB200 NVL72: racks of 72 GB200 on NVLink switches, 72 NDR NICs a rack, rail-optimised fat tree",
    GB200_NVL72,
    SUPERPOD_GB200,
    unit=(8, RACKS),
    gpus=(9216, "scales up to 128 racks with 9216 GPUs"),
    switch_latency=QUANTUM_LATENCY,
    link=host_link(
        (450e9, f"{GB200_SHEET}: NVLink-C2C, 900e9 B/s both ways together"),
        (480e9, 512e9, f"{GB200_SHEET}: up to 480 GB of LPDDR5X at 512e9 B/s for each Grace, with two GPUs"),
        2,
        GRACE,
    ),
)
GB300_NVL72_MACHINE = superpod(
    "gb300-nvl72",
    "DGX GB300 NVL72: racks of 72 GB300 on NVLink switches, 72 XDR NICs a rack, rail-optimised fat tree",
    GB300_NVL72,
    SUPERPOD_GB300,
    unit=(8, RACKS),
    gpus=(9216, "16 scalable units of 8 racks"),
    switch_latency=QUANTUM_X800_LATENCY,
    link=host_link(
        (450e9, f"{GB300_SHEET}: NVLink-C2C, 900e9 B/s both ways together"),
        (17e12 / 36, 14e12 / 36, f"{GB300_SHEET}: 17 TB of LPDDR5X at 14e12 B/s for 36 Grace, each with two GPUs"),
        2,
        GRACE,
    ),
)

A100_NODE = single_node(
    "a100-node",
    "DGX A100: 8 A100 (80 GB) on NVSwitches",
    DGX_A100_NODE,
    host_link(PCIE4, ROME, 8, DGX_A100_SWITCHES),
)
H100_NODE = single_node(
    "h100-node",
    "HGX H100: 8 H100 on NVSwitches",
    HGX_H100,
    host_link(PCIE5, SAPPHIRE_RAPIDS, 8, DGX_H100_SWITCHES),
)
H200_NODE = single_node(
    "h200-node",
    "HGX H200: 8 H200 on NVSwitches",
    HGX_H200,
    host_link(PCIE5, SAPPHIRE_RAPIDS, 8, DGX_H100_SWITCHES),
)
B200_NODE = single_node(
    "b200-node",
    "HGX B200: 8 B200 on NVSwitches",
    HGX_B200,
    host_link(PCIE5, EMERALD_RAPIDS, 8, DGX_B200_SWITCHES),
)
B300_NODE = single_node(
    "b300-node",
    "HGX B300: 8 B300 on NVSwitches",
    HGX_B300,
    host_link(PCIE5, GRANITE_RAPIDS, 8, DGX_B300_SWITCHES),
)

NVIDIA = (
    *(SELENE, H100_SUPERPOD, H200_SUPERPOD, B200_SUPERPOD, B300_SUPERPOD, GB200_NVL72_MACHINE, GB300_NVL72_MACHINE),
    *(A100_NODE, H100_NODE, H200_NODE, B200_NODE, B300_NODE),
)
