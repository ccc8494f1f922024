"""How near to the best point does `sweep --search` come with a tenth of the points of a sweep?

A sweep of all points gives the answers; a search then asks some of these for several seeds. The distance of a search is
the time of its best point divided by that of the best of all points that fit in memory, minus 1.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.experiments.output.tables import percent, print_tables, table
from quadrille.experiments.sweep.point_search import SearchOptions, best_places, search_points
from quadrille.experiments.sweep.sweep_result import SweepAnswer
from quadrille.experiments.sweep.varied_key import VariedKey
from quadrille.runtime.host.console import run_as_program

RESULTS = Path(__file__).resolve().parent / "results"
SCHEMA = "quadrille/search-quality/1"
KEYS = ("grid", "zero", "recompute", "micro_batch")
SEEDS = 20
SHARES = (0.05, 0.1, 0.2, 0.3)
"""Points that a search asks, as shares of all points."""
NEAR = 0.02
"""The promised distance from the best."""


@dataclass(frozen=True, slots=True)
class SweptTable:
    """The answers of a sweep of all points, in the order of the full product.

    Parameters
    ----------
    name : name of the file, without its suffix
    """

    name: str
    varied: tuple[VariedKey, ...]
    answers: tuple[SweepAnswer, ...]

    @property
    def least_seconds(self) -> float:
        """The least time of a point that fits in memory [s]."""
        return min(answer.seconds for answer in self.answers if answer.seconds and answer.fits is not False)

    @property
    def near(self) -> int:
        """The number of points that fit in memory and are within `NEAR` of the best."""
        most = (1 + NEAR) * self.least_seconds
        fitting = [answer.seconds for answer in self.answers if answer.seconds and answer.fits is not False]
        return sum(seconds <= most for seconds in fitting)


class SearchQuality(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The distances of searches of one table that ask equally many points.

    Parameters
    ----------
    table : name of the table
    points : number of all points
    possible, fitting, near : number of points with a time, of those that fit in memory, and of those within 2 % of the
        best
    asked : number of points that a search asks
    distances : distance of the best point of the search, for each seed from 0 on; null if no asked point fits
    drawn_share : share of random draws of as many points that have a point within 2 % of the best
    """

    table: str
    points: int
    possible: int
    fitting: int
    near: int
    asked: int
    distances: tuple[float | None, ...]
    drawn_share: float

    @property
    def reached(self) -> int:
        """The number of searches within 2 % of the best."""
        return sum(distance is not None and distance <= NEAR for distance in self.distances)


class SearchQualities(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The distances of all searches, as the file of results has them."""

    searches: tuple[SearchQuality, ...]
    provenance: Provenance | None = None


def read_table(path: Path) -> SweptTable:
    """The table in the CSV of a sweep that varies `KEYS`.

    Raises
    ------
    InputError : a column or a point of the full product is missing
    """
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if lacking := [key for key in (*KEYS, "seconds", "fits") if not rows or key not in rows[0]]:
        raise InputError(f"{path}: the column {lacking[0]} is missing")
    varied = tuple(VariedKey(key, tuple(dict.fromkeys(row[key] for row in rows))) for key in KEYS)
    count = 1
    for key in varied:
        count *= len(key.values)
    if count != len(rows):
        raise InputError(f"{path}: {len(rows)} rows; {count}, all combinations of its values, are accepted")
    return SweptTable(path.stem, varied, tuple(map(_answer, rows)))


def _answer(row: dict[str, str]) -> SweepAnswer:
    if not row["seconds"]:
        return SweepAnswer(reason="not possible")
    return SweepAnswer(
        seconds=float(row["seconds"]),
        ranks=int(row["ranks"]),
        peak_bytes_per_rank_max=int(row["peak_bytes_per_rank_max"]),
        fits=row["fits"] == "true",
    )


def search_quality(swept: SweptTable, asked: int, seeds: Sequence[int]) -> SearchQuality:
    """The distances of searches that ask so many points of a table, one for each seed."""
    timed = [answer for answer in swept.answers if answer.seconds]
    return SearchQuality(
        table=swept.name,
        points=len(swept.answers),
        possible=len(timed),
        fitting=sum(answer.fits is not False for answer in timed),
        near=swept.near,
        asked=asked,
        distances=tuple(distance(swept, SearchOptions(points=asked, seed=seed)) for seed in seeds),
        drawn_share=drawn_share(len(swept.answers), swept.near, asked),
    )


def distance(swept: SweptTable, options: SearchOptions) -> float | None:
    """The distance of the best point of a search; None if no asked point fits in memory."""
    answers = search_points(swept.varied, lambda places: [swept.answers[place] for place in places], options)
    best = best_places(answers, options)
    if not best:
        return None
    seconds = answers[best[0]].seconds
    assert seconds is not None
    return seconds / swept.least_seconds - 1


def drawn_share(points: int, near: int, asked: int) -> float:
    """The probability that one of `near` points of `points` is among `asked` drawn ones.

    >>> drawn_share(10, 1, 1), drawn_share(10, 9, 2)
    (0.09999999999999998, 1.0)
    """
    missed = 1.0
    for number in range(asked):
        missed *= max(0, points - near - number) / (points - number)
    return 1 - missed


def shown(quality: SearchQuality) -> tuple[str, ...]:
    """The cells of a row of the table."""
    distances = [distance for distance in quality.distances if distance is not None]
    return (
        quality.table,
        str(quality.points),
        str(quality.fitting),
        str(quality.near),
        str(quality.asked),
        f"{quality.reached} of {len(quality.distances)}",
        percent(median(distances)),
        percent(max(distances)) if len(distances) == len(quality.distances) else "none fits",
        percent(quality.drawn_share, signed=False),
    )


def main() -> None:
    """Search the tables of the results' folder, print the distances, and write them with today's date."""
    tables = [read_table(path) for path in sorted(RESULTS.glob("*.csv"))]
    searches = [
        search_quality(swept, round(share * len(swept.answers)), range(SEEDS)) for swept in tables for share in SHARES
    ]
    columns = ("table", "points", "fit", "within 2 %", "asked", "searches within 2 %", "median", "worst", "drawn")
    print_tables(table("distance of the best point of a search", columns, list(map(shown, searches)), names=1))
    answer = SearchQualities(searches=tuple(searches), provenance=provenance(["make", "studies"]))
    schema_files.write_json(RESULTS / f"{date.today()}.json", answer, SCHEMA)


if __name__ == "__main__":
    run_as_program(main)
