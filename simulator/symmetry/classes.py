"""The ranks, flows and links of a whole schedule that behave alike: what `fold.py` is given, and what comes out."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from quadrille.simulator.machine.placement import RankPlacement
from quadrille.simulator.symmetry.fold import Folding, Quotient, fold, quotient
from quadrille.simulator.symmetry.numbering import Numbering
from quadrille.simulator.symmetry.partition import Flows, Ints
from quadrille.simulator.symmetry.patterns import Patterns
from quadrille.topologies.routes.paths import Paths
from quadrille.topologies.routes.routing import Routes

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
    quotient: Quotient
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
    folding = fold(columns, flows, {"bandwidth": bandwidths, "burst": bursts}, link_name=Numbering(placement).name)
    if not folding.folded:
        return SymmetryClasses(
            folding, Quotient(flows, np.arange(ranks), np.arange(0), np.arange(0)), paths, flows, {}, {}
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
