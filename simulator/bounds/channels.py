"""Channels of a schedule, each with a lower bound, a typical value and an upper bound of the rate of its transfers.

A *channel* goes from one rank to another on one lane; a lane is a sequence of ops that run in order (computation, or
communication along one axis). Rates are max-min fair with
equal weights: an activity that takes d_f of each unit of a resource is held
either by a cap of its own or by a *bottleneck*, a resource l that is full and on
which no activity has a higher rate. There

    C_l = sum of d_j r_j <= r_f sum of d_j

over all j that use l at that coordinates, so

    r_f >= min over its resources of C_l / D_l,   D_l >= sum of d_j at any time.

D_l follows from what ranks can do at once. On one lane a rank sends one message
at a time and receives one. So of the channels of a lane that leave a rank, only
the channel that takes most of l counts; of lanes that are never busy together
(`concurrency.py`), only the lanes that take most. The same holds for receivers,
and the smaller of the two sums counts. The highest rate is that of a transfer
alone, min C_l / d_f.

Between the two lies the *typical* rate: the max-min fair rate if all transfers
of one step of all groups are in progress at once. A ring whose members advance
together keeps to this rate.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.equality_labels import Ints, sorted_distinct
from quadrille.algorithms.collectives.group_stages import GroupStage
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import Communication, Receive, Send, message_lane
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.simulator.bounds.concurrency import Concurrency, ProgramWalk
from quadrille.simulator.bounds.group_work import GroupWork, ScheduleWork
from quadrille.simulator.engine.max_min import Demands, max_min_rates
from quadrille.simulator.machine.placement import RankPlacement
from quadrille.topologies.network import Floats
from quadrille.topologies.routes.paths import Paths
from quadrille.topologies.routes.routing import Routes

MOST_CHANNELS = 1 << 23
"""Largest number of channels; more take more memory than a laptop has."""


@dataclass(frozen=True, slots=True, eq=False)
class ChannelList:
    """Channels in the order of lane, sender and receiver; a lane is an index into `lanes`."""

    lanes: tuple[str, ...]
    lane: Ints
    sender: Ints
    receiver: Ints


def list_channels(
    schedule: Schedule, schedule_work: ScheduleWork, programs: Iterable[tuple[Ints, int]], walked: ProgramWalk = walk
) -> ChannelList:
    """All channels of a schedule.

    >>> from quadrille.algorithms.matmuls.catalogue import matmul_schedule
    >>> from quadrille.algorithms.collectives.collective_choices import Choices
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> schedule = matmul_schedule(Matmul(8, 8, 8), "1d-row", Grid(y=3))
    >>> channels = list_channels(schedule, ScheduleWork(schedule, Choices()), [(np.arange(3), 0)])
    >>> channels.lanes, channels.sender.tolist(), channels.receiver.tolist()
    (('y',), [0, 1, 2], [1, 2, 0])

    Parameters
    ----------
    programs : the ranks that follow each program, and the first of them

    Raises
    ------
    InputError : there are too many channels
    """
    lanes = tuple(dict.fromkeys(message_lane(op) for op in all_ops(schedule) if isinstance(op, Communication)))
    size, grid = schedule.grid.size, schedule.grid
    keys: dict[str, Ints] = {}
    seen = set()
    pairs: dict[int, tuple[tuple[GroupStage, ...], Ints]] = {}
    listed: set[tuple[str, int, bytes]] = set()
    for ranks, first_rank in programs:
        start = schedule.coordinates(first_rank)
        for op, coordinates in walked(schedule.program(start), start):
            if not isinstance(op, Communication) or grid.length(op.axis) == 1:
                continue
            key = first_rank, schedule_work.key(op, coordinates)
            if isinstance(op, Receive) or key in seen:  # a message is listed where it is sent
                continue
            seen.add(key)
            stride = grid.stride(op.axis)
            first = sorted_distinct(ranks - ranks // stride % grid.length(op.axis) * stride)
            parts = (
                [schedule_work.of_messages(op, coordinates, ranks)]
                if isinstance(op, Send)
                else schedule_work.of_groups(op, coordinates, first)
            )
            for work in parts:
                name, (stages, between) = message_lane(op), _pairs(work, pairs)
                identity = name, id(stages), work.ranks.tobytes()
                if identity in listed:
                    continue
                listed.add(identity)
                pairs_used = _channels(work, between, size)
                keys[name] = sorted_distinct(np.concatenate([keys[name], pairs_used])) if name in keys else pairs_used
                if sum(map(len, keys.values())) > MOST_CHANNELS:
                    raise InputError(f"op {op.name!r}: ranks talk to too many others; at most {MOST_CHANNELS} channels")
    used = [name for name in lanes if name in keys]
    empty = np.zeros(0, dtype=np.int64)
    number = np.concatenate([empty, *(np.full(len(keys[name]), at) for at, name in enumerate(used))])
    return ChannelList(tuple(used), number, *np.divmod(np.concatenate([empty, *(keys[name] for name in used)]), size))


def _pairs(
    work: GroupWork, cache: dict[int, tuple[tuple[GroupStage, ...], Ints]]
) -> tuple[tuple[GroupStage, ...], Ints]:
    """The steps of an op, and sender x members + receiver for each pair of members that they use."""
    members = work.ranks.size if work.flat else work.ranks.shape[1]
    if id(work.stages) not in cache:
        moves = [move for stage in work.stages for move in stage.moves]
        keys = [move.sender * members + move.receiver for move in moves]
        cache[id(work.stages)] = work.stages, sorted_distinct(np.concatenate([np.zeros(0, dtype=np.int64), *keys]))
    return cache[id(work.stages)]


def _channels(work: GroupWork, pairs: Ints, size: int) -> Ints:
    """Sender x size + receiver for each channel that the groups of an op use."""
    ranks = work.ranks.reshape(1, -1) if work.flat else work.ranks
    sender, receiver = np.divmod(pairs, ranks.shape[1])
    return sorted_distinct((ranks[:, sender] * size + ranks[:, receiver]).ravel())


LOW, TYPICAL, HIGH = 0, 1, 2
"""Rows of times: no event is earlier than in the first row, none later than in the last."""


@dataclass(eq=False)
class RatedChannels:
    """Every channel of a schedule with its rates [B/s]; a channel within an endpoint has infinite rates and latency 0.

    Parameters
    ----------
    keys : lane, sender and receiver of each channel as one number, rising
    paths : links of the channels, row after row, with shares
    least, most : lowest and highest rate
    on_lane : lowest rate while other lanes are idle
    slowed : factor by which typical rates are divided, because other lanes share the links
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
        """Indices of the channels of a lane between these ranks."""
        keys = (self.lanes.index(lane) * self.size + sender) * self.size + receiver
        return np.searchsorted(self.keys, keys)

    def typical(self, used: Ints) -> Floats:
        """Typical rates of these channels with all of them in use."""
        key = used.tobytes()
        if key not in self._typical:
            self._typical[key] = self._shared(used)
        return np.clip(self._typical[key] / self.slowed, self.least[used], self.most[used])

    def one_at_a_time(self, used: Ints) -> Floats:
        """Typical rates of these channels where each rank uses its channels one after another."""
        return np.maximum(self.typical(used), np.minimum(self.on_lane[used] / self.slowed, self.most[used]))

    def _shared(self, used: Ints) -> Floats:
        """Max-min fair rates with these channels in use."""
        rates = np.full(len(used), inf)
        across = np.flatnonzero(~self.within[used])
        if len(across):
            rows = _rows(self.paths.offsets, used[across])
            demands = Demands(rows.offsets.tolist(), self.paths.links[rows.entries], self.paths.shares[rows.entries])  # type: ignore[arg-type]
            weights = [1.0] * len(across)
            rates[across] = max_min_rates(self.capacities, demands, weights, [inf] * len(across))  # type: ignore[arg-type]
        return rates

    def link_bytes(self, moved: Floats) -> Floats:
        """Bytes over each link, from the bytes that each channel moved."""
        owner = np.repeat(np.arange(len(self.keys)), np.diff(self.paths.offsets))
        link_bytes: Floats = np.bincount(
            self.paths.links, moved[owner] * self.paths.shares, minlength=len(self.capacities)
        ).astype(np.float64)
        return link_bytes

    def link_busy(self, moving: Floats) -> Floats:
        """Seconds in which each link is in use at least, from the seconds in which each channel is."""
        owner = np.repeat(np.arange(len(self.keys)), np.diff(self.paths.offsets))
        seconds = np.zeros(len(self.capacities))
        np.maximum.at(seconds, self.paths.links, moving[owner])
        return seconds


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Entries of some rows of a sparse table, and where each row begins among them."""

    offsets: Ints
    entries: Ints


def _rows(offsets: Ints, chosen: Ints) -> _Rows:
    """The entries of some rows, and where each row begins among them."""
    lengths = offsets[chosen + 1] - offsets[chosen]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    entries = np.arange(ends[-1]) + np.repeat(offsets[chosen] - ends[:-1], lengths)
    return _Rows(ends, entries)


def rate_channels(
    channel_list: ChannelList, placement: RankPlacement, routes: Routes, concurrency: Concurrency
) -> RatedChannels:
    """The channels of a schedule with their rates."""
    sender, receiver, size = channel_list.sender, channel_list.receiver, len(placement.of_rank)
    source, target = placement.of_rank[sender], placement.of_rank[receiver]
    within = source == target
    paths = _paths(source, target, within, routes)
    capacities = np.asarray(placement.net.bandwidths, dtype=np.float64)
    owner = np.repeat(np.arange(len(sender)), np.diff(paths.offsets))
    sets = [
        [channel_list.lanes.index(name) for name in demand if name in channel_list.lanes] for demand in concurrency.sets
    ]
    demands = [
        _LinkDemands(end[owner], channel_list.lane[owner], paths, len(channel_list.lanes), len(capacities))
        for end in (sender, receiver)
    ]
    demanded = np.minimum(*(demand.at_once(sets) for demand in demands))
    least, most, on_lane = (np.full(len(sender), inf) for _ in range(3))
    np.minimum.at(least, owner, capacities[paths.links] / demanded[paths.links])
    np.minimum.at(most, owner, capacities[paths.links] / paths.shares)
    for number in range(len(channel_list.lanes)):
        own = channel_list.lane[owner] == number
        alone = np.minimum(*(demand.at_once([[number]]) for demand in demands))
        np.minimum.at(on_lane, owner[own], capacities[paths.links[own]] / alone[paths.links[own]])
    return RatedChannels(
        size,
        channel_list.lanes,
        (channel_list.lane * size + sender) * size + receiver,
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
    """The path of every channel; a channel within an endpoint has no links."""
    width = int(max(source.max(initial=0), target.max(initial=0))) + 1
    pairs, pair = np.unique(source[~within] * width + target[~within], return_inverse=True)
    pair_paths = routes.between(*np.divmod(pairs, width))
    rows = _rows(pair_paths.offsets, pair)
    lengths, latency = np.zeros(len(source), dtype=np.int64), np.zeros(len(source))
    lengths[~within], latency[~within] = np.diff(rows.offsets), pair_paths.latency[pair]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Paths(offsets, pair_paths.links[rows.entries], pair_paths.shares[rows.entries], latency)


class _LinkDemands:
    """The demand of each rank at one end of the channels on each link, by lane.

    Parameters
    ----------
    ends, of_lane : rank and lane of each entry of the paths
    """

    def __init__(self, ends: Ints, of_lane: Ints, paths: Paths, lanes: int, links: int) -> None:
        rows, row = np.unique(ends * links + paths.links, return_inverse=True)
        self._link, self._links = rows % links, links
        self._most = np.zeros((len(rows), lanes))
        np.maximum.at(self._most, (row, of_lane), paths.shares)

    def at_once(self, sets: Sequence[Sequence[int]]) -> Floats:
        """The most that all ranks may demand of each link, if one of these sets of lanes is busy on each of them."""
        most = np.zeros(len(self._link))
        for lanes in sets:
            np.maximum(most, self._most[:, lanes].sum(axis=1), out=most)
        demand: Floats = np.bincount(self._link, most, minlength=self._links).astype(np.float64)
        return demand
