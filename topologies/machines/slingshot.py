"""Named machines of HPE Cray EX with a Slingshot dragonfly: Perlmutter, Frontier, Alps.

A cabinet is one group of the dragonfly: 32 fully connected switches, and a few
cables to every other group.  Slingshot routes packet by packet, by load, over
minimal and non-minimal paths.  A group is therefore modelled as one non-blocking
switch.  (With one cable for each pair of switches and minimal paths, a ring over
the nodes of a chassis would fill a single cable, which no measurement shows.)
The option `balanced` selects the model of the cables between groups:

    true    a group has one cable to a non-blocking core, with the bandwidth that
            adaptive routing gets out of all its cables if each group sends to one
            other group; simulations of the machine use this model
    false   every pair of groups has one cable with the bandwidth of all its
            cables; `--routing` selects the paths

With g groups, a of them with nodes, and bandwidth c between two groups, a group
that sends all its traffic to one other group reaches

    c (1 + (a - 2) / 2 + (g - a)) = c (g - a / 2)

over the cables to that group, over non-minimal paths through the a - 2 other
groups with nodes, which need half of their cables themselves, and through the
groups without nodes (`routes/load_balancing.py`; a test compares the two).  On the
whole of Frontier this is 29 GB/s for a node; Atchley et al. measured about 30 GB/s
in an all-to-all.  Traffic that is spread evenly over all groups could be up to
twice as fast on minimal paths.  A network of two or more groups contains all groups
of the machine, because groups without nodes carry non-minimal paths.
"""

from dataclasses import dataclass

from quadrille.topologies.families.family_table import Fabric
from quadrille.topologies.machines.named_machine import OVERHEAD, NamedMachine, NodesToConnect, host_link
from quadrille.topologies.nodes.amd_nodes import FRONTIER, OLCF
from quadrille.topologies.nodes.gpu_node import PCIE4
from quadrille.topologies.nodes.nvlink_mesh_nodes import CSCS, GH200_QUAD, NERSC, PERLMUTTER
from quadrille.topologies.quantity import Quantity

LINK = 25e9
SWITCH_LATENCY = 350e-9
HOPS = 3
"""Switch latencies of a path between groups: a switch on either side of the global cable, and the cable."""
GLOBAL_CABLES = 292
"""Number of cables from a group to other groups: on Frontier, 4 to each of 73 groups."""
FRONTIER_PAPER = 'Atchley et al., "Frontier: Exploring Exascale", SC23'
SLINGSHOT_PAPER = 'De Sensi et al., "An In-Depth Analysis of the Slingshot Interconnect", SC20'


def global_bandwidth(groups: int) -> float:
    """Bandwidth between two of `groups` groups [B/s]: a whole number of cables, equal for all pairs.

    >>> global_bandwidth(74) / 25e9, global_bandwidth(14) / 25e9
    (4.0, 22.0)
    """
    return max(1, GLOBAL_CABLES // (groups - 1)) * LINK


def balanced_bandwidth(groups: int, senders: int) -> float:
    """Bandwidth of a group that sends to one other group by adaptive routing, in units of the bandwidth of one pair.

    >>> balanced_bandwidth(74, 2), balanced_bandwidth(74, 74)
    (73.0, 37.0)

    Parameters
    ----------
    groups, senders : number of all groups, and of the groups that send
    """
    return groups - senders / 2


@dataclass(frozen=True, slots=True)
class Dragonfly:
    """The dragonfly of a machine, with more groups if the nodes need more.

    Parameters
    ----------
    groups : number of groups of the machine
    nodes : number of nodes of a group
    """

    groups: int
    nodes: int

    def cables(self, site: NodesToConnect) -> Fabric:
        """The fabric in which every two groups have one cable, with the bandwidth of all cables between them."""
        from quadrille.topologies.families.dragonfly import add_dragonfly

        kind, (_, built) = site.kind, self._sizes(site)
        return lambda builder, endpoints: add_dragonfly(
            builder,
            endpoints,
            groups=built,
            routers=1,
            per_router=self.nodes * kind.network_ports,
            global_links=max(1, built - 1),
            bandwidth=kind.nic_bandwidth,
            latency=kind.nic_latency,
            global_bandwidth=self._global_bandwidth(site),
            global_latency=self._global_latency(site),
        )

    def balanced(self, site: NodesToConnect) -> Fabric:
        """The fabric in which every group has a cable to a core, with the bandwidth of adaptive routing."""
        from quadrille.topologies.families.tree import add_tree

        filled, built = self._sizes(site)
        if built == 1:
            return self.cables(site)
        kind, rate = site.kind, self._global_bandwidth(site) * balanced_bandwidth(built, filled)
        return lambda builder, endpoints: add_tree(
            builder,
            endpoints,
            down=[self.nodes * kind.network_ports, filled],
            up=[1, 1],
            bandwidth=[kind.nic_bandwidth, rate],
            latency=[kind.nic_latency, self._global_latency(site) / 2],
            kinds=("router", "core"),
        )

    def _sizes(self, site: NodesToConnect) -> tuple[int, int]:
        """Number of groups with nodes, and number of groups of the network."""
        filled = -(-site.nodes // self.nodes)
        return filled, max(site.count("groups", self.groups), filled) if filled > 1 else 1

    def _global_bandwidth(self, site: NodesToConnect) -> float:
        """Bandwidth between two groups, proportional to the bandwidth of the NICs [B/s]."""
        scaled = (
            global_bandwidth(max(2, site.count("groups", self.groups))) * site.kind.injection_bandwidth / (4 * LINK)
        )
        return site.numbers.get("global_bandwidth", scaled)

    def _global_latency(self, site: NodesToConnect) -> float:
        """Latency of a cable between two groups [s]."""
        return site.numbers.get("global_latency", HOPS * SWITCH_LATENCY * site.stretch)


def network_notes(groups: int, groups_source: str, cables_source: str) -> tuple[Quantity, ...]:
    """Notes and sources for a dragonfly of Slingshot switches."""
    cables = int(global_bandwidth(groups) / LINK)
    return (
        Quantity("groups", groups, groups_source),
        Quantity(
            "global_bandwidth_bytes_per_second",
            global_bandwidth(groups),
            f"{cables} cables between two groups, {cables_source}; each 200 Gb/s each way: {SLINGSHOT_PAPER}",
        ),
        Quantity(
            "global_latency_seconds",
            HOPS * SWITCH_LATENCY,
            f"{SLINGSHOT_PAPER}: 350 ns on average through a switch; three times, for a switch on either side "
            "and the cable: an assumption",
        ),
        Quantity(
            "network",
            "dragonfly",
            "simplification: a group's switches are one that blocks nothing, the cables between two groups one of "
            "their bandwidth; groups without GPUs are there for detours",
        ),
        Quantity(
            "routing",
            "adaptive, as balanced",
            f"{SLINGSHOT_PAPER}, section II: the switch chooses for each packet among several minimal and other paths, "
            "by congestion and length; so a group that sends to one other uses all its cables. topology.balanced = "
            "false or a rule of --routing takes the cables one by one",
        ),
    )


AS_FRONTIER = "an assumption: a group has as many to all others together as on Frontier"

GRACE_HOPPER = 'NVIDIA, "Grace Hopper Superchip Architecture" whitepaper, 2023'

PERLMUTTER_MACHINE = NamedMachine(
    name="perlmutter",
    summary="NERSC Perlmutter, GPU nodes: 4 A100 (40 GB) joined by NVLink3, 4 Slingshot 11 NICs, dragonfly",
    gpus=7168,
    gpus_source=f"{NERSC}: 1,536 nodes of 4 A100 40GB and 256 of 4 A100 80GB, modelled with 40 GB too",
    node=PERLMUTTER,
    fabric=Dragonfly(14, 128).cables,
    balanced_fabric=Dragonfly(14, 128).balanced,
    overhead=OVERHEAD,
    notes=network_notes(
        14, f"{NERSC}: one group a GPU cabinet, 8 chassis of 8 blades of 2 nodes; 1,792 nodes fill 14", AS_FRONTIER
    ),
    host_link=host_link(
        (PCIE4[0], f"{NERSC}: one PCIe 4.0 link from each A100 to the EPYC; {PCIE4[1]}"),
        (256e9, 204.8e9, f"{NERSC}: 256 GB of DDR4 a node, 204.8e9 B/s"),
        4,
    ),
)

FRONTIER_MACHINE = NamedMachine(
    name="frontier",
    summary="OLCF Frontier: 4 MI250X = 8 GCDs joined by Infinity Fabric, 4 Slingshot 11 NICs, dragonfly",
    gpus=75264,
    gpus_source=f"{FRONTIER_PAPER}: 9,408 nodes of 8 GCDs",
    node=FRONTIER,
    fabric=Dragonfly(74, 128).cables,
    balanced_fabric=Dragonfly(74, 128).balanced,
    overhead=OVERHEAD,
    notes=network_notes(
        74,
        f"{FRONTIER_PAPER}: 74 compute groups, a cabinet of 128 nodes each ({OLCF})",
        f"{FRONTIER_PAPER}: compute groups exchange 270e12 B/s each way over all, 57 % of what nodes inject",
    ),
    host_link=host_link(
        (36e9, f"{OLCF}: Infinity Fabric, 36e9 B/s each way from each GCD to the EPYC"),
        (512e9, 205e9, f"{OLCF}: 512 GB of DDR4 a node, 205e9 B/s"),
        8,
    ),
)

ALPS_MACHINE = NamedMachine(
    name="alps",
    summary="CSCS Alps: 4 GH200 (96 GB) joined by NVLink4, 4 Slingshot 11 NICs, dragonfly",
    gpus=10752,
    gpus_source=f"{CSCS}: 2,688 nodes of 4 GH200",
    node=GH200_QUAD,
    fabric=Dragonfly(24, 112).cables,
    balanced_fabric=Dragonfly(24, 112).balanced,
    overhead=OVERHEAD,
    notes=network_notes(
        24, f"{CSCS}: 24 cabinets of 112 nodes; a group a cabinet: an assumption, as on Perlmutter", AS_FRONTIER
    ),
    host_link=host_link(
        (450e9, f"{GRACE_HOPPER}: NVLink-C2C, 450e9 B/s each way"),
        (512e9, 2000e9, f"{GRACE_HOPPER}: LPDDR5X of up to 500e9 B/s; on Alps 128 GB for each of four superchips"),
        4,
    ),
)

SLINGSHOT = (PERLMUTTER_MACHINE, FRONTIER_MACHINE, ALPS_MACHINE)
