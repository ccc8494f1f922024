"""The MPI library's collectives, measured: for every kind, shape of group and size, until a step takes long."""

from collections.abc import Iterator, Sequence
from typing import get_args

from msgspec import UNSET

from algorithms.formats.machine import LibraryRow
from algorithms.ops import CALLED_BOTH_WAYS, Calls, CollectiveKind
from runtime.measuring.library_chains import IN_A_ROW, KINDS, ROOTED, ROUNDS, Shape, shapes
from runtime.measuring.microbenchmarks import Bench
from runtime.measuring.points import CollectivePoint

LIBRARY_BYTES = (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
LONG_SECONDS, SPENT_SECONDS = 0.3, 0.5
"""After a step that takes longer, larger ones are not measured; and about how long all runs of a size may last."""
LEAST_RUNS, RUNS = 2, 4


def library_points(bench: Bench, sizes: Sequence[int]) -> Iterator[CollectivePoint]:
    """The collectives of all ranks of a bench, in groups of every shape that grids have.

    With roots only those of more than two: between two they are messages.
    """
    for shape in shapes(bench.ranks):
        for kind, calls in _ways(shape):
            seconds, of_these = 0.0, every_second(sizes) if calls == "vector" else sizes
            for before, size in zip((0, *of_these), of_these, strict=False):
                expected = seconds * size / before if before else 0.0
                runs = max(LEAST_RUNS, min(RUNS, int(SPENT_SECONDS / (IN_A_ROW * expected)))) if expected else RUNS
                runs = ROUNDS if kind in ROOTED else runs
                point = bench.collective(kind, shape, size, runs, calls)
                yield point
                seconds = point.seconds
                if seconds > LONG_SECONDS:
                    break


def every_second(sizes: Sequence[int]) -> Sequence[int]:
    """Those that MPI's vector calls are measured at: the largest among them, beyond twice which nothing is known.

    On four hosts at 200 Mbit/s they take 25 s, and all sizes 34 s.

    >>> every_second((1, 2, 4, 8)), every_second((1, 4, 16))
    ((2, 8), (1, 16))
    """
    return sizes[::-2][::-1]


def _ways(shape: Shape) -> Iterator[tuple[CollectiveKind, Calls | None]]:
    """What is measured in groups of a shape: kinds, and by which of MPI's calls where a kind has two."""
    for kind in (*KINDS, *(ROOTED if shape.members > 2 else ())):
        yield from ((kind, calls) for calls in (get_args(Calls) if kind in CALLED_BOTH_WAYS else (None,)))


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
        spread=point.spread,
    )
