"""What ranks share, in one numbering: first the links of the network, then the cores of places, then their memory.

Where hosts share one machine, all have its memory and either all of its cores or, where these are dealt out, one
core for each rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np

from quadrille.simulator.engine.engine import FlowEngine
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.symmetry.fold import Folding, QuotientGraph, fold, quotient
from quadrille.simulator.symmetry.partition import Flows, Ints
from quadrille.simulator.symmetry.patterns import Patterns
from quadrille.topologies.routes.paths import Paths
from quadrille.topologies.routes.routing import Routes


class ResourceNumbers:
    """Links of the network, then cores of places, then memory of places."""

    def __init__(self, placement: RankPlacement) -> None:
        self._placement = placement
        self._links = placement.net.link_count
        self._memory = self._links + max(
            placement.net.place_count, placement.cores(0) if placement.pinned_evenly else 0
        )

    def at(self, kind: str, rank: int) -> int:
        """Number of the cores or the memory of a rank."""
        placement = self._placement
        if kind == "memory":
            return self._memory + (0 if placement.hosts_share_cores else placement.place(rank))
        return self._links + (
            int(placement.core_of_rank[rank]) if placement.hosts_share_cores else placement.place(rank)
        )

    def name(self, number: int) -> str:
        if number < self._links:
            return self._placement.net.link(number).name
        place = self._placement.net.places[0]
        if number >= self._memory:
            return (
                f"memory of all {place}s"
                if self._placement.hosts_share_cores
                else f"memory of {place}:{number - self._memory}"
            )
        own = number - self._links
        if self._placement.pinned_evenly:
            return f"core {own} of all {place}s"
        return f"cores of all {place}s" if self._placement.hosts_share_cores else f"cores of {place}:{own}"

    def capacity(self, number: int) -> float:
        """Units per second of a resource."""
        if number < self._links:
            return float(self._placement.net.bandwidths[number])
        if number < self._memory:
            return 1.0 if self._placement.pinned_evenly else float(self._placement.cores(number - self._links))
        host = self._placement.machine.host
        return host.memory_bytes_per_second or inf if host is not None else inf


class EngineResources(ResourceNumbers):
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


OWN_WORK = -1
"""The label of work that a rank does at its own place."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowPaths:
    """The paths of flows from rank to rank."""

    sender: Ints
    receiver: Ints
    paths: Paths


@dataclass(frozen=True, eq=False)
class SymmetryClasses:
    """The ranks, flows and links of a run that behave alike.

    Parameters
    ----------
    folding, quotient : the classes, and one member of each
    paths : of all flows, before folding
    channels : class of each flow that begins or ends at a rank which stands for its class, by lane, sender, receiver
    own : class of the work of each class of ranks at its own place; empty where no two ranks share a place
    """

    folding: Folding
    quotient: QuotientGraph
    paths: Paths
    flows: Flows
    channels: Mapping[tuple[str, int, int], int]
    own: Mapping[int, int]

    @property
    def known(self) -> FlowPaths:
        """The paths of all flows."""
        return FlowPaths(self.flows.sender, self.flows.receiver, self.paths)

    @property
    def counts(self) -> Ints:
        """Ranks of each class."""
        return np.bincount(self.folding.ranks)


def classes_of(found: Patterns, placement: RankPlacement, routes: Routes) -> SymmetryClasses:
    """The classes of a run; look at `folding.folded` before they are used."""
    ranks, net = len(placement.of_rank), placement.net
    sender, receiver, label = found.sender, found.receiver, found.label
    if placement.shared or not len(sender):
        everyone = np.arange(ranks)
        sender, receiver = np.concatenate([sender, everyone]), np.concatenate([receiver, everyone])
        label = np.concatenate([label, np.full(ranks, OWN_WORK)])
    paths = _paths(sender, receiver, placement, routes)
    bandwidths = np.concatenate([net.bandwidths, *(np.full(net.place_count, kind) for kind in (-1.0, -2.0))])
    bursts = np.zeros(len(bandwidths))
    bursts[: len(placement.bursts)] = placement.bursts
    within = placement.of_rank[sender] == placement.of_rank[receiver]
    flows = Flows(
        sender,
        receiver,
        paths.offsets,
        paths.links,
        paths.shares,
        {"label": label, "latency": paths.latency, "within": within.astype(np.int64)},
    )
    columns = {**placement.columns(), "what it computes and sends": found.colours}
    folding = fold(
        columns, flows, {"bandwidth": bandwidths, "burst": bursts}, link_name=ResourceNumbers(placement).name
    )
    if not folding.folded:
        return SymmetryClasses(
            folding, QuotientGraph(flows, np.arange(ranks), np.arange(0), np.arange(0)), paths, flows, {}, {}
        )
    small = quotient(folding, flows)
    return SymmetryClasses(folding, small, paths, flows, *_channels(found, folding, small, shared=placement.shared))


def flow_paths(found: Patterns, placement: RankPlacement, routes: Routes) -> FlowPaths:
    """The paths of all flows of a run."""
    return FlowPaths(found.sender, found.receiver, _paths(found.sender, found.receiver, placement, routes))


def _paths(sender: Ints, receiver: Ints, placement: RankPlacement, routes: Routes) -> Paths:
    """Links of the network for what goes between places, cores and memory for what stays at one."""
    places, count = placement.net.place_count, placement.net.link_count
    source, target = placement.of_rank[sender], placement.of_rank[receiver]
    if not placement.shared:
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
    found: Patterns, folding: Folding, small: QuotientGraph, *, shared: bool
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
