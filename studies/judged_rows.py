"""What comes of judging predictions by published rows: each row's role, spreads of errors, and their tables."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import mean, median
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from quadrille.experiments.output.tables import percent, table

if TYPE_CHECKING:
    from rich.console import Group

Role = Literal["judged", "calibration", "skipped"]


class Spread(msgspec.Struct, frozen=True):
    """Median, mean and largest absolute relative error; null if no row was judged."""

    rows: int
    median: float | None
    mean: float | None
    worst: float | None

    @classmethod
    def of(cls, errors: Iterable[float | None]) -> "Spread":
        """The spread of relative errors; None entries are left out.

        >>> Spread.of([0.1, -0.3, None])
        Spread(rows=2, median=0.2, mean=0.2, worst=0.3)
        """
        sizes = [abs(error) for error in errors if error is not None]
        return cls(len(sizes), median(sizes), mean(sizes), max(sizes)) if sizes else cls(0, None, None, None)


class JudgedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A published row, what is predicted for it in its own unit, its role, and why it has that role."""

    id: str
    source: str
    machine: str
    model: str | None
    gpus: int
    metric: str
    unit: str
    published: float
    predicted: float | None
    relative_error: float | None
    role: Role
    reason: str


R = TypeVar("R", bound=JudgedRow)


def judged_of(rows: Iterable[R]) -> list[R]:
    return [row for row in rows if row.role == "judged"]


def spread_of(rows: Iterable[JudgedRow]) -> Spread:
    return Spread.of(row.relative_error for row in rows)


def spreads(rows: Iterable[R], by: Callable[[R], str]) -> dict[str, Spread]:
    """The spread of the errors of each part of the rows, by its name."""
    parts: dict[str, list[R]] = defaultdict(list)
    for row in rows:
        parts[by(row)].append(row)
    return {name: spread_of(part) for name, part in sorted(parts.items())}


def spread_table(of_what: str, *sections: Mapping[str, Spread]) -> "Group":
    """A table of the errors of judged rows, one line for each spread."""
    lines = [
        [
            (
                name,
                str(spread.rows),
                *(percent(part, signed=False) for part in (spread.median, spread.mean, spread.worst)),
            )
            for name, spread in section.items()
        ]
        for section in sections
    ]
    return table("error of judged rows", (of_what, "how many", "median", "mean", "worst"), *lines)


def skipped_table(rows: Iterable[JudgedRow], sort_of: Callable[[str], str] = str) -> "Group":
    """How many rows were skipped for each reason; `sort_of` takes out of a reason what is the row's own."""
    reasons = Counter(sort_of(row.reason) for row in rows if row.role == "skipped")
    return table("skipped", ("reason", "rows"), [(reason, str(count)) for reason, count in sorted(reasons.items())])
