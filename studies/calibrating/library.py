"""The MPI library's collectives, measured: for every kind, shape of group and size, until a step takes long."""

from collections.abc import Iterator, Sequence

from msgspec import UNSET

from algorithms.formats.machine import LibraryRow
from runtime.measuring.library_chains import IN_A_ROW, KINDS, ROOTED, ROUNDS, shapes
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
        for kind in (*KINDS, *(ROOTED if shape.members > 2 else ())):
            seconds = 0.0
            for before, size in zip((0, *sizes), sizes, strict=False):
                expected = seconds * size / before if before else 0.0
                runs = max(LEAST_RUNS, min(RUNS, int(SPENT_SECONDS / (IN_A_ROW * expected)))) if expected else RUNS
                runs = ROUNDS if kind in ROOTED else runs
                point = bench.collective(kind, shape, size, runs)
                yield point
                seconds = point.seconds
                if seconds > LONG_SECONDS:
                    break


def library_row(point: CollectivePoint) -> LibraryRow:
    shape = point.shape
    return LibraryRow(
        kind=point.kind,
        ranks=shape.members,
        apart=shape.apart,
        of=shape.ranks,
        bytes=point.bytes,
        seconds=point.seconds,
        following_seconds=UNSET if point.following_seconds is None else point.following_seconds,
        spread=point.spread,
    )
