"""Machines of HPE's Cray EX with Slingshot: Perlmutter, Frontier, Alps.

A cabinet is one group of a dragonfly: 32 switches, all wired to all, and a few
cables to every other group.  Slingshot spreads traffic adaptively over the ways
inside a group and over parallel cables, so a group is modelled as one switch
that blocks nothing, and the cables between two groups as one of their bandwidth
together.  (With one cable a pair of switches and minimal ways, a ring over the
nodes of a chassis would fill a single cable, which nobody measures.)  Between
groups the way matters, and `--routing` chooses it.  All groups that the machine
has are there as soon as there are two, since empty ones carry detours.
"""

from topologies.fabrics import Fabric
from topologies.families.dragonfly import add_dragonfly
from topologies.machines.named_machine import OVERHEAD, NamedMachine, Site, Wiring
from topologies.nodes.amd import FRONTIER, OLCF
from topologies.nodes.meshed import CSCS, GH200_QUAD, NERSC, PERLMUTTER
from topologies.quantity import Quantity

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


def slingshot(groups: int, nodes_per_group: int) -> Wiring:
    """Dragonfly of as many groups as the machine has, more where more are needed."""

    def wiring(site: Site) -> Fabric:
        kind = site.kind
        needed = -(-site.nodes // nodes_per_group)
        built = max(groups, needed) if needed > 1 else 1
        factor = site.kind.injection_bandwidth / (4 * LINK)
        return lambda builder, endpoints: add_dragonfly(
            builder,
            endpoints,
            groups=built,
            routers=1,
            per_router=nodes_per_group * kind.doors,
            global_links=max(1, built - 1),
            bandwidth=kind.nic_bandwidth,
            latency=kind.nic_latency,
            global_bandwidth=global_bandwidth(max(2, groups)) * factor,
            global_latency=HOPS * SWITCH_LATENCY * site.stretch,
        )

    return wiring


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
            "their bandwidth, as under ideal adaptive routing; groups without GPUs are left out; ways between groups "
            "are minimal unless --routing says otherwise, where Slingshot's are adaptive",
        ),
    )


AS_FRONTIER = "an assumption: a group has as many to all others together as on Frontier"

PERLMUTTER_MACHINE = NamedMachine(
    name="perlmutter",
    summary="NERSC Perlmutter, GPU nodes: 4 A100 (40 GB) joined by NVLink3, 4 Slingshot 11 NICs, dragonfly",
    gpus=7168,
    gpus_source=f"{NERSC}: 1,536 nodes of 4 A100 40GB and 256 of 4 A100 80GB, modelled with 40 GB too",
    node=PERLMUTTER,
    wiring=slingshot(14, 128),
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
    wiring=slingshot(74, 128),
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
    wiring=slingshot(24, 112),
    overhead=OVERHEAD,
    notes=network_notes(
        24, f"{CSCS}: 24 cabinets of 112 nodes; a group a cabinet: an assumption, as on Perlmutter", AS_FRONTIER
    ),
)

SLINGSHOT = (PERLMUTTER_MACHINE, FRONTIER_MACHINE, ALPS_MACHINE)
