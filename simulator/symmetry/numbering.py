"""What ranks share, in one numbering: first the links of the network, then the cores of places, then their memory.

Where hosts share one machine, all have its memory and either all of its cores or, where these are dealt out, one
core for each rank.
"""

from functools import partial
from math import inf

from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.placement import Homes


class Numbering:
    """Links of the network, then cores of places, then memory of places."""

    def __init__(self, homes: Homes) -> None:
        self._homes = homes
        self._links = homes.net.link_count
        self._memory = self._links + max(homes.net.place_count, homes.cores(0) if homes.dealt_out else 0)

    def at(self, kind: str, rank: int) -> int:
        """Number of the cores or the memory of a rank."""
        homes = self._homes
        if kind == "memory":
            return self._memory + (0 if homes.pooled else homes.place(rank))
        return self._links + (int(homes.core_of_rank[rank]) if homes.pooled else homes.place(rank))

    def name(self, number: int) -> str:
        if number < self._links:
            return self._homes.net.link(number).name
        place = self._homes.net.places[0]
        if number >= self._memory:
            return f"memory of all {place}s" if self._homes.pooled else f"memory of {place}:{number - self._memory}"
        own = number - self._links
        if self._homes.dealt_out:
            return f"core {own} of all {place}s"
        return f"cores of all {place}s" if self._homes.pooled else f"cores of {place}:{own}"

    def capacity(self, number: int) -> float:
        """Units per second of a resource."""
        if number < self._links:
            return float(self._homes.net.bandwidths[number])
        if number < self._memory:
            return 1.0 if self._homes.dealt_out else float(self._homes.cores(number - self._links))
        host = self._homes.machine.host
        return host.memory_bytes_per_second or inf if host is not None else inf


class Entered(Numbering):
    """Those of them that are used, as resources of an engine."""

    def __init__(self, homes: Homes, engine: FlowEngine) -> None:
        super().__init__(homes)
        self._engine = engine
        self._bursts = homes.bursts.tolist()
        self._entered: dict[int, int] = {}

    def entered(self, number: int) -> int:
        """The resource of the engine, made when it is first asked for."""
        if number not in self._entered:
            capacity, name = self.capacity(number), partial(self.name, number)
            burst = self._bursts[number] if number < len(self._bursts) else 0.0
            engine = self._engine
            self._entered[number] = (
                engine.add_link(capacity, burst, name) if burst else engine.add_resource(capacity, name)
            )
        return self._entered[number]
