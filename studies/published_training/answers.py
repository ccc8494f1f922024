"""What came of the study: rows with their roles, spreads of errors, and how a person sees them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from quadrille.algorithms.provenance import Provenance
from quadrille.experiments.output.tables import percent, print_tables, table
from quadrille.studies.judged_rows import JudgedRow, Spread, judged_of, skipped_table, spread_of, spread_table, spreads
from quadrille.studies.published_training.sites import LearntTraining

if TYPE_CHECKING:
    from rich.console import Group


class JudgedTraining(JudgedRow, frozen=True, kw_only=True):
    """A judged row of a training; `flops` says which flop its rate counts."""

    paper: str
    workload: str
    flops: Literal["model", "hardware"] | None


class TrainingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Errors over all judged rows, by source and by machine; a paper's times and its memory are separate sources."""

    rows: int
    median: float | None
    mean: float | None
    worst: float | None
    by_source: dict[str, Spread]
    by_machine: dict[str, Spread]


class FittedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """What was learnt of a machine, and from which rows."""

    machine: str
    between: float
    rest_bytes: float
    rows: dict[str, str]


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A paper's claim and what is predicted of it.

    Parameters
    ----------
    predicted, relative_error : None where it took too long
    predicted_low, predicted_high : between which the exact prediction lies, where `predicted` is not exact
    setting : what it was predicted for, and what of that is assumed; or why it was left out
    what_if : what would be predicted if something were otherwise, in the same unit
    """

    name: str
    source: str
    unit: str
    claimed: float
    predicted: float | None
    predicted_low: float | None
    predicted_high: float | None
    relative_error: float | None
    setting: str
    what_if: Mapping[str, float]


class TrainingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes; claims are there where they were asked for."""

    rows: list[JudgedTraining]
    summary: TrainingSummary
    calibration: list[FittedMachine]
    claims: list[Claimed]
    provenance: Provenance


def summarise(rows: Sequence[JudgedTraining]) -> TrainingSummary:
    """Spreads of the errors of judged rows."""
    judged = judged_of(rows)
    whole = spread_of(judged)
    return TrainingSummary(
        rows=whole.rows,
        median=whole.median,
        mean=whole.mean,
        worst=whole.worst,
        by_source=spreads(judged, lambda row: f"{row.paper}: {'memory' if row.metric == 'peak_memory' else 'time'}"),
        by_machine=spreads(judged, lambda row: row.machine),
    )


def learnt(site: LearntTraining) -> FittedMachine:
    return FittedMachine(machine=site.machine, between=site.between, rest_bytes=site.rest_bytes, rows=dict(site.rows))


def show(answer: TrainingAnswer) -> None:
    """Print every judged row and the summary as tables."""
    judged = [
        (
            row.id,
            row.paper,
            row.workload,
            f"{row.metric} [{row.unit}]" + (f" ({row.flops})" if row.flops else ""),
            f"{row.published:.4g}",
            f"{row.predicted:.4g}",
            percent(row.relative_error, signed=True),
        )
        for row in judged_of(answer.rows)
        if row.predicted is not None
    ]
    print_tables(
        table("judged", ("id", "source", "run", "quantity", "published", "predicted", "error"), judged),
        spread_table("source", {"all": spread_of(judged_of(answer.rows)), **answer.summary.by_source}),
        table(
            "learnt, never judged",
            ("machine", "between nodes", "rest [GB]", "rows"),
            [
                (
                    site.machine,
                    f"{site.between:.3f}",
                    f"{site.rest_bytes / 1e9:.1f}",
                    ", ".join(map(" ".join, site.rows.items())),
                )
                for site in answer.calibration
            ],
        ),
        skipped_table(answer.rows),
        *([_claims(answer.claims)] if answer.claims else []),
    )
    for claim in answer.claims:
        otherwise = "".join(f"; {value:.3g} {claim.unit} with {words}" for words, value in claim.what_if.items())
        print(f"{claim.name}: {claim.setting}{otherwise}")


def _claims(claims: Sequence[Claimed]) -> "Group":
    return table(
        "claims",
        ("claim", "source", "claimed", "predicted", "error"),
        [
            (
                claim.name,
                claim.source,
                f"{claim.claimed:g} {claim.unit}",
                in_words(claim),
                percent(claim.relative_error, signed=True),
            )
            for claim in claims
        ],
    )


def in_words(claim: Claimed) -> str:
    """What is predicted of a claim, as tables have it."""
    if claim.predicted is None:
        return "left out"
    exact = claim.predicted_low is None or claim.predicted_high is None
    bounds = "" if exact else f" (exact: {claim.predicted_low:.3g} to {claim.predicted_high:.3g})"
    return f"{claim.predicted:.3g} {claim.unit}{bounds}"
