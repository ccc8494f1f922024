"""Load-dependent routing on dragonflies: rules `adaptive` and `balanced`.

**Adaptive**: a pair of endpoints takes its minimal path or a non-minimal path, by the
load of global links.  The rule is that of UGAL, with the load of earlier decisions in
place of queue lengths.  Pairs are decided in the order in which they are first asked
for.  The load of a link is

    number of pairs sent over it so far · bandwidth of the widest global link / its own

With q(path) the largest load of the path's global links and H(path) the number of its
global links (1 for a minimal path, 2 for a non-minimal path), a pair takes the
non-minimal path that Valiant routing draws if

    q(minimal) · H(minimal)  >  q(non-minimal) · H(non-minimal)

and its minimal path otherwise.  A pair keeps its path: later calls return the same
path, and one call for many pairs decides as one call for each pair in the same order.

Source: Kim, Dally, Scott, Abts, "Technology-Driven, Highly-Scalable Dragonfly
Topology", ISCA 2008, section 4 (UGAL, with all hops of a path for H and the
length of the queue at its first hop for q).

**Balanced**: each flow between groups is split over its minimal path and non-minimal
paths through all other groups.  This is the steady state of packet-by-packet adaptive
routing when each group sends as fast as it can to one other group: packets avoid the
minimal path when its global link is full, until all global links are equally full.
Let there be g groups, a of them with endpoints and so with traffic of their own.  The
parts of a flow have the ratio

    1      on the minimal path
    1      on a path through each of the g - a groups without endpoints
    1/2    on a path through each of the a - 2 other groups, which need half of the cables for their own flows

so each group has g - a/2 times the bandwidth of the cables that join it to its target.
Traffic that is spread evenly over all groups would be up to twice as fast on minimal
paths; for such traffic this rule is a lower bound.  The latency of a flow is that of
its minimal path, which packets take when nothing is full.

All pairs of groups are treated equally, so equivalent ranks of a machine stay
equivalent, and simulations can fold them.

Source: Kim, Dally, Scott, Abts, "Technology-Driven, Highly-Scalable Dragonfly
Topology", ISCA 2008, section 4 (UGAL; its worst case, all of a group to the
next one, and the bandwidth of Valiant's non-minimal paths there); De Sensi et al., "An In-Depth
Analysis of the Slingshot Interconnect", SC20, section II (packet by packet,
among several minimal and other paths, by congestion and length).
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from quadrille.topologies.network import Floats, Ints, Network
from quadrille.topologies.routes.paths import hashed
from quadrille.topologies.routes.spraying import Split
from quadrille.topologies.structured_paths import Flags, GroupedPaths, PathSet


class AdaptiveChoices:
    """The paths that adaptive routing has chosen for pairs of endpoints so far.

    Parameters
    ----------
    endpoints : number of endpoints
    global_links : links between groups
    bandwidths : bandwidth of each link [B/s] [links]
    """

    def __init__(self, endpoints: int, global_links: Ints, bandwidths: Floats) -> None:
        self._endpoints = endpoints
        self._global = np.zeros(len(bandwidths), dtype=bool)
        self._global[global_links] = True
        # In units of the widest global link, so that loads of equal links are whole numbers, and ties are ties.
        widest = bandwidths[global_links].max(initial=0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            self._cost: list[float] = (widest / bandwidths).tolist()
        self._load = [0.0] * len(bandwidths)
        self._takes_non_minimal: dict[int, bool] = {}

    def choose_non_minimal(self, sources: Ints, targets: Ints, minimal: Ints, non_minimal: Ints) -> Ints:
        """Indices of the flows that take their non-minimal path.

        Parameters
        ----------
        minimal, non_minimal : links of the minimal and the non-minimal path of each flow [flows, hops]
        """
        pairs: list[int] = (sources * self._endpoints + targets).tolist()
        fresh: dict[int, int] = {}
        for flow, pair in enumerate(pairs):
            if pair not in self._takes_non_minimal:
                fresh.setdefault(pair, flow)
        flows = list(fresh.values())
        for flow, short, long in zip(
            flows, self._crossed(minimal[flows]), self._crossed(non_minimal[flows]), strict=True
        ):
            self._takes_non_minimal[pairs[flow]] = self._decide(short, long)
        return np.flatnonzero([self._takes_non_minimal[pair] for pair in pairs])

    def _decide(self, short: list[int], long: list[int]) -> bool:
        """Whether a pair takes the long path; adds the pair to the load of the path that it takes.

        Parameters
        ----------
        short, long : global links of the minimal and the non-minimal path
        """
        load = self._load
        longer = len(short) * max((load[link] for link in short), default=0.0) > len(long) * max(
            (load[link] for link in long), default=0.0
        )
        for link in long if longer else short:
            load[link] += self._cost[link]
        return longer

    def _crossed(self, table: Ints) -> list[list[int]]:
        """Global links of each path of a table of links [flows, hops]."""
        crossed = (table >= 0) & self._global[table]
        ends: list[int] = np.cumsum(crossed.sum(axis=1)).tolist()
        links = table[crossed].tolist()
        return [links[start:end] for start, end in pairwise([0, *ends])]


LOCAL = 1
"""Number of hops within a group on each side of the global link of a minimal path."""


def balanced(
    net: Network,
    paths: PathSet,
    groups: GroupedPaths,
    sources: Ints,
    targets: Ints,
    shortest: Callable[[Ints, Ints], Ints],
) -> Split:
    """The split of each flow between groups over all its paths without a failed link.

    Flows within a group, and flows without such a path, take one shortest path.

    Parameters
    ----------
    paths : minimal and non-minimal paths of the network
    groups : the same paths, or those of the fabric inside them, with their groups
    shortest : function that returns the links of one shortest path of each pair [pairs, hops]
    """
    minimal = paths.links(sources, targets, paths.default(sources, targets))
    is_global = np.zeros(max(1, net.link_count), dtype=bool)
    is_global[groups.global_links] = True
    crossing = (minimal >= 0) & is_global[minimal]
    flows = np.flatnonzero(crossing.any(axis=1))
    spread = Split.none(0)
    if len(flows):
        column = int(crossing[flows[0]].argmax())
        flows, spread = _spread(net, paths, groups, (sources, targets), minimal, flows, column)
    rest = np.setdiff1d(np.arange(len(sources)), flows)
    table = shortest(sources[rest], targets[rest])
    flow, hop = np.nonzero(table >= 0)
    single_path = Split(flow, table[flow, hop], np.ones(len(flow)), _latency(net, table))
    return Split.none(len(sources)).joined(flows, spread).joined(rest, single_path)


def _spread(
    net: Network,
    paths: PathSet,
    groups: GroupedPaths,
    pairs: tuple[Ints, Ints],
    minimal: Ints,
    flows: Ints,
    column: int,
) -> tuple[Ints, Split]:
    """The flows between groups that have a path without a failed link, and their split.

    Flows whose minimal paths differ only in the cables of their endpoints have the
    same split between these cables, so the split is computed once for each kind.

    Parameters
    ----------
    pairs : source and target of all flows
    minimal : links of the minimal path of each flow; column `column` has the global link [flows, hops]
    flows : the flows between groups
    """
    minimal, inner = minimal[flows], slice(column - LOCAL, column + LOCAL + 1)
    _, first, kind = np.unique(minimal[:, inner], axis=0, return_index=True, return_inverse=True)
    kind = kind.ravel()
    ends = minimal.copy()
    ends[:, inner] = -1
    samples = flows[first]
    shared, joined = _between(net, paths, groups, pairs[0][samples], pairs[1][samples], minimal[first], inner)
    kept = joined[kind] & ~_broken(net, ends)
    flows, ends, kind = flows[kept], ends[kept], kind[kept]
    flow, hop = np.nonzero(ends >= 0)
    offsets, links, shares = shared.summed(net.link_count)
    lengths = np.diff(offsets)[kind]
    owner = np.repeat(np.arange(len(kind)), lengths)
    entry = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + offsets[kind[owner]]
    spread = Split(
        np.concatenate([flow, owner]),
        np.concatenate([ends[flow, hop], links[entry]]),
        np.concatenate([np.ones(len(flow)), shares[entry]]),
        _latency(net, minimal[kept]),
    )
    return flows, spread


def _between(
    net: Network, paths: PathSet, groups: GroupedPaths, sources: Ints, targets: Ints, minimal: Ints, inner: slice
) -> tuple[Split, Flags]:
    """The split of each pair over its paths between the cables of its endpoints, and whether it has a path.

    Parameters
    ----------
    minimal : links of the minimal path of each pair [pairs, hops]
    inner : columns of `minimal` between the cables of the endpoints
    """
    pairs, others = len(sources), groups.between.groups - 2
    tables, owners, parts = [minimal[:, inner]], [np.arange(pairs)], [np.ones(pairs)]
    if others > 0:
        owner, group = np.divmod(np.arange(pairs * others), others)
        drawn = (hashed(minimal[owner, inner.start + LOCAL], group, 0) >> np.uint64(33)).astype(np.int64)
        table = paths.links(sources[owner], targets[owner], ~(group + others * drawn))
        tables.append(table[:, inner.start : inner.stop + table.shape[1] - minimal.shape[1]])
        owners.append(owner)
        parts.append(_non_minimal_parts(groups, tables[-1]))
    alive = [~_broken(net, table) for table in tables]
    sums = np.zeros(pairs)
    flows, links, shares = list[Ints](), list[Ints](), list[Floats]()
    for table, owner, part, unbroken in zip(tables, owners, parts, alive, strict=True):
        sums += np.bincount(owner[unbroken], part[unbroken], minlength=pairs)
        row, hop = np.nonzero((table >= 0) & unbroken[:, None])
        flows.append(owner[row])
        links.append(table[row, hop])
        shares.append(part[row])
    flow = np.concatenate(flows)
    return Split(flow, np.concatenate(links), np.concatenate(shares) / sums[flow], np.zeros(pairs)), sums > 0


def _non_minimal_parts(groups: GroupedPaths, table: Ints) -> Floats:
    """Part of the flow on each non-minimal path, given its links: 1/2 through a group with endpoints, else 1."""
    between = groups.between
    position = np.full(max(table.max(), between.links.max()) + 1, -1)
    position[between.links] = np.arange(len(between.links))
    positions = np.where(table >= 0, position[table], -1)
    first = positions[np.arange(len(table)), (positions >= 0).argmax(axis=1)]
    occupied = np.zeros(between.groups, dtype=bool)
    occupied[groups.switch_of * between.groups // len(groups.local)] = True
    return np.where(occupied[between.targets[first] // between.per_group], 0.5, 1.0)


def _latency(net: Network, table: Ints) -> Floats:
    """Latency of each path, the sum over its links [s] [paths]."""
    if not net.link_count:
        return np.zeros(len(table))
    latency: Floats = np.where(table >= 0, net.latencies[table], 0.0).sum(axis=1)
    return latency


def _broken(net: Network, table: Ints) -> Flags:
    """Whether each path has a failed link [paths]."""
    return np.asarray((net.failed[table] & (table >= 0)).any(axis=1))
