"""Possible overlap on a rank: the lanes that may be busy at the same time, and the ops that may overlap each op.

A *lane* is a sequence of ops that run in order: computation, or communication along
one axis. An op waits for the ops that it depends on, and these wait for others. So each
instance of an op has, on every lane, a latest instance that has ended before it
begins (a vector clock). Later instances on that lane that come before it in the
program may overlap it; no other instance of the rank may.

    gemm A ── all-reduce A ──────── gemm C       (gemm C waits for both)
         └─── gemm B ─────────────┘              the all-reduce overlaps gemm B only

Source: Mattern, "Virtual Time and Global States of Distributed Systems", 1989.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import networkx as nx

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.schedule.ops import Op, is_host_op, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import Program, walk
from quadrille.algorithms.schedule.schedule import Schedule, all_ops


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The lanes and ops that may be in progress at the same time on one rank.

    Parameters
    ----------
    lanes : every lane of the schedule, `compute` first
    sets : the largest sets of lanes that may be busy together
    overlaps : by name of an op, how many instances of which other ops may overlap one instance of it
    """

    lanes: tuple[str, ...]
    sets: tuple[frozenset[str], ...]
    overlaps: Mapping[str, Mapping[str, int]]


@dataclass(slots=True)
class _Entry:
    """An instance of an op: its lane, its position on the lane, and its vector clock."""

    lane: str
    index: int
    clock: dict[str, int]


@dataclass(slots=True)
class _Overlaps:
    """Pairs of lanes that may be busy together, and ops that may overlap, in the programs visited so far."""

    pairs: set[frozenset[str]] = field(default_factory=set)
    overlaps: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


def _without(overlaps: Mapping[str, Mapping[str, int]], names: set[str]) -> dict[str, dict[str, int]]:
    """The overlaps of ops, without some ops."""
    return {
        op: {name: count for name, count in counts.items() if name not in names}
        for op, counts in overlaps.items()
        if op not in names
    }


ProgramWalk = Callable[[Program, Coordinates], Iterable[tuple[Op, Coordinates]]]
"""The ops of a program in order, with their coordinates."""


def concurrency_of(
    schedule: Schedule, coordinates_of_programs: Iterable[Coordinates], walked: ProgramWalk = walk
) -> Concurrency:
    """The possible overlap of the programs at these coordinates, one rank for each program.

    Host copies and work of the host are left out: they take neither the device nor links of the network.

    In a schedule without overlap, no two lanes are busy together:

    >>> from quadrille.algorithms.matmuls.catalogue import matmul_schedule
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> schedule = matmul_schedule(Matmul(8, 8, 8), "4d", Grid(z=2, y=2))
    >>> sorted(map(sorted, concurrency_of(schedule, [schedule.coordinates(0)]).sets))
    [['compute'], ['y'], ['z']]
    """
    host_ops = {op.name for op in all_ops(schedule) if is_host_op(op)}
    lanes = tuple(dict.fromkeys(["compute", *(lane(op) for op in all_ops(schedule) if op.name not in host_ops)]))
    seen = _Overlaps()
    for start in coordinates_of_programs:
        _visit(schedule, start, seen, walked)
    graph = nx.Graph(tuple(pair) for pair in seen.pairs if pair <= {*lanes})
    graph.add_nodes_from(lanes)
    sets = tuple(frozenset(clique) for clique in nx.find_cliques(graph))
    return Concurrency(lanes, sets, _without(seen.overlaps, host_ops))


def _merge(clock: dict[str, int], need: _Entry) -> None:
    """Raises a vector clock to that of an instance that has ended, and to the instance itself.

    The clock of an instance covers all earlier instances of its lane, so an instance that the clock already covers
    need not be merged.
    """
    clock[need.lane] = need.index
    for name, index in need.clock.items():
        if index > clock.get(name, -1):
            clock[name] = index


def _visit(schedule: Schedule, start: Coordinates, seen: _Overlaps, walked: ProgramWalk) -> None:
    """Adds the overlaps that the program of one rank allows."""
    dependencies: Dependencies[_Entry] = Dependencies(schedule)
    on_lane: dict[str, list[str]] = defaultdict(list)  # names of the ops
    last: dict[str, _Entry] = {}
    earlier: dict[tuple[str, int], Counter[str]] = {}
    for op, coordinates in walked(schedule.program(start), start):
        own = lane(op)
        entry = _Entry(own, len(on_lane[own]), {})
        needs = dependencies.enter(op, coordinates, entry)
        if own in last:
            entry.clock = {**last[own].clock, own: last[own].index}
        for need in needs:
            if need.index > entry.clock.get(need.lane, -1):
                _merge(entry.clock, need)
        for other_lane, names in on_lane.items():
            ended = entry.clock.get(other_lane, -1)
            for index in range(ended + 1, len(names)) if other_lane != own else ():
                seen.pairs.add(frozenset((own, other_lane)))
                earlier.setdefault((own, entry.index), Counter())[names[index]] += 1
                earlier.setdefault((other_lane, index), Counter())[op.name] += 1
        on_lane[own].append(op.name)
        last[own] = entry
    for (name, index), counts in earlier.items():
        counts_of_op = seen.overlaps[on_lane[name][index]]
        for other_lane, count in counts.items():
            counts_of_op[other_lane] = max(counts_of_op[other_lane], count)
