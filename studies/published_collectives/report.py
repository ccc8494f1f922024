"""The answer of the study of published collectives: judged rows, errors and calibrations, and their tables."""

from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from quadrille.algorithms.provenance import Provenance
from quadrille.experiments.output.tables import print_tables, table
from quadrille.studies.judged_rows import (
    JudgedRow,
    Spread,
    judged_only,
    skipped_table,
    spread_of,
    spread_table,
    spreads,
)
from quadrille.studies.published_collectives.machine_calibration import CollectiveCalibration

LARGE = 1 << 20
"""Message size above which bandwidth dominates the time, and below which latency does [bytes]."""


class JudgedCollective(JudgedRow, frozen=True, kw_only=True):
    """A published row of a collective or of messages, with its prediction.

    Parameters
    ----------
    message_bytes : size of the message [bytes]; null if the source does not print it
    algorithm : library, collective and algorithm, as the source names them
    gpu_path : whether the work of the GPUs is modelled; if not, the prediction is the time of the network alone
    """

    message_bytes: int | None
    algorithm: str
    gpu_path: Literal["modelled", "not modelled"]


class CollectivesSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The absolute relative errors of all judged rows, and by source, machine and message size.

    Parameters
    ----------
    rows : number of judged rows
    median, mean, worst : median, mean and largest error over all rows
    by_source, by_machine : errors by source and by machine
    from_1_mib, from_1_mib_by_machine : errors of messages from 1 MiB, and by machine
    below_1_mib : errors of messages below 1 MiB
    small_factor : median of max(predicted / published, published / predicted) below 1 MiB
    """

    rows: int
    median: float | None
    mean: float | None
    worst: float | None
    by_source: dict[str, Spread]
    by_machine: dict[str, Spread]
    from_1_mib: Spread
    from_1_mib_by_machine: dict[str, Spread]
    below_1_mib: Spread
    small_factor: float | None


class CalibrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The calibration of a machine, as `--json` writes it.

    Parameters
    ----------
    machine : name of the machine
    launch_seconds : time before the first byte of a collective [s]
    network_latency_seconds : latency added to each hop between nodes [s]
    inside, between : reached share of the bandwidths that NCCL assumes, inside a node and between nodes
    ll128 : whether NCCL uses its protocol LL128 there
    rows : row from which each parameter was fitted, by the name of the parameter
    """

    machine: str
    launch_seconds: float
    network_latency_seconds: float
    inside: float
    between: float
    ll128: bool
    rows: dict[str, str]


class CollectivesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the study, as `--json` writes it.

    Parameters
    ----------
    rows : published rows with their predictions and roles
    summary : errors of the judged rows
    calibration : calibration of each machine
    provenance : command, date and versions
    """

    rows: list[JudgedCollective]
    summary: CollectivesSummary
    calibration: list[CalibrationRecord]
    provenance: Provenance


def summarise(rows: Sequence[JudgedCollective]) -> CollectivesSummary:
    """The errors of the judged rows, over all and by part."""
    judged = judged_only(rows)
    large = [row for row in judged if (row.message_bytes or LARGE) >= LARGE]
    small = [row for row in judged if (row.message_bytes or LARGE) < LARGE]
    whole = spread_of(judged)
    factors = [max(1 + e, 1 / (1 + e)) for row in small if (e := row.relative_error) is not None]
    return CollectivesSummary(
        rows=whole.rows,
        median=whole.median,
        mean=whole.mean,
        worst=whole.worst,
        by_source=spreads(judged, lambda row: row.source),
        by_machine=spreads(judged, lambda row: row.machine),
        from_1_mib=spread_of(large),
        from_1_mib_by_machine=spreads(large, lambda row: row.machine),
        below_1_mib=spread_of(small),
        small_factor=median(factors) if factors else None,
    )


def calibration_record(site: CollectiveCalibration) -> CalibrationRecord:
    """The record of a machine's calibration in the answer."""
    return CalibrationRecord(
        machine=site.machine,
        launch_seconds=site.settings.launch_seconds,
        network_latency_seconds=site.settings.network_latency,
        inside=site.settings.inside,
        between=site.settings.between,
        ll128=site.settings.ll128,
        rows={parameter: row.id for parameter, row in site.used_rows},
    )


def _reason_class(reason: str) -> str:
    """The reason for skipping a row, without the numbers of the row, so that rows can be counted by reason."""
    for start in ("the same measurement", "printed"):
        if reason.startswith(start):
            return start + (" as another row" if start.startswith("the") else " with too few digits")
    return reason


def show(answer: CollectivesAnswer) -> None:
    """Print the summary as tables."""
    summary = answer.summary
    parts = {
        "all": Spread(summary.rows, summary.median, summary.mean, summary.worst),
        "from 1 MiB": summary.from_1_mib,
        "below 1 MiB": summary.below_1_mib,
    }
    machines = {f"{name}, from 1 MiB": part for name, part in summary.from_1_mib_by_machine.items()}
    calibrations = [
        (
            site.machine,
            f"{site.launch_seconds * 1e6:.1f}",
            f"{site.network_latency_seconds * 1e6:.1f}",
            f"{site.inside:.3f}",
            f"{site.between:.3f}",
            "yes" if site.ll128 else "no",
            ", ".join(f"{k} {v}" for k, v in site.rows.items()),
        )
        for site in answer.calibration
    ]
    print_tables(
        spread_table("rows", parts, machines),
        table(
            "learnt, never judged",
            ("machine", "launch us", "network us", "inside", "between", "LL128", "rows"),
            calibrations,
        ),
        skipped_table(answer.rows, _reason_class),
    )
    if summary.small_factor is not None:
        print(f"below 1 MiB: within a factor of {summary.small_factor:.2f} in the median")
