"""Bus bandwidths of rings on a machine: from a published table, else simulated as large all-reduces."""

from collections.abc import Callable, Iterable
from functools import cache
from math import inf

from quadrille.algorithms.analysis.axonn import FRONTIER, PERLMUTTER, NodeBandwidths, known_bandwidth
from quadrille.algorithms.formats.measured_rows import Faults
from quadrille.experiments.rank.work_sharing import TaskKind
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES

TABLES: dict[str, NodeBandwidths] = {"perlmutter": PERLMUTTER, "frontier": FRONTIER}
LARGE_BYTES = 2_700_000_000
"""Size of simulated all-reduces [B], about the size of the measured all-reduces of the tables."""
Ring = tuple[int, int]
"""Distance between neighbours, in ranks, and number of members."""
_simulated: dict[tuple[str, int], Callable[[Ring], float]] = {}
"""The simulations of rings on the last machine and number of GPUs of this process, by hash and number."""


def bandwidth_table(machine: Machine, gpus: int) -> NodeBandwidths | None:
    """The published bandwidth table of a machine; None if it has no table, or if the user changed the machine."""
    if machine.name not in TABLES or machine.name not in MACHINES:
        return None
    plain = find_machine(machine.name, gpus=gpus)
    unchanged = machine.topology == plain.topology and machine.routing == plain.routing
    return TABLES[machine.name] if unchanged and machine.faults in (None, Faults()) else None


def split_known_bandwidths(rings: Iterable[Ring], table: NodeBandwidths | None) -> tuple[dict[Ring, float], list[Ring]]:
    """The known bandwidths of rings [B/s], and the rings whose bandwidth is unknown.

    >>> split_known_bandwidths([(1, 4), (1, 3), (8, 1)], None)
    ({(8, 1): inf}, [(1, 3), (1, 4)])
    """
    bandwidths: dict[Ring, float] = {}
    unknown_rings = []
    for ring in sorted(set(rings)):
        stride, length = ring
        rate = inf if length == 1 else known_bandwidth(stride, length, table) if table is not None else None
        if rate is None:
            unknown_rings.append(ring)
        else:
            bandwidths[ring] = rate
    return bandwidths, unknown_rings


def simulated_bandwidth(machine: Machine, gpus: int) -> Callable[[Ring], float]:
    """A function that simulates a ring: it returns the bus bandwidth [B/s] while all rings of its kind run at once.

    Successive questions about the same machine and number of GPUs share the bandwidths, unless its topology is a file,
    which can change.
    """
    if "file" in machine.topology:
        return _simulation(machine, gpus)
    key = machine.sha256, gpus
    if key not in _simulated:
        _simulated.clear()
        _simulated[key] = cache(_simulation(machine, gpus))
    return _simulated[key]


def _simulation(machine: Machine, gpus: int) -> Callable[[Ring], float]:
    from quadrille.experiments.network.collective import predict_collective
    from quadrille.experiments.network.collective_question import CollectiveQuestion
    from quadrille.simulator.machine.network import network_of

    net = network_of(machine)

    def simulated_ring_bandwidth(ring: Ring) -> float:
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

    return simulated_ring_bandwidth


def simulated_bandwidths(machine: Machine, gpus: int) -> TaskKind:
    """The simulations of rings, as tasks of a store."""
    return TaskKind("rank: ring bandwidth", lambda ring: (machine, gpus, LARGE_BYTES, ring), float)
