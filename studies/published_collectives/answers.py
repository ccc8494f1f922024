"""What came of the study: rows with their roles, spreads of errors, and how a person sees them."""

from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from quadrille.algorithms.provenance import Provenance
from quadrille.experiments.output.tables import print_tables, table
from quadrille.studies.judged_rows import JudgedRow, Spread, judged_of, skipped_table, spread_of, spread_table, spreads
from quadrille.studies.published_collectives.sites import LearntCollectives

LARGE = 1 << 20
"""From here on bandwidth counts most, below latency."""


class JudgedCollective(JudgedRow, frozen=True, kw_only=True):
    """A judged row of a collective.

    `gpu_path` says whether the model has the work of GPUs; if it has not, the prediction is the network's part.
    """

    message_bytes: int | None
    algorithm: str
    gpu_path: Literal["modelled", "not modelled"]


class CollectivesSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Errors over all judged rows, and by source, machine and size.

    Parameters
    ----------
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


class FittedSite(msgspec.Struct, frozen=True, kw_only=True):
    """What was learnt of a machine, and from which rows."""

    machine: str
    launch_seconds: float
    network_latency_seconds: float
    inside: float
    between: float
    ll128: bool
    rows: dict[str, str]


class CollectivesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` writes."""

    rows: list[JudgedCollective]
    summary: CollectivesSummary
    calibration: list[FittedSite]
    provenance: Provenance


def summarise(rows: Sequence[JudgedCollective]) -> CollectivesSummary:
    """Spreads of the errors of judged rows."""
    judged = judged_of(rows)
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


def learnt(site: LearntCollectives) -> FittedSite:
    return FittedSite(
        machine=site.machine,
        launch_seconds=site.settings.launch_seconds,
        network_latency_seconds=site.settings.network_latency,
        inside=site.settings.inside,
        between=site.settings.between,
        ll128=site.settings.ll128,
        rows={parameter: row.id for parameter, row in site.learnt_from},
    )


def _sort_of(reason: str) -> str:
    """A reason without what is the row's own."""
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
    learnt = [
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
            "learnt, never judged", ("machine", "launch us", "network us", "inside", "between", "LL128", "rows"), learnt
        ),
        skipped_table(answer.rows, _sort_of),
    )
    if summary.small_factor is not None:
        print(f"below 1 MiB: within a factor of {summary.small_factor:.2f} in the median")
