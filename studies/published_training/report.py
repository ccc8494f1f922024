"""The answer of the study of published training: judged rows, errors, calibrations and claims, and their tables."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from quadrille.algorithms.provenance import Provenance
from quadrille.experiments.output.tables import percent, print_tables, table
from quadrille.studies.judged_rows import (
    JudgedRow,
    Spread,
    judged_only,
    skipped_table,
    spread_of,
    spread_table,
    spreads,
)
from quadrille.studies.published_training.machine_calibration import TrainingCalibration

if TYPE_CHECKING:
    from rich.console import Group


class JudgedTraining(JudgedRow, frozen=True, kw_only=True):
    """A published row of a training run, with its prediction.

    Parameters
    ----------
    paper : short name of the paper
    workload : model, parallel groups and batch as text
    flops : operations that the row's rate counts: of the model, or of the hardware (recomputation included); null if
        the row states no rate of operations
    """

    paper: str
    workload: str
    flops: Literal["model", "hardware"] | None


class TrainingSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The absolute relative errors of all judged rows, and by source and machine.

    Parameters
    ----------
    rows : number of judged rows
    median, mean, worst : median, mean and largest error over all rows
    by_source : errors by paper, its times and its memory apart
    by_machine : errors by machine
    """

    rows: int
    median: float | None
    mean: float | None
    worst: float | None
    by_source: dict[str, Spread]
    by_machine: dict[str, Spread]


class CalibrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The calibration of a machine, as `--json` writes it.

    Parameters
    ----------
    machine : name of the machine
    between : reached share of the bandwidth between nodes
    rest_bytes : memory of a GPU that the model does not count [bytes]
    rows : identifier of the fitted row, by the name of the parameter
    """

    machine: str
    between: float
    rest_bytes: float
    rows: dict[str, str]


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A paper's claim with its prediction.

    Parameters
    ----------
    name : name of the claim
    source : paper
    unit : unit of the values
    claimed : claimed value
    predicted, relative_error : predicted value, and predicted / claimed - 1; null if the prediction took too long
    predicted_low, predicted_high : bounds of the exact prediction; null if `predicted` is exact
    setting : grid and assumptions of the prediction, or the reason why it was left out
    what_if : predictions under other assumptions, by the name of the assumption
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
    """The answer of the study, as `--json` writes it.

    Parameters
    ----------
    rows : published rows with their predictions and roles
    summary : errors of the judged rows
    calibration : calibration of each machine
    claims : papers' claims with their predictions; empty without `--claims`
    provenance : command, date and versions
    """

    rows: list[JudgedTraining]
    summary: TrainingSummary
    calibration: list[CalibrationRecord]
    claims: list[Claim]
    provenance: Provenance


def summarise(rows: Sequence[JudgedTraining]) -> TrainingSummary:
    """The errors of the judged rows, over all and by part."""
    judged = judged_only(rows)
    whole = spread_of(judged)
    return TrainingSummary(
        rows=whole.rows,
        median=whole.median,
        mean=whole.mean,
        worst=whole.worst,
        by_source=spreads(judged, lambda row: f"{row.paper}: {'memory' if row.metric == 'peak_memory' else 'time'}"),
        by_machine=spreads(judged, lambda row: row.machine),
    )


def calibration_record(site: TrainingCalibration) -> CalibrationRecord:
    """The record of a machine's calibration in the answer."""
    return CalibrationRecord(
        machine=site.machine, between=site.between, rest_bytes=site.rest_bytes, rows=dict(site.rows)
    )


def show(answer: TrainingAnswer) -> None:
    """Print the judged rows, the summary and the claims as tables."""
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
        for row in judged_only(answer.rows)
        if row.predicted is not None
    ]
    print_tables(
        table("judged", ("id", "source", "run", "quantity", "published", "predicted", "error"), judged),
        spread_table("source", {"all": spread_of(judged_only(answer.rows)), **answer.summary.by_source}),
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
        variants = "".join(f"; {value:.3g} {claim.unit} with {name}" for name, value in claim.what_if.items())
        print(f"{claim.name}: {claim.setting}{variants}")


def _claims(claims: Sequence[Claim]) -> "Group":
    """The table of the claims."""
    return table(
        "claims",
        ("claim", "source", "claimed", "predicted", "error"),
        [
            (
                claim.name,
                claim.source,
                f"{claim.claimed:g} {claim.unit}",
                predicted_text(claim),
                percent(claim.relative_error, signed=True),
            )
            for claim in claims
        ],
    )


def predicted_text(claim: Claim) -> str:
    """The prediction of a claim as text, with its bounds if it is not exact."""
    if claim.predicted is None:
        return "left out"
    exact = claim.predicted_low is None or claim.predicted_high is None
    bounds = "" if exact else f" (exact: {claim.predicted_low:.3g} to {claim.predicted_high:.3g})"
    return f"{claim.predicted:.3g} {claim.unit}{bounds}"
