"""A node with GPUs: its GPUs, the switches or processors between them, and its NICs.

    gpu:0 ─┬─ nvswitch:0 ─┬─ gpu:1          cables inside the node
           └─ nic:0       └─ nic:1
                │               │           cables to the network

The modules of `nodes/` define the named kinds of nodes; each number has a source.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import prod

from quadrille.algorithms.errors import InputError
from quadrille.topologies.nodes.gpus import Gpu
from quadrille.topologies.quantity import Quantity, bare_name
from quadrille.topologies.size_limits import check_cable, check_counts

LATENCY = 0.6e-6
"""Latency between two GPUs of a node [s]; `INSIDE_LATENCY` is its source."""
INSIDE_LATENCY = (
    "assumption: the 0.6 us that NCCL assumes for a ring step over NVLink (src/graph/tuning.cc, hwLatencies, ring, LL)"
)
HALF_INSIDE_LATENCY = f"{INSIDE_LATENCY}; half of it on each side of the NVSwitch"
NET_LATENCY = (
    "assumption: half on each side of the 2.7 us that NCCL assumes for a ring step over a network "
    "(src/graph/tuning.cc, hwLatencies, NET, ring, LL)"
)
PCIE3 = (15.75e9, "PCIe 3.0 x16: 8 GT/s, 128b/130b, 16 lanes")
PCIE4 = (31.5e9, "PCIe 4.0 x16: 16 GT/s, 128b/130b, 16 lanes")
PCIE5 = (63e9, "PCIe 5.0 x16: 32 GT/s, 128b/130b, 16 lanes")
PCIE6 = (121e9, "PCIe 6.0 x16: 64 GT/s, 242 of the 256 bytes of a flit, 16 lanes")

NVLINK2 = 'NVIDIA, "Tesla V100 GPU Architecture" whitepaper, 2017: NVLink2, 25e9 B/s each way a link, 6 links'
NVLINK3 = 'NVIDIA, "A100 Tensor Core GPU Architecture" whitepaper, 2020: NVLink3, 25e9 B/s each way a link, 12 links'
NVLINK4 = 'NVIDIA, "H100 Tensor Core GPU Architecture" whitepaper, 2022: NVLink4, 25e9 B/s each way a link, 18 links'
NVLINK5 = 'NVIDIA, "Blackwell Architecture Technical Brief", 2024: NVLink5, 50e9 B/s each way a link, 18 links'

Numbers = dict[str, tuple[float | str, str]]


def network_numbers(bandwidth: float, source: str) -> Numbers:
    """Bandwidth [B/s] and latency [s] of the cable from a NIC to the network, each with its source."""
    return {
        "nic_bandwidth_bytes_per_second": (bandwidth, source),
        "nic_latency_seconds": (1.35e-6, NET_LATENCY),
    }


MAX_GPUS = 576
"""Largest number of GPUs in a node: the largest NVLink domain that NVIDIA names.

Source: NVIDIA, "GB200 NVL72", nvidia.com: fifth-generation NVLink joins up to 576 GPUs.
"""


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable between two parts of a node, such as `gpu:0` and `nic:1`.

    Parameters
    ----------
    first, second : the two parts, numbered within the node
    bandwidth, latency : rates of each direction [B/s, s]
    """

    first: str
    second: str
    bandwidth: float
    latency: float

    @property
    def quantities(self) -> tuple[str, ...]:
        """First words of the quantities that are the cable's rates, such as `nvlink` for `nvlink_bandwidth`."""
        parts = {end.partition(":")[0] for end in (self.first, self.second)}
        if parts == {"cpu"}:
            return ("x_bus",)
        if parts <= {"gpu", "nvswitch", "cpu"}:
            return ("nvlink", "xgmi")
        return ("pcie", "nic_attachment")

    @property
    def joins_gpus(self) -> bool:
        """Whether the cable joins two GPUs, or a GPU and an NVSwitch."""
        return self.first.startswith("gpu:") and self.second.startswith(("gpu:", "nvswitch:"))


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A kind of node with `gpus` GPUs and `nics` NICs.

    GPU g leaves the node by NIC g * nics // gpus.  In a node without NICs each GPU
    has a cable of its own to the network.

    Parameters
    ----------
    cables : cables inside the node
    nic_bandwidth, nic_latency : rates of the cable from a NIC to the network [B/s, s]
    nvlink_bandwidth : bandwidth from one GPU to all other GPUs of the node together, per direction [B/s]; 0 if it has
        no other GPU
    between : kinds and counts of the other parts of the node, such as (("nvswitch", 1),)
    gpu : model of the GPUs; None for a kind without a name
    quantities : numbers of the node with their sources; those of its GPUs are in `gpu`
    """

    name: str
    gpus: int
    nics: int
    cables: tuple[Cable, ...]
    nic_bandwidth: float
    nic_latency: float
    nvlink_bandwidth: float = 0.0
    between: tuple[tuple[str, int], ...] = ()
    gpu: Gpu | None = None
    quantities: tuple[Quantity, ...] = ()

    def nic(self, gpu: int) -> int:
        """The NIC by which a GPU leaves the node, both numbered within the node."""
        return gpu * self.nics // self.gpus

    def network_port(self, gpu: int) -> str:
        """The part of the node from which a GPU's cable to the network leaves: its NIC, or the GPU itself."""
        return f"nic:{self.nic(gpu)}" if self.nics else f"gpu:{gpu}"

    @property
    def network_ports(self) -> int:
        """Number of cables from the node to the network."""
        return self.nics or self.gpus

    @property
    def parts(self) -> dict[str, int]:
        """Kinds and counts of all parts of the node, GPUs first."""
        return {"gpu": self.gpus, **dict(self.between), **({"nic": self.nics} if self.nics else {})}

    @property
    def injection_bandwidth(self) -> float:
        """Largest bandwidth from the node into the network [B/s]."""
        return self.network_ports * self.nic_bandwidth

    def joined(self) -> "NodeKind":
        """A copy of the node with one NIC that has the bandwidth of all its NICs together.

        The cables to this NIC inside the node never limit, as if every GPU's traffic
        were spread over all NICs.

        >>> kind = nvswitch_node(
        ...     4, 4, gpu_bandwidth=300e9, gpu_latency=1e-6, nic_bandwidth=25e9, nic_latency=1e-6).joined()
        >>> kind.nics, kind.nic_bandwidth, kind.network_port(3)
        (1, 100000000000.0, 'nic:0')
        """
        if self.nics < 2:
            return self
        total = self.nics * self.nic_bandwidth
        to_nics = {cable.first: cable for cable in self.cables if cable.second.startswith("nic:")}
        inside = [cable for cable in self.cables if not cable.second.startswith("nic:")]
        to_nic = [replace(cable, second="nic:0", bandwidth=max(total, cable.bandwidth)) for cable in to_nics.values()]
        return replace(self, nics=1, nic_bandwidth=total, cables=(*inside, *to_nic))

    def with_numbers(self, numbers: Mapping[str, float]) -> "NodeKind":
        """A copy of the node with these rates of the cables inside it, by the names of its quantities without unit.

        >>> from quadrille.topologies.nodes.nvswitch_nodes import HGX_H100
        >>> HGX_H100.with_numbers({"nvlink_bandwidth": 900e9}).nvlink_bandwidth
        900000000000.0
        """
        own = {bare_name(quantity.quantity): quantity.value for quantity in self.quantities}
        factors = {name: number / float(own[name]) for name, number in numbers.items() if name in own}
        if not factors:
            return self
        cables = tuple(self._scaled(cable, factors) for cable in self.cables)
        return replace(self, cables=cables, nvlink_bandwidth=_sent_to_gpus(cables))

    def _scaled(self, cable: Cable, factors: Mapping[str, float]) -> Cable:
        """The cable, its rates multiplied by the factors of the quantities that are its rates."""
        package = next((q.number for q in self.quantities if q.quantity.startswith("package_bandwidth")), None)
        words = cable.quantities if cable.bandwidth != package else ("package",)
        bandwidth = prod(factors.get(f"{word}_bandwidth", 1.0) for word in words)
        latency = prod(factors.get(f"{word}_latency", 1.0) for word in cable.quantities)
        return replace(cable, bandwidth=cable.bandwidth * bandwidth, latency=cable.latency * latency)

    def with_rates(
        self, nic_bandwidth: float | None, nic_latency: float | None, gpu_bandwidth: float | None
    ) -> "NodeKind":
        """A copy of the node with these rates of the cables to the network and between GPUs; None keeps a rate.

        Parameters
        ----------
        gpu_bandwidth : new `nvlink_bandwidth` [B/s]; all cables between GPUs change by the same factor
        """
        factor = gpu_bandwidth / self.nvlink_bandwidth if gpu_bandwidth and self.nvlink_bandwidth else 1.0
        cables = tuple(
            replace(cable, bandwidth=cable.bandwidth * factor) if cable.joins_gpus else cable for cable in self.cables
        )
        return replace(
            self,
            cables=cables,
            nvlink_bandwidth=self.nvlink_bandwidth * factor,
            nic_bandwidth=self.nic_bandwidth if nic_bandwidth is None else nic_bandwidth,
            nic_latency=self.nic_latency if nic_latency is None else nic_latency,
        )


def _sent_to_gpus(cables: Iterable[Cable]) -> float:
    """Bandwidth from gpu:0 to the other GPUs of its node together [B/s]."""
    return sum(cable.bandwidth for cable in cables if cable.joins_gpus and "gpu:0" in (cable.first, cable.second))


def named_node(
    name: str,
    gpu: Gpu,
    *,
    gpus: int,
    nics: int,
    cables: list[Cable],
    quantities: Mapping[str, tuple[float | str, str]],
    between: Mapping[str, int] | None = None,
) -> NodeKind:
    """A named kind of node, each number with its source.

    The rates of the NICs' cables are taken from `quantities`, `nvlink_bandwidth`
    from the cables.

    Parameters
    ----------
    gpus, nics : number of GPUs and NICs in the node
    quantities : (value, source) of each quantity; the source of `node` is that of the counts
    between : counts of the other parts of the node, by kind
    """
    listed = [Quantity(key, value, source) for key, (value, source) in quantities.items() if key != "node"]
    counts = [
        Quantity(f"{part}_per_node", number, quantities["node"][1]) for part, number in (("gpus", gpus), ("nics", nics))
    ]
    return NodeKind(
        name,
        gpus,
        nics,
        tuple(cables),
        Quantity("nic", *quantities["nic_bandwidth_bytes_per_second"]).number,
        Quantity("nic", *quantities["nic_latency_seconds"]).number,
        _sent_to_gpus(cables),
        tuple((between or {}).items()),
        gpu,
        (*counts, *listed),
    )


@cache
def nvswitch_node(
    gpus: int, nics: int, *, gpu_bandwidth: float, gpu_latency: float, nic_bandwidth: float, nic_latency: float
) -> NodeKind:
    """A node whose GPUs are joined by one NVSwitch, with NICs that serve gpus / nics GPUs each.

    The cable between a GPU and its NIC never limits and has no latency; the NIC's
    cable to the network limits.  Without NICs (0) each GPU has its own cable to the
    network.

    >>> kind = nvswitch_node(
    ...     8, 4, gpu_bandwidth=450e9, gpu_latency=1e-6, nic_bandwidth=50e9, nic_latency=1e-6)
    >>> [kind.nic(gpu) for gpu in range(8)]
    [0, 0, 1, 1, 2, 2, 3, 3]

    Raises
    ------
    InputError : fewer than one GPU; more NICs than GPUs; a bandwidth or latency out of range
    """
    check_counts("gpu-cluster", gpus_per_node=gpus)
    if gpus > MAX_GPUS:
        raise InputError(f"gpu-cluster: gpus_per_node={gpus} must be from 1 to {MAX_GPUS}")
    if not 0 <= nics <= gpus:
        raise InputError(f"gpu-cluster: nics_per_node={nics} must be from 0 to gpus_per_node={gpus}")
    check_cable("gpu-cluster", gpu_bandwidth, gpu_latency, prefix="gpu_")
    check_cable("gpu-cluster", nic_bandwidth, nic_latency, prefix="nic_")
    attached = max(gpu_bandwidth, nic_bandwidth)
    cables = [Cable(f"gpu:{g}", "nvswitch:0", gpu_bandwidth, gpu_latency) for g in range(gpus)]
    cables += [Cable(f"gpu:{g}", f"nic:{g * nics // gpus}", attached, 0.0) for g in range(gpus) if nics]
    between = (("nvswitch", 1),)
    return NodeKind("nvswitch", gpus, nics, tuple(cables), nic_bandwidth, nic_latency, gpu_bandwidth, between)


@cache
def paths_inside_node(cables: tuple[Cable, ...], source: str) -> dict[str, tuple[str, ...]]:
    """Parts of a node on the path from `source` to each part: the path with the fewest hops, and of those the widest.

    Among equal paths, the first by name is taken.  No path goes through a NIC to
    another part.

    >>> pair = (Cable("gpu:0", "gpu:1", 75e9, 0), Cable("gpu:0", "cpu:0", 16e9, 0), Cable("gpu:1", "cpu:0", 16e9, 0))
    >>> paths_inside_node((*pair, Cable("cpu:0", "nic:0", 12.5e9, 0)), "gpu:1")["nic:0"]
    ('gpu:1', 'cpu:0', 'nic:0')
    """
    beside: dict[str, dict[str, float]] = {}
    for cable in cables:
        for tail, head in ((cable.first, cable.second), (cable.second, cable.first)):
            if tail == source or not tail.startswith("nic:"):
                beside.setdefault(tail, {})[head] = cable.bandwidth
    paths: dict[str, tuple[str, ...]] = {source: (source,)}
    ring = paths
    while ring:
        candidates = [
            (*path, part) for last, path in ring.items() for part in beside.get(last, {}) if part not in paths
        ]
        by_width = sorted(candidates, key=lambda path: (-min(beside[a][b] for a, b in pairwise(path)), path))
        ring = {path[-1]: path for path in reversed(by_width)}
        paths |= ring
    return paths
