"""Measurements of the MPI library's collectives: every kind, group shape and size, until a step takes long.

A library switches its algorithm at some size: a broadcast to six hosts took 204 ms for 1 MiB and 389 ms for 4 MiB, and
a
reduce-scatter of four 35 ms and 555 ms. Where seconds do not grow with bytes, sizes in between are measured, too.
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
"""After a step that takes longer, larger sizes are not measured."""
SPENT_SECONDS = 0.5
"""The approximate duration of all runs of one size."""
LEAST_RUNS, RUNS = 3, 4
"""The fewest runs of a size, for long steps, and the usual number."""
OUT_OF_PROPORTION, LEAST_PARTED_BYTES = 1.3, 1 << 16
"""The factor by which seconds may differ from growing with bytes, and the smallest size at which sizes in between are
measured.
"""
PARTINGS = 2
"""How often an interval of sizes is halved."""
Measure = Callable[[int, float], CollectivePoint]
"""Measures a size; the second argument is its expected time [s], or 0 if it is unknown."""


def library_points(bench: Bench, sizes: Sequence[int]) -> Iterator[CollectivePoint]:
    """The collectives of all ranks of a bench, in groups of every shape that a grid can have.

    Collectives with roots are measured in groups of more than two members; between two they are plain messages.
    """
    for shape in group_shapes(bench.ranks):
        for kind, calls in _kinds_and_calls(shape):
            of_these = every_second(sizes) if calls == "vector" else sizes
            yield from ladder(partial(_measured, bench, kind, shape, calls), of_these)


def _measured(
    bench: Bench, kind: CollectiveKind, shape: GroupShape, calls: Calls | None, size: int, expected: float
) -> CollectivePoint:
    runs = max(LEAST_RUNS, min(RUNS, int(SPENT_SECONDS / (IN_A_ROW * expected)))) if expected else RUNS
    return bench.collective(kind, shape, size, ROUNDS if kind in ROOTED else runs, calls)


def ladder(measure: Measure, sizes: Sequence[int]) -> Iterator[CollectivePoint]:
    """Points of growing sizes until one takes long, and of sizes in between where seconds are out of proportion."""
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
    """Points of sizes between two whose seconds do not grow as their bytes do, by repeated halving."""
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


def _alike(seconds: float, expected: float) -> bool:
    return 1 / OUT_OF_PROPORTION <= seconds / expected <= OUT_OF_PROPORTION


def every_second(sizes: Sequence[int]) -> Sequence[int]:
    """Every second size, for MPI's vector calls. The largest is included: beyond twice that size nothing is known.

    On four hosts at 200 Mbit/s these sizes take 25 s, and all sizes 34 s.

    >>> every_second((1, 2, 4, 8)), every_second((1, 4, 16))
    ((2, 8), (1, 16))
    """
    return sizes[::-2][::-1]


def _kinds_and_calls(shape: GroupShape) -> Iterator[tuple[CollectiveKind, Calls | None]]:
    """The measured kinds in groups of a shape, and the MPI calls of kinds that have two."""
    for kind in (*KINDS, *(ROOTED if shape.members > 2 else ())):
        yield from ((kind, calls) for calls in (get_args(Calls) if kind in VECTOR_CALL_KINDS else (None,)))


def library_row(point: CollectivePoint) -> LibraryRow:
    shape = point.shape
    return LibraryRow(
        kind=point.kind,
        ranks=shape.members,
        stride=shape.apart,
        world_size=shape.ranks,
        bytes=point.bytes,
        calls=UNSET if point.calls is None else point.calls,
        seconds=point.seconds,
        back_to_back_seconds=UNSET if point.following_seconds is None else point.following_seconds,
        member_shares=point.member_shares or UNSET,
        spread=point.spread,
    )
