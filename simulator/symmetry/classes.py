"""`SymmetryClasses`: equivalence classes of the ranks, flows and links of a simulation, and their engine resources.

This module gives `fold.py` the ranks and flows of a schedule on a machine, and
turns its classes into the resources that the engine simulates.
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
    """Numbers of shared resources: first the links of the network, then the cores of endpoints, then their memories.

    Where emulated hosts share one machine, they share its memory, and either all its
    cores or, if ranks are pinned evenly, one core for each rank.
    """

    def __init__(self, placement: RankPlacement) -> None:
        self._placement = placement
        self._links = placement.net.link_count
        self._memory = self._links + max(
            placement.net.endpoint_count, placement.cores(0) if placement.pinned_evenly else 0
        )

    def at(self, kind: str, rank: int) -> int:
        """The number of the cores or the memory of a rank."""
        placement = self._placement
        if kind == "memory":
            return self._memory + (0 if placement.hosts_share_cores else placement.endpoint(rank))
        return self._links + (
            int(placement.core_of_rank[rank]) if placement.hosts_share_cores else placement.endpoint(rank)
        )

    def name(self, number: int) -> str:
        """The name of a resource."""
        if number < self._links:
            return self._placement.net.link(number).name
        endpoint_kind = self._placement.net.endpoints[0]
        if number >= self._memory:
            return (
                f"memory of all {endpoint_kind}s"
                if self._placement.hosts_share_cores
                else f"memory of {endpoint_kind}:{number - self._memory}"
            )
        core = number - self._links
        if self._placement.pinned_evenly:
            return f"core {core} of all {endpoint_kind}s"
        return (
            f"cores of all {endpoint_kind}s"
            if self._placement.hosts_share_cores
            else f"cores of {endpoint_kind}:{core}"
        )

    def capacity(self, number: int) -> float:
        """Units per second of a resource."""
        if number < self._links:
            return float(self._placement.net.bandwidths[number])
        if number < self._memory:
            return 1.0 if self._placement.pinned_evenly else float(self._placement.cores(number - self._links))
        host = self._placement.machine.host
        return host.memory_bytes_per_second or inf if host is not None else inf


class EngineResources(ResourceNumbers):
    """Shared resources, added to an engine when they are first used."""

    def __init__(self, placement: RankPlacement, engine: FlowEngine) -> None:
        super().__init__(placement)
        self._engine = engine
        self._bursts = placement.bursts.tolist()
        self._engine_resources: dict[int, int] = {}

    def engine_resource(self, number: int) -> int:
        """The number of the engine's resource for a shared resource, which is added at its first use."""
        if number not in self._engine_resources:
            capacity, name = self.capacity(number), partial(self.name, number)
            burst = self._bursts[number] if number < len(self._bursts) else 0.0
            engine = self._engine
            self._engine_resources[number] = (
                engine.add_link(capacity, burst, name) if burst else engine.add_resource(capacity, name)
            )
        return self._engine_resources[number]


OWN_WORK = -1
"""Label of work that a rank does at its own endpoint."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowPaths:
    """The paths of flows from rank to rank."""

    sender: Ints
    receiver: Ints
    paths: Paths


@dataclass(frozen=True, eq=False)
class SymmetryClasses:
    """Equivalence classes of the ranks, flows and links of a simulation.

    Parameters
    ----------
    folding, quotient : the classes, and one representative of each
    paths : paths of all flows, before folding
    channels : class of each flow that begins or ends at a representative, by lane, sender and receiver
    own : class of each representative's work at its own endpoint; empty if no two ranks share an endpoint
    """

    folding: Folding
    quotient: QuotientGraph
    paths: Paths
    flows: Flows
    channels: Mapping[tuple[str, int, int], int]
    own: Mapping[int, int]

    @property
    def all_paths(self) -> FlowPaths:
        """The paths of all flows."""
        return FlowPaths(self.flows.sender, self.flows.receiver, self.paths)

    @property
    def counts(self) -> Ints:
        """Number of ranks of each class."""
        return np.bincount(self.folding.ranks)


def classes_of(patterns: Patterns, placement: RankPlacement, routes: Routes) -> SymmetryClasses:
    """The classes of a simulation; they may be used only if `folding.folded`."""
    ranks, net = len(placement.of_rank), placement.net
    sender, receiver, label = patterns.sender, patterns.receiver, patterns.label
    if placement.shared or not len(sender):
        ranks_of_all = np.arange(ranks)
        sender, receiver = np.concatenate([sender, ranks_of_all]), np.concatenate([receiver, ranks_of_all])
        label = np.concatenate([label, np.full(ranks, OWN_WORK)])
    paths = _paths(sender, receiver, placement, routes)
    bandwidths = np.concatenate([net.bandwidths, *(np.full(net.endpoint_count, kind) for kind in (-1.0, -2.0))])
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
    columns = {**placement.columns(), "what it computes and sends": patterns.labels}
    folding = fold(
        columns, flows, {"bandwidth": bandwidths, "burst": bursts}, link_name=ResourceNumbers(placement).name
    )
    if not folding.folded:
        return SymmetryClasses(
            folding, QuotientGraph(flows, np.arange(ranks), np.arange(0), np.arange(0)), paths, flows, {}, {}
        )
    representatives = quotient(folding, flows)
    return SymmetryClasses(
        folding, representatives, paths, flows, *_channels(patterns, folding, representatives, shared=placement.shared)
    )


def flow_paths(patterns: Patterns, placement: RankPlacement, routes: Routes) -> FlowPaths:
    """The paths of all flows of a simulation."""
    return FlowPaths(patterns.sender, patterns.receiver, _paths(patterns.sender, patterns.receiver, placement, routes))


def _paths(sender: Ints, receiver: Ints, placement: RankPlacement, routes: Routes) -> Paths:
    """Links of the network for flows between endpoints; cores and memory for flows within an endpoint."""
    endpoints, count = placement.net.endpoint_count, placement.net.link_count
    source, target = placement.of_rank[sender], placement.of_rank[receiver]
    if not placement.shared:
        return routes.between(source, target)
    between, pair = np.unique(source * endpoints + target, return_inverse=True)
    paths = routes.between(*np.divmod(between, endpoints))
    lengths = np.diff(paths.offsets)[pair]
    lengths[source == target] = 2
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flow = np.repeat(np.arange(len(sender)), lengths)
    position = np.arange(len(flow)) - offsets[flow]
    local = (source == target)[flow]
    entry = np.where(local, 0, paths.offsets[pair[flow]] + position)
    at_home = count + source[flow] + position * endpoints
    no_links = len(paths.links) == 0
    links = at_home if no_links else np.where(local, at_home, paths.links[entry])
    shares = np.ones(len(flow)) if no_links else np.where(local, 1.0, paths.shares[entry])
    return Paths(offsets, links, shares, paths.latency[pair])


def _channels(
    patterns: Patterns, folding: Folding, representatives: QuotientGraph, *, shared: bool
) -> tuple[dict[tuple[str, int, int], int], dict[int, int]]:
    """The classes of the flows of representatives, and of their work at their own endpoint."""
    represents = np.zeros(len(folding.ranks), dtype=bool)
    represents[representatives.rank_of] = True
    listed = np.flatnonzero(represents[patterns.sender] | represents[patterns.receiver])
    lanes = [patterns.lanes[lane] for lane in patterns.lane[listed].tolist()]
    ends = zip(lanes, patterns.sender[listed].tolist(), patterns.receiver[listed].tolist(), strict=True)
    channels = dict(zip(ends, folding.flows[listed].tolist(), strict=True))
    if not shared:
        return channels, {}
    count = len(patterns.sender)
    return channels, {int(rank): int(folding.flows[count + rank]) for rank in representatives.rank_of}
