"""Resources of transfers and local work, for single ranks or for classes of equivalent ranks.

`PerRankResources` has resources for every rank, endpoint and link.  `PerClassResources` has resources for every class
of ranks, flows and links (`symmetry/classes.py`): if n flows of a class cross each link of a class, the flow that
represents the class takes n times its share of the link that represents the links.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.symmetry.classes import EngineResources, FlowPaths, SymmetryClasses
from quadrille.topologies.network import Ints
from quadrille.topologies.routes.routing import Routes

Channel = tuple[str, int, int] | int
"""Messages in order: a lane, sender and receiver, or the class of such flows."""
MAX_CACHED_ROUTES = 1 << 16


@dataclass(frozen=True, slots=True)
class RouteDemand:
    """The resources that each byte on a channel takes, with the latency of its route.

    Parameters
    ----------
    demands : units of each resource for each byte
    latency : latency of the route [s]
    alone : rate without contention [B/s]
    """

    demands: dict[int, float]
    latency: float
    alone: float


class Resources(Protocol):
    """Maps transfers and local work of ranks to resources of the engine."""

    def channel(self, lane: str, sender: int, receiver: int) -> Channel:
        """The channel from a rank to another, or the channel of its class."""
        ...

    def ends(self, channel: Channel) -> tuple[int, int]:
        """A sender and receiver that use the channel."""
        ...

    def route(self, channel: Channel) -> RouteDemand:
        """Demands of a byte on the channel."""
        ...

    def host_resource(self, rank: int, kind: str, channel: Channel | None = None) -> tuple[int, float]:
        """The cores or memory of a rank's endpoint, and the factor by which work counts on them.

        The work is the rank's own, or a transfer on a channel within its endpoint.
        """
        ...


class PerRankResources:
    """Resources of every single rank; routes that are not in `known_paths` are computed when they are used.

    Parameters
    ----------
    known_paths : paths of flows that were computed together, which is much faster than one by one
    """

    def __init__(
        self, placement: RankPlacement, routes: Routes, engine: FlowEngine, known_paths: "FlowPaths | None" = None
    ) -> None:
        self._placement = placement
        self._routes = routes
        self._flow_paths = known_paths
        self._numbers = EngineResources(placement, engine)
        self._between = lru_cache(MAX_CACHED_ROUTES)(self._routed)

    def channel(self, lane: str, sender: int, receiver: int) -> Channel:
        return lane, sender, receiver

    def ends(self, channel: Channel) -> tuple[int, int]:
        assert isinstance(channel, tuple)
        _, sender, receiver = channel
        return sender, receiver

    def route(self, channel: Channel) -> RouteDemand:
        sender, receiver = self.ends(channel)
        return self._between(self._placement.endpoint(sender), self._placement.endpoint(receiver))

    def _routed(self, source: int, target: int) -> RouteDemand:
        flow = self._flows.get((source, target))
        if flow is None or self._flow_paths is None:
            paths = self._routes.between([source], [target])
        else:
            paths = self._flow_paths.paths
        first, last = paths.offsets[flow or 0 : (flow or 0) + 2].tolist()
        taken = list(zip(paths.links[first:last].tolist(), paths.shares[first:last].tolist(), strict=True))
        return RouteDemand(
            {self._numbers.engine_resource(link): share for link, share in taken},
            float(paths.latency[flow or 0]),
            min(self._numbers.capacity(link) / share for link, share in taken),
        )

    @cached_property
    def _flows(self) -> dict[tuple[int, int], int]:
        """Index in `known_paths` of each flow, by the endpoints of its two ends."""
        if self._flow_paths is None:
            return {}
        ends = (self._placement.of_rank[rank].tolist() for rank in (self._flow_paths.sender, self._flow_paths.receiver))
        return {pair: flow for flow, pair in enumerate(zip(*ends, strict=True))}

    def host_resource(self, rank: int, kind: str, channel: Channel | None = None) -> tuple[int, float]:
        return self._numbers.engine_resource(self._numbers.at(kind, rank)), 1.0


class PerClassResources:
    """Resources of one rank, flow and link for each class of equivalent ranks."""

    def __init__(self, classes: SymmetryClasses, placement: RankPlacement, engine: FlowEngine) -> None:
        self._classes = classes
        self._placement = placement
        self._numbers = EngineResources(placement, engine)
        self._shares: dict[int, dict[int, float]] = {}
        self._share = lru_cache(MAX_CACHED_ROUTES)(self._routed)

    def channel(self, lane: str, sender: int, receiver: int) -> Channel:
        return self._classes.channels[lane, sender, receiver]

    def ends(self, channel: Channel) -> tuple[int, int]:
        assert isinstance(channel, int)
        flow = self._classes.quotient.flow_of[channel]
        return int(self._classes.flows.sender[flow]), int(self._classes.flows.receiver[flow])

    def route(self, channel: Channel) -> RouteDemand:
        assert isinstance(channel, int)
        return self._share(channel)

    def _routed(self, channel: int) -> RouteDemand:
        flow, paths = self._classes.quotient.flow_of[channel], self._classes.paths
        first, last = paths.offsets[flow : flow + 2].tolist()
        taken = zip(paths.links[first:last].tolist(), paths.shares[first:last].tolist(), strict=True)
        return RouteDemand(
            {self._numbers.engine_resource(link): share for link, share in self._taken(channel).items()},
            float(paths.latency[flow]),
            min(self._numbers.capacity(link) / share for link, share in taken),
        )

    def _taken(self, flow_class: int) -> dict[int, float]:
        """Units that a flow class takes of the links that stand for their classes."""
        if flow_class not in self._shares:
            quotient = self._classes.quotient
            first, last = quotient.flows.offsets[flow_class : flow_class + 2].tolist()
            links = quotient.link_of[quotient.flows.links[first:last]].tolist()
            self._shares[flow_class] = dict(zip(links, quotient.flows.shares[first:last].tolist(), strict=True))
        return self._shares[flow_class]

    def host_resource(self, rank: int, kind: str, channel: Channel | None = None) -> tuple[int, float]:
        channel_of_rank = self._classes.own
        number = self._numbers.at(kind, rank)
        if self._placement.hosts_share_cores:
            return self._numbers.engine_resource(number), float(self._members(rank, channel))
        if not channel_of_rank:
            return self._numbers.engine_resource(number), 1.0
        flow_class = channel_of_rank[rank] if channel is None else channel
        assert isinstance(flow_class, int)
        folding, quotient = self._classes.folding, self._classes.quotient
        stands = int(quotient.link_of[folding.links[number]])
        return self._numbers.engine_resource(stands), self._taken(flow_class)[stands]

    def _members(self, rank: int, channel: Channel | None) -> int:
        """Number of ranks, or channels, that a rank or channel stands for: a resource that all share serves each."""
        folding = self._classes.folding
        if channel is None:
            return int(self._classes.counts[folding.ranks[rank]])
        assert isinstance(channel, int)
        return int(self._class_sizes[channel])

    @cached_property
    def _class_sizes(self) -> Ints:
        return np.bincount(self._classes.folding.flows)
