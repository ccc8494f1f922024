"""Named machines: their wiring for any number of GPUs, and a source for every number.

The numbers are peaks and the wiring is the vendor's; a calibration on the
machine itself always beats them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import networkx as nx

from algorithms.errors import InputError
from topologies.cluster import gpu_cluster
from topologies.gpu_node import FRONTIER, PERLMUTTER, NodeKind
from topologies.graph import check_counts


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of a machine, in SI units that its name says, and where it comes from."""

    quantity: str
    value: float | str
    source: str


@dataclass(frozen=True, slots=True)
class NamedMachine:
    """A machine known by name.

    >>> machine("perlmutter").peak_flops_per_second["bfloat16"]
    312000000000000.0
    >>> sorted(machine("frontier").peak_flops_per_second)
    ['bfloat16', 'float16', 'float32', 'float64']

    Parameters
    ----------
    gpus : how many GPUs the real machine has; any number can be modelled
    peak_flops_per_second : of one GPU, by dtype
    memory_bytes_per_second, memory_bytes : of one GPU
    overhead_seconds : from issue to start of one op
    quantities : every number above and of the wiring, with its source
    """

    name: str
    summary: str
    gpus: int
    gpus_per_node: int
    peak_flops_per_second: Mapping[str, float]
    memory_bytes_per_second: float
    memory_bytes: float
    overhead_seconds: float
    quantities: tuple[Quantity, ...]
    topology: Callable[[int], nx.MultiDiGraph]


def _nodes_of(kind: NodeKind, gpus: int) -> nx.MultiDiGraph:
    """As many nodes as `gpus` GPUs need, the last one perhaps not full, under one fabric."""
    check_counts(kind.name, gpus=gpus)
    return gpu_cluster(-(-gpus // kind.gpus), kind.name, gpus=gpus)


def perlmutter_topology(gpus: int) -> nx.MultiDiGraph:
    """GPU nodes of Perlmutter for `gpus` GPUs.

    >>> perlmutter_topology(6).number_of_nodes()
    17
    """
    return _nodes_of(PERLMUTTER, gpus)


def frontier_topology(gpus: int) -> nx.MultiDiGraph:
    """Nodes of Frontier for `gpus` GPUs, a GPU being one GCD, half an MI250X.

    >>> frontier_topology(8).number_of_edges()
    40
    """
    return _nodes_of(FRONTIER, gpus)


A100 = 'NVIDIA, "A100 Tensor Core GPU" data sheet, 2021, A100 40GB SXM'
MI250X = 'AMD, "Instinct MI250X Accelerator" data sheet, 2021, halved: a GPU here is one of its two GCDs'
NERSC = 'NERSC documentation, "Perlmutter Architecture", docs.nersc.gov'
OLCF = 'OLCF, "Frontier User Guide", docs.olcf.ornl.gov, Frontier Compute Nodes'
FABRIC = (
    "simplification: the dragonfly is modelled as one fabric above the NICs that blocks nothing, "
    "so that traffic between its groups is predicted too fast when it is heavy"
)
OVERHEAD = "assumption: order of magnitude of issuing one GPU kernel; not measured, calibrate to replace it"
NET_LATENCY = (
    "assumption: half on each side of the 2.7 us that NCCL assumes for a ring step over a network "
    "(src/graph/tuning.cc, hwLatencies, NET, ring, LL)"
)
INSIDE_LATENCY = (
    "assumption: the 0.6 us that NCCL assumes for a ring step over NVLink (src/graph/tuning.cc, hwLatencies, ring, LL)"
)


PERLMUTTER_MACHINE = NamedMachine(
    name="perlmutter",
    summary="NERSC Perlmutter, GPU nodes: 4 A100 (40 GB) joined by NVLink3, 4 Slingshot 11 NICs",
    gpus=7168,
    gpus_per_node=PERLMUTTER.gpus,
    peak_flops_per_second={
        "float64": 19.5e12,
        "float32": 19.5e12,
        "tf32": 156e12,
        "float16": 312e12,
        "bfloat16": 312e12,
    },
    memory_bytes_per_second=1.555e12,
    memory_bytes=40e9,
    overhead_seconds=5e-6,
    quantities=(
        Quantity("gpus", 7168, f"{NERSC}: 1,536 nodes of 4 A100 40GB and 256 of 4 A100 80GB"),
        Quantity("gpus_per_node", 4, NERSC),
        Quantity("nics_per_node", 4, NERSC),
        Quantity("peak_flops_per_second.float64", 19.5e12, f"{A100}: FP64 Tensor Core (9.7e12 without)"),
        Quantity("peak_flops_per_second.float32", 19.5e12, f"{A100}: FP32"),
        Quantity("peak_flops_per_second.tf32", 156e12, f"{A100}: TF32 Tensor Core, dense"),
        Quantity("peak_flops_per_second.float16", 312e12, f"{A100}: FP16 Tensor Core, dense"),
        Quantity("peak_flops_per_second.bfloat16", 312e12, f"{A100}: BFLOAT16 Tensor Core, dense"),
        Quantity("memory_bytes_per_second", 1.555e12, f"{A100}: GPU memory bandwidth"),
        Quantity("memory_bytes", 40e9, f"{A100}: GPU memory; the 256 nodes with 80 GB are not modelled"),
        Quantity("overhead_seconds", 5e-6, OVERHEAD),
        Quantity(
            "nvlink_bandwidth_bytes_per_second",
            100e9,
            "each pair of GPUs joined by 4 of an A100's 12 NVLink3 links, 25e9 each way per link: "
            'NVIDIA, "A100 Tensor Core GPU Architecture" whitepaper, 2020, NVLink; four to a pair: 12 links, 3 peers',
        ),
        Quantity("nvlink_latency_seconds", 0.6e-6, INSIDE_LATENCY),
        Quantity("pcie_bandwidth_bytes_per_second", 31.5e9, "PCIe 4.0 x16, 16 GT/s, 128b/130b; GPU i beside NIC i"),
        Quantity("nic_bandwidth_bytes_per_second", 25e9, f"{NERSC}: Slingshot 11, 200 Gb/s each way"),
        Quantity("nic_latency_seconds", 1.35e-6, NET_LATENCY),
        Quantity("network", "one fabric", FABRIC),
    ),
    topology=perlmutter_topology,
)

FRONTIER_MACHINE = NamedMachine(
    name="frontier",
    summary="OLCF Frontier: 4 MI250X = 8 GCDs joined by Infinity Fabric, 4 Slingshot 11 NICs",
    gpus=75264,
    gpus_per_node=FRONTIER.gpus,
    peak_flops_per_second={"float64": 47.85e12, "float32": 47.85e12, "float16": 191.5e12, "bfloat16": 191.5e12},
    memory_bytes_per_second=1.6384e12,
    memory_bytes=64e9,
    overhead_seconds=5e-6,
    quantities=(
        Quantity("gpus", 75264, 'Atchley et al., "Frontier: Exploring Exascale", SC23: 9,408 nodes of 8 GCDs'),
        Quantity("gpus_per_node", 8, OLCF),
        Quantity("nics_per_node", 4, OLCF),
        Quantity("peak_flops_per_second.float64", 47.85e12, f"{MI250X}: 95.7e12 FP64 Matrix (vector: half of that)"),
        Quantity("peak_flops_per_second.float32", 47.85e12, f"{MI250X}: 95.7e12 FP32 Matrix"),
        Quantity("peak_flops_per_second.float16", 191.5e12, f"{MI250X}: 383e12 FP16 (the MI250X has no tf32)"),
        Quantity("peak_flops_per_second.bfloat16", 191.5e12, f"{MI250X}: 383e12 bfloat16"),
        Quantity("memory_bytes_per_second", 1.6384e12, f"{MI250X}: 3.2768e12"),
        Quantity("memory_bytes", 64e9, OLCF),
        Quantity("overhead_seconds", 5e-6, OVERHEAD),
        Quantity("package_bandwidth_bytes_per_second", 200e9, f"{OLCF}: the two GCDs of an MI250X, 4 links"),
        Quantity(
            "xgmi_bandwidth_bytes_per_second",
            "50e9 or 100e9",
            f"{OLCF}: 50 to 100 GB/s between packages.  Links of 50e9: GCDs 0-6 and 2-4 two, 0-2, 1-3, 1-5, 3-7, 4-6 "
            "and 5-7 one; the pairs follow the guide's node diagram as we know it and use up each GCD's eight ports",
        ),
        Quantity("xgmi_latency_seconds", 0.6e-6, f"{INSIDE_LATENCY}; taken over for xGMI"),
        Quantity(
            "nic_attachment_bandwidth_bytes_per_second",
            50e9,
            "assumption: PCIe 4.0 ESM, 50 GB/s each way, at the odd GCD of each package, whose eighth port it takes",
        ),
        Quantity("nic_bandwidth_bytes_per_second", 25e9, f"{OLCF}: Slingshot, 200 Gb/s each way"),
        Quantity("nic_latency_seconds", 1.35e-6, NET_LATENCY),
        Quantity("network", "one fabric", FABRIC),
    ),
    topology=frontier_topology,
)

MACHINES = {one.name: one for one in (PERLMUTTER_MACHINE, FRONTIER_MACHINE)}


def machine(name: str) -> NamedMachine:
    """The machine of this name.

    Raises
    ------
    InputError : an unknown name; the message lists the known ones
    """
    if name not in MACHINES:
        raise InputError(f"machine {name!r} is unknown; there are {', '.join(MACHINES)}, or give a machine file")
    return MACHINES[name]
