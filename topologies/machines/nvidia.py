"""Named machines of NVIDIA: its own clusters, and single nodes of its GPUs."""

from quadrille.topologies.machines.named_machine import (
    ONE_SWITCH,
    OVERHEAD,
    QUANTUM_LATENCY,
    SPRAYED,
    NamedMachine,
    host_link,
    one_switch,
    sprayed_tree,
)
from quadrille.topologies.nodes.gpu_node import PCIE4, PCIE5
from quadrille.topologies.nodes.nvswitch_nodes import DGX_A100_NODE, HGX_B200, HGX_H100, HGX_H200
from quadrille.topologies.quantity import Quantity

SUPERPOD_A100 = 'NVIDIA, "DGX SuperPOD: Scalable Infrastructure for AI Leadership", RA-09950-001, 2020'
SUPERPOD_H100 = 'NVIDIA, "DGX SuperPOD: Next Generation Scalable Infrastructure, DGX H100", RA-11333-001, 2023'

DGX = "NVIDIA, DGX data sheets: 2 TB of system memory"
ROME = (2e12, 409.6e9, f"{DGX}; two EPYC 7742 with 8 channels of DDR4-3200 each")
SAPPHIRE_RAPIDS = (2e12, 614.4e9, f"{DGX}; two Xeon 8480C with 8 channels of DDR5-4800 each")
DGX_A100_SWITCHES = (
    2,
    'NVIDIA, "DGX A100 System Architecture" whitepaper, WP-10083-001, 2020: two A100 behind each PCIe switch',
)
DGX_H100_SWITCHES = (2, "assumption: two H100 behind each PCIe switch, as in a DGX A100")

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

H100_SUPERPOD = NamedMachine(
    name="h100-superpod",
    summary="DGX SuperPOD of DGX H100 (8 H100 on NVSwitches, 8 NDR NICs), rail-optimised fat tree",
    gpus=1016,
    gpus_source=f"{SUPERPOD_H100}: 4 scalable units, 127 nodes",
    node=HGX_H100,
    unit=32,
    fabric=sprayed_tree((32,), QUANTUM_LATENCY.number),
    overhead=OVERHEAD,
    notes=(
        Quantity("nodes_per_unit", 32, f"{SUPERPOD_H100}: a scalable unit; each of its 8 leaves takes one NIC a node"),
        QUANTUM_LATENCY,
        Quantity("network", "full fat tree", f"{SUPERPOD_H100}; simplification: {SPRAYED}"),
    ),
    host_link=host_link(PCIE5, SAPPHIRE_RAPIDS, 8, DGX_H100_SWITCHES),
)

ONE_NODE = "one node; more are modelled on one switch"

H100_NODE = NamedMachine(
    name="h100-node",
    summary="HGX H100: 8 H100 on NVSwitches",
    gpus=8,
    gpus_source=ONE_NODE,
    node=HGX_H100,
    fabric=one_switch,
    overhead=OVERHEAD,
    notes=(ONE_SWITCH,),
    host_link=host_link(PCIE5, SAPPHIRE_RAPIDS, 8, DGX_H100_SWITCHES),
)
H200_NODE = NamedMachine(
    name="h200-node",
    summary="HGX H200: 8 H200 on NVSwitches",
    gpus=8,
    gpus_source=ONE_NODE,
    node=HGX_H200,
    fabric=one_switch,
    overhead=OVERHEAD,
    notes=(ONE_SWITCH,),
)
B200_NODE = NamedMachine(
    name="b200-node",
    summary="HGX B200: 8 B200 on NVSwitches",
    gpus=8,
    gpus_source=ONE_NODE,
    node=HGX_B200,
    fabric=one_switch,
    overhead=OVERHEAD,
    notes=(ONE_SWITCH,),
)

NVIDIA = (SELENE, H100_SUPERPOD, H100_NODE, H200_NODE, B200_NODE)
