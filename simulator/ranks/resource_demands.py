"""Resource demands of local work and of transfers: latency, work, rate cap, and units of each resource.

A host is a network too: its cores (or its GPU) and its memory bandwidth are resources of the engine, like links, which
the ranks on it share.
"""

from collections import defaultdict
from dataclasses import dataclass
from math import inf

from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.network import routes_of
from quadrille.simulator.machine.placement import RankPlacement, place_ranks
from quadrille.simulator.machine.seconds_by_size import TransferTable
from quadrille.simulator.ranks.resources import Channel, PerRankResources, Resources
from quadrille.topologies.machines.machine import Machine

PACKET_WEIGHT = 1e12
"""Weight of a transfer that needs a core: the kernel moves packets before it runs programs."""


@dataclass(frozen=True, slots=True)
class TransferDemand:
    """A transfer as a flow of the engine.

    Parameters
    ----------
    latency : seconds before the work starts [s]
    work : bytes if the transfer uses links, seconds if it stays on a host
    cap : largest rate [units of work/s]
    demands : units of each resource for each unit of work
    alone : seconds of the work without contention [s]
    extrapolated : whether the transfer is larger than what was measured
    weight : share of resources relative to other flows
    """

    latency: float
    work: float
    cap: float
    demands: dict[int, float]
    alone: float
    extrapolated: bool = False
    weight: float = 1.0


class ResourceDemands:
    """Resource demands of the local work and the transfers of all ranks of a run.

    Parameters
    ----------
    placement : endpoints of the ranks, by default packed
    resources : by default the resources of every single rank
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
        self._placement = placement or place_ranks(machine, ranks)
        self._resources = resources or PerRankResources(
            self._placement, routes_of(machine, self._placement.net), engine
        )
        self._table = TransferTable(machine, self._placement)

    def cores_of(self, endpoint: int) -> int:
        """Cores of a host; a GPU counts as one."""
        return self._placement.cores(endpoint)

    @property
    def back_to_back_latency(self) -> float:
        """Latency of a step that directly follows another step; infinite if unknown [s]."""
        seconds = self._machine.emulated.back_to_back_latency_seconds
        return inf if seconds is None else seconds

    @property
    def endpoint_count(self) -> int:
        """Number of hosts, or of GPUs."""
        return self._placement.net.endpoint_count

    def endpoint(self, rank: int) -> int:
        """Place of a rank: its host or GPU."""
        return self._placement.endpoint(rank)

    def neighbours(self, rank: int) -> int:
        """Number of ranks at this rank's endpoint, itself included."""
        return self._placement.neighbours(rank)

    def sharing(self, rank: int) -> int:
        """Number of ranks that share cores with this rank, itself included."""
        return self._placement.sharing(rank)

    def threads(self, rank: int) -> int:
        """BLAS threads of a rank by default: its share of the cores."""
        return self._placement.threads(rank)

    def speed(self, rank: int) -> float:
        """Fraction of the device's speed at which a rank computes."""
        return self._placement.speed(rank)

    def channel(self, lane: str, sender: int, receiver: int) -> Channel:
        """The channel of the messages of a lane from a rank to another."""
        return self._resources.channel(lane, sender, receiver)

    def local(
        self, rank: int, threads: float, bytes_per_second: float = 0.0, channel: Channel | None = None
    ) -> dict[int, float]:
        """Units of host resources for one second of local work: cores and memory bandwidth.

        Work that touches memory faster than the host's memory bandwidth runs in caches, and takes no memory bandwidth.

        Parameters
        ----------
        channel : channel of the transfer, if the work is a transfer within the host
        """
        resource, count = self._resources.host_resource(rank, "cores", channel)
        demands = {resource: threads * count}
        host = self._machine.host
        shared = host.memory_bytes_per_second if host is not None else None
        if shared is not None and 0 < bytes_per_second <= shared:
            resource, count = self._resources.host_resource(rank, "memory", channel)
            demands[resource] = bytes_per_second * count
        return demands

    def transfer(self, sender: int, receiver: int, size: float, pattern: str) -> TransferDemand:
        """Demand of a transfer of `size` bytes between two ranks, as one step of a pattern."""
        return self.transfer_on(self.channel("", sender, receiver), size, pattern)

    def transfer_on(self, channel: Channel, size: float, pattern: str) -> TransferDemand:
        """Demand of a transfer of `size` bytes on a channel, as one step of a pattern."""
        sender, receiver = self._resources.ends(channel)
        if self.endpoint(sender) == self.endpoint(receiver):
            return self._within(sender, channel, size, pattern)
        return self._across(channel, size, pattern)

    def _within(self, sender: int, channel: Channel, size: float, pattern: str) -> TransferDemand:
        """Demand of a transfer between ranks of one host."""
        seconds = self._table.within(pattern, sender)
        moving = seconds.moving(size)
        demands = self.local(sender, 1.0, seconds.touching(size), channel) if seconds.takes_a_core else {}
        return TransferDemand(seconds.latency, moving, 1.0, demands, moving, not seconds.covers(size))

    def _across(self, channel: Channel, size: float, pattern: str) -> TransferDemand:
        route = self._resources.route(channel)
        demands = route.demands | self._packet_work(channel)
        seconds = self._table.across(pattern)
        latency = route.latency if seconds.by_route else seconds.latency
        moving = seconds.moving(size)
        cap = size / moving if moving > 0 else inf
        alone = size / min(cap, route.alone)
        return TransferDemand(latency, size, cap, demands, alone, not seconds.covers(size), self._weight)

    def _packet_work(self, channel: Channel) -> dict[int, float]:
        """Units of shared cores for each byte between hosts: half at the sender, half at the receiver."""
        core_seconds = self._machine.emulated.core_seconds_per_byte
        if not core_seconds or not self._placement.hosts_share_cores:
            return {}
        demands: dict[int, float] = defaultdict(float)
        for rank in self._resources.ends(channel):
            cores, count = self._resources.host_resource(rank, "cores", channel)
            demands[cores] += core_seconds * count / 2
        return demands

    @property
    def _weight(self) -> float:
        """Weight of a transfer between hosts; on hosts that share cores, packets go before computing."""
        return PACKET_WEIGHT if self._placement.hosts_share_cores else 1.0
