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
from quadrille.studies.published_training.scaling_point import ScalingPoint

if TYPE_CHECKING:
    from rich.console import Group


FAR_OFF = 0.15
"""Relative error from which the assumption is named that a prediction depends on."""


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
    claimed : claimed value, or the low end of a claimed range
    claimed_high : high end of a claimed range; null if one value is claimed
    predicted : predicted value; null if the prediction took too long
    relative_error : predicted / claimed - 1, of a range the distance from its nearest end; null without a prediction
    predicted_low, predicted_high : bounds of the exact prediction; null if `predicted` is exact
    setting : grid of the prediction, or the reason why it was left out
    assumptions : what is assumed and not printed in the paper's abstract
    what_if : predictions under other assumptions, by the name of the assumption
    """

    name: str
    source: str
    unit: str
    claimed: float
    claimed_high: float | None
    predicted: float | None
    predicted_low: float | None
    predicted_high: float | None
    relative_error: float | None
    setting: str
    what_if: Mapping[str, float]
    assumptions: list[str]


class TrainingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the study, as `--json` writes it.

    Parameters
    ----------
    rows : published rows with their predictions and roles
    summary : errors of the judged rows
    calibration : calibration of each machine
    claims : papers' claims with their predictions; empty without `--claims`
    weak_scaling : published and predicted weak scaling of AxoNN; empty without `--weak-scaling`
    provenance : command, date and versions
    """

    rows: list[JudgedTraining]
    summary: TrainingSummary
    calibration: list[CalibrationRecord]
    claims: list[Claim]
    weak_scaling: list[ScalingPoint]
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
    """Print the judged rows and the summary, the claims, and the weak scaling as tables."""
    print_tables(
        *(_row_tables(answer) if answer.rows else ()),
        *([_claims(answer.claims)] if answer.claims else []),
        *([_weak_scaling(answer.weak_scaling)] if answer.weak_scaling else []),
    )
    for claim in answer.claims:
        print("\n".join(claim_lines(claim)))
    for point in answer.weak_scaling:
        print(f"{point.model} on {point.gpus} GPUs: {point.command}")


def _row_tables(answer: TrainingAnswer) -> "tuple[Group, ...]":
    """The tables of the judged rows, of their errors, of the calibration and of the skipped rows."""
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
    return (
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
    )


def claim_lines(claim: Claim) -> list[str]:
    """The grid, the assumptions and the what-ifs of a claim as text, and what moves a prediction that is far off."""
    lines = [f"{claim.name}: {claim.setting}; assumed: {', '.join(claim.assumptions)}"]
    lines += [f"  {value:.3g} {claim.unit} with {name}" for name, value in claim.what_if.items()]
    nearest = nearest_assumption(claim)
    if nearest is not None:
        lines.append(f"  off by {percent(claim.relative_error, signed=True)}; nearest to the claim: {nearest}")
    return lines


def nearest_assumption(claim: Claim) -> str | None:
    """The changed assumption that comes nearest to the claim; None if the prediction is off by at most 15 %.

    It is "none of these" if every change leads further away.
    """
    if claim.predicted is None or claim.relative_error is None or abs(claim.relative_error) <= FAR_OFF:
        return None
    high = claim.claimed if claim.claimed_high is None else claim.claimed_high
    distances = {
        name: abs(value - min(max(value, claim.claimed), high))
        for name, value in {"none of these": claim.predicted, **claim.what_if}.items()
    }
    return min(distances, key=distances.__getitem__)


def _claims(claims: Sequence[Claim]) -> "Group":
    """The table of the claims."""
    return table(
        "claims",
        ("claim", "source", "claimed", "predicted", "error", "assumed"),
        [
            (
                claim.name,
                claim.source,
                claimed_text(claim),
                predicted_text(claim),
                percent(claim.relative_error, signed=True),
                ", ".join(claim.assumptions),
            )
            for claim in claims
        ],
    )


def _weak_scaling(points: Sequence[ScalingPoint]) -> "Group":
    """The table of the weak scaling: shares of peak."""
    columns = ("machine", "GPUs", "model", "grid", "published", "untapered", "equal", "differing", "measured network")
    return table(
        "weak scaling of AxoNN, share of peak [%]",
        columns,
        [
            (
                point.machine,
                f"{point.gpus:,}",
                point.model,
                f"{point.grid} ({point.chosen})",
                "" if point.published is None else f"{point.published:.1f}",
                f"{point.untapered:.1f}",
                f"{point.equal:.1f}",
                f"{point.differing:.1f}",
                "" if point.measured is None else f"{point.measured:.1f}",
            )
            for point in points
        ],
    )


def claimed_text(claim: Claim) -> str:
    """The claimed value or range as text."""
    high = "" if claim.claimed_high is None else f" to {claim.claimed_high:g}"
    return f"{claim.claimed:g}{high} {claim.unit}"


def predicted_text(claim: Claim) -> str:
    """The prediction of a claim as text, with its bounds if it is not exact."""
    if claim.predicted is None:
        return "left out"
    exact = claim.predicted_low is None or claim.predicted_high is None
    bounds = "" if exact else f" (exact: {claim.predicted_low:.3g} to {claim.predicted_high:.3g})"
    return f"{claim.predicted:.3g} {claim.unit}{bounds}"
