"""A machine known by name: its kind of node, the network between its nodes, and the source of every number."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.topologies.cluster import build_cluster, is_true
from quadrille.topologies.families.basic import add_star
from quadrille.topologies.families.family_table import Fabric
from quadrille.topologies.families.tree import add_tree
from quadrille.topologies.network import Argument, Network
from quadrille.topologies.nodes.gpu_node import NodeKind
from quadrille.topologies.nodes.gpus import Gpu
from quadrille.topologies.quantity import Quantity, bare_name
from quadrille.topologies.size_limits import MAX_LINKS, MAX_NODES, check_cable, check_counts

COUNTS = ("groups", "nodes_per_leaf", "nodes_per_unit")
"""Numbers of a network that are integers."""
STRUCTURE = ("gpus", "gpus_per_node", "nics_per_node", "nic_bandwidth", "nic_latency")
"""Numbers of a node that have arguments of their own, or that its wiring fixes."""


@dataclass(frozen=True, slots=True)
class NodesToConnect:
    """The nodes that a fabric connects.

    Parameters
    ----------
    kind, nodes : kind and number of the nodes
    unit : nodes that are cabled as one unit
    stretch : latency of a NIC's cable / the machine's own latency; switch latencies are multiplied by it
    numbers : numbers of the network that differ from the machine's own, by name without unit
    """

    kind: NodeKind
    nodes: int
    unit: int
    stretch: float = 1.0
    numbers: Mapping[str, float] = field(default_factory=dict)

    def count(self, name: str, default: int) -> int:
        """The integer of this name."""
        return int(self.numbers.get(name, default))


FabricPlan = Callable[[NodesToConnect], Fabric]
"""Chooses the sizes of a fabric for a number of nodes."""


@dataclass(frozen=True, slots=True)
class NamedMachine:
    """A machine known by name.

    Parameters
    ----------
    gpus : number of GPUs of the real machine; any number can be modelled, also a larger one
    node : kind of its nodes
    fabric : network between the nodes
    overhead : time from issue to start of one op [s]
    unit : nodes whose j-th NICs are neighbours in the network, such as those of a scalable unit; if more than one unit
        is modelled, all units are complete
    balanced_fabric : network in which the traffic between groups uses all their cables evenly; only for machines with
        groups
    notes : numbers and simplifications of the network, with their sources
    host_link : numbers of the link between a GPU and the memory of its host, with their sources; empty if unknown
    has_kernels : whether predictions use measured kernels of its GPU
    any_size : whether it is a model without a real machine, so that no number of GPUs is too large
    """

    name: str
    summary: str
    gpus: int
    gpus_source: str
    node: NodeKind
    fabric: FabricPlan
    overhead: Quantity
    unit: int = 1
    balanced_fabric: FabricPlan | None = None
    notes: tuple[Quantity, ...] = ()
    host_link: tuple[Quantity, ...] = ()
    has_kernels: bool = True
    any_size: bool = False

    @property
    def gpu(self) -> Gpu:
        """The GPU of its nodes."""
        assert self.node.gpu is not None, self.name
        return self.node.gpu

    @property
    def generation(self) -> str:
        """Generation of its GPUs: volta, ampere, hopper, blackwell, cdna2, cdna3 or cdna4."""
        return self.gpu.generation

    @property
    def gpus_per_node(self) -> int:
        return self.node.gpus

    @property
    def peak_flops_per_second(self) -> dict[str, float]:
        """Peak of one GPU, by dtype."""
        return self.gpu.peak_flops_per_second

    @property
    def memory_bytes_per_second(self) -> float:
        return self.gpu.memory_bytes_per_second

    @property
    def memory_bytes(self) -> float:
        return self.gpu.memory_bytes

    @property
    def overhead_seconds(self) -> float:
        return self.overhead.number

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """Every number of the machine with its source."""
        count = Quantity("gpus", self.gpus, self.gpus_source)
        return (count, *self.gpu.quantities, self.overhead, *self.node.quantities, *self.notes, *self.host_link)

    @property
    def numbers(self) -> dict[str, float]:
        """Numbers of the nodes and of the network that `topology` takes, by the names that lists show.

        >>> from quadrille.topologies.machines.machine_catalogue import machine
        >>> machine("selene").numbers["switch_latency_seconds"]
        1.3e-07
        """
        listed = (*self.node.quantities, *self.notes)
        return {
            quantity.quantity: quantity.number
            for quantity in listed
            if not isinstance(quantity.value, str) and bare_name(quantity.quantity) not in STRUCTURE
        }

    def arguments(self, gpus: int | None = None) -> dict[str, Argument]:
        """Arguments of `topology` as a machine file holds them.

        Parameters
        ----------
        gpus : number of GPUs that are modelled, by default all
        """
        balanced: dict[str, Argument] = {} if self.balanced_fabric is None else {"balanced": True}
        return {
            "gpus": self.gpus if gpus is None else gpus,
            "bandwidth_bytes_per_second": self.node.nic_bandwidth,
            "latency_seconds": self.node.nic_latency,
            **balanced,
        }

    def optional_arguments(self) -> dict[str, Argument]:
        """Further arguments of `topology` and their defaults, as a machine file may hold them."""
        gpu_bandwidth: dict[str, Argument] = {"gpu_bandwidth_bytes_per_second": self.node.nvlink_bandwidth}
        whole = {name: int(number) if name in COUNTS else number for name, number in self.numbers.items()}
        return {"joined": False, **gpu_bandwidth, **whole}

    def topology(
        self,
        gpus: int,
        *,
        bandwidth: float | None = None,
        latency: float | None = None,
        gpu_bandwidth: float | None = None,
        joined: bool | str = False,
        balanced: bool | str = False,
        **numbers: float | None,
    ) -> Network:
        """The network of as many nodes as `gpus` GPUs need; the last node may not be full.

        Parameters
        ----------
        bandwidth, latency : rates of the cable from a NIC to the network, by default the machine's [B/s, s]; other
            rates of the network that are not set change by the same factor
        gpu_bandwidth : bandwidth from one GPU to the other GPUs of its node together [B/s]
        joined : true for one NIC per node, which has the bandwidth of all its NICs
        balanced : true for one cable per group, which adaptive routing fills evenly; false for every cable between two
            groups, with paths by a routing rule
        numbers : other values of `numbers`, by name without unit

        Raises
        ------
        InputError : fewer than one GPU; an impossible cable; a number that the machine does not have
        """
        check_counts(self.name, gpus=gpus)
        rate = self.node.nic_bandwidth if bandwidth is None else bandwidth
        delay = self.node.nic_latency if latency is None else latency
        check_cable(self.name, rate, delay)
        check_cable(self.name, 1.0 if gpu_bandwidth is None else gpu_bandwidth, 0.0, prefix="gpu_")
        changes = self._changed_numbers(numbers)
        kind = self.node.with_numbers(changes).with_rates(rate, delay, gpu_bandwidth)
        is_joined, is_balanced = is_true(self.name, "joined", joined), is_true(self.name, "balanced", balanced)
        kind = kind.joined() if is_joined else kind
        nodes = -(-gpus // kind.gpus)
        _check_number_of_gpus(self.name, kind, gpus)
        unit = min(int(changes.get("nodes_per_unit", self.unit)), nodes)
        site = NodesToConnect(kind, -(-nodes // unit) * unit, unit, delay / self.node.nic_latency, changes)
        arguments = self._changed(gpus, bandwidth=rate, latency=delay, gpu_bandwidth=gpu_bandwidth) | changes
        for word, is_set in (("joined", is_joined), ("balanced", is_balanced)):
            if is_set:
                arguments[word] = "true"
        fabric = self._fabric(balanced=is_balanced)(site)
        names = {"arguments": arguments, "family": self.name}
        return build_cluster(kind, site.nodes, fabric, gpus=gpus, nodes_per_rail=unit, **names)  # type: ignore[arg-type]

    def builder(self) -> Callable[..., Network]:
        """`topology` as a function whose signature names every number that it takes."""

        def build(*args: Any, **arguments: Any) -> Network:
            return self.topology(*args, **arguments)

        own = [p for p in signature(self.topology).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        for name in self.numbers:
            word, kind = bare_name(name), int | None if name in COUNTS else float | None
            own.append(Parameter(word, Parameter.KEYWORD_ONLY, default=None, annotation=kind))
        build.__signature__ = signature(self.topology).replace(parameters=own)  # type: ignore[attr-defined]
        build.__doc__ = self.topology.__doc__
        return build

    def _fabric(self, *, balanced: bool) -> FabricPlan:
        if not balanced:
            return self.fabric
        if self.balanced_fabric is None:
            raise InputError(f"{self.name}: balanced=true is for machines with groups, such as a dragonfly's")
        return self.balanced_fabric

    def _changed(self, gpus: int, **rates: float | None) -> dict[str, Argument]:
        """The arguments that make a network other than the machine's own."""
        own = {"bandwidth": self.node.nic_bandwidth, "latency": self.node.nic_latency, "gpu_bandwidth": None}
        changed = {name: rate for name, rate in rates.items() if rate is not None and rate != own[name]}
        return {"gpus": gpus, **changed}

    def _changed_numbers(self, numbers: Mapping[str, float | None]) -> dict[str, float]:
        """The numbers that differ from the machine's own, by name without unit."""
        own = {bare_name(name): number for name, number in self.numbers.items()}
        if unknown := [name for name, number in numbers.items() if number is not None and name not in own]:
            raise InputError(f"{self.name}: has no {unknown[0]}; its numbers are {', '.join(own)}")
        changes = {name: number for name, number in numbers.items() if number is not None and number != own[name]}
        for name, number in changes.items():
            if not (number > 0 or (number == 0 and name.endswith("latency"))):
                raise InputError(f"{self.name}: {name}={number} must be above 0")
        return changes


def _check_number_of_gpus(name: str, kind: NodeKind, gpus: int) -> None:
    """Check that the nodes of so many GPUs are not too many for a network; a 32nd of its size is for its switches.

    Raises
    ------
    InputError : naming the number and the largest that is accepted
    """
    links = 2 * (len(kind.cables) + kind.network_ports)
    largest = kind.gpus * (31 * min(MAX_NODES // sum(kind.parts.values()), MAX_LINKS // links) // 32)
    if gpus > largest:
        raise InputError(f"{name}: gpus={gpus}: at most {largest} GPUs are modelled")


OVERHEAD = Quantity(
    "overhead_seconds",
    5e-6,
    "assumption: order of magnitude of issuing one GPU kernel; not measured, calibrate to replace it",
)
QUANTUM_LATENCY = Quantity(
    "switch_latency_seconds", 130e-9, 'NVIDIA, "Quantum QM8700" data sheet: sub-130 ns from port to port'
)
SWITCH_IB2_LATENCY = Quantity(
    "switch_latency_seconds", 90e-9, 'Mellanox, "SB7800 Switch-IB 2" product brief: 90 ns from port to port'
)
ONE_SWITCH = Quantity("network", "one switch", "simplification: all NICs on one switch that blocks nothing")
SPRAYED = (
    "all uplinks of a switch are one cable of their bandwidth together, as under ideal spraying by adaptive routing"
)


COPY_LATENCY = Quantity(
    "host_link.latency_seconds",
    1e-5,
    "assumption: order of magnitude of an asynchronous copy of a few bytes; not measured, calibrate to replace it",
)


def host_link(
    rate: tuple[float, str], memory: tuple[float, float, str], node: int, shared: tuple[int, str] = (1, "")
) -> tuple[Quantity, ...]:
    """The numbers of a host link, under the names that they have in a machine file.

    Parameters
    ----------
    rate : bandwidth in each direction, and its source [B/s]
    memory : capacity and peak bandwidth of the memory of a host, and their source [B, B/s]
    node : GPUs of a host
    shared : consecutive GPUs that share a link, and the source of the number
    """
    capacity, bandwidth, source = memory
    return (
        Quantity("host_link.bytes_per_second", *rate),
        COPY_LATENCY,
        Quantity("host_link.gpus", shared[0], shared[1] or rate[1]),
        Quantity("host_link.memory_bytes", capacity, source),
        Quantity("host_link.memory_bytes_per_second", bandwidth, source),
        Quantity("host_link.memory_gpus", node, source),
    )


def one_switch(site: NodesToConnect) -> Fabric:
    """All NICs on one switch that blocks nothing."""
    kind = site.kind
    return lambda builder, endpoints: add_star(
        builder, endpoints, bandwidth=kind.nic_bandwidth, latency=kind.nic_latency
    )


def single_node(name: str, summary: str, node: NodeKind, link: tuple[Quantity, ...]) -> NamedMachine:
    """A machine of one node; several nodes are modelled on one switch.

    Parameters
    ----------
    link : numbers of the link between a GPU and its host
    """
    return NamedMachine(
        name=name,
        summary=summary,
        gpus=node.gpus,
        gpus_source="one node; more are modelled on one switch",
        node=node,
        fabric=one_switch,
        overhead=OVERHEAD,
        notes=(ONE_SWITCH,),
        host_link=link,
    )


def sprayed_tree(nodes: tuple[int, ...], latency: float, oversubscription: tuple[float, ...] = ()) -> FabricPlan:
    """A tree in which all uplinks of a switch are one cable.

    The bandwidth of this cable is the bandwidth of all cables below the switch /
    the oversubscription of its level.

    Parameters
    ----------
    nodes : nodes under one switch of each level but the last, which holds all nodes; on a machine with units a leaf
        takes one NIC of each node of a unit, and `nodes` begins with the level above the leaves
    latency : latency of each cable between switches [s]
    oversubscription : oversubscription of each of these levels, by default 1
    """

    def plan(site: NodesToConnect) -> Fabric:
        kind, first = site.kind, site.count("nodes_per_leaf", site.count("nodes_per_unit", nodes[0]))
        under = [count * kind.network_ports for count in (first, *nodes[1:])]
        if site.unit > 1:
            under = [site.unit, *under]
        down, below = [], 1
        for count in under:
            down.append(max(1, count // below))
            below *= down[-1]
        down.append(max(1, -(-site.nodes * kind.network_ports // below)))
        rates, shares = [kind.nic_bandwidth], [*oversubscription, *([1.0] * len(under))]
        shares[0] = site.numbers.get("oversubscription", shares[0])
        for level in range(len(under)):
            rates.append(rates[-1] * down[level] / shares[level])
        delay = site.numbers.get("switch_latency", latency * site.stretch)
        return lambda builder, endpoints: add_tree(
            builder,
            endpoints,
            down=down,
            up=[1] * len(down),
            bandwidth=rates,
            latency=[kind.nic_latency, *([delay] * len(under))],
        )

    return plan
