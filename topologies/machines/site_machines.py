"""Named machines of computing centres and clouds whose networks are trees or a single switch."""

from dataclasses import replace

from quadrille.topologies.machines.named_machine import (
    ONE_SWITCH,
    OVERHEAD,
    SPRAYED,
    SWITCH_IB2_LATENCY,
    NamedMachine,
    host_link,
    one_switch,
    single_node,
    sprayed_tree,
)
from quadrille.topologies.nodes.amd_nodes import MI300X_NODE, MI325X_NODE, MI355X_NODE
from quadrille.topologies.nodes.gpu_node import PCIE5, NodeKind
from quadrille.topologies.nodes.gpus import A100_80GB
from quadrille.topologies.nodes.nvlink_mesh_nodes import ABCI_V, IDRIS_V100, JEAN_ZAY_V100, LONGHORN, OLCF, SUMMIT
from quadrille.topologies.nodes.nvswitch_nodes import (
    ABCI_A,
    AWS_P4D,
    AWS_P6_B200,
    IDRIS_A100,
    JEAN_ZAY_A100,
    switched_node,
)
from quadrille.topologies.quantity import Quantity

ABCI = 'AIST, "ABCI 2.0 User Guide", docs.abci.ai, System Overview'

CORAL = 'Vazhkudai et al., "The design, deployment, and evaluation of the CORAL pre-exascale systems", SC18'

SUMMIT_MACHINE = NamedMachine(
    name="summit",
    summary="OLCF Summit: 6 V100 (16 GB) in two triples joined by NVLink2, 2 EDR NICs, fat tree",
    gpus=27648,
    gpus_source='TOP500 list, June 2018, "Summit": 4,608 nodes of 6 V100',
    node=SUMMIT,
    fabric=sprayed_tree((18,), SWITCH_IB2_LATENCY.number),
    overhead=OVERHEAD,
    notes=(
        Quantity("nodes_per_leaf", 18, "Vazhkudai et al., SC18 (see the X bus): 18 nodes a cabinet"),
        SWITCH_IB2_LATENCY,
        Quantity(
            "network",
            "fat tree",
            f"{OLCF}: three levels, non-blocking, the first in each cabinet; simplification: a cabinet's switches are "
            f"one, the upper two levels are one, and {SPRAYED}",
        ),
    ),
    host_link=host_link(
        (50e9, f"{CORAL}: two NVLink2 bricks of 25e9 B/s each way from each of three V100 to their POWER9"),
        (512e9, 340e9, f"{CORAL}: 512 GB of DDR4 a node, 170e9 B/s for each of two POWER9"),
        6,
    ),
)

LONGHORN_MACHINE = NamedMachine(
    name="longhorn",
    summary="TACC Longhorn: 4 V100 (16 GB) in two pairs joined by NVLink2, one EDR NIC",
    gpus=448,
    gpus_source='TACC, "Frontera" system page, tacc.utexas.edu: its POWER9 subsystem of 448 V100; nodes with 32 GB are '
    "modelled with 16 GB",
    node=LONGHORN,
    fabric=one_switch,
    overhead=OVERHEAD,
    notes=(ONE_SWITCH,),
)

JEAN_ZAY_V100_MACHINE = NamedMachine(
    name="jean-zay-v100",
    summary="IDRIS Jean Zay, gpu_p13: 4 V100 (32 GB) joined by NVLink2, 4 Omni-Path NICs",
    gpus=1584,
    gpus_source=f"{IDRIS_V100}: 396 nodes of 4 V100; those with 16 GB are counted, not modelled",
    node=JEAN_ZAY_V100,
    fabric=one_switch,
    overhead=OVERHEAD,
    notes=(ONE_SWITCH,),
)

JEAN_ZAY_A100_MACHINE = NamedMachine(
    name="jean-zay-a100",
    summary="IDRIS Jean Zay, gpu_p5: 8 A100 (80 GB) on NVSwitches, 4 Omni-Path NICs",
    gpus=416,
    gpus_source=f"{IDRIS_A100}: 52 nodes of 8 A100",
    node=JEAN_ZAY_A100,
    fabric=one_switch,
    overhead=OVERHEAD,
    notes=(ONE_SWITCH,),
)

ABCI_V100 = NamedMachine(
    name="abci-v100",
    summary="ABCI 2.0, Compute Nodes (V): 4 V100 (16 GB) joined by NVLink2, 2 EDR NICs",
    gpus=4352,
    gpus_source=f"{ABCI}: 1,088 nodes of 4 V100",
    node=ABCI_V,
    fabric=sprayed_tree((34,), SWITCH_IB2_LATENCY.number, (3.0,)),
    overhead=OVERHEAD,
    notes=(
        Quantity("nodes_per_leaf", 34, f"{ABCI}: 34 nodes a rack; simplification: a rack's switches are one"),
        Quantity("oversubscription", 3, f"{ABCI}: full bisection inside a rack, a third of it between racks"),
        SWITCH_IB2_LATENCY,
        Quantity("network", "fat tree", f"simplification: {SPRAYED}"),
    ),
)

ABCI_A100 = NamedMachine(
    name="abci-a100",
    summary="ABCI 2.0, Compute Nodes (A): 8 A100 (40 GB) on NVSwitches, 4 HDR NICs",
    gpus=960,
    gpus_source=f"{ABCI}: 120 nodes of 8 A100",
    node=ABCI_A,
    fabric=one_switch,
    overhead=OVERHEAD,
    notes=(Quantity("network", "one switch", f"{ABCI}: full bisection; simplification: one switch"),),
)


EFA = Quantity(
    "network",
    "one switch",
    "simplification: all NICs on one switch that blocks nothing; the latency of EFA is not published and taken to be "
    "InfiniBand's, which is too low",
)

AWS_P4D_MACHINE = NamedMachine(
    name="aws-p4d",
    summary="AWS p4d.24xlarge: 8 A100 (40 GB) on NVSwitches, 4 EFA NICs of 100 Gb/s",
    gpus=4000,
    gpus_source='AWS, "Amazon EC2 P4 Instances": more than 4,000 A100 in an UltraCluster',
    node=AWS_P4D,
    fabric=one_switch,
    overhead=OVERHEAD,
    notes=(EFA,),
)
AWS_P6_B200_MACHINE = NamedMachine(
    name="aws-p6-b200",
    summary="AWS p6-b200.48xlarge: 8 B200 on NVSwitches, 8 EFAv4 NICs of 400 Gb/s",
    gpus=32,
    gpus_source="as many as in the published rows (4 instances); the size of a cluster is not published",
    node=AWS_P6_B200,
    fabric=one_switch,
    overhead=OVERHEAD,
    notes=(EFA,),
)
MLPERF = "MLCommons, inference results"
GENOA = (
    1.65e12,
    921.6e9,
    f"{MLPERF} v4.1, AMD, 8 MI300X: 24 x 64 GiB; two EPYC 9374F with 12 channels of DDR5-4800 each",
)
TURIN = (
    3.3e12,
    1228.8e9,
    f"{MLPERF} v6.0, AMD, MI355X: 24 x 128 GiB; two EPYC 9575F with 12 channels of DDR5-6400 each",
)
OWN_LANES = (1, "assumption: each GPU has its own PCIe 5.0 x16 to a processor")


def amd_platform(name: str, gpu: str, node: NodeKind, memory: tuple[float, float, str]) -> NamedMachine:
    """One platform of eight of AMD's GPUs.

    Parameters
    ----------
    memory : capacity [B] and bandwidth [B/s] of the host's memory, and their source
    """
    summary = f"8 {gpu}, any two joined by one Infinity Fabric link"
    return single_node(name, summary, node, host_link(PCIE5, memory, 8, OWN_LANES))


MI300X_MACHINE = amd_platform("mi300x-node", "MI300X", MI300X_NODE, GENOA)
MI325X_MACHINE = amd_platform(
    "mi325x-node", "MI325X", MI325X_NODE, (*TURIN[:2], f"assumption: as beside MI355X, {TURIN[2]}")
)
MI355X_MACHINE = amd_platform("mi355x-node", "MI355X", MI355X_NODE, TURIN)

UNNAMED = (
    "assumption: read off the plateau of the published rows of this machine themselves (92 GB/s of bus bandwidth on 4 "
    "nodes), so that these rows judge no bandwidth"
)
UNNAMED_4X8 = NamedMachine(
    name="unnamed-4x8",
    summary="Four nodes of 8 GPUs whose kind is not published (stas00/ml-engineering); taken for A100 with 100 GB/s",
    gpus=32,
    gpus_source="stas00/ml-engineering@744d01e18b79, network/benchmarks/README.md: 4 nodes of 8 GPUs",
    node=replace(
        switched_node("unnamed", A100_80GB, 4, 25e9, node="assumption: A100 on NVSwitches", nic=UNNAMED),
        name="unnamed-4x8",
    ),
    fabric=one_switch,
    overhead=OVERHEAD,
    notes=(ONE_SWITCH,),
)

SITES = (
    *(SUMMIT_MACHINE, LONGHORN_MACHINE, JEAN_ZAY_V100_MACHINE, JEAN_ZAY_A100_MACHINE, ABCI_V100, ABCI_A100),
    *(AWS_P4D_MACHINE, AWS_P6_B200_MACHINE, MI300X_MACHINE, MI325X_MACHINE, MI355X_MACHINE, UNNAMED_4X8),
)
