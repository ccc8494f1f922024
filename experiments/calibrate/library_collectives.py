"""Benchmarks of the MPI library's collectives: every kind and group shape, with growing sizes.

MPI libraries choose their algorithm by size, so times do not always grow in proportion: from 1 MiB to 4 MiB, a
broadcast to six hosts grew from 204 ms to 389 ms, and a reduce-scatter of four hosts from 35 ms to 555 ms.  If the time
does not grow in proportion to the size, sizes in between are measured too.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import sqrt
from typing import get_args

from msgspec import UNSET

from quadrille.algorithms.formats.measured_rows import LibraryRow
from quadrille.algorithms.schedule.ops import ROOTED, VECTOR_CALL_KINDS, Calls, CollectiveKind
from quadrille.runtime.measuring.library_collectives import IN_A_ROW, KINDS, GroupShape, group_shapes
from quadrille.runtime.measuring.measured_points import CollectivePoint
from quadrille.runtime.measuring.microbenchmarks import Bench

LONG_SECONDS = 0.3
"""Duration of a collective after which larger sizes are not measured [s]."""
SECONDS_PER_SIZE = 0.5
"""Approximate duration of all runs of one size [s]."""
LEAST_RUNS = 3
"""Number of runs of long collectives."""
PROPORTION_TOLERANCE, LEAST_HALVED_BYTES = 1.3, 1 << 16
"""Factor by which a time may differ from growth in proportion to the size, and smallest size with sizes in between."""
Measure = Callable[[int, float], CollectivePoint]
"""Measures a collective, given its size [B] and its expected time [s], which is 0 if it is unknown."""


def library_points(bench: Bench) -> Iterator[CollectivePoint]:
    """Measures the collectives of all ranks of a bench, in groups of every shape that a grid can have.

    Collectives with a root are measured in groups of more than two members; between two members they are messages.
    """
    sizes, halvings = bench.sizes.library_bytes, bench.sizes.library_halvings
    for shape in group_shapes(bench.ranks):
        for kind, calls in _kinds_and_calls(shape, vector_calls=bench.sizes.library_vector_calls):
            shape_sizes = every_second(sizes) if calls == "vector" else sizes
            yield from points_of_sizes(partial(_measure_collective, bench, kind, shape, calls), shape_sizes, halvings)


def _measure_collective(
    bench: Bench, kind: CollectiveKind, shape: GroupShape, calls: Calls | None, size: int, expected: float
) -> CollectivePoint:
    usual = bench.sizes.library_runs
    least = min(LEAST_RUNS, usual)
    runs = max(least, min(usual, int(SECONDS_PER_SIZE / (IN_A_ROW * expected)))) if expected else usual
    return bench.collective(kind, shape, size, bench.sizes.library_rounds if kind in ROOTED else runs, calls)


def points_of_sizes(measure: Measure, sizes: Sequence[int], halvings: int) -> Iterator[CollectivePoint]:
    """Measures rising sizes until a collective takes long, and sizes in between if times grow out of proportion.

    Parameters
    ----------
    measure : function that measures a size, given the expected time
    sizes : rising sizes [B]
    halvings : largest number of times that an interval of sizes is halved
    """
    previous_point: CollectivePoint | None = None
    for size in sizes:
        point = measure(
            size, previous_point.seconds * size / previous_point.bytes if previous_point is not None else 0.0
        )
        if previous_point is not None:
            yield from _points_between(measure, previous_point, point, halvings)
        yield point
        if point.seconds > LONG_SECONDS:
            return
        previous_point = point


def _points_between(
    measure: Measure, low: CollectivePoint, high: CollectivePoint, halvings: int
) -> Iterator[CollectivePoint]:
    """Measures sizes between two points whose times do not grow in proportion to their sizes, by repeated halving."""
    proportional_seconds = low.seconds * high.bytes / low.bytes
    if not halvings or low.bytes < LEAST_HALVED_BYTES or _is_near(high.seconds, proportional_seconds):
        return
    middle = measure(round(sqrt(low.bytes * high.bytes)), sqrt(low.seconds * high.seconds))
    share = (middle.bytes - low.bytes) / (high.bytes - low.bytes)
    if _is_near(middle.seconds, low.seconds + share * (high.seconds - low.seconds)):  # a latency and a rate
        halvings = 1
    yield from _points_between(measure, low, middle, halvings - 1)
    yield middle
    yield from _points_between(measure, middle, high, halvings - 1)


def _is_near(seconds: float, expected: float) -> bool:
    return 1 / PROPORTION_TOLERANCE <= seconds / expected <= PROPORTION_TOLERANCE


def every_second(sizes: Sequence[int]) -> Sequence[int]:
    """Every second size up to the largest, for MPI's vector calls such as `MPI_Allgatherv`.

    The largest size is needed because times are extrapolated to at most twice that size. On four hosts at 200 Mbit/s
    these sizes take 25 s, and all sizes 34 s.

    >>> every_second((1, 2, 4, 8)), every_second((1, 4, 16))
    ((2, 8), (1, 16))
    """
    return sizes[::-2][::-1]


def _kinds_and_calls(shape: GroupShape, *, vector_calls: bool) -> Iterator[tuple[CollectiveKind, Calls | None]]:
    """The kinds of collectives to measure in groups of a shape, with the MPI calls of kinds that have two."""
    both: tuple[Calls, ...] = get_args(Calls) if vector_calls else ("regular",)
    for kind in (*KINDS, *(ROOTED if shape.members > 2 else ())):
        yield from ((kind, calls) for calls in (both if kind in VECTOR_CALL_KINDS else (None,)))


def library_row(point: CollectivePoint) -> LibraryRow:
    """The row of a machine file for a measured collective."""
    shape = point.shape
    return LibraryRow(
        kind=point.kind,
        ranks=shape.members,
        stride=shape.apart,
        world_size=shape.ranks,
        bytes=point.bytes,
        calls=UNSET if point.calls is None else point.calls,
        seconds=point.seconds,
        back_to_back_seconds=UNSET if point.back_to_back_seconds is None else point.back_to_back_seconds,
        member_shares=point.member_shares or UNSET,
        spread=point.spread,
    )
