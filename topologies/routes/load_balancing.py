"""Adaptive routing on dragonflies.

Adaptive routing on dragonflies: the minimal path or a detour, by the load of global links.

The rule is that of UGAL, with what has been decided so far in place of the
lengths of queues.  Pairs of endpoints are taken in the order in which they are
first asked for.  The load of a link is

    pairs sent over it so far · bandwidth of the widest global link / its own

and q(path) the largest load of the path's global links, H(path) their number: 1
for a minimal path, 2 for a detour.  A pair takes its detour, the one of Valiant
routing, exactly when

    q(minimal) · H(minimal)  >  q(detour) · H(detour)

so when the minimal path's most loaded global link carries more than twice what
the detour's does; else its minimal path.  A pair keeps its path: asked again, or
one by one in the same order, the answer is the same.

Source: Kim, Dally, Scott, Abts, "Technology-Driven, Highly-Scalable Dragonfly
Topology", ISCA 2008, section 4 (UGAL, with all hops of a path for H and the
length of the queue at its first hop for q).


Balanced routing between groups: each flow on its minimal path and on detours by all other groups, at once.

It is what adaptive routing packet by packet settles at where groups send as much
as they can to one other group each.  A packet takes the cheaper of a minimal path
and of detours, by load and length; where the minimal cable is full, packets go
round, until all cables are as full.  Of g groups, let a have endpoints and so
traffic of their own.  A flow's parts are as

    1      on the minimal path
    1      on a detour by each of the g - a groups without endpoints
    1/2    on a detour by each of the a - 2 others, whose cables their own flows need as well

and each group so gets g - a/2 times the cables that join it to its target.
Traffic that is spread evenly over all groups would be better off on minimal
paths, by up to two: there this rule is a lower bound.  A flow's latency is that
of its minimal path, which packets take where nothing is full.

Every pair of groups is treated alike, so what a machine's symmetry makes alike
stays alike, and folds.

Source: Kim, Dally, Scott, Abts, "Technology-Driven, Highly-Scalable Dragonfly
Topology", ISCA 2008, section 4 (UGAL; its worst case, all of a group to the
next one, and what Valiant's detours reach there); De Sensi et al., "An In-Depth
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
    """What has been decided for pairs of endpoints so far.

    Parameters
    ----------
    global_links : between groups
    bandwidths : of all links [B/s]
    """

    def __init__(self, endpoints: int, global_links: Ints, bandwidths: Floats) -> None:
        self._places = endpoints
        self._global = np.zeros(len(bandwidths), dtype=bool)
        self._global[global_links] = True
        # In units of the widest global link, so that loads of equal links are whole numbers, and ties are ties.
        widest = bandwidths[global_links].max(initial=0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            self._cost: list[float] = (widest / bandwidths).tolist()
        self._load = [0.0] * len(bandwidths)
        self._around: dict[int, bool] = {}

    def around(self, sources: Ints, targets: Ints, straight: Ints, around: Ints) -> Ints:
        """Which of the flows take their detour, given the links of both paths [flows, hops]."""
        pairs: list[int] = (sources * self._places + targets).tolist()
        fresh: dict[int, int] = {}
        for flow, pair in enumerate(pairs):
            if pair not in self._around:
                fresh.setdefault(pair, flow)
        flows = list(fresh.values())
        for flow, short, long in zip(flows, self._crossed(straight[flows]), self._crossed(around[flows]), strict=True):
            self._around[pairs[flow]] = self._decide(short, long)
        return np.flatnonzero([self._around[pair] for pair in pairs])

    def _decide(self, short: list[int], long: list[int]) -> bool:
        """Whether a pair takes the long path, whose load is then counted, else that of the short one."""
        load = self._load
        longer = len(short) * max((load[link] for link in short), default=0.0) > len(long) * max(
            (load[link] for link in long), default=0.0
        )
        for link in long if longer else short:
            load[link] += self._cost[link]
        return longer

    def _crossed(self, table: Ints) -> list[list[int]]:
        """Global links of each way."""
        crossed = (table >= 0) & self._global[table]
        ends: list[int] = np.cumsum(crossed.sum(axis=1)).tolist()
        links = table[crossed].tolist()
        return [links[start:end] for start, end in pairwise([0, *ends])]


LOCAL = 1
"""Hops within a group on either side of a minimal path's global link."""


def balanced(
    net: Network,
    paths: PathSet,
    known: GroupedPaths,
    sources: Ints,
    targets: Ints,
    shortest: Callable[[Ints, Ints], Ints],
) -> Split:
    """Flows between groups on all paths that have no failed link; of the others, the shortest path.

    Parameters
    ----------
    known : the detours of these paths
    shortest : links of one path of each pair [pairs, hops], for pairs of one group and those with no other path left
    """
    straight = paths.links(sources, targets, paths.default(sources, targets))
    is_global = np.zeros(max(1, net.link_count), dtype=bool)
    is_global[known.global_links] = True
    crossing = (straight >= 0) & is_global[straight]
    flows = np.flatnonzero(crossing.any(axis=1))
    found = Split.none(0)
    if len(flows):
        column = int(crossing[flows[0]].argmax())
        flows, found = _spread(net, paths, known, (sources, targets), straight, flows, column)
    rest = np.setdiff1d(np.arange(len(sources)), flows)
    table = shortest(sources[rest], targets[rest])
    flow, hop = np.nonzero(table >= 0)
    whole = Split(flow, table[flow, hop], np.ones(len(flow)), _latency(net, table))
    return Split.none(len(sources)).joined(flows, found).joined(rest, whole)


def _spread(
    net: Network,
    paths: PathSet,
    known: GroupedPaths,
    pairs: tuple[Ints, Ints],
    straight: Ints,
    flows: Ints,
    column: int,
) -> tuple[Ints, Split]:
    """The flows between groups that have a path left, and how these are spread.

    What lies between the ends of a flow is the same for all flows with the same
    links there, so it is found for one of each kind.

    Parameters
    ----------
    straight : links of minimal paths of all flows, the global one in `column`
    """
    straight, inner = straight[flows], slice(column - LOCAL, column + LOCAL + 1)
    _, first, kind = np.unique(straight[:, inner], axis=0, return_index=True, return_inverse=True)
    kind = kind.ravel()
    ends = straight.copy()
    ends[:, inner] = -1
    one = flows[first]
    shared, joined = _between(net, paths, known, pairs[0][one], pairs[1][one], straight[first], inner)
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
        _latency(net, straight[kept]),
    )
    return flows, spread


def _between(
    net: Network, paths: PathSet, known: GroupedPaths, sources: Ints, targets: Ints, straight: Ints, inner: slice
) -> tuple[Split, Flags]:
    """The parts of pairs on all paths between their ends, and which pairs have a path left."""
    pairs, others = len(sources), known.between.groups - 2
    tables, owners, parts = [straight[:, inner]], [np.arange(pairs)], [np.ones(pairs)]
    if others > 0:
        owner, other = np.divmod(np.arange(pairs * others), others)
        drawn = (hashed(straight[owner, inner.start + LOCAL], other, 0) >> np.uint64(33)).astype(np.int64)
        table = paths.links(sources[owner], targets[owner], ~(other + others * drawn))
        tables.append(table[:, inner.start : inner.stop + table.shape[1] - straight.shape[1]])
        owners.append(owner)
        parts.append(_detour_parts(known, tables[-1]))
    alive = [~_broken(net, table) for table in tables]
    sums = np.zeros(pairs)
    flows, links, shares = list[Ints](), list[Ints](), list[Floats]()
    for table, owner, part, whole in zip(tables, owners, parts, alive, strict=True):
        sums += np.bincount(owner[whole], part[whole], minlength=pairs)
        row, hop = np.nonzero((table >= 0) & whole[:, None])
        flows.append(owner[row])
        links.append(table[row, hop])
        shares.append(part[row])
    flow = np.concatenate(flows)
    return Split(flow, np.concatenate(links), np.concatenate(shares) / sums[flow], np.zeros(pairs)), sums > 0


def _detour_parts(known: GroupedPaths, table: Ints) -> Floats:
    """The part of each detour, given its links."""
    between = known.between
    position = np.full(max(table.max(), between.links.max()) + 1, -1)
    position[between.links] = np.arange(len(between.links))
    found = np.where(table >= 0, position[table], -1)
    first = found[np.arange(len(table)), (found >= 0).argmax(axis=1)]
    occupied = np.zeros(between.groups, dtype=bool)
    occupied[known.switch_of * between.groups // len(known.local)] = True
    return np.where(occupied[between.targets[first] // between.per_group], 0.5, 1.0)


def _latency(net: Network, table: Ints) -> Floats:
    """Sums over the links of each path [s]."""
    if not net.link_count:
        return np.zeros(len(table))
    latency: Floats = np.where(table >= 0, net.latencies[table], 0.0).sum(axis=1)
    return latency


def _broken(net: Network, table: Ints) -> Flags:
    """Which paths have a link that has failed."""
    return np.asarray((net.failed[table] & (table >= 0)).any(axis=1))
