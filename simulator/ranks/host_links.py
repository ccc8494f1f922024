"""Host links: the resources of copies between GPUs and the memory of their hosts.

Each direction of a link is a resource, which the GPUs behind one switch or socket share by the same rules as any other
link.  If equivalent ranks are simulated as one, a rank gets an equal share of its link: ranks of one program copy at
the same time.  On hosts without GPUs, a host copy is a copy in memory on the compute lane.
"""

from functools import partial

import numpy as np

from quadrille.algorithms.analysis.storage import storages
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import TO_DEVICE, TO_HOST, HostCopy, Op, lane
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.timelines.spans import COMPUTE
from quadrille.algorithms.units import format_bytes
from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.topologies.machines.machine import HostLink, Machine

HOST_LANES = (TO_DEVICE, TO_HOST)


def simulated_lane(op: Op, machine: Machine) -> str:
    """The lane of an op on a machine: host copies of a machine without host links are local work."""
    return COMPUTE if isinstance(op, HostCopy) and machine.host_link is None else lane(op)


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
        _check_host_memory(schedule, placement, machine.host_link, choices)


def _check_host_memory(schedule: Schedule, placement: RankPlacement, link: HostLink, choices: Choices) -> None:
    """Checks that the memory of a host holds what its ranks keep there."""
    ends = (0, schedule.grid.rank_at({"pipeline": schedule.grid.pipeline - 1}))
    of_rank = max(
        each.host_bytes for each in storages(schedule, [schedule.coordinates(rank) for rank in ends], choices)
    )
    ranks = int(np.bincount(placement.of_rank // link.memory_gpus).max())
    if ranks * of_rank > link.memory_bytes:
        kept = f"{ranks} rank{'' if ranks == 1 else 's'} of a host keep {format_bytes(ranks * of_rank)}"
        raise InputError(
            f"offload: {kept} in host memory, and a host of "
            f"{placement.machine.name} has {format_bytes(int(link.memory_bytes))}; fewer bytes a rank are accepted, as "
            "with more ranks or --zero 1"
        )


def ranks_of_fullest_link(link: HostLink, placement: RankPlacement) -> int:
    """Number of ranks behind the host link that has the most."""
    return int(np.bincount(placement.of_rank // link.gpus).max())


class HostLinks:
    """The flows of host copies of the simulated ranks.

    Parameters
    ----------
    link : the host link of each GPU; None if the machine has none
    folded : whether one rank is simulated for each class of equivalent ranks
    """

    def __init__(self, link: HostLink | None, placement: RankPlacement, engine: FlowEngine, *, folded: bool) -> None:
        self._link, self._placement, self._engine, self._folded = link, placement, engine, folded
        self._resources: dict[tuple[str, int], int] = {}
        self._flows: dict[tuple[int, str, int], int] = {}

    def flow(self, rank: int, direction: str, size: int) -> int:
        """The engine's flow of a copy of `size` bytes of a rank in a direction, `to-host` or `to-device`."""
        assert self._link is not None
        key = rank, direction, size
        if key not in self._flows:
            rate = self._link.bytes_per_second
            self._flows[key] = self._engine.add_flow(
                float(size),
                {self._resource(rank, direction): float(self._sharing)},
                cap=rate,
                latency=self._link.latency_seconds,
                alone=size / rate,
            )
        return self._flows[key]

    @property
    def _sharing(self) -> int:
        """Ranks that one flow stands for on its link: those of the fullest link if equivalent ranks are one."""
        assert self._link is not None
        return ranks_of_fullest_link(self._link, self._placement) if self._folded else 1

    def _resource(self, rank: int, direction: str) -> int:
        """The engine's resource of one direction of a rank's host link."""
        assert self._link is not None
        group = self._placement.endpoint(rank) // self._link.gpus
        key = direction, rank if self._folded else group
        if key not in self._resources:
            first = group * self._link.gpus
            last = first + self._link.gpus - 1
            gpus = f"gpu:{first}" if first == last else f"gpu:{first} to gpu:{last}"
            name = partial(str, f"host link of {gpus}, {direction}")
            self._resources[key] = self._engine.add_resource(self._link.bytes_per_second, name)
        return self._resources[key]
