"""What local work and a transfer between two ranks cost and share.

A host is a network too: its cores (or its one GPU) and the bandwidth of its
memory are resources of the engine, like links, shared by the ranks on it.
"""

from collections import defaultdict
from dataclasses import dataclass
from math import inf

from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.network import routes_of
from quadrille.simulator.machine.placement import RankPlacement, place_ranks
from quadrille.simulator.machine.transfer_seconds import TransferTable
from quadrille.simulator.ranks.resources import Channel, PerRankResources, Resources
from quadrille.topologies.machines.machine import Machine

PACKETS_FIRST = 1e12
"""Bytes a second that a transfer has where work has a core: the kernel moves packets before it runs programs."""


@dataclass(frozen=True, slots=True)
class TransferDemand:
    """A transfer as an activity.

    `work` is in bytes where it goes over links and in seconds where it is
    between ranks of a host; `cap` in units of work per second; `alone` are the
    seconds that the work takes with nothing else under way; `extrapolated` says
    that it is larger than what was measured; `weight` is its share relative to
    others.
    """

    latency: float
    work: float
    cap: float
    demands: dict[int, float]
    alone: float
    extrapolated: bool = False
    weight: float = 1.0


class ResourceDemands:
    """The ranks of a run on a machine, and what they take of the resources of an engine.

    Parameters
    ----------
    placement : where the ranks live, by default packed
    resources : by default those of every rank by itself
    """

    def __init__(
        self,
        machine: Machine,
        ranks: int,
        engine: FlowEngine,
        *,
        placement: RankPlacement | None = None,
        resources: Resources | None = None,
    ) -> None:
        self._machine = machine
        self._engine = engine
        self._homes = placement or place_ranks(machine, ranks)
        self._resources = resources or PerRankResources(self._homes, routes_of(machine, self._homes.net), engine)
        self._table = TransferTable(machine, self._homes)

    def cores_of(self, place: int) -> int:
        """Cores of a host; a GPU counts as one."""
        return self._homes.cores(place)

    @property
    def following_seconds(self) -> float:
        """Latency of a step right behind another one; infinite where it is not known."""
        network = self._machine.network
        found = network.following_seconds if network is not None else None
        return inf if found is None else found

    @property
    def places(self) -> int:
        """Hosts, or GPUs."""
        return self._homes.net.endpoint_count

    def home(self, rank: int) -> int:
        """The place where a rank lives."""
        return self._homes.place(rank)

    def neighbours(self, rank: int) -> int:
        """Ranks that live where this one does, itself included."""
        return self._homes.neighbours(rank)

    def sharing(self, rank: int) -> int:
        """Ranks that share cores with this one, itself included."""
        return self._homes.sharing(rank)

    def threads(self, rank: int) -> int:
        """BLAS threads of a rank unless told otherwise: its share of the cores."""
        return self._homes.threads(rank)

    def speed(self, rank: int) -> float:
        """Share of its speed that a rank computes with."""
        return self._homes.speed(rank)

    def channel(self, lane: str, sender: int, receiver: int) -> Channel:
        """What carries the messages of a lane from a rank to another."""
        return self._resources.channel(lane, sender, receiver)

    def local(
        self, rank: int, threads: float, bytes_per_second: float = 0.0, channel: Channel | None = None
    ) -> dict[int, float]:
        """What a second of local work takes of the host: cores, and the bandwidth of its memory.

        Work that touches memory faster than the host's memory can be touched
        is served by caches, and takes none of it.

        Parameters
        ----------
        channel : where the work is a transfer within the host
        """
        resource, count = self._resources.at_home(rank, "cores", channel)
        demands = {resource: threads * count}
        host = self._machine.host
        shared = host.memory_bytes_per_second if host is not None else None
        if shared is not None and 0 < bytes_per_second <= shared:
            resource, count = self._resources.at_home(rank, "memory", channel)
            demands[resource] = bytes_per_second * count
        return demands

    def transfer(self, sender: int, receiver: int, size: float, pattern: str) -> TransferDemand:
        """What it takes to bring `size` bytes from a rank to another, as one step of a pattern."""
        return self.transfer_on(self.channel("", sender, receiver), size, pattern)

    def transfer_on(self, channel: Channel, size: float, pattern: str) -> TransferDemand:
        """What it takes to bring `size` bytes through a channel, as one step of a pattern."""
        sender, receiver = self._resources.ends(channel)
        if self.home(sender) == self.home(receiver):
            return self._within(sender, channel, size, pattern)
        return self._across(channel, size, pattern)

    def _within(self, sender: int, channel: Channel, size: float, pattern: str) -> TransferDemand:
        """Between ranks of one host."""
        seconds = self._table.within(pattern, sender)
        moving = seconds.moving(size)
        demands = self.local(sender, 1.0, seconds.touching(size), channel) if seconds.takes_a_core else {}
        return TransferDemand(seconds.latency, moving, 1.0, demands, moving, not seconds.covers(size))

    def _across(self, channel: Channel, size: float, pattern: str) -> TransferDemand:
        route = self._resources.route(channel)
        demands = route.demands | self._carrying(channel)
        seconds = self._table.across(pattern)
        latency = route.latency if seconds.by_route else seconds.latency
        moving = seconds.moving(size)
        cap = size / moving if moving > 0 else inf
        alone = size / min(cap, route.alone)
        return TransferDemand(latency, size, cap, demands, alone, not seconds.covers(size), self._weight)

    def _carrying(self, channel: Channel) -> dict[int, float]:
        """What a byte between hosts takes of the cores that they share: half where it is sent, half where it comes."""
        network = self._machine.network
        if network is None or not network.core_seconds_per_byte or not self._homes.hosts_share_cores:
            return {}
        taken: dict[int, float] = defaultdict(float)
        for rank in self._resources.ends(channel):
            cores, count = self._resources.at_home(rank, "cores", channel)
            taken[cores] += network.core_seconds_per_byte * count / 2
        return taken

    @property
    def _weight(self) -> float:
        """Of a transfer between hosts: where they share cores, packets are moved before anything is computed."""
        return PACKETS_FIRST if self._homes.hosts_share_cores else 1.0
