"""The part of a report about a comparison: predicted beside measured in total and op by op, and why they differ."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quadrille.algorithms.formats.percentiles import percentiles
from quadrille.algorithms.formats.record import Record
from quadrille.algorithms.tabular import TimedText
from quadrille.algorithms.units import NOISE_SECONDS, TimeUnit, format_percent, format_seconds, time_unit
from quadrille.experiments.compare.comparison import Comparison, OpComparison, Times
from quadrille.experiments.compare.problem import problem_label
from quadrille.experiments.compare.record_folders import FolderComparison
from quadrille.experiments.output.tables import UNKNOWN, duration, percent
from quadrille.experiments.records.record_table import outside_lines
from quadrille.experiments.report.amounts import compact
from quadrille.experiments.report.charts import LEGEND, PAGE_WIDTH, bars
from quadrille.experiments.report.elements import Chart, Part, Section, Spec, Table, sentence
from quadrille.experiments.report.palette import COLOURS, colours_of
from quadrille.experiments.report.repeat import repeat_section

MOST_OPS = 30
"""Number of ops that the chart shows: those whose predicted and measured times differ most, or take longest."""
SIDES = ("predicted", "measured")
TOTAL = "total"
Interval = tuple[float, float]
COLUMNS = ("", "predicted", "measured", "error", "drift removed", "spread")


def comparison_part(compared: Comparison, source: str, measured: Record | None = None) -> Part:
    """The part of a report about one comparison.

    Parameters
    ----------
    source : name of the file, or of both records
    measured : measured record, whose repeats give the intervals of ops; None if it is not at hand
    """
    intervals = {} if measured is None else _intervals(measured)
    sections = [
        _ops_section(compared, intervals),
        _causes_section(compared, measured),
        _noise_section(compared),
        *([repeat_section(compared.provenance)] if compared.provenance is not None else []),
    ]
    title = f"Comparison: {problem_label(compared.problem)}"
    verdict, points = comparison_verdict(compared), [_interval_sentence(compared), *map(sentence, compared.remarks)]
    return Part(title, verdict, points, sections, source, comparison_error(compared))


def comparison_verdict(compared: Comparison) -> str:
    """The answer of a comparison in a sentence."""
    both = compared.seconds
    return (
        f"Predicted {format_seconds(both.predicted)}, measured {format_seconds(both.measured)}: "
        f"{comparison_error(compared)}."
    )


def comparison_error(compared: Comparison) -> str:
    """The error of the predicted time, as text."""
    error = compared.seconds.relative_error
    return UNKNOWN if error is None else format_percent(error, signed=True)


def _interval_sentence(compared: Comparison) -> str:
    noise = compared.noise
    if not noise.interval_known:
        return "The prediction has no interval."
    holds = "holds" if noise.interval_holds_measurement else "does not hold"
    low, high = format_seconds(noise.predicted_low_seconds), format_seconds(noise.predicted_high_seconds)
    return f"The 90 % interval of the prediction, {low} to {high}, {holds} the measurement."


def _intervals(measured: Record) -> dict[str, Interval]:
    """The 5th and the 95th percentile of the repeats of each op [s]; of ops with several repeats."""
    repeated = {op.name: percentiles(op.seconds_of_repeats) for op in measured.ops if len(op.seconds_of_repeats) > 1}
    return {name: (times.low, times.high) for name, times in repeated.items()}


def _ops_section(compared: Comparison, intervals: Mapping[str, Interval]) -> Section:
    shown = _shown_ops(compared.ops)
    unit = time_unit([compared.seconds.predicted, compared.seconds.measured])
    points = list(_points(TOTAL, compared.seconds, _total_intervals(compared), unit))
    for op in shown:
        points += _points(op.name, op.seconds, _measured_interval(intervals, op.name), unit)
    hidden = len(compared.ops) - len(shown)
    lines = [f"The chart shows {len(shown)} of {len(compared.ops)} ops; the table has all."] if hidden else []
    if not intervals:
        lines.append("The intervals of single ops are in the measured record, which is not at hand.")
    label = "Predicted time (diamonds) beside measured time (circles), in total and by op; lines are intervals of 90 %."
    rows = [_row(TOTAL, compared.seconds), *(_row(op.name, op.seconds) for op in compared.ops)]
    spec = paired_points([TOTAL, *(op.name for op in shown)], points, f"time [{unit.name}]")
    return Section("Predicted and measured", lines, [Chart(spec, label, Table(COLUMNS, rows))])


def _total_intervals(compared: Comparison) -> dict[str, Interval]:
    """The interval of both total times, as far as it is known [s]."""
    noise, intervals = compared.noise, {}
    if noise.interval_known:
        intervals["predicted"] = noise.predicted_low_seconds, noise.predicted_high_seconds
    if noise.repeats > 1:
        intervals["measured"] = noise.low_seconds, noise.high_seconds
    return intervals


def _shown_ops(ops: Sequence[OpComparison]) -> list[OpComparison]:
    """The ops that take longest on either side, the longest first."""
    ordered = sorted(ops, key=lambda op: -max(op.seconds.predicted, op.seconds.measured))
    return ordered[:MOST_OPS]


def _measured_interval(intervals: Mapping[str, Interval], name: str) -> dict[str, Interval]:
    return {"measured": intervals[name]} if name in intervals else {}


def _points(name: str, times: Times, intervals: Mapping[str, Interval], unit: TimeUnit) -> Iterable[dict[str, Any]]:
    """A point for each side, with its interval where that is known."""
    for side, seconds in zip(SIDES, (times.predicted, times.measured), strict=True):
        low, high = intervals.get(side, (seconds, seconds))
        yield {
            "op": name,
            "side": side,
            "v": compact(unit.number(seconds)),
            "low": compact(unit.number(low)),
            "high": compact(unit.number(high)),
        }


def paired_points(names: Sequence[str], points: Sequence[Mapping[str, Any]], title: str) -> Spec:
    """A row for each name, with the predicted point above the measured point, and a line for each interval.

    Parameters
    ----------
    points : rows with the keys op, side, v, low and high
    title : title of the axis
    """
    y = {
        "field": "op",
        "type": "nominal",
        "sort": list(names),
        "title": None,
        "axis": {"labelLimit": 150, "grid": True},
    }
    offset = {"field": "side", "type": "nominal", "scale": {"domain": list(SIDES)}}
    colour = {
        "field": "side",
        "type": "nominal",
        "scale": {"domain": list(SIDES), "range": [COLOURS[0], COLOURS[3]]},
        "legend": LEGEND,
    }
    shape = {**colour, "scale": {"domain": list(SIDES), "range": ["diamond", "circle"]}}
    place = {"y": y, "yOffset": offset}
    return {
        **PAGE_WIDTH,
        "height": 30 * len(names),
        "data": {"values": list(points)},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {
                    **place,
                    "x": {"field": "low", "type": "quantitative", "title": title},
                    "x2": {"field": "high"},
                    "color": colour,
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                "encoding": {
                    **place,
                    "x": {"field": "v", "type": "quantitative", "title": title},
                    "color": colour,
                    "shape": shape,
                    "tooltip": [{"field": name} for name in ("op", "side", "v", "low", "high")],
                },
            },
        ],
    }


def _row(name: str, times: Times) -> tuple[str, ...]:
    return (
        name,
        duration(times.predicted),
        duration(times.measured),
        percent(times.relative_error),
        percent(times.relative_error_drift_removed),
        percent(times.spread, signed=False),
    )


def _causes_section(compared: Comparison, record: Record | None) -> Section:
    by_cause = compared.attribution_seconds.by_cause()
    causes = {cause: part for cause, part in by_cause.items() if abs(part) >= NOISE_SECONDS} or by_cause
    measured = compared.seconds.measured
    unit = time_unit(causes.values())
    most = max(causes, key=lambda cause: abs(causes[cause]))
    largest = format_seconds(causes[most])
    label = f"Predicted less measured time, by cause; the largest difference is in {most}, {largest}."
    rows = [(str(cause), duration(part), percent(part / measured)) for cause, part in causes.items()]
    scaled = {str(cause): unit.number(part) for cause, part in causes.items()}
    spec = bars(scaled, f"predicted less measured [{unit.name}]", colours_of(list(scaled)))
    lines = [sentence(f"{line}; in the comparison it is other") for line in outside_lines(record)] if record else []
    return Section("Why they differ", lines, [Chart(spec, label, Table(("cause", "difference", "of measured"), rows))])


def _noise_section(compared: Comparison) -> Section:
    noise, drift = compared.noise, compared.drift
    rows = [
        ("repeats", str(noise.repeats)),
        ("median", duration(noise.median_seconds)),
        ("5th to 95th percentile", TimedText(noise.low_seconds, " to ", noise.high_seconds)),
        ("error within the noise", {None: "not known", True: "yes", False: "no"}[noise.within_noise]),
        ("drift since calibration", UNKNOWN if drift.total is None else percent(drift.total - 1)),
    ]
    return Section("Noise and drift", tables=[Table(("measurement", ""), rows, names=2)])


def _pair_name(number: int, pair: Comparison) -> str:
    """The number of a pair, and the name of its measured record or else its problem."""
    return f"{number}: {Path(pair.files.measured).name if pair.files is not None else problem_label(pair.problem)}"


def folder_part(compared: FolderComparison, source: str) -> Part:
    """The part of a report about two folders of records: all pairs, and the sizes of the errors."""
    pairs, summary = compared.comparisons, compared.summary
    unit = time_unit(pair.seconds.measured for pair in pairs)
    names = [_pair_name(number, pair) for number, pair in enumerate(pairs, 1)]
    points = [
        point
        for name, pair in zip(names, pairs, strict=True)
        for point in _points(name, pair.seconds, _total_intervals(pair), unit)
    ]
    rows = [
        (name, problem_label(pair.problem), *_row(name, pair.seconds)[1:])
        for name, pair in zip(names, pairs, strict=True)
    ]
    worst = max(zip(names, pairs, strict=True), key=lambda named: abs(named[1].seconds.relative_error or 0.0))
    label = (
        "Predicted time (diamonds) beside measured time (circles) of each pair of records; lines are intervals of "
        f"90 %. The largest error is that of {worst[0]}, {comparison_error(worst[1])}."
    )
    chart = Chart(
        paired_points(names, points, f"time [{unit.name}]"),
        label,
        Table(("record", "problem", *COLUMNS[1:]), rows, names=2),
    )
    verdict = (
        f"Over {summary.cases} pairs the median error is {format_percent(summary.median)}, the 90th percentile "
        f"{format_percent(summary.p90)}, the worst {format_percent(summary.worst)}."
    )
    sections = [Section("Predicted and measured", charts=[chart]), repeat_section(compared.provenance)]
    return Part(
        f"Comparison of {summary.cases} pairs of records",
        verdict,
        compared.remarks,
        sections,
        source,
        f"median {format_percent(summary.median)}",
    )
