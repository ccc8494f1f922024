"""What local work and a transfer between two ranks cost and share.

A host is a network too: its cores (or its one GPU) and the bandwidth of its
memory are resources of the engine, like links, shared by the ranks on it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from algorithms.formats.machine import Machine, TransferRow
from simulator.engine import FlowEngine
from simulator.folding.resources import Apart, Channel, Resources
from simulator.homes import Homes, homes_of
from simulator.interpolation import SecondsBySize
from simulator.machine_network import routes_of

SAME_PLACE_TOUCHES = 2
"""Bytes of memory read and written for one byte that goes from a rank to another on its host."""

PACKETS_FIRST = 1e12
"""Bytes a second that a transfer has where work has a core: the kernel moves packets before it runs programs."""


@dataclass(frozen=True, slots=True)
class Cost:
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


class Wiring:
    """The ranks of a run on a machine, and what they take of the resources of an engine.

    Parameters
    ----------
    homes : where the ranks live, by default packed
    resources : by default those of every rank by itself
    """

    def __init__(
        self,
        machine: Machine,
        ranks: int,
        engine: FlowEngine,
        *,
        homes: Homes | None = None,
        resources: Resources | None = None,
    ) -> None:
        self._machine = machine
        self._engine = engine
        self._homes = homes or homes_of(machine, ranks)
        self._resources = resources or Apart(self._homes, routes_of(machine, self._homes.net), engine)
        self._curves: dict[tuple[str, str, int], tuple[SecondsBySize, int] | None] = {}

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
        return self._homes.net.place_count

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

    def transfer(self, sender: int, receiver: int, size: float, pattern: str) -> Cost:
        """What it takes to bring `size` bytes from a rank to another, as one step of a pattern."""
        return self.transfer_on(self.channel("", sender, receiver), size, pattern)

    def transfer_on(self, channel: Channel, size: float, pattern: str) -> Cost:
        """What it takes to bring `size` bytes through a channel, as one step of a pattern."""
        sender, receiver = self._resources.ends(channel)
        if self.home(sender) == self.home(receiver):
            return self._within(sender, channel, size, pattern)
        return self._across(sender, channel, size, pattern)

    def _within(self, sender: int, channel: Channel, size: float, pattern: str) -> Cost:
        """Between ranks of one host.  Rows of more ranks than cores have these shared already."""
        found = self._curve("host", pattern, sender)
        if found is None:
            bandwidth = self._machine.device.memory_bytes_per_second / SAME_PLACE_TOUCHES
            demands = self.local(sender, 1.0, SAME_PLACE_TOUCHES * bandwidth, channel)
            seconds = size / bandwidth
            return Cost(self._machine.device.overhead_seconds, seconds, 1.0, demands, seconds)
        curve, ranks = found
        seconds = max(0.0, curve.seconds(size) - curve.least)
        rate = SAME_PLACE_TOUCHES * size / seconds if seconds else 0.0
        demands = self.local(sender, 1.0, rate, channel) if ranks <= self.cores_of(self.home(sender)) else {}
        return Cost(curve.least, seconds, 1.0, demands, seconds, not curve.covers(size))

    def _across(self, sender: int, channel: Channel, size: float, pattern: str) -> Cost:
        route = self._resources.route(channel)
        demands = route.demands | self._carrying(channel)
        found = self._curve("network", pattern, sender)
        if found is None:
            return Cost(route.latency, size, inf, demands, size / route.alone, weight=self._weight)
        curve, _ = found
        beyond = curve.seconds(size) - curve.least
        cap = size / beyond if beyond > 0 else inf
        alone = size / min(cap, route.alone)
        return Cost(curve.least, size, cap, demands, alone, not curve.covers(size), self._weight)

    def _carrying(self, channel: Channel) -> dict[int, float]:
        """What a byte between hosts takes of the cores that they share: half where it is sent, half where it comes."""
        network = self._machine.network
        if network is None or not network.core_seconds_per_byte or not self._homes.pooled:
            return {}
        taken: dict[int, float] = defaultdict(float)
        for rank in self._resources.ends(channel):
            cores, count = self._resources.at_home(rank, "cores", channel)
            taken[cores] += network.core_seconds_per_byte * count / 2
        return taken

    @property
    def _weight(self) -> float:
        """Of a transfer between hosts: where they share cores, packets are moved before anything is computed."""
        return PACKETS_FIRST if self._homes.pooled else 1.0

    def _curve(self, where: str, pattern: str, rank: int) -> tuple[SecondsBySize, int] | None:
        """Measured seconds by size of a pattern, and on how many ranks at once they were measured.

        On a host its ranks take part, on the network the hosts that have ranks.
        """
        within = where == "host"
        most = self.cores_of(self.home(rank)) if within else self.places
        taking_part = self.neighbours(rank) if within else self._homes.used_places
        key = (where, pattern, taking_part)
        if key not in self._curves:
            part = self._machine.host if within else self._machine.network
            self._curves[key] = curve_of(part.transfer if part is not None else (), pattern, taking_part, most)
        return self._curves[key]


def curve_of(
    rows: Sequence[TransferRow], pattern: str, taking_part: int, most: int
) -> tuple[SecondsBySize, int] | None:
    """The rows of this pattern, or of the one most like it, on the number of ranks nearest to those taking part.

    Rows of more ranks than `most`, cores or hosts, are used only where there are no others, as of the ranks of one GPU.
    Where two exchange, each sends and receives at once as in a shift, which is what was measured of two.
    """
    if not rows:
        return None
    of_two = {row.pattern for row in rows if row.ranks == taking_part == 2}
    if pattern == "exchange" and pattern not in of_two and "shift" in of_two:
        pattern = "shift"
    measured = {row.pattern for row in rows}
    nearest = next(p for p in (pattern, "shift", "exchange", "one_way") if p in measured)
    counts = {row.ranks for row in rows if row.pattern == nearest}
    ranks = min(counts, key=lambda count: (count > most, abs(count - taking_part), count))
    points = ((row.bytes, row.seconds) for row in rows if row.pattern == nearest and row.ranks == ranks)
    return SecondsBySize.growing(points), ranks
