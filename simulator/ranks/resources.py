"""What local work and transfers take of which resources, for ranks one by one or for classes of them.

*Apart*: every rank, place and link is itself.  *Together*: the ranks, flows and
links of one class are one (`classes.py`); where n flows of a class cross each
link of a class, a transfer of the one that stands for them takes n times its
share of the one link that stands for those.
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
"""What carries messages in order: a lane from one rank to another, or the class of such flows."""
ROUTES_KEPT = 1 << 16


@dataclass(frozen=True, slots=True)
class Share:
    """What a byte on a channel takes of which resources, the latency [s], and the rate that it has alone [B/s]."""

    demands: dict[int, float]
    latency: float
    alone: float


class Resources(Protocol):
    """How transfers and local work of ranks meet."""

    def channel(self, lane: str, sender: int, receiver: int) -> Channel:
        """The channel from a rank to another, or that of its class."""
        ...

    def ends(self, channel: Channel) -> tuple[int, int]:
        """A sender and receiver that use the channel."""
        ...

    def route(self, channel: Channel) -> Share:
        """What a byte on the channel takes of the network."""
        ...

    def at_home(self, rank: int, kind: str, channel: Channel | None = None) -> tuple[int, float]:
        """The cores or memory where a rank lives, and how often work counts on them.

        The work is the rank's own, or a transfer on a channel within its place.
        """
        ...


class PerRankResources:
    """Every rank by itself; routes that are not known are looked up when they are used.

    Parameters
    ----------
    known : of as many flows as somebody has asked for already: in one go that takes far less time
    """

    def __init__(
        self, placement: RankPlacement, routes: Routes, engine: FlowEngine, known: "FlowPaths | None" = None
    ) -> None:
        self._homes = placement
        self._routes = routes
        self._known = known
        self._numbers = EngineResources(placement, engine)
        self._between = lru_cache(ROUTES_KEPT)(self._routed)

    def channel(self, lane: str, sender: int, receiver: int) -> Channel:
        return lane, sender, receiver

    def ends(self, channel: Channel) -> tuple[int, int]:
        assert isinstance(channel, tuple)
        _, sender, receiver = channel
        return sender, receiver

    def route(self, channel: Channel) -> Share:
        sender, receiver = self.ends(channel)
        return self._between(self._homes.place(sender), self._homes.place(receiver))

    def _routed(self, source: int, target: int) -> Share:
        flow = self._flows.get((source, target))
        paths = self._routes.between([source], [target]) if flow is None or self._known is None else self._known.paths
        first, last = paths.offsets[flow or 0 : (flow or 0) + 2].tolist()
        taken = list(zip(paths.links[first:last].tolist(), paths.shares[first:last].tolist(), strict=True))
        return Share(
            {self._numbers.entered(link): share for link, share in taken},
            float(paths.latency[flow or 0]),
            min(self._numbers.capacity(link) / share for link, share in taken),
        )

    @cached_property
    def _flows(self) -> dict[tuple[int, int], int]:
        """A flow between two places, by these."""
        if self._known is None:
            return {}
        ends = (self._homes.of_rank[rank].tolist() for rank in (self._known.sender, self._known.receiver))
        return {pair: flow for flow, pair in enumerate(zip(*ends, strict=True))}

    def at_home(self, rank: int, kind: str, channel: Channel | None = None) -> tuple[int, float]:
        return self._numbers.entered(self._numbers.at(kind, rank)), 1.0


class PerClassResources:
    """One rank, flow and link for each class."""

    def __init__(self, classes: SymmetryClasses, placement: RankPlacement, engine: FlowEngine) -> None:
        self._classes = classes
        self._homes = placement
        self._numbers = EngineResources(placement, engine)
        self._shares: dict[int, dict[int, float]] = {}
        self._share = lru_cache(ROUTES_KEPT)(self._routed)

    def channel(self, lane: str, sender: int, receiver: int) -> Channel:
        return self._classes.channels[lane, sender, receiver]

    def ends(self, channel: Channel) -> tuple[int, int]:
        assert isinstance(channel, int)
        flow = self._classes.quotient.flow_of[channel]
        return int(self._classes.flows.sender[flow]), int(self._classes.flows.receiver[flow])

    def route(self, channel: Channel) -> Share:
        assert isinstance(channel, int)
        return self._share(channel)

    def _routed(self, channel: int) -> Share:
        flow, paths = self._classes.quotient.flow_of[channel], self._classes.paths
        first, last = paths.offsets[flow : flow + 2].tolist()
        taken = zip(paths.links[first:last].tolist(), paths.shares[first:last].tolist(), strict=True)
        return Share(
            {self._numbers.entered(link): share for link, share in self._taken(channel).items()},
            float(paths.latency[flow]),
            min(self._numbers.capacity(link) / share for link, share in taken),
        )

    def _taken(self, flow_class: int) -> dict[int, float]:
        """What a unit of a class of flows takes of the links that stand for their classes."""
        if flow_class not in self._shares:
            small = self._classes.quotient
            first, last = small.flows.offsets[flow_class : flow_class + 2].tolist()
            links = small.link_of[small.flows.links[first:last]].tolist()
            self._shares[flow_class] = dict(zip(links, small.flows.shares[first:last].tolist(), strict=True))
        return self._shares[flow_class]

    def at_home(self, rank: int, kind: str, channel: Channel | None = None) -> tuple[int, float]:
        own = self._classes.own
        number = self._numbers.at(kind, rank)
        if self._homes.hosts_share_cores:
            return self._numbers.entered(number), float(self._members(rank, channel))
        if not own:
            return self._numbers.entered(number), 1.0
        flow_class = own[rank] if channel is None else channel
        assert isinstance(flow_class, int)
        folding, small = self._classes.folding, self._classes.quotient
        stands = int(small.link_of[folding.links[number]])
        return self._numbers.entered(stands), self._taken(flow_class)[stands]

    def _members(self, rank: int, channel: Channel | None) -> int:
        """How many ranks, or channels, this one stands for: a resource that all share sees each of them."""
        folding = self._classes.folding
        if channel is None:
            return int(self._classes.counts[folding.ranks[rank]])
        assert isinstance(channel, int)
        return int(self._class_sizes[channel])

    @cached_property
    def _class_sizes(self) -> Ints:
        return np.bincount(self._classes.folding.flows)
