"""A machine known by name: its kind of node, the network between its nodes, and the source of every number."""

from collections.abc import Callable
from dataclasses import dataclass

from quadrille.algorithms.errors import InputError
from quadrille.topologies.cluster import cluster_of, is_true
from quadrille.topologies.families.by_name import Fabric
from quadrille.topologies.limits import check_cable, check_counts
from quadrille.topologies.network import Argument, Network
from quadrille.topologies.nodes.gpu_node import NodeKind
from quadrille.topologies.nodes.gpus import Gpu
from quadrille.topologies.quantity import Quantity


@dataclass(frozen=True, slots=True)
class NodesToConnect:
    """What a wiring is made for: so many nodes of a kind, those of a unit cabled in one piece.

    `stretch` is by how much the latencies of the network differ from the machine's own.
    """

    kind: NodeKind
    nodes: int
    unit: int
    stretch: float = 1.0


Wiring = Callable[[NodesToConnect], Fabric]


@dataclass(frozen=True, slots=True)
class NamedMachine:
    """A machine known by name.

    Parameters
    ----------
    gpus : how many GPUs the real machine has; any number can be modelled, more too
    node : the kind of its nodes
    wiring : the network between them
    overhead : from issue to start of one op [s]
    unit : nodes whose NICs number j are neighbours in the network, such as a scalable unit's; where more than one
        unit is modelled, units are built whole
    balanced_wiring : the network whose traffic between groups is balanced over all their cables, where it has groups
    notes : numbers of the network and simplifications, with their sources
    """

    name: str
    summary: str
    gpus: int
    gpus_source: str
    node: NodeKind
    wiring: Wiring
    overhead: Quantity
    unit: int = 1
    balanced_wiring: Wiring | None = None
    notes: tuple[Quantity, ...] = ()

    @property
    def gpu(self) -> Gpu:
        """What its GPUs are."""
        assert self.node.gpu is not None, self.name
        return self.node.gpu

    @property
    def generation(self) -> str:
        """Of its GPUs: volta, ampere, hopper, blackwell, cdna2 or cdna3."""
        return self.gpu.generation

    @property
    def gpus_per_node(self) -> int:
        return self.node.gpus

    @property
    def peak_flops_per_second(self) -> dict[str, float]:
        """Of one GPU, by dtype."""
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
        return (count, *self.gpu.quantities, self.overhead, *self.node.quantities, *self.notes)

    def arguments(self, gpus: int | None = None) -> dict[str, Argument]:
        """What `topology` takes, as a machine file holds it: these are what what-if changes."""
        balanced: dict[str, Argument] = {} if self.balanced_wiring is None else {"balanced": True}
        return {
            "gpus": self.gpus if gpus is None else gpus,
            "bandwidth_bytes_per_second": self.node.nic_bandwidth,
            "latency_seconds": self.node.nic_latency,
            **balanced,
        }

    def topology(
        self,
        gpus: int,
        *,
        bandwidth: float | None = None,
        latency: float | None = None,
        gpu_bandwidth: float | None = None,
        joined: bool | str = False,
        balanced: bool | str = False,
    ) -> Network:
        """As many nodes as `gpus` GPUs need, the last one perhaps not full, wired as the machine's are.

        Parameters
        ----------
        bandwidth, latency : of the cable from a NIC to the network, by default the machine's [B/s, s]; the cables
            between switches change by the same factor
        gpu_bandwidth : from one GPU to the others of its node together [B/s]
        joined : true for one NIC a node, of the bandwidth of all of them together
        balanced : true for groups whose cables to others are one, as adaptive routing uses them; false for every cable
            between two groups, with paths by a rule of routing

        Raises
        ------
        InputError : fewer than one GPU, a cable that cannot be, a machine without groups that is to be balanced
        """
        check_counts(self.name, gpus=gpus)
        rates = self.node.nic_bandwidth if bandwidth is None else bandwidth
        delays = self.node.nic_latency if latency is None else latency
        check_cable(self.name, rates, delays)
        check_cable(self.name, 1.0 if gpu_bandwidth is None else gpu_bandwidth, 0.0, prefix="gpu_")
        together, wiring = is_true(self.name, "joined", joined), self.wiring
        if even := is_true(self.name, "balanced", balanced):
            if self.balanced_wiring is None:
                raise InputError(f"{self.name}: balanced=true is for machines with groups, such as a dragonfly's")
            wiring = self.balanced_wiring
        kind = self.node.with_rates(rates, delays, gpu_bandwidth)
        kind = kind.joined() if together else kind
        least = -(-gpus // kind.gpus)
        unit = min(self.unit, least)
        site = NodesToConnect(kind, -(-least // unit) * unit, unit, delays / self.node.nic_latency)
        arguments = self._changed(gpus, bandwidth=rates, latency=delays, gpu_bandwidth=gpu_bandwidth)
        if together:
            arguments["joined"] = "true"
        if even:
            arguments["balanced"] = "true"
        return cluster_of(
            kind,
            site.nodes,
            wiring(site),
            arguments=arguments,
            gpus=gpus,
            nodes_per_rail=unit,
            family=self.name,
        )

    def _changed(self, gpus: int, **rates: float | None) -> dict[str, Argument]:
        """The arguments that make a network other than the machine's own."""
        own = {"bandwidth": self.node.nic_bandwidth, "latency": self.node.nic_latency, "gpu_bandwidth": None}
        changed = {name: rate for name, rate in rates.items() if rate is not None and rate != own[name]}
        return {"gpus": gpus, **changed}


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


def one_switch(site: NodesToConnect) -> Fabric:
    """All NICs on one switch that blocks nothing."""
    from quadrille.topologies.families.basic import add_star

    kind = site.kind
    return lambda builder, endpoints: add_star(
        builder, endpoints, bandwidth=kind.nic_bandwidth, latency=kind.nic_latency
    )


def sprayed_tree(nodes: tuple[int, ...], latency: float, oversubscription: tuple[float, ...] = ()) -> Wiring:
    """A tree in which all uplinks of a switch are one cable: of what comes from below, over the oversubscription.

    Parameters
    ----------
    nodes : under one switch of each level but the last, which holds all; with a unit, a leaf takes one NIC of each
        node of a unit, and `nodes` begins with the level above the leaves
    latency : of each cable between switches [s]
    oversubscription : of each of these levels, by default 1
    """

    def wiring(site: NodesToConnect) -> Fabric:
        from quadrille.topologies.families.tree import add_tree

        kind = site.kind
        under = [count * kind.network_ports for count in nodes]
        if site.unit > 1:
            under = [site.unit, *under]
        down, below = [], 1
        for count in under:
            down.append(max(1, count // below))
            below *= down[-1]
        down.append(max(1, -(-site.nodes * kind.network_ports // below)))
        rates, shares = [kind.nic_bandwidth], [*oversubscription, *([1.0] * len(under))]
        for level in range(len(under)):
            rates.append(rates[-1] * down[level] / shares[level])
        return lambda builder, endpoints: add_tree(
            builder,
            endpoints,
            down=down,
            up=[1] * len(down),
            bandwidth=rates,
            latency=[kind.nic_latency, *([latency * site.stretch] * len(under))],
        )

    return wiring
