"""Published rows with their predictions and roles, the spreads of the errors, and their tables.

Used by the studies `published_collectives` and `published_training`.  A row's role is `judged` (its error counts),
`calibration` (it sets a parameter of its machine) or `skipped`.
"""

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
    """The absolute relative errors of judged rows.

    Parameters
    ----------
    rows : number of judged rows
    median, mean, worst : median, mean and largest absolute relative error; null without a judged row
    """

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
    """A published row with its prediction and role.

    Parameters
    ----------
    id : identifier of the row
    source : publication or web page
    machine : machine as the source names it
    model : named machine that the prediction uses, and the modelled algorithm; null if nothing is predicted
    gpus : number of GPUs
    metric, unit : metric, and the unit of the two values
    published : published value
    predicted : predicted value; null if nothing is predicted
    relative_error : predicted / published - 1
    role : role of the row
    reason : reason for the role; empty for most judged rows
    """

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


def judged_only(rows: Iterable[R]) -> list[R]:
    """The rows with the role `judged`."""
    return [row for row in rows if row.role == "judged"]


def spread_of(rows: Iterable[JudgedRow]) -> Spread:
    """The spread of the rows' errors."""
    return Spread.of(row.relative_error for row in rows)


def spreads(rows: Iterable[R], by: Callable[[R], str]) -> dict[str, Spread]:
    """The spread of the errors of each part of the rows; `by` returns the name of a row's part."""
    parts: dict[str, list[R]] = defaultdict(list)
    for row in rows:
        parts[by(row)].append(row)
    return {name: spread_of(part) for name, part in sorted(parts.items())}


def spread_table(part_column: str, *sections: Mapping[str, Spread]) -> "Group":
    """The table of the errors of judged rows, with one line for each spread.

    Parameters
    ----------
    part_column : title of the first column
    sections : sections of the table: spreads by the name of the part
    """
    lines = [
        [
            (
                name,
                str(spread.rows),
                *(percent(error, signed=False) for error in (spread.median, spread.mean, spread.worst)),
            )
            for name, spread in section.items()
        ]
        for section in sections
    ]
    return table("error of judged rows", (part_column, "how many", "median", "mean", "worst"), *lines)


def skipped_table(rows: Iterable[JudgedRow], reason_class: Callable[[str], str] = str) -> "Group":
    """The table of the number of skipped rows by reason.

    Parameters
    ----------
    rows : rows of the study
    reason_class : function that returns a reason without the numbers of its row
    """
    reasons = Counter(reason_class(row.reason) for row in rows if row.role == "skipped")
    return table("skipped", ("reason", "rows"), [(reason, str(count)) for reason, count in sorted(reasons.items())])
