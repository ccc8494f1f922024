"""The section of the network by grid axis: up to which level of the network the messages along each axis go.

A level is a kind of switch, by its distance from the GPUs. A message goes up to the farthest switch of a shortest path,
and down again. Stages send to the next stage, all-to-alls send between all members of a group, and each member of
another collective sends to the next one in a ring. NCCL's collectives leave a node on the receiver's rail. Predictions
that count no links have this drawing all the same.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import networkx as nx
import numpy as np

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.formats.record import Record
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.units import format_bytes, format_percent, format_seconds
from quadrille.experiments.output.tables import duration
from quadrille.experiments.report.amounts import compact
from quadrille.experiments.report.charts import INK, PAGE_WIDTH
from quadrille.experiments.report.elements import Chart, Section, Spec, Table
from quadrille.experiments.report.palette import axis_colour
from quadrille.simulator.collectives.nccl.layout import is_amd
from quadrille.simulator.collectives.nccl.pxn import RailRelays
from quadrille.simulator.machine.placement import RankPlacement, place_ranks
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Ints, Network
from quadrille.topologies.routes.routing import Routes

START, INSIDE = "GPU", "in a node"
Pattern = Literal["line", "ring", "all pairs"]
"""Who sends to whom in a group: each member to the next, the last one to the first too, or each member to each."""
PATTERN_OF_KIND: Mapping[str, Pattern] = {"send": "line", "receive": "line", "all_to_all": "all pairs"}
"""Pattern of each kind of op whose members form no ring."""
MOST_PAIRS = 2048
"""Most pairs of different nodes whose paths are looked at along an axis; of more pairs so many are drawn."""
SEED = 1
"""Seed of the draw of pairs.  Pairs at equal distances would miss those that cross a boundary of nodes or of leaves."""


@dataclass(frozen=True, slots=True, order=True)
class Level:
    """How far up a path goes: the farthest kind of switch on it, and how many switches of this kind.

    >>> Level(2, 1, "leaf").name, Level(2, 3, "router").name, Level(0, 0).name
    ('leaf', '3 routers', 'in a node')

    Parameters
    ----------
    distance : number of links from an endpoint to the nearest switch of the kind; 0 in a node
    count : switches of the kind on the path
    kind : kind of switch; empty in a node
    """

    distance: int
    count: int
    kind: str = ""

    @property
    def name(self) -> str:
        """The level in words."""
        if not self.kind:
            return INSIDE
        return self.kind if self.count < 2 else f"{self.count} {self.kind}s"


@dataclass(frozen=True, slots=True)
class AxisTraffic:
    """The communication along an axis of the grid, and how far up in the network it goes.

    Parameters
    ----------
    share_by_level : share of the sent bytes that go up to a level, the lowest level first
    sent_bytes : what a rank sends along the axis, at most [B]
    exposed_seconds : communication of the mean rank that no computation hides [s]
    """

    axis: str
    length: int
    share_by_level: Mapping[Level, float]
    sent_bytes: int
    exposed_seconds: float

    @property
    def name(self) -> str:
        """The axis with its length."""
        return f"{self.axis} ({self.length})"

    @property
    def farthest(self) -> Level:
        """The level to which the farthest messages go."""
        return max(self.share_by_level)

    @property
    def words(self) -> str:
        """What a rank sends, and how long it is exposed."""
        exposed = f"{format_seconds(self.exposed_seconds)} exposed" if self.exposed_seconds else "nothing exposed"
        return f"{format_bytes(self.sent_bytes)}, {exposed}"


def axis_levels_section(record: Record, machine: Machine | None, exposed: Mapping[str, float]) -> Iterator[Section]:
    """The section of the network by axis; none if the machine is unknown or nothing is sent.

    Parameters
    ----------
    machine : machine of the record; None if it is unknown
    exposed : exposed communication of the mean rank by axis [s]
    """
    if machine is None or record.ranks == 1:
        return
    try:
        traffic, levels = axis_traffic(record, machine, exposed)
    except QuadrilleError:
        return
    if not traffic:
        return
    rows = [
        (each.name, format_bytes(each.sent_bytes), duration(each.exposed_seconds), _levels_text(each))
        for each in traffic
    ]
    farthest = ", ".join(
        f"{each.axis} {'up to ' if each.farthest.kind else ''}{each.farthest.name}" for each in traffic
    )
    label = (
        f"Messages along each axis stay or go: {farthest}. A point stands at each level where some turn back. "
        "Wide lines are exposed longer. No rank sends more than the amount above a line."
    )
    table = Table(("axis", "sent by a rank", "exposed", "bytes by level"), rows)
    yield Section("Network by axis", charts=[Chart(_spec(traffic, levels), label, table)])


def axis_traffic(
    record: Record, machine: Machine, exposed: Mapping[str, float]
) -> tuple[list[AxisTraffic], list[Level]]:
    """The communication along each axis that sends anything, and the levels that a drawing shows.

    Raises
    ------
    InputError : ranks that the machine has no room for, or an unknown placement
    """
    grid = Grid(**dict(record.grid), order=record.order)
    placed = place_ranks(machine, grid.size, record.machine.placement if record.machine else "packed", grid)
    sent: dict[Axis, dict[Pattern, int]] = defaultdict(lambda: defaultdict(int))
    for op in record.ops:
        axis = next((axis for axis in grid.axes if axis == op.axis), None)
        if axis is not None and op.bytes_sent_per_rank_max and grid.length(axis) > 1:
            sent[axis][PATTERN_OF_KIND.get(op.kind, "ring")] += op.bytes_sent_per_rank_max
    is_relayed = any((op.algorithm or "").startswith("nccl") for op in record.ops)
    relays = RailRelays(Routes(placed.net), np.unique(placed.of_rank)) if is_relayed and not is_amd(machine) else None
    traffic = [
        AxisTraffic(
            axis,
            grid.length(axis),
            _shares_of_bytes(placed, grid, axis, sent[axis], relays),
            sum(sent[axis].values()),
            exposed.get(axis, 0.0),
        )
        for axis in grid.axes
        if axis in sent
    ]
    used = {level for each in traffic for level in each.share_by_level}
    return traffic, sorted({Level(0, 0), *used, *_unused_levels(placed.net, used)})


def pairs_of(grid: Grid, axis: Axis, pattern: Pattern) -> Ints:
    """Pairs of ranks that send to each other along an axis, in one direction [pairs, 2].

    >>> [len(pairs_of(Grid(data=8), "data", pattern)) for pattern in ("line", "ring", "all pairs")]
    [7, 8, 28]
    """
    length, stride = grid.length(axis), grid.stride(axis)
    ranks = np.arange(grid.size)
    groups = ranks[ranks // stride % length == 0][:, None] + stride * np.arange(length)
    if pattern == "all pairs":
        senders, receivers = np.triu_indices(length, 1)
    else:
        senders = np.arange(length - 1 if pattern == "line" else length)
        receivers = (senders + 1) % length
    return np.stack([groups[:, senders].ravel(), groups[:, receivers].ravel()], axis=1)


def _shares_of_bytes(
    placed: RankPlacement, grid: Grid, axis: Axis, sent: Mapping[Pattern, int], relays: RailRelays | None
) -> dict[Level, float]:
    """The share of the bytes sent along an axis that go up to each level, the lowest level first.

    Parameters
    ----------
    sent : what a rank sends to each kind of partners, at most [B]
    relays : GPUs by which collectives leave a node; None if each leaves by the sender
    """
    counts: dict[Level, float] = defaultdict(float)
    for pattern, size in sent.items():
        pairs = placed.of_rank[pairs_of(grid, axis, pattern)]
        levels = shares_by_level(placed.net, pairs, None if pattern == "line" else relays)
        for level, share in levels.items():
            counts[level] += share * size / sum(sent.values())
    return {level: counts[level] for level in sorted(counts)}


def shares_by_level(net: Network, pairs: Ints, relays: RailRelays | None = None) -> dict[Level, float]:
    """The share of pairs of endpoints whose shortest path goes up to each level, the lowest level first.

    >>> from quadrille.topologies.find_machine import find_machine
    >>> from quadrille.simulator.machine.network import network_of
    >>> net = network_of(find_machine("h100-superpod", gpus=1016))
    >>> shares = shares_by_level(net, np.array([[0, 1], [0, 8], [0, 256], [1, 2]]))
    >>> {level.name: share for level, share in shares.items()}
    {'in a node': 0.5, 'leaf': 0.25, 'core': 0.25}

    Parameters
    ----------
    pairs : endpoints of each pair [pairs, 2]
    relays : GPUs by which messages leave a node; None if each leaves by the sender
    """
    inside = pairs[:, 0] // net.per_node == pairs[:, 1] // net.per_node
    counts: dict[Level, float] = defaultdict(float, {Level(0, 0): float(inside.sum())})
    between = pairs[~inside]
    sampled = between
    if len(between) > MOST_PAIRS:
        sampled = between[np.random.default_rng(SEED).choice(len(between), MOST_PAIRS, replace=False)]
    if relays is not None and len(sampled):
        relay = relays(*sampled.T)
        sampled = np.stack([np.where(relay >= 0, relay, sampled[:, 0]), sampled[:, 1]], axis=1)
    distances = _distances(net)
    bounds = [(first, first + count, kind) for kind, (first, count) in net.kinds.items()]
    paths = Routes(net).between(*sampled.T)
    for begin, end in pairwise(paths.offsets.tolist()):
        passed: dict[str, float] = defaultdict(float)
        for link, share in zip(paths.links[begin:end], paths.shares[begin:end], strict=True):
            node = int(net.targets[link])
            passed[next(kind for first, last, kind in bounds if first <= node < last)] += share
        top = max((kind for kind in passed if kind != net.endpoints[0]), key=lambda kind: distances[kind], default="")
        level = Level(distances.get(top, 0), max(1, round(passed[top])), top or net.endpoints[0])
        counts[level] += len(between) / len(sampled)
    return {level: counts[level] / len(pairs) for level in sorted(counts) if counts[level]}


def _distances(net: Network) -> dict[str, int]:
    """The number of links from an endpoint to the nearest node of each kind."""
    starts = {kind: first for kind, (first, _) in net.kinds.items()}
    names, firsts = list(starts), np.array(list(starts.values()))
    order = np.argsort(firsts)
    ends = (order[np.searchsorted(firsts[order], nodes, side="right") - 1] for nodes in (net.sources, net.targets))
    graph = nx.Graph({(names[a], names[b]) for a, b in zip(*map(np.ndarray.tolist, ends), strict=True)})
    return dict(nx.single_source_shortest_path_length(graph, net.endpoints[0]))


def _unused_levels(net: Network, used: Iterable[Level]) -> list[Level]:
    """The kinds of switches that are farther than all used levels and than the network cards."""
    distances = _distances(net)
    floor = max([1, distances.get(net.card_kind, 0), *(level.distance for level in used)])
    return [Level(distance, 1, kind) for kind, distance in distances.items() if distance > floor]


def _levels_text(traffic: AxisTraffic) -> str:
    shares = traffic.share_by_level.items()
    return ", ".join(f"{level.name} {format_percent(share, digits=0)}" for level, share in shares)


def _spec(traffic: Sequence[AxisTraffic], levels: Sequence[Level]) -> Spec:
    """A row for each axis: a line from the GPUs to the farthest level, a point at each level, and the amounts above."""
    names = [START, *(level.name for level in levels)]
    longest = max(each.exposed_seconds for each in traffic) or 1.0
    lines = [
        {
            "axis": each.name,
            "from": START,
            "to": each.farthest.name,
            "w": compact(2 + 8 * each.exposed_seconds / longest),
            "c": axis_colour(each.axis),
            "text": each.words,
        }
        for each in traffic
    ]
    points = [
        {"axis": each.name, "to": level.name, "c": axis_colour(each.axis), "bytes": format_percent(share, digits=0)}
        for each in traffic
        for level, share in each.share_by_level.items()
    ]
    y = {"field": "axis", "type": "nominal", "sort": [each.name for each in traffic], "title": None}
    x = {"type": "nominal", "title": None, "scale": {"domain": names, "padding": 0.4}, "sort": names}
    x |= {"axis": {"orient": "top", "grid": True, "labelAngle": 0, "domain": False}}
    colour = {"field": "c", "type": "nominal", "scale": None}
    return {
        **PAGE_WIDTH,
        "height": 44 * len(traffic),
        "layer": [
            {
                "data": {"values": lines},
                "mark": {"type": "rule", "strokeCap": "round"},
                "encoding": {
                    "y": y,
                    "x": {**x, "field": "from"},
                    "x2": {"field": "to"},
                    "color": colour,
                    "strokeWidth": {"field": "w", "type": "quantitative", "scale": None, "legend": None},
                    "tooltip": [{"field": "axis"}, {"field": "to", "title": "farthest"}, {"field": "text"}],
                },
            },
            {
                "data": {"values": points},
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {
                    "y": y,
                    "x": {**x, "field": "to"},
                    "color": colour,
                    "tooltip": [{"field": "axis"}, {"field": "to", "title": "level"}, {"field": "bytes"}],
                },
            },
            {
                "data": {"values": lines},
                "mark": {"type": "text", "align": "left", "dy": -13, "fontSize": 11, "color": INK},
                "encoding": {"y": y, "x": {**x, "field": "from"}, "text": {"field": "text"}},
            },
        ],
    }
