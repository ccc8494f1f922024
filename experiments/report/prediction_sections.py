"""The part of a report about compared predictions: the time of each by cause, and its difference from the first."""

from collections.abc import Sequence

from quadrille.algorithms.schedule.grid import lengths_text
from quadrille.algorithms.units import format_bytes, format_seconds, time_unit
from quadrille.experiments.explain.explanation import MeanPart
from quadrille.experiments.output.tables import UNKNOWN, duration, percent
from quadrille.experiments.report.charts import stacked_bars
from quadrille.experiments.report.elements import Chart, Part, Section, Table
from quadrille.experiments.report.repeat import repeat_section
from quadrille.experiments.what_if.compare_predictions import (
    ComparedPrediction,
    Predictions,
    setting_rows,
    summary_lines,
)


def predictions_part(compared: Predictions, source: str) -> Part:
    """The part of a report about predictions that `compare` put beside the first of them.

    Parameters
    ----------
    source : name of the file
    """
    lines = [f"{line}." for line in summary_lines(compared)]
    sections = [_causes_section(compared.predictions), repeat_section(compared.provenance)]
    title = f"Predictions beside {compared.predictions[0].file}"
    return Part(title, lines[0] if lines else "", lines[1:], sections, source)


def _causes_section(predictions: Sequence[ComparedPrediction]) -> Section:
    """The section of the time by cause, a bar and a column for each prediction."""
    names = [f"{number}. {prediction.file}" for number, prediction in enumerate(predictions, 1)]
    unit = time_unit(prediction.seconds for prediction in predictions)
    bars = {
        name: {str(cause): unit.number(seconds) for cause, seconds in prediction.seconds_by_cause.items()}
        for name, prediction in zip(names, predictions, strict=True)
    }
    label = "The time of the mean rank by cause: " + "; ".join(
        f"{name} {format_seconds(prediction.seconds)}" for name, prediction in zip(names, predictions, strict=True)
    )
    times = Table(("cause", *names), _cause_rows(predictions), title="Time of the mean rank by cause")
    facts = Table(("", *names), _fact_rows(predictions))
    return Section("Time by cause", (), [Chart(stacked_bars(bars, f"time [{unit.name}]"), f"{label}.", times)], [facts])


def _cause_rows(predictions: Sequence[ComparedPrediction]) -> list[tuple[str, ...]]:
    causes: dict[MeanPart, None] = {}
    for prediction in predictions:
        causes |= dict.fromkeys(prediction.seconds_by_cause)
    return [(cause, *(duration(each.seconds_by_cause.get(cause, 0.0)) for each in predictions)) for cause in causes]


def _fact_rows(predictions: Sequence[ComparedPrediction]) -> list[tuple[str, ...]]:
    return [
        ("total", *(duration(each.seconds) for each in predictions)),
        ("difference from the first", *(percent(each.difference) for each in predictions)),
        ("machine", *(each.machine or UNKNOWN for each in predictions)),
        ("ranks", *(str(each.ranks) for each in predictions)),
        ("grid", *(lengths_text(each.grid) for each in predictions)),
        ("memory of a rank", *(format_bytes(each.memory_bytes) for each in predictions)),
        *setting_rows(predictions),
    ]
