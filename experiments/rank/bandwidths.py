"""Bandwidths of rings on a machine: measured if a table has them, else simulated as large all-reduces."""

from collections.abc import Callable, Iterable
from math import inf

from quadrille.algorithms.analysis.axonn import FRONTIER, PERLMUTTER, NodeBandwidths, known_bandwidth
from quadrille.algorithms.formats.measured_rows import Faults
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES

TABLES: dict[str, NodeBandwidths] = {"perlmutter": PERLMUTTER, "frontier": FRONTIER}
LARGE_BYTES = 2_700_000_000
"""About the size of the all-reduces behind the tables; simulated all-reduces have the same size."""
Ring = tuple[int, int]
"""Distance between neighbours, in ranks, and number of members."""


def table_of(machine: Machine, gpus: int) -> NodeBandwidths | None:
    """The bandwidth table of the machine; None if it has no table, or if the machine was changed."""
    if machine.name not in TABLES or machine.name not in MACHINES:
        return None
    plain = find_machine(machine.name, gpus=gpus)
    unchanged = machine.topology == plain.topology and machine.routing == plain.routing
    return TABLES[machine.name] if unchanged and machine.faults in (None, Faults()) else None


def known(rings: Iterable[Ring], table: NodeBandwidths | None) -> tuple[dict[Ring, float], list[Ring]]:
    """The known bandwidths [B/s], and the rings that have to be simulated.

    >>> known([(1, 4), (1, 3), (8, 1)], None)
    ({(8, 1): inf}, [(1, 3), (1, 4)])
    """
    bandwidths: dict[Ring, float] = {}
    lacking = []
    for ring in sorted(set(rings)):
        stride, length = ring
        rate = inf if length == 1 else known_bandwidth(stride, length, table) if table is not None else None
        if rate is None:
            lacking.append(ring)
        else:
            bandwidths[ring] = rate
    return bandwidths, lacking


def simulated_bandwidth(machine: Machine, gpus: int) -> Callable[[Ring], float]:
    """A function of a ring: the bus bandwidth [B/s] of each ring of its kind while all of them run at once."""
    from quadrille.experiments.network.collective import predict_collective
    from quadrille.experiments.network.question import CollectiveQuestion
    from quadrille.simulator.machine.network import network_of

    net = network_of(machine)

    def simulated(ring: Ring) -> float:
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

    return simulated
