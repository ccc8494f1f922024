"""CPU vendors: the vendor of the host processors of each kind of node, on which NCCL's tuning depends.

A vendor is `intel`, `amd`, or `other` (POWER and Arm).
"""

from typing import Literal

from quadrille.topologies.nodes.nvlink_mesh_nodes import ABCI as ABCI_GUIDE
from quadrille.topologies.nodes.nvlink_mesh_nodes import CORAL, CSCS, DGX_1, IDRIS_V100, NERSC, TACC
from quadrille.topologies.nodes.nvswitch_nodes import (
    ABCI,
    AWS_P4,
    AWS_P6,
    DGX_A100,
    DGX_B200,
    DGX_B300,
    DGX_H100,
    IDRIS_A100,
    SUPERPOD_GB200,
    SUPERPOD_GB300,
)
from quadrille.topologies.quantity import Quantity

Vendor = Literal["intel", "amd", "other"]

CPU_VENDORS: dict[str, Quantity] = {
    kind: Quantity("processor_vendor", vendor, source)
    for kind, vendor, source in (
        ("dgx-1v", "intel", f"{DGX_1}: two Xeon E5-2698 v4"),
        ("dgx-a100", "amd", f"{DGX_A100}: two EPYC 7742"),
        ("hgx-h100", "intel", f"{DGX_H100}: two Xeon Platinum 8480C"),
        ("hgx-h200", "intel", f"{DGX_H100}: two Xeon Platinum 8480C"),
        ("hgx-b200", "intel", f"{DGX_B200}: two Xeon Platinum 8570"),
        ("hgx-b300", "intel", f"{DGX_B300}: two Xeon 6776P"),
        ("gb200-nvl72", "other", f"{SUPERPOD_GB200}: Grace, Arm"),
        ("gb300-nvl72", "other", f"{SUPERPOD_GB300}: Grace, Arm"),
        ("abci-a", "intel", f"{ABCI}: two Xeon Platinum 8360Y"),
        ("abci-v", "intel", f"{ABCI_GUIDE}: two Xeon Gold 6148"),
        ("jean-zay-v100", "intel", f"{IDRIS_V100}: two Xeon Gold 6248"),
        ("jean-zay-a100", "amd", f"{IDRIS_A100}: two EPYC 7543"),
        ("aws-p4d", "intel", f"{AWS_P4}: Xeon Platinum 8275CL"),
        ("aws-p6-b200", "intel", f"{AWS_P6}: fifth-generation Xeon Scalable"),
        ("perlmutter", "amd", f"{NERSC}: one EPYC 7763"),
        ("frontier", "amd", 'OLCF, "Frontier User Guide", docs.olcf.ornl.gov: one EPYC 7A53'),
        ("mi250x", "amd", "AMD's reference node: an EPYC, as in Frontier"),
        ("mi300x", "amd", "assumption: EPYC, as in most vendors' MI300X servers"),
        ("mi325x", "amd", "assumption: EPYC, as in most vendors' MI325X servers"),
        ("mi355x", "amd", "MLCommons, inference results v6.0, AMD: MI355X beside EPYC 9575F"),
        ("gh200-4", "other", f"{CSCS}: Grace, Arm"),
        ("gh200-1", "other", 'NVIDIA, "GH200 Grace Hopper Superchip" data sheet, 2023: Grace, Arm'),
        ("summit", "other", f"{CORAL}: two POWER9"),
        ("longhorn", "other", f"{TACC}: two POWER9"),
    )
}
"""Vendor of the host processors, with its source, by the name of the kind of node."""


def cpu_vendor(kind: str) -> Vendor:
    """Vendor of the host processors of a kind of node; `intel`, the first entry of NCCL's tables, for an unknown kind.

    >>> cpu_vendor("perlmutter"), cpu_vendor("summit"), cpu_vendor("a kind of one's own")
    ('amd', 'other', 'intel')
    """
    match CPU_VENDORS.get(kind):
        case Quantity(value="amd"):
            return "amd"
        case Quantity(value="other"):
            return "other"
        case _:
            return "intel"
