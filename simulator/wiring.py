"""Where ranks live, and what a transfer between two of them costs and shares.

A host is a network too: its cores (or its one GPU) and the bandwidth of its
memory are resources of the engine, like links, shared by the ranks on it.
"""

from collections.abc import Callable
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
    between ranks of a host; `cap` in units of work per second.
    """

    latency: float
    work: float
    cap: float
    demands: dict[int, float]


def build_topology(machine: Machine) -> nx.MultiDiGraph:
    """The graph of a machine's topology."""
    if "file" in machine.topology:
        return load_topology(str(machine.topology["file"]))
    arguments = {name: value for name, value in machine.topology.items() if name != "family"}
    return build(str(machine.topology["family"]), arguments)  # type: ignore[arg-type]


class Wiring:
    """The ranks of a run on a machine, as resources of an engine.

    Ranks are placed in order: one on each GPU, or as many on each host as its
    file says or it has cores, more where there are too many ranks for that.
    """

    def __init__(self, machine: Machine, ranks: int, engine: FlowEngine) -> None:
        self._machine = machine
        self._engine = engine
        self._net = build_topology(machine)
        self._routes = Routes(self._net)
        self._places = places(self._net)
        self._home = self._placed(ranks)
        self._links: dict[str, int] = {}
        self._cores: dict[int, int] = {}
        self._curves: dict[tuple[str, str], SecondsBySize | None] = {}

    def _placed(self, ranks: int) -> list[int]:
        count = len(self._places)
        if self._net.graph["places"][0] == "gpu":
            if ranks > count:
                raise InputError(f"{ranks} ranks: {self._machine.name} has {count} GPUs; at most one rank a GPU")
            return list(range(ranks))
        host = self._machine.host
        usual = host.ranks if host is not None and host.ranks is not None else self.cores_of(0)
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

    def cores(self, rank: int) -> int:
        """The resource of the cores where a rank lives."""
        place = self.home(rank)
        if place not in self._cores:
            name = f"cores of {self._places[place]}"
            self._cores[place] = self._engine.add_resource(float(self.cores_of(place)), name)
        return self._cores[place]

    def transfer(self, sender: int, receiver: int, size: int, pattern: str) -> Cost:
        """What it takes to bring `size` bytes from a rank to another, as one step of a pattern."""
        if self.home(sender) == self.home(receiver):
            return self._within(sender, size, pattern)
        return self._across(sender, receiver, size, pattern)

    def _within(self, sender: int, size: int, pattern: str) -> Cost:
        curve = self._curve("host", pattern)
        demands = {self.cores(sender): 1.0}
        if curve is None:
            bandwidth = self._machine.device.memory_bytes_per_second / SAME_PLACE_TOUCHES
            return Cost(self._machine.device.overhead_seconds, size / bandwidth, 1.0, demands)
        return Cost(curve.least, max(0.0, curve.seconds(size) - curve.least), 1.0, demands)

    def _across(self, sender: int, receiver: int, size: int, pattern: str) -> Cost:
        names = self._routes.between(self.home(sender), self.home(receiver))
        demands = {self._link(name): 1.0 for name in names}
        curve = self._curve("network", pattern)
        if curve is None:
            latency = sum(find_link(self._net, name).latency for name in names)
            return Cost(latency, size, float("inf"), demands)
        beyond = curve.seconds(size) - curve.least
        return Cost(curve.least, size, size / beyond if beyond > 0 else float("inf"), demands)

    def _link(self, name: str) -> int:
        if name not in self._links:
            self._links[name] = self._engine.add_resource(find_link(self._net, name).bandwidth, name)
        return self._links[name]

    def _curve(self, where: str, pattern: str) -> SecondsBySize | None:
        """Measured seconds by size of a pattern; of another pattern where this one was not measured."""
        key = (where, pattern)
        if key not in self._curves:
            part = self._machine.host if where == "host" else self._machine.network
            rows = part.transfer if part is not None else ()
            self._curves[key] = _curve_of(rows, pattern)
        return self._curves[key]

    def start(self, cost: Cost, then: Callable[[], object]) -> None:
        """Begin a transfer; `then` is called when it has ended."""
        self._engine.start(cost.work, cost.demands, cap=cost.cap, latency=cost.latency, then=then)


def _curve_of(rows: tuple[TransferRow, ...], pattern: str) -> SecondsBySize | None:
    if not rows:
        return None
    measured = {row.pattern for row in rows}
    nearest = next(p for p in (pattern, "shift", "exchange", "one_way") if p in measured)
    chosen = [row for row in rows if row.pattern == nearest]
    most = max(row.ranks for row in chosen)
    return SecondsBySize.of((row.bytes, row.seconds) for row in chosen if row.ranks == most)
