"""Which lanes of a rank may be under way together, and which ops may run beside which.

An op waits for others; those wait for others again.  So each instance of an op
has, on every lane, a latest instance that has ended before it begins (a vector
clock).  The later ones on that lane, as far as they come before it in the
program, may be under way with it; nothing else of the rank may.

    gemm A ── all-reduce A ──────── gemm C       (gemm C waits for both)
         └─── gemm B ─────────────┘              beside the all-reduce: gemm B only

Source: Mattern, "Virtual Time and Global States of Distributed Systems", 1989.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import networkx as nx

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.schedule.ops import Op, lane
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import Program, walk
from quadrille.algorithms.schedule.schedule import Schedule, all_ops


@dataclass(frozen=True, slots=True)
class Concurrency:
    """What may be under way at once on one rank.

    Parameters
    ----------
    lanes : every lane of the schedule, `compute` first
    sets : the largest sets of lanes that may be busy together
    beside : by name of an op, how many instances of which others may be under way during one of its own
    """

    lanes: tuple[str, ...]
    sets: tuple[frozenset[str], ...]
    beside: Mapping[str, Mapping[str, int]]


@dataclass(slots=True)
class _Entry:
    lane: str
    index: int
    clock: dict[str, int]


@dataclass(slots=True)
class _Seen:
    """What one rank's program showed."""

    pairs: set[frozenset[str]] = field(default_factory=set)
    beside: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


ProgramWalk = Callable[[Program, Coordinates], Iterable[tuple[Op, Coordinates]]]
"""Ops of a program in order."""


def together(schedule: Schedule, places: Iterable[Coordinates], walked: ProgramWalk = walk) -> Concurrency:
    """What may be under way at once on the ranks at these places, one for each program.

    A schedule without overlap does one thing at a time:

    >>> from quadrille.algorithms.matmuls.catalogue import matmul_schedule
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> schedule = matmul_schedule(Matmul(8, 8, 8), "4d", Grid(z=2, y=2))
    >>> sorted(map(sorted, together(schedule, [schedule.coordinates(0)]).sets))
    [['compute'], ['y'], ['z']]
    """
    lanes = tuple(dict.fromkeys(["compute", *(lane(op) for op in all_ops(schedule))]))
    seen = _Seen()
    for place in places:
        _look(schedule, place, seen, walked)
    graph = nx.Graph(tuple(pair) for pair in seen.pairs)
    graph.add_nodes_from(lanes)
    sets = tuple(frozenset(clique) for clique in nx.find_cliques(graph))
    return Concurrency(lanes, sets, {name: dict(counts) for name, counts in seen.beside.items()})


def _look(schedule: Schedule, place: Coordinates, seen: _Seen, walked: ProgramWalk) -> None:
    dependencies: Dependencies[_Entry] = Dependencies(schedule)
    on_lane: dict[str, list[str]] = defaultdict(list)  # names of the ops
    last: dict[str, _Entry] = {}
    earlier: dict[tuple[str, int], Counter[str]] = {}
    for op, moment in walked(schedule.program(place), place):
        own = lane(op)
        entry = _Entry(own, len(on_lane[own]), {})
        needs = dependencies.enter(op, moment, entry)
        for need in (*needs, *([last[own]] if own in last else [])):
            entry.clock[need.lane] = max(need.index, entry.clock.get(need.lane, -1))
            for name, index in need.clock.items():
                entry.clock[name] = max(index, entry.clock.get(name, -1))
        for other, names in on_lane.items():
            for index in range(entry.clock.get(other, -1) + 1, len(names)) if other != own else ():
                seen.pairs.add(frozenset((own, other)))
                earlier.setdefault((own, entry.index), Counter())[names[index]] += 1
                earlier.setdefault((other, index), Counter())[op.name] += 1
        on_lane[own].append(op.name)
        last[own] = entry
    for (name, index), counts in earlier.items():
        most = seen.beside[on_lane[name][index]]
        for other, count in counts.items():
            most[other] = max(most[other], count)
