"""The tables of the fidelity study: the trials by site, and the accuracy of all trials with its thresholds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group as Tables

from quadrille.algorithms.formats.record import Cause
from quadrille.experiments.output.tables import UNKNOWN, duration, percent, table
from quadrille.studies.fidelity.judgement import CLEAR_GAIN, CLOSE_GAIN, Errors, Group, Judgement, TrialResult

CAUSES: tuple[Cause, ...] = ("compute", "transfer", "latency", "waiting", "other")


@dataclass(frozen=True, slots=True)
class Threshold:
    """The thresholds of a group's errors.

    Parameters
    ----------
    median, p90 : largest accepted median and 90th percentile of the relative error; None: no threshold
    drift_removed : whether the threshold of the median applies to errors with the drift removed
    """

    median: float | None = None
    p90: float | None = None
    drift_removed: bool = False


THRESHOLDS: dict[Group, Threshold] = {
    "shared memory": Threshold(0.05, drift_removed=True),
    "laboratory": Threshold(0.05, 0.10),
    "laboratory, overlap": Threshold(0.10, 0.18),
    "library": Threshold(0.15),
}
"""Thresholds by group; the group `GPU` has none."""
LEAST_TAU, INTERVALS = 0.9, (0.80, 0.97)


def trials_table(results: Sequence[TrialResult]) -> Tables:
    """The table of the trials: times, error, noise, and the error by cause in percent of the measured time."""
    columns = ["trial", "predicted", "measured", "error", "no drift", "spread", *CAUSES]
    sites = dict.fromkeys(result.site for result in results)
    sections = [[(site, *[""] * (len(columns) - 1)), *_rows(results, site)] for site in sites]
    return table("Predicted from microbenchmarks, measured", columns, *sections)


def _rows(results: Sequence[TrialResult], site: str) -> Iterator[tuple[str, ...]]:
    """The rows of one site."""
    for result in results:
        if result.site == site:
            overlap = "" if result.overlap == "none" else f" {result.overlap}"
            yield (
                f"  {result.problem}: {result.configuration}{overlap}",
                duration(result.predicted_seconds),
                duration(result.measured_seconds),
                percent(result.relative_error),
                percent(result.relative_error_drift_removed),
                percent(result.spread, signed=False),
                *(percent(result.causes[cause] / result.measured_seconds) for cause in CAUSES),
            )


def judgement_table(judgement: Judgement) -> Tables:
    """The table of the accuracy, with the thresholds."""
    rows = [row for name, errors in judgement.errors.items() for row in _error_rows(name, errors)]
    return table("Judged", ["what", "found", "to be reached", "cases"], rows, [*_overall_rows(judgement)])


def _error_rows(name: Group, errors: Errors) -> Iterator[tuple[str, ...]]:
    """The rows of one group's errors."""
    threshold = THRESHOLDS.get(name, Threshold())
    middle = errors.median_drift_removed if threshold.drift_removed else errors.median
    label = f"{name}, median error{', drift removed' if threshold.drift_removed else ''}"
    yield label, percent(middle, signed=False), _at_most(threshold.median), str(errors.cases)
    yield f"{name}, 90th percentile", percent(errors.p90, signed=False), _at_most(threshold.p90), str(errors.cases)
    yield f"{name}, worst", percent(errors.worst, signed=False), UNKNOWN, str(errors.cases)
    if errors.median_drift_removed is not None and not threshold.drift_removed:
        removed = percent(errors.median_drift_removed, signed=False)
        yield f"{name}, median error, drift removed", removed, UNKNOWN, str(errors.cases)


def _at_most(error: float | None) -> str:
    """The text of a threshold."""
    return UNKNOWN if error is None else f"at most {percent(error, signed=False)}"


def _overall_rows(judgement: Judgement) -> Iterator[tuple[str, ...]]:
    """The rows about all trials together: rank correlation, intervals and gains of overlaps."""
    order, gains = judgement.order, [gain for gain in judgement.gains if gain.group == "laboratory, overlap"]
    tau = UNKNOWN if order.tau is None else f"{order.tau:.2f}"
    yield "order of configurations, Kendall's tau", tau, f"at least {LEAST_TAU}", f"{order.pairs} pairs"
    low, high = (percent(share, signed=False) for share in INTERVALS)
    cases = sum(errors.cases for name, errors in judgement.errors.items() if name != "GPU")
    yield (
        "intervals that hold the measurement",
        percent(judgement.intervals_hold, signed=False),
        f"{low} to {high}",
        str(cases),
    )
    for label, good in (
        (f"laboratories' gains of overlaps within {100 * CLOSE_GAIN:.0f} points", [gain.close for gain in gains]),
        (
            f"signs of those predicted or measured above {100 * CLEAR_GAIN:.0f} %",
            [gain.sign_right for gain in gains if gain.clear],
        ),
    ):
        if good:
            yield label, percent(sum(good) / len(good), signed=False), "all", f"{len(good)} gains"
