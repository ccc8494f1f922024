"""Machines of HPE's Cray EX with Slingshot: Perlmutter, Frontier, Alps.

A cabinet is one group of a dragonfly: 32 switches, all wired to all, and a few
cables to every other group.  Slingshot routes packet by packet, by load, over
minimal paths and detours.  A group is therefore one switch that blocks nothing.
(With one cable a pair of switches and minimal paths, a ring over the nodes of a
chassis would fill a single cable, which nobody measures.)  Between groups there
are two pictures, and `balanced` says which:

    true    a group has one cable to a core that blocks nothing, of what adaptive
            routing gets out of all its cables where groups send to one other
            each; it is what simulations of the machine take
    false   every pair of groups has its cables, as one; paths are by `--routing`

With g groups, a of them with nodes, and cables of bandwidth c between two, every
group that sends all it has to one other reaches

    c (1 + (a - 2) / 2 + (g - a)) = c (g - a / 2)

by the cable to it, by detours over groups that send as well and need half of
their cables themselves, and by empty groups (`routes/load_balancing.py`, whose flows on
all cables a test compares with this).  On whole Frontier that is 29 GB/s a node,
where Atchley et al. measured about 30 in an all-to-all.  Traffic that is spread
evenly over all groups could do up to twice as well on minimal paths.  All groups
that the machine has are there as soon as there are two, since empty ones carry
detours.
"""

from dataclasses import dataclass

from quadrille.topologies.families.by_name import Fabric
from quadrille.topologies.machines.named_machine import OVERHEAD, NamedMachine, NodesToConnect
from quadrille.topologies.nodes.amd import FRONTIER, OLCF
from quadrille.topologies.nodes.meshed import CSCS, GH200_QUAD, NERSC, PERLMUTTER
from quadrille.topologies.quantity import Quantity

LINK = 25e9
SWITCH_LATENCY = 350e-9
HOPS = 3
"""Through a switch on either side of a global cable, and through the cable."""
GLOBAL_CABLES = 292
"""From a group to others: Frontier's 4 to each of 73."""
FRONTIER_PAPER = 'Atchley et al., "Frontier: Exploring Exascale", SC23'
SLINGSHOT_PAPER = 'De Sensi et al., "An In-Depth Analysis of the Slingshot Interconnect", SC20'


def global_bandwidth(groups: int) -> float:
    """Between two of so many groups [B/s]: whole cables, an equal number for each.

    >>> global_bandwidth(74) / 25e9, global_bandwidth(14) / 25e9
    (4.0, 22.0)
    """
    return max(1, GLOBAL_CABLES // (groups - 1)) * LINK


def balanced_bandwidth(groups: int, senders: int) -> float:
    """What each of the groups that send to one other can send, adaptively, in cables to another group.

    >>> balanced_bandwidth(74, 2), balanced_bandwidth(74, 74)
    (73.0, 37.0)

    Parameters
    ----------
    groups, senders : all of them, and those that send
    """
    return groups - senders / 2


@dataclass(frozen=True, slots=True)
class Dragonfly:
    """A dragonfly of as many groups as the machine has, more where more are needed.

    Parameters
    ----------
    nodes : in each group
    """

    groups: int
    nodes: int

    def cables(self, site: NodesToConnect) -> Fabric:
        """Every two groups joined by a cable of the bandwidth of all between them."""
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
        """Every group joined to a core by what adaptive routing reaches with its cables."""
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
        """Groups with nodes, and groups that are there."""
        filled = -(-site.nodes // self.nodes)
        return filled, max(site.count("groups", self.groups), filled) if filled > 1 else 1

    def _global_bandwidth(self, site: NodesToConnect) -> float:
        """Between two groups; it changes with the NICs' [B/s]."""
        scaled = (
            global_bandwidth(max(2, site.count("groups", self.groups))) * site.kind.injection_bandwidth / (4 * LINK)
        )
        return site.numbers.get("global_bandwidth", scaled)

    def _global_latency(self, site: NodesToConnect) -> float:
        """Latency of a cable between two groups [s]."""
        return site.numbers.get("global_latency", HOPS * SWITCH_LATENCY * site.stretch)


def network_notes(groups: int, groups_source: str, cables_source: str) -> tuple[Quantity, ...]:
    """What is said of a dragonfly of Slingshot switches."""
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
)

SLINGSHOT = (PERLMUTTER_MACHINE, FRONTIER_MACHINE, ALPS_MACHINE)
