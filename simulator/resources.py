"""What local work and transfers take of which resources, for ranks one by one or for classes of them.

Resources are the links of the network, and at every place its cores and its
memory, in one numbering: first the links, then cores, then memory.

*Apart*: every rank, place and link is itself.  *Together*: the ranks, flows and
links of one class are one (`folding.py`); where n flows of a class cross each
link of a class, a transfer of the one that stands for them takes n times its
share of the one link that stands for those.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Protocol

import numpy as np

from simulator.engine import FlowEngine
from simulator.equitable import Flows, Ints
from simulator.folding import Folding, Quotient, fold, quotient
from simulator.homes import Homes
from simulator.patterns import Patterns
from topologies.routing import Paths, Routes

Channel = tuple[str, int, int] | int
"""What carries messages in order: a lane from one rank to another, or the class of such flows."""
ROUTES_KEPT = 1 << 16
OWN_WORK = -1
"""The label of work that a rank does at its own place."""


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


class Numbering:
    """Links of the network, then cores of places, then memory of places."""

    def __init__(self, homes: Homes) -> None:
        self._homes = homes
        self._links, self._places = homes.net.link_count, homes.net.place_count

    def at(self, kind: str, place: int) -> int:
        """Number of the cores or the memory of a place."""
        return self._links + place + (self._places if kind == "memory" else 0)

    def name(self, number: int) -> str:
        if number < self._links:
            return self._homes.net.link(number).name
        kind = "cores" if number < self._links + self._places else "memory"
        return f"{kind} of {self._homes.net.places[0]}:{(number - self._links) % self._places}"

    def capacity(self, number: int) -> float:
        """Units per second of a resource."""
        if number < self._links:
            return float(self._homes.net.bandwidths[number])
        if number < self._links + self._places:
            return float(self._homes.cores(number - self._links))
        host = self._homes.machine.host
        return host.memory_bytes_per_second or inf if host is not None else inf


class Entered(Numbering):
    """Those of them that are used, as resources of an engine."""

    def __init__(self, homes: Homes, engine: FlowEngine) -> None:
        super().__init__(homes)
        self._engine = engine
        self._entered: dict[int, int] = {}

    def entered(self, number: int) -> int:
        """The resource of the engine, made when it is first asked for."""
        if number not in self._entered:
            self._entered[number] = self._engine.add_resource(self.capacity(number), self.name(number))
        return self._entered[number]


class Apart:
    """Every rank by itself; nothing is looked up before it is used."""

    def __init__(self, homes: Homes, routes: Routes, engine: FlowEngine) -> None:
        self._homes = homes
        self._routes = routes
        self._numbers = Entered(homes, engine)
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
        paths = self._routes.between([source], [target])
        taken = list(zip(paths.links.tolist(), paths.shares.tolist(), strict=True))
        return Share(
            {self._numbers.entered(link): share for link, share in taken},
            float(paths.latency[0]),
            min(self._numbers.capacity(link) / share for link, share in taken),
        )

    def at_home(self, rank: int, kind: str, channel: Channel | None = None) -> tuple[int, float]:
        return self._numbers.entered(self._numbers.at(kind, self._homes.place(rank))), 1.0


@dataclass(frozen=True, eq=False)
class Classes:
    """The ranks, flows and links of a run that behave alike.

    Parameters
    ----------
    folding, quotient : the classes, and one member of each
    paths : of all flows, before folding
    channels : class of each flow that begins or ends at a rank which stands for its class, by lane, sender, receiver
    own : class of the work of each class of ranks at its own place; empty where no two ranks share a place
    """

    folding: Folding
    quotient: Quotient
    paths: Paths
    flows: Flows
    channels: Mapping[tuple[str, int, int], int]
    own: Mapping[int, int]

    @property
    def counts(self) -> Ints:
        """Ranks of each class."""
        return np.bincount(self.folding.ranks)


def classes_of(found: Patterns, homes: Homes, routes: Routes) -> Classes:
    """The classes of a run; look at `folding.folded` before they are used."""
    ranks, net = len(homes.of_rank), homes.net
    sender, receiver, label = found.sender, found.receiver, found.label
    if homes.shared or not len(sender):
        everyone = np.arange(ranks)
        sender, receiver = np.concatenate([sender, everyone]), np.concatenate([receiver, everyone])
        label = np.concatenate([label, np.full(ranks, OWN_WORK)])
    paths = _paths(sender, receiver, homes, routes)
    bandwidths = np.concatenate([net.bandwidths, *(np.full(net.place_count, kind) for kind in (-1.0, -2.0))])
    within = homes.of_rank[sender] == homes.of_rank[receiver]
    flows = Flows(
        sender,
        receiver,
        paths.offsets,
        paths.links,
        paths.shares,
        {"label": label, "latency": paths.latency, "within": within.astype(np.int64)},
    )
    columns = {**homes.columns(), "what it computes and sends": found.colours}
    folding = fold(columns, flows, {"bandwidth": bandwidths}, link_name=Numbering(homes).name)
    if not folding.folded:
        return Classes(folding, Quotient(flows, np.arange(ranks), np.arange(0), np.arange(0)), paths, flows, {}, {})
    small = quotient(folding, flows)
    return Classes(folding, small, paths, flows, *_channels(found, folding, small, shared=homes.shared))


def _paths(sender: Ints, receiver: Ints, homes: Homes, routes: Routes) -> Paths:
    """Links of the network for what goes between places, cores and memory for what stays at one."""
    places, count = homes.net.place_count, homes.net.link_count
    source, target = homes.of_rank[sender], homes.of_rank[receiver]
    if not homes.shared:
        return routes.between(source, target)
    between, pair = np.unique(source * places + target, return_inverse=True)
    paths = routes.between(*np.divmod(between, places))
    lengths = np.diff(paths.offsets)[pair]
    lengths[source == target] = 2
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flow = np.repeat(np.arange(len(sender)), lengths)
    position = np.arange(len(flow)) - offsets[flow]
    stays = (source == target)[flow]
    entry = np.where(stays, 0, paths.offsets[pair[flow]] + position)
    at_home = count + source[flow] + position * places
    none = len(paths.links) == 0
    links = at_home if none else np.where(stays, at_home, paths.links[entry])
    shares = np.ones(len(flow)) if none else np.where(stays, 1.0, paths.shares[entry])
    return Paths(offsets, links, shares, paths.latency[pair])


def _channels(
    found: Patterns, folding: Folding, small: Quotient, *, shared: bool
) -> tuple[dict[tuple[str, int, int], int], dict[int, int]]:
    """The classes of the flows of ranks that stand for their class, and of their own work."""
    stands = np.zeros(len(folding.ranks), dtype=bool)
    stands[small.rank_of] = True
    listed = np.flatnonzero(stands[found.sender] | stands[found.receiver])
    lanes = [found.lanes[lane] for lane in found.lane[listed].tolist()]
    ends = zip(lanes, found.sender[listed].tolist(), found.receiver[listed].tolist(), strict=True)
    channels = dict(zip(ends, folding.flows[listed].tolist(), strict=True))
    if not shared:
        return channels, {}
    first = len(found.sender)
    return channels, {int(rank): int(folding.flows[first + rank]) for rank in small.rank_of}


class Together:
    """One rank, flow and link for each class."""

    def __init__(self, classes: Classes, homes: Homes, engine: FlowEngine) -> None:
        self._classes = classes
        self._homes = homes
        self._numbers = Entered(homes, engine)
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
        number = self._numbers.at(kind, self._homes.place(rank))
        if not own:
            return self._numbers.entered(number), 1.0
        flow_class = own[rank] if channel is None else channel
        assert isinstance(flow_class, int)
        folding, small = self._classes.folding, self._classes.quotient
        stands = int(small.link_of[folding.links[number]])
        return self._numbers.entered(stands), self._taken(flow_class)[stands]
