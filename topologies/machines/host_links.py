"""Host links of named machines: the links between their GPUs and the memory of their hosts, with sources.

Rates are those of the links, after the encoding; packet headers take up to a fifth of a PCIe link, which the rate of a
calibration includes.  A machine without an entry has no host link that Quadrille knows.
"""

from dataclasses import dataclass

from quadrille.topologies.machines.machine import HostLink
from quadrille.topologies.nodes.gpu_node import PCIE4, PCIE5
from quadrille.topologies.quantity import Quantity

COPY_LATENCY = Quantity(
    "host_link.latency_seconds",
    1e-5,
    "assumption: order of magnitude of an asynchronous copy of a few bytes; not measured, calibrate to replace it",
)
CORAL_PAPER = 'Vazhkudai et al., "The design, deployment, and evaluation of the CORAL pre-exascale systems", SC18'
CORAL = f"{CORAL_PAPER}: two NVLink2 bricks of 25e9 B/s each way from each of three V100 to their POWER9"
PERLMUTTER = "NERSC, Perlmutter architecture, docs.nersc.gov"
FRONTIER = "OLCF, Frontier user guide, docs.olcf.ornl.gov"
GH200 = 'NVIDIA, "Grace Hopper Superchip Architecture" whitepaper, 2023'
DGX_A100 = 'NVIDIA, "DGX A100 System Architecture" whitepaper, WP-10083-001, 2020: two A100 behind each PCIe switch'
DGX_H100 = "assumption: two H100 behind each PCIe switch, as in a DGX A100"


@dataclass(frozen=True, slots=True)
class SourcedHostLink:
    """The host link of a named machine, and the sources of its numbers."""

    link: HostLink
    quantities: tuple[Quantity, ...]


def _sourced(
    rate: float,
    rate_source: str,
    memory: float,
    memory_source: str,
    memory_rate: float,
    node: int,
    shared: tuple[int, str] = (1, ""),
) -> SourcedHostLink:
    """A host link from its numbers.

    Parameters
    ----------
    rate : bandwidth in each direction [B/s]
    memory, memory_rate : memory of a host, and its peak bandwidth [B, B/s]
    node : GPUs of a host
    shared : number of GPUs that share a link, and its source
    """
    link = HostLink(
        bytes_per_second=rate,
        latency_seconds=COPY_LATENCY.number,
        gpus=shared[0],
        memory_bytes=memory,
        memory_bytes_per_second=memory_rate,
        memory_gpus=node,
    )
    quantities = (
        Quantity("host_link.bytes_per_second", rate, rate_source),
        COPY_LATENCY,
        Quantity("host_link.gpus", shared[0], shared[1] or rate_source),
        Quantity("host_link.memory_bytes", memory, memory_source),
        Quantity("host_link.memory_bytes_per_second", memory_rate, memory_source),
        Quantity("host_link.memory_gpus", node, memory_source),
    )
    return SourcedHostLink(link, quantities)


def _dgx(pcie: tuple[float, str], switches: str, memory_rate: tuple[float, str]) -> SourcedHostLink:
    """The host link of a DGX: two GPUs share the PCIe x16 link of their switch."""
    rate, source = pcie
    memory = f"NVIDIA, DGX data sheets: 2 TB of system memory; {memory_rate[1]}"
    return _sourced(rate, source, 2e12, memory, memory_rate[0], 8, (2, switches))


ROME = (409.6e9, "two EPYC 7742 with 8 channels of DDR4-3200 each")
SAPPHIRE_RAPIDS = (614.4e9, "two Xeon 8480C with 8 channels of DDR5-4800 each")
DGX_H100_LINK = _dgx(PCIE5, DGX_H100, SAPPHIRE_RAPIDS)
HOST_LINKS = {
    "summit": _sourced(
        50e9, CORAL, 512e9, f"{CORAL_PAPER}: 512 GB of DDR4 a node, 170e9 B/s for each of two POWER9", 340e9, 6
    ),
    "perlmutter": _sourced(
        PCIE4[0],
        f"{PERLMUTTER}: one PCIe 4.0 x16 link from each A100 to the EPYC; {PCIE4[1]}",
        256e9,
        f"{PERLMUTTER}: 256 GB of DDR4 a node, 204.8e9 B/s",
        204.8e9,
        4,
    ),
    "frontier": _sourced(
        36e9,
        f"{FRONTIER}: Infinity Fabric, 36e9 B/s each way from each GCD to the EPYC",
        512e9,
        f"{FRONTIER}: 512 GB of DDR4 a node, 205e9 B/s",
        205e9,
        8,
    ),
    "alps": _sourced(
        450e9,
        f"{GH200}: NVLink-C2C, 450e9 B/s each way",
        512e9,
        f"{GH200}: LPDDR5X of up to 500e9 B/s; 128 GB for each of four superchips of a node on Alps",
        2000e9,
        4,
    ),
    "selene": _dgx(PCIE4, DGX_A100, ROME),
    "h100-superpod": DGX_H100_LINK,
    "h100-node": DGX_H100_LINK,
}
"""Host links by the names of machines."""


def host_link_of(machine: str) -> SourcedHostLink | None:
    """The host link of a named machine; None if it is not known.

    >>> host_link_of("summit").link.bytes_per_second, host_link_of("longhorn")
    (50000000000.0, None)
    """
    return HOST_LINKS.get(machine)
