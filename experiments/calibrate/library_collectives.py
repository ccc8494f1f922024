"""The MPI library's collectives, measured: for every kind, shape of group and size, until a step takes long.

A library takes another algorithm from some size on: a broadcast of 1 MiB to six hosts took 204 ms, of 4 MiB 389,
a reduce-scatter of four 35 and 555.  Where seconds do not grow with bytes, sizes between two are measured, too.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import sqrt
from typing import get_args

from msgspec import UNSET

from quadrille.algorithms.formats.measured_rows import LibraryRow
from quadrille.algorithms.schedule.ops import ROOTED, VECTOR_CALL_KINDS, Calls, CollectiveKind
from quadrille.runtime.measuring.chained_library_calls import IN_A_ROW, KINDS, ROUNDS, GroupShape, group_shapes
from quadrille.runtime.measuring.microbenchmarks import Bench
from quadrille.runtime.measuring.points import CollectivePoint

LONG_SECONDS = 0.3
"""After a step that takes longer, larger ones are not measured."""
SPENT_SECONDS = 0.5
"""About how long all runs of a size may last."""
LEAST_RUNS, RUNS = 3, 4
"""Of a size, at least where steps are long, and usually."""
OUT_OF_PROPORTION, LEAST_PARTED_BYTES = 1.3, 1 << 16
"""From so many bytes on, sizes between two are measured where seconds are so many times off from growing with bytes."""
PARTINGS = 2
"""How often a half is parted again."""
Measure = Callable[[int, float], CollectivePoint]
"""What a size takes, given about how long [s] that will be; 0 where it is not known."""


def library_points(bench: Bench, sizes: Sequence[int]) -> Iterator[CollectivePoint]:
    """The collectives of all ranks of a bench, in groups of every shape that grids have.

    With roots only those of more than two: between two they are messages.
    """
    for shape in group_shapes(bench.ranks):
        for kind, calls in _ways(shape):
            of_these = every_second(sizes) if calls == "vector" else sizes
            yield from ladder(partial(_measured, bench, kind, shape, calls), of_these)


def _measured(
    bench: Bench, kind: CollectiveKind, shape: GroupShape, calls: Calls | None, size: int, expected: float
) -> CollectivePoint:
    runs = max(LEAST_RUNS, min(RUNS, int(SPENT_SECONDS / (IN_A_ROW * expected)))) if expected else RUNS
    return bench.collective(kind, shape, size, ROUNDS if kind in ROOTED else runs, calls)


def ladder(measure: Measure, sizes: Sequence[int]) -> Iterator[CollectivePoint]:
    """Points of these sizes up to one that takes long, and of sizes between two that are out of proportion."""
    before: CollectivePoint | None = None
    for size in sizes:
        point = measure(size, before.seconds * size / before.bytes if before is not None else 0.0)
        if before is not None:
            yield from _between(measure, before, point)
        yield point
        if point.seconds > LONG_SECONDS:
            return
        before = point


def _between(
    measure: Measure, low: CollectivePoint, high: CollectivePoint, partings: int = PARTINGS
) -> Iterator[CollectivePoint]:
    """Points of sizes between two whose seconds do not grow as their bytes do: halves of halves, where these do not."""
    grown = low.seconds * high.bytes / low.bytes
    if not partings or low.bytes < LEAST_PARTED_BYTES or _alike(high.seconds, grown):
        return
    middle = measure(round(sqrt(low.bytes * high.bytes)), sqrt(low.seconds * high.seconds))
    share = (middle.bytes - low.bytes) / (high.bytes - low.bytes)
    if _alike(middle.seconds, low.seconds + share * (high.seconds - low.seconds)):  # a latency and a rate
        partings = 1
    yield from _between(measure, low, middle, partings - 1)
    yield middle
    yield from _between(measure, middle, high, partings - 1)


def _alike(seconds: float, others: float) -> bool:
    return 1 / OUT_OF_PROPORTION <= seconds / others <= OUT_OF_PROPORTION


def every_second(sizes: Sequence[int]) -> Sequence[int]:
    """Those that MPI's vector calls are measured at: the largest among them, beyond twice which nothing is known.

    On four hosts at 200 Mbit/s they take 25 s, and all sizes 34 s.

    >>> every_second((1, 2, 4, 8)), every_second((1, 4, 16))
    ((2, 8), (1, 16))
    """
    return sizes[::-2][::-1]


def _ways(shape: GroupShape) -> Iterator[tuple[CollectiveKind, Calls | None]]:
    """What is measured in groups of a shape: kinds, and by which of MPI's calls where a kind has two."""
    for kind in (*KINDS, *(ROOTED if shape.members > 2 else ())):
        yield from ((kind, calls) for calls in (get_args(Calls) if kind in VECTOR_CALL_KINDS else (None,)))


def library_row(point: CollectivePoint) -> LibraryRow:
    shape = point.shape
    return LibraryRow(
        kind=point.kind,
        ranks=shape.members,
        apart=shape.apart,
        of=shape.ranks,
        bytes=point.bytes,
        calls=UNSET if point.calls is None else point.calls,
        seconds=point.seconds,
        following_seconds=UNSET if point.following_seconds is None else point.following_seconds,
        member_shares=point.member_shares or UNSET,
        spread=point.spread,
    )
