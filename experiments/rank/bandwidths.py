"""What rings get on a machine: as measured where a table has them, elsewhere simulated as large all-reduces."""

from collections.abc import Callable, Iterable
from math import inf

from quadrille.algorithms.analysis.axonn import FRONTIER, PERLMUTTER, NodeBandwidths, known_bandwidth
from quadrille.algorithms.formats.measured_rows import Faults
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.named import MACHINES

TABLES: dict[str, NodeBandwidths] = {"perlmutter": PERLMUTTER, "frontier": FRONTIER}
LARGE_BYTES = 2_700_000_000
"""Of the all-reduces behind the tables, about; those that are simulated are as large."""
Ring = tuple[int, int]
"""Distance of neighbours, in ranks, and number of members."""


def table_of(machine: Machine, gpus: int) -> NodeBandwidths | None:
    """The table that holds for the machine; None where there is none, or something is changed on the machine."""
    if machine.name not in TABLES or machine.name not in MACHINES:
        return None
    plain = find_machine(machine.name, gpus=gpus)
    unchanged = machine.topology == plain.topology and machine.routing == plain.routing
    return TABLES[machine.name] if unchanged and machine.faults in (None, Faults()) else None


def known(rings: Iterable[Ring], table: NodeBandwidths | None) -> tuple[dict[Ring, float], list[Ring]]:
    """The bandwidths that are known [B/s], and the rings that are to be simulated.

    >>> known([(1, 4), (1, 3), (8, 1)], None)
    ({(8, 1): inf}, [(1, 3), (1, 4)])
    """
    found: dict[Ring, float] = {}
    lacking = []
    for ring in sorted(set(rings)):
        stride, length = ring
        rate = inf if length == 1 else known_bandwidth(stride, length, table) if table is not None else None
        if rate is None:
            lacking.append(ring)
        else:
            found[ring] = rate
    return found, lacking


def simulated_bandwidth(machine: Machine, gpus: int) -> Callable[[Ring], float]:
    """What each of all rings of a kind gets while all of them run at once, as bus bandwidth [B/s]."""
    from quadrille.experiments.network.collective import predict_collective
    from quadrille.experiments.network.question import CollectiveQuestion
    from quadrille.simulator.machine.network import network_of

    net = network_of(machine)

    def found(ring: Ring) -> float:
        stride, length = ring
        question = CollectiveQuestion(
            kind="all_reduce",
            bytes=LARGE_BYTES,
            gpus=gpus,
            group=length,
            stride=stride,
            concurrent="all",
            channels=0,
            shards="even",
        )
        rate = predict_collective(question, machine, net=net).bus_bandwidth
        assert rate is not None, ring
        return rate

    return found
