"""Between which two rates each transfer and each piece of local work runs, whatever else is under way.

Rates are max-min with equal weights: an activity that takes d_f of each unit of
a resource is held either by a cap of its own or by a *bottleneck*, a resource l
that is full and on which nobody runs at a higher rate.  There

    C_l = sum of d_j r_j <= r_f sum of d_j

over all j that use l at that moment, so

    r_f >= min over its resources of C_l / D_l,   D_l >= sum of d_j at any time.

D_l is counted from what ranks can do at once.  On one lane a rank sends one
message at a time and receives one.  So of the channels of a lane that leave it,
only the one that takes most of l counts; of lanes that are never busy together
(`concurrency.py`) only those that take most.  The same holds of the receivers, and
the smaller of the two counts.  The greatest rate is that of a transfer alone,
min C_l / d_f.

Between the two lies the *typical* rate: max-min of all transfers of one step of
all groups at once.  It is what a ring keeps to where all its members move on
together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.labels import Ints
from quadrille.simulator.bounds.channels import Listing
from quadrille.simulator.bounds.concurrency import Together
from quadrille.simulator.engine.max_min import Demands, solve
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.topologies.network import Floats
from quadrille.topologies.routes.paths import Paths
from quadrille.topologies.routes.routing import Routes

LOW, TYPICAL, HIGH = 0, 1, 2
"""Rows of times: none is earlier than the first, none later than the last."""


@dataclass(eq=False)
class Channels:
    """Every channel of a schedule with its rates [B/s]; of one within a place they are infinite and its latency 0.

    Parameters
    ----------
    keys : (lane, sender, receiver) as one number, rising
    entries : links of the channels, row after row, with shares
    least, most : rates that it never falls below or exceeds
    on_lane : rates that it does not fall below while other lanes are idle
    slowed : what typical rates are divided by, since other lanes take their part too
    """

    size: int
    lanes: tuple[str, ...]
    keys: Ints
    sender: Ints
    receiver: Ints
    within: NDArray[np.bool_]
    paths: Paths
    capacities: Floats
    least: Floats
    most: Floats
    on_lane: Floats
    slowed: float = 1.0
    _typical: dict[bytes, Floats] = field(default_factory=dict)

    def numbers(self, lane: str, sender: Ints, receiver: Ints) -> Ints:
        """Of the channels of a lane between these ranks."""
        keys = (self.lanes.index(lane) * self.size + sender) * self.size + receiver
        return np.searchsorted(self.keys, keys)

    def typical(self, used: Ints) -> Floats:
        """Rates of these channels with all of them in use."""
        key = used.tobytes()
        if key not in self._typical:
            self._typical[key] = self._shared(used)
        return np.clip(self._typical[key] / self.slowed, self.least[used], self.most[used])

    def taking_turns(self, used: Ints) -> Floats:
        """Rates of these channels where a rank uses one after the other of those that it has."""
        return np.maximum(self.typical(used), np.minimum(self.on_lane[used] / self.slowed, self.most[used]))

    def _shared(self, used: Ints) -> Floats:
        rates = np.full(len(used), inf)
        across = np.flatnonzero(~self.within[used])
        if len(across):
            rows = _rows(self.paths.offsets, used[across])
            demands = Demands(rows.offsets.tolist(), self.paths.links[rows.entries], self.paths.shares[rows.entries])  # type: ignore[arg-type]
            none = [1.0] * len(across)
            rates[across] = solve(self.capacities, demands, none, [inf] * len(across))  # type: ignore[arg-type]
        return rates

    def link_bytes(self, moved: Floats) -> Floats:
        """Bytes over each link, of those that each channel moved."""
        owner = np.repeat(np.arange(len(self.keys)), np.diff(self.paths.offsets))
        found: Floats = np.bincount(
            self.paths.links, moved[owner] * self.paths.shares, minlength=len(self.capacities)
        ).astype(np.float64)
        return found

    def link_busy(self, moving: Floats) -> Floats:
        """Seconds in which each link is in use at least, of those in which each channel is."""
        owner = np.repeat(np.arange(len(self.keys)), np.diff(self.paths.offsets))
        found = np.zeros(len(self.capacities))
        np.maximum.at(found, self.paths.links, moving[owner])
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    offsets: Ints
    entries: Ints


def _rows(offsets: Ints, chosen: Ints) -> _Rows:
    """The entries of some rows, and where each begins among them."""
    lengths = offsets[chosen + 1] - offsets[chosen]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    entries = np.arange(ends[-1]) + np.repeat(offsets[chosen] - ends[:-1], lengths)
    return _Rows(ends, entries)


def channels_of(found: Listing, placement: RankPlacement, routes: Routes, busy: Together) -> Channels:
    """The channels of a schedule with their rates."""
    sender, receiver, size = found.sender, found.receiver, len(placement.of_rank)
    source, target = placement.of_rank[sender], placement.of_rank[receiver]
    within = source == target
    paths = _paths(source, target, within, routes)
    capacities = np.asarray(placement.net.bandwidths, dtype=np.float64)
    owner = np.repeat(np.arange(len(sender)), np.diff(paths.offsets))
    sets = [[found.lanes.index(name) for name in one if name in found.lanes] for one in busy.sets]
    asked = [
        _Asked(end[owner], found.lane[owner], paths, len(found.lanes), len(capacities)) for end in (sender, receiver)
    ]
    demanded = np.minimum(*(one.at_once(sets) for one in asked))
    least, most, on_lane = (np.full(len(sender), inf) for _ in range(3))
    np.minimum.at(least, owner, capacities[paths.links] / demanded[paths.links])
    np.minimum.at(most, owner, capacities[paths.links] / paths.shares)
    for lane in range(len(found.lanes)):
        own = found.lane[owner] == lane
        alone = np.minimum(*(one.at_once([[lane]]) for one in asked))
        np.minimum.at(on_lane, owner[own], capacities[paths.links[own]] / alone[paths.links[own]])
    return Channels(
        size,
        found.lanes,
        (found.lane * size + sender) * size + receiver,
        sender,
        receiver,
        within,
        paths,
        capacities,
        least,
        most,
        on_lane,
    )


def _paths(source: Ints, target: Ints, within: NDArray[np.bool_], routes: Routes) -> Paths:
    """Of every channel; one within a place has no links."""
    width = int(max(source.max(initial=0), target.max(initial=0))) + 1
    pairs, pair = np.unique(source[~within] * width + target[~within], return_inverse=True)
    known = routes.between(*np.divmod(pairs, width))
    rows = _rows(known.offsets, pair)
    lengths, latency = np.zeros(len(source), dtype=np.int64), np.zeros(len(source))
    lengths[~within], latency[~within] = np.diff(rows.offsets), known.latency[pair]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Paths(offsets, known.links[rows.entries], known.shares[rows.entries], latency)


class _Asked:
    """What each rank at one end of the channels may ask of each link that they use, by lane.

    Parameters
    ----------
    ends, of_lane : the rank and the lane of each entry of the paths
    """

    def __init__(self, ends: Ints, of_lane: Ints, paths: Paths, lanes: int, links: int) -> None:
        rows, row = np.unique(ends * links + paths.links, return_inverse=True)
        self._link, self._links = rows % links, links
        self._most = np.zeros((len(rows), lanes))
        np.maximum.at(self._most, (row, of_lane), paths.shares)

    def at_once(self, sets: Sequence[Sequence[int]]) -> Floats:
        """The most that all ranks may ask of each link, if one of these sets of lanes is busy on each of them."""
        most = np.zeros(len(self._link))
        for one in sets:
            np.maximum(most, self._most[:, one].sum(axis=1), out=most)
        found: Floats = np.bincount(self._link, most, minlength=self._links).astype(np.float64)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """Rates of local work of each rank, by the cores of its place; alone it runs at 1.

    Parameters
    ----------
    least : never below
    computing, moving : typical ones, with all ranks of the place computing, or all in a collective
    alone : whether nobody else lives there and an op takes the whole of it
    """

    least: Floats
    computing: Floats
    moving: Floats
    alone: NDArray[np.bool_]


def local_rates(placement: RankPlacement, threads: int | None, busy: Together) -> Local:
    """Local work of a rank shares cores, and the bandwidth of the host's memory, with that of its neighbours.

    On memory no activity asks for more than there is, so each gets at least
    its part by number.
    """
    ranks = len(placement.of_rank)
    places = placement.of_rank
    cores = np.array([placement.cores(place) for place in range(1)]) if not ranks else _cores(placement)
    neighbours = np.bincount(places)[places].astype(np.float64)
    own = np.minimum(threads or np.maximum(1, cores // neighbours), cores).astype(np.float64)
    asked = np.zeros(ranks)
    for one in busy.sets:
        np.maximum(asked, len(one - {"compute"}) + own * ("compute" in one), out=asked)
    least = np.minimum(1.0, cores / np.bincount(places, asked)[places])
    host = placement.machine.host
    if host is not None and host.memory_bytes_per_second is not None:
        least = np.minimum(least, 1 / (neighbours * max(map(len, busy.sets))))
    return Local(
        least,
        np.minimum(1.0, cores / (neighbours * own)),
        np.minimum(1.0, cores / neighbours),
        (neighbours == 1) & (own == cores) & (host is None),
    )


def _cores(placement: RankPlacement) -> Floats:
    if placement.net.places[0] == "gpu":
        return np.ones(len(placement.of_rank))
    kinds = {place: float(placement.cores(place)) for place in np.unique(placement.of_rank).tolist()}
    return np.array([kinds[place] for place in placement.of_rank.tolist()])
