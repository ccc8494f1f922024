"""Every channel of a schedule: which rank sends to which on which lane, whenever it does."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.labels import Ints, rising
from quadrille.algorithms.collectives.group_stages import GroupStage
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import Communication, Receive, Send, lane
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.simulator.bounds.concurrency import Concurrency, ProgramWalk
from quadrille.simulator.bounds.work import GroupWork, ScheduleWork
from quadrille.simulator.engine.max_min import Demands, solve
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.topologies.network import Floats
from quadrille.topologies.routes.paths import Paths
from quadrille.topologies.routes.routing import Routes

MOST_CHANNELS = 1 << 23
"""More take more memory than a laptop has."""


@dataclass(frozen=True, slots=True, eq=False)
class ChannelList:
    """Channels, by rising lane, sender and receiver; a lane is a place in `lanes`."""

    lanes: tuple[str, ...]
    lane: Ints
    sender: Ints
    receiver: Ints


def list_channels(
    schedule: Schedule, looks: ScheduleWork, programs: Iterable[tuple[Ints, int]], walked: ProgramWalk = walk
) -> ChannelList:
    """All channels.

    >>> from quadrille.algorithms.matmuls.catalogue import matmul_schedule
    >>> from quadrille.algorithms.collectives.choices import Choices
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> schedule = matmul_schedule(Matmul(8, 8, 8), "1d-row", Grid(y=3))
    >>> found = list_channels(schedule, ScheduleWork(schedule, Choices()), [(np.arange(3), 0)])
    >>> found.lanes, found.sender.tolist(), found.receiver.tolist()
    (('y',), [0, 1, 2], [1, 2, 0])

    Parameters
    ----------
    programs : the ranks that follow each program, and one of them

    Raises
    ------
    InputError : too many to list
    """
    lanes = tuple(dict.fromkeys(lane(op) for op in all_ops(schedule) if isinstance(op, Communication)))
    size, grid = schedule.grid.size, schedule.grid
    keys: dict[str, Ints] = {}
    seen = set()
    pairs: dict[int, tuple[tuple[GroupStage, ...], Ints]] = {}
    listed: set[tuple[str, int, bytes]] = set()
    for ranks, one in programs:
        place = schedule.coordinates(one)
        for op, moment in walked(schedule.program(place), place):
            key = one, looks.key(op, moment)
            if not isinstance(op, Communication) or grid.length(op.axis) == 1 or key in seen:
                continue
            seen.add(key)
            if isinstance(op, Receive):  # listed where it is sent
                continue
            stride = grid.stride(op.axis)
            first = rising(ranks - ranks // stride % grid.length(op.axis) * stride)
            parts = [looks.sent(op, moment, ranks)] if isinstance(op, Send) else looks.parts(op, moment, first)
            for part in parts:
                name, (stages, between) = lane(op), _pairs(part, pairs)
                same = name, id(stages), part.ranks.tobytes()
                if same in listed:
                    continue
                listed.add(same)
                found = _channels(part, between, size)
                keys[name] = rising(np.concatenate([keys[name], found])) if name in keys else found
                if sum(map(len, keys.values())) > MOST_CHANNELS:
                    raise InputError(f"op {op.name!r}: ranks talk to too many others; at most {MOST_CHANNELS} channels")
    used = [name for name in lanes if name in keys]
    none = np.zeros(0, dtype=np.int64)
    number = np.concatenate([none, *(np.full(len(keys[name]), at) for at, name in enumerate(used))])
    return ChannelList(tuple(used), number, *np.divmod(np.concatenate([none, *(keys[name] for name in used)]), size))


def _pairs(
    part: GroupWork, known: dict[int, tuple[tuple[GroupStage, ...], Ints]]
) -> tuple[tuple[GroupStage, ...], Ints]:
    """The steps of a part, and sender x members + receiver of each pair of members that they use."""
    members = part.ranks.size if part.flat else part.ranks.shape[1]
    if id(part.stages) not in known:
        moves = [move for stage in part.stages for move in stage.moves]
        both = [move.sender * members + move.receiver for move in moves]
        known[id(part.stages)] = part.stages, rising(np.concatenate([np.zeros(0, dtype=np.int64), *both]))
    return known[id(part.stages)]


def _channels(part: GroupWork, pairs: Ints, size: int) -> Ints:
    """Sender x size + receiver of each channel that the groups of a part use."""
    ranks = part.ranks.reshape(1, -1) if part.flat else part.ranks
    sender, receiver = np.divmod(pairs, ranks.shape[1])
    return rising((ranks[:, sender] * size + ranks[:, receiver]).ravel())


LOW, TYPICAL, HIGH = 0, 1, 2
"""Rows of times: none is earlier than the first, none later than the last."""


@dataclass(eq=False)
class RatedChannels:
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


def rate_channels(found: ChannelList, placement: RankPlacement, routes: Routes, busy: Concurrency) -> RatedChannels:
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
    for number in range(len(found.lanes)):
        own = found.lane[owner] == number
        alone = np.minimum(*(one.at_once([[number]]) for one in asked))
        np.minimum.at(on_lane, owner[own], capacities[paths.links[own]] / alone[paths.links[own]])
    return RatedChannels(
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
