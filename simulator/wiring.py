"""Where ranks live, and what a transfer between two of them costs and shares.

A host is a network too: its cores (or its one GPU) and the bandwidth of its
memory are resources of the engine, like links, shared by the ranks on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import networkx as nx

from algorithms.errors import InputError
from algorithms.machine import Machine, TransferRow
from simulator.engine import FlowEngine
from simulator.interpolation import SecondsBySize
from topologies.build import build
from topologies.file import load_topology
from topologies.graph import places
from topologies.links import find_link
from topologies.routes import Routes

SAME_PLACE_TOUCHES = 2
"""Bytes of memory read and written for one byte that goes from a rank to another on its host."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A transfer as an activity.

    `work` is in bytes where it goes over links and in seconds where it is
    between ranks of a host; `cap` in units of work per second; `extrapolated`
    says that it is larger than what was measured.
    """

    latency: float
    work: float
    cap: float
    demands: dict[int, float]
    extrapolated: bool = False


def build_topology(machine: Machine) -> nx.MultiDiGraph:
    """The graph of a machine's topology."""
    if "file" in machine.topology:
        return load_topology(str(machine.topology["file"]))
    arguments = {name: value for name, value in machine.topology.items() if name != "family"}
    return build(str(machine.topology["family"]), arguments)  # type: ignore[arg-type]


class Wiring:
    """The ranks of a run on a machine, as resources of an engine.

    Ranks are placed in order: as many on each GPU or host as the machine file
    says, by default one a GPU and one a core, and on hosts more where there are
    too many ranks for that.
    """

    def __init__(self, machine: Machine, ranks: int, engine: FlowEngine) -> None:
        self._machine = machine
        self._engine = engine
        self._net = build_topology(machine)
        self._routes = Routes(self._net)
        self._places = places(self._net)
        self._home = self._placed(ranks)
        self._links: dict[str, int] = {}
        self._shared: dict[tuple[str, int], int] = {}
        self._curves: dict[tuple[str, str, int], tuple[SecondsBySize, int] | None] = {}

    def _placed(self, ranks: int) -> list[int]:
        count = len(self._places)
        host = self._machine.host
        said = host.ranks if host is not None else None
        if self._net.graph["places"][0] == "gpu":
            on_each = said or 1
            if ranks > count * on_each:
                rule = "one rank" if on_each == 1 else f"{on_each} ranks"
                raise InputError(f"{ranks} ranks: {self._machine.name} has {count} GPUs; at most {rule} a GPU")
            return [rank // on_each for rank in range(ranks)]
        usual = said or self.cores_of(0)
        per_host = max(usual, -(-ranks // count))
        return [rank // per_host for rank in range(ranks)]

    def cores_of(self, place: int) -> int:
        """Cores of a host; a GPU counts as one."""
        if self._net.graph["places"][0] == "gpu":
            return 1
        given = self._net.nodes[self._places[place]].get("cores", 1)
        return self._machine.host.cores if self._machine.host is not None else int(given)

    def home(self, rank: int) -> int:
        """The place where a rank lives."""
        return self._home[rank]

    def neighbours(self, rank: int) -> int:
        """Ranks that live where this one does, itself included."""
        return self._home.count(self._home[rank])

    def threads(self, rank: int) -> int:
        """BLAS threads of a rank unless told otherwise: its share of the cores."""
        return max(1, self.cores_of(self.home(rank)) // self.neighbours(rank))

    def local(self, rank: int, threads: float, bytes_per_second: float = 0.0) -> dict[int, float]:
        """What a second of local work takes of the host: cores, and the bandwidth of its memory.

        Work that touches memory faster than the host's memory can be touched
        is served by caches, and takes none of it.
        """
        demands = {self._resource("cores", rank, float(self.cores_of(self.home(rank)))): threads}
        host = self._machine.host
        shared = host.memory_bytes_per_second if host is not None else None
        if shared is not None and 0 < bytes_per_second <= shared:
            demands[self._resource("memory", rank, shared)] = bytes_per_second
        return demands

    def _resource(self, kind: str, rank: int, capacity: float) -> int:
        """The resource of that kind where a rank lives."""
        key = (kind, self.home(rank))
        if key not in self._shared:
            self._shared[key] = self._engine.add_resource(capacity, f"{kind} of {self._places[self.home(rank)]}")
        return self._shared[key]

    def transfer(self, sender: int, receiver: int, size: int, pattern: str) -> Cost:
        """What it takes to bring `size` bytes from a rank to another, as one step of a pattern."""
        if self.home(sender) == self.home(receiver):
            return self._within(sender, size, pattern)
        return self._across(sender, receiver, size, pattern)

    def _within(self, sender: int, size: int, pattern: str) -> Cost:
        """Between ranks of one host.  Rows of more ranks than cores have these shared already."""
        found = self._curve("host", pattern, sender)
        if found is None:
            bandwidth = self._machine.device.memory_bytes_per_second / SAME_PLACE_TOUCHES
            demands = self.local(sender, 1.0, SAME_PLACE_TOUCHES * bandwidth)
            return Cost(self._machine.device.overhead_seconds, size / bandwidth, 1.0, demands)
        curve, ranks = found
        seconds = max(0.0, curve.seconds(size) - curve.least)
        rate = SAME_PLACE_TOUCHES * size / seconds if seconds else 0.0
        demands = self.local(sender, 1.0, rate) if ranks <= self.cores_of(self.home(sender)) else {}
        return Cost(curve.least, seconds, 1.0, demands, not curve.covers(size))

    def _across(self, sender: int, receiver: int, size: int, pattern: str) -> Cost:
        names = self._routes.between(self.home(sender), self.home(receiver))
        demands = {self._link(name): 1.0 for name in names}
        found = self._curve("network", pattern, sender)
        if found is None:
            latency = sum(find_link(self._net, name).latency for name in names)
            return Cost(latency, size, float("inf"), demands)
        curve, _ = found
        beyond = curve.seconds(size) - curve.least
        cap = size / beyond if beyond > 0 else float("inf")
        return Cost(curve.least, size, cap, demands, not curve.covers(size))

    def _link(self, name: str) -> int:
        if name not in self._links:
            self._links[name] = self._engine.add_resource(find_link(self._net, name).bandwidth, name)
        return self._links[name]

    def _curve(self, where: str, pattern: str, rank: int) -> tuple[SecondsBySize, int] | None:
        """Measured seconds by size of a pattern, and on how many ranks at once they were measured.

        Of the ranks of a host no more take part at once than it has cores; of
        the hosts, those that have ranks.
        """
        within = where == "host"
        most = self.cores_of(self.home(rank)) if within else len(self._places)
        taking_part = min(self.neighbours(rank), most) if within else len(set(self._home))
        key = (where, pattern, taking_part)
        if key not in self._curves:
            part = self._machine.host if within else self._machine.network
            self._curves[key] = _curve_of(part.transfer if part is not None else (), pattern, taking_part, most)
        return self._curves[key]

    def start(self, cost: Cost, then: Callable[[], object]) -> None:
        """Begin a transfer; `then` is called when it has ended."""
        self._engine.start(cost.work, cost.demands, cap=cost.cap, latency=cost.latency, then=then)


def _curve_of(
    rows: Sequence[TransferRow], pattern: str, taking_part: int, most: int
) -> tuple[SecondsBySize, int] | None:
    """The rows of this pattern, or of the one most like it, on the number of ranks nearest to those taking part.

    Rows of more ranks than `most` are used only where there are no others.
    """
    if not rows:
        return None
    measured = {row.pattern for row in rows}
    nearest = next(p for p in (pattern, "shift", "exchange", "one_way") if p in measured)
    counts = {row.ranks for row in rows if row.pattern == nearest}
    ranks = min(counts, key=lambda count: (count > most, abs(count - taking_part)))
    points = ((row.bytes, row.seconds) for row in rows if row.pattern == nearest and row.ranks == ranks)
    return SecondsBySize.of(points), ranks
