"""What ranks share, in one numbering: first the links of the network, then the cores of places, then their memory.

Where hosts share one machine, all have its memory and either all of its cores or, where these are dealt out, one
core for each rank.
"""

from functools import partial
from math import inf

from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.placement import RankPlacement


class Numbering:
    """Links of the network, then cores of places, then memory of places."""

    def __init__(self, placement: RankPlacement) -> None:
        self._homes = placement
        self._links = placement.net.link_count
        self._memory = self._links + max(
            placement.net.place_count, placement.cores(0) if placement.pinned_evenly else 0
        )

    def at(self, kind: str, rank: int) -> int:
        """Number of the cores or the memory of a rank."""
        placement = self._homes
        if kind == "memory":
            return self._memory + (0 if placement.hosts_share_cores else placement.place(rank))
        return self._links + (
            int(placement.core_of_rank[rank]) if placement.hosts_share_cores else placement.place(rank)
        )

    def name(self, number: int) -> str:
        if number < self._links:
            return self._homes.net.link(number).name
        place = self._homes.net.places[0]
        if number >= self._memory:
            return (
                f"memory of all {place}s"
                if self._homes.hosts_share_cores
                else f"memory of {place}:{number - self._memory}"
            )
        own = number - self._links
        if self._homes.pinned_evenly:
            return f"core {own} of all {place}s"
        return f"cores of all {place}s" if self._homes.hosts_share_cores else f"cores of {place}:{own}"

    def capacity(self, number: int) -> float:
        """Units per second of a resource."""
        if number < self._links:
            return float(self._homes.net.bandwidths[number])
        if number < self._memory:
            return 1.0 if self._homes.pinned_evenly else float(self._homes.cores(number - self._links))
        host = self._homes.machine.host
        return host.memory_bytes_per_second or inf if host is not None else inf


class EngineResources(Numbering):
    """Those of them that are used, as resources of an engine."""

    def __init__(self, placement: RankPlacement, engine: FlowEngine) -> None:
        super().__init__(placement)
        self._engine = engine
        self._bursts = placement.bursts.tolist()
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
