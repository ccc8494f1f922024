"""Host links: the resources of copies between GPUs and the memory of their hosts, and of work on the hosts' cores.

Each direction of a link is a resource, which the GPUs behind one switch or socket share by the same rules as any other
link.  If equivalent ranks are simulated as one, a rank gets an equal share of its link: ranks of one program copy at
the same time.  Work on the
host (Adam) takes the bandwidth of the host's memory, which the GPUs of a host share: it does 16 flop for 32 bytes.  On
hosts without GPUs, a host copy is a copy in memory, and both are on the compute lane.
"""

import numpy as np

from quadrille.algorithms.analysis.op_plans import LocalSizes
from quadrille.algorithms.analysis.volumes import storages_of_stages
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import HOST, Compute, HostCopy, lane
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.units import format_bytes
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.topologies.machines.machine import HostLink


def check_host_link(schedule: Schedule, placement: RankPlacement, choices: Choices) -> None:
    """Checks that a machine has the host links and the host memory that a schedule's host copies need.

    Raises
    ------
    InputError : a machine of GPUs without a host link, or with too little host memory
    """
    machine = placement.machine
    copies = next((op for op in all_ops(schedule) if isinstance(op, HostCopy)), None)
    if copies is not None and machine.host_link is None and placement.net.endpoints[0] == "gpu":
        raise InputError(
            f"offload: {machine.name} has no host link, over which op {copies.name!r} would copy; accepted is a "
            "machine with a table [host_link], or no --offload"
        )
    if copies is not None and machine.host_link is not None:
        shortage = host_memory_shortage(schedule, placement, machine.host_link, choices)
        if shortage:
            raise InputError(f"offload: {shortage}; fewer bytes a rank are accepted, as with more ranks or --zero 1")


def host_memory_shortage(schedule: Schedule, placement: RankPlacement, link: HostLink, choices: Choices) -> str:
    """The bytes that the ranks of a host keep in its memory, if the memory has fewer bytes; else empty."""
    of_rank = max(storage.host_bytes for storage in storages_of_stages(schedule, choices))
    ranks = ranks_of_host(link, placement)
    if ranks * of_rank <= link.memory_bytes:
        return ""
    kept = f"{ranks} rank{'' if ranks == 1 else 's'} of a host keep {format_bytes(ranks * of_rank)}"
    return f"{kept} in host memory, and a host of {placement.machine.name} has {format_bytes(int(link.memory_bytes))}"


def ranks_of_host(link: HostLink, placement: RankPlacement) -> int:
    """The largest number of ranks that share the memory of a host."""
    return int(np.bincount(placement.of_rank // link.memory_gpus).max())


def host_seconds(op: Compute, sizes: LocalSizes, link: HostLink) -> float:
    """Seconds of a host copy or of work of the host, alone and without latency: by the link, or by host memory."""
    if isinstance(op, HostCopy):
        return sizes.written / link.bytes_per_second
    touched = sizes.work.touched if sizes.work is not None else sizes.touched
    return touched / link.memory_bytes_per_second


def ranks_that_share(link: HostLink, lane_name: str, placement: RankPlacement) -> int:
    """Number of ranks on the link, or on the host memory for lane `host`, that has the most."""
    return int(np.bincount(placement.of_rank // _gpus(link, lane_name)).max())


def _gpus(link: HostLink, lane_name: str) -> int:
    """Number of GPUs that share a link, or the memory of a host."""
    return link.memory_gpus if lane_name == HOST else link.gpus


class HostLinks:
    """The flows of host copies and of work of the host, of the simulated ranks.

    Parameters
    ----------
    link : the host link of each GPU; None if the machine has none
    folded : whether one rank is simulated for each class of equivalent ranks
    """

    def __init__(self, link: HostLink | None, placement: RankPlacement, engine: FlowEngine, *, folded: bool) -> None:
        self._link, self._placement, self._engine, self._folded = link, placement, engine, folded
        self._resources: dict[tuple[str, int], int] = {}
        self._flows: dict[tuple[int, str, float, int], int] = {}

    def flow(self, rank: int, op: Compute, sizes: LocalSizes) -> int:
        """The engine's flow of an op of a rank; its work is in seconds of the op alone."""
        assert self._link is not None
        name, seconds = lane(op), host_seconds(op, sizes, self._link)
        key = rank, name, seconds, sizes.written
        if key not in self._flows:
            sharing = ranks_that_share(self._link, name, self._placement) if self._folded else 1
            self._flows[key] = self._engine.add_flow(
                seconds,
                {self._resource(rank, name): float(sharing)},
                cap=1.0,
                latency=self._link.latency_seconds if isinstance(op, HostCopy) else 0.0,
                alone=seconds,
            )
        return self._flows[key]

    def _resource(self, rank: int, lane_name: str) -> int:
        """The engine's resource of one direction of a rank's host link, or of the memory of its host."""
        assert self._link is not None
        gpus = _gpus(self._link, lane_name)
        group = self._placement.endpoint(rank) // gpus
        key = lane_name, rank if self._folded else group
        if key not in self._resources:
            first, last = group * gpus, (group + 1) * gpus - 1
            of_gpus = f"gpu:{first}" if first == last else f"gpu:{first} to gpu:{last}"
            name = f"host memory of {of_gpus}" if lane_name == HOST else f"host link of {of_gpus}, {lane_name}"
            self._resources[key] = self._engine.add_resource(1.0, name)
        return self._resources[key]
