"""The table of a study of fidelity: trials site by site, then what they say together beside what is to be reached."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Group as Tables

from quadrille.algorithms.formats.record import Cause
from quadrille.experiments.output.tables import UNKNOWN, milliseconds, percent, table
from quadrille.studies.fidelity.judgement import CLEAR_GAIN, CLOSE_GAIN, Errors, Group, Judgement, Result

CAUSES: tuple[Cause, ...] = ("compute", "transfer", "latency", "waiting", "other")


@dataclass(frozen=True, slots=True)
class Floor:
    """What a group's errors are to stay below; None where nothing is asked."""

    median: float | None = None
    p90: float | None = None
    drift_removed: bool = False


FLOORS: dict[Group, Floor] = {
    "shared memory": Floor(0.05, drift_removed=True),
    "laboratory": Floor(0.05, 0.10),
    "laboratory, overlap": Floor(0.10, 0.18),
    "library": Floor(0.15),
}
"""Of the GPU nothing is asked."""
LEAST_TAU, INTERVALS = 0.9, (0.80, 0.97)


def trials_table(results: Sequence[Result]) -> Tables:
    """A table of trials: predicted, measured, error, noise, and the error by cause in percent of the measured time."""
    columns = ["trial", "predicted", "measured", "error", "no drift", "spread", *CAUSES]
    sites = dict.fromkeys(result.site for result in results)
    sections = [[(site, *[""] * (len(columns) - 1)), *_rows(results, site)] for site in sites]
    return table("Predicted from microbenchmarks, measured", columns, *sections)


def _rows(results: Sequence[Result], site: str) -> Iterator[tuple[str, ...]]:
    for result in results:
        if result.site == site:
            overlap = "" if result.overlap == "none" else f" {result.overlap}"
            yield (
                f"  {result.problem}: {result.configuration}{overlap}",
                milliseconds(result.predicted_seconds),
                milliseconds(result.measured_seconds),
                percent(result.relative_error),
                percent(result.relative_error_drift_removed),
                percent(result.spread, signed=False),
                *(percent(result.causes[cause] / result.measured_seconds) for cause in CAUSES),
            )


def judgement_table(judgement: Judgement) -> Tables:
    """A table of the figures that the study reached, beside their thresholds."""
    rows = [row for name, errors in judgement.errors.items() for row in _errors(name, errors)]
    return table("Judged", ["what", "found", "to be reached", "cases"], rows, [*_together(judgement)])


def _errors(name: Group, errors: Errors) -> Iterator[tuple[str, ...]]:
    floor = FLOORS.get(name, Floor())
    middle = errors.median_drift_removed if floor.drift_removed else errors.median
    words = f"{name}, median error{', drift removed' if floor.drift_removed else ''}"
    yield words, percent(middle, signed=False), _at_most(floor.median), str(errors.cases)
    yield f"{name}, 90th percentile", percent(errors.p90, signed=False), _at_most(floor.p90), str(errors.cases)
    yield f"{name}, worst", percent(errors.worst, signed=False), UNKNOWN, str(errors.cases)
    if errors.median_drift_removed is not None and not floor.drift_removed:
        removed = percent(errors.median_drift_removed, signed=False)
        yield f"{name}, median error, drift removed", removed, UNKNOWN, str(errors.cases)


def _at_most(error: float | None) -> str:
    return UNKNOWN if error is None else f"at most {percent(error, signed=False)}"


def _together(judgement: Judgement) -> Iterator[tuple[str, ...]]:
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
    for words, good in (
        (f"laboratories' gains of overlaps within {100 * CLOSE_GAIN:.0f} points", [gain.close for gain in gains]),
        (
            f"signs of those predicted or measured above {100 * CLEAR_GAIN:.0f} %",
            [gain.sign_right for gain in gains if gain.clear],
        ),
    ):
        if good:
            yield words, percent(sum(good) / len(good), signed=False), "all", f"{len(good)} gains"
