"""How the nodes of named machines are wired: families of networks, with their sizes from the number of nodes."""

from quadrille.topologies.fabrics import Fabric
from quadrille.topologies.machines.named_machine import NodesToConnect, Wiring
from quadrille.topologies.quantity import Quantity

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
    from quadrille.topologies.families.star import add_star

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
