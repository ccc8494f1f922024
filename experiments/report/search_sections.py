"""The parts of a report about rankings and sweeps: the Pareto front of time, memory and GPUs, with filters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.output.tables import milliseconds, percent
from quadrille.experiments.rank.grids_report import GridsAnswer
from quadrille.experiments.rank.ranking import SimulatedEntry
from quadrille.experiments.rank.ranking_page import agreement_text, grid_flag
from quadrille.experiments.rank.schemes_report import SchemesAnswer
from quadrille.experiments.report.charts import COLOURS, INK, LEGEND, PAGE_WIDTH, compact, with_filters
from quadrille.experiments.report.elements import Chart, Part, Section, Spec, Table
from quadrille.experiments.report.pareto import pareto_front
from quadrille.experiments.report.repeat import repeat_section
from quadrille.experiments.sweep.sweep_result import Sweep, SweepRow

GB = 1e9
"""Bytes in a GB, the unit of memory in charts."""
MOST_POINTS = 800
"""Number of points of a chart: the Pareto front, then the fastest."""
MOST_CHOICES = 12
"""Number of different values up to which an option has a filter."""
MOST_FILTERS = 5
FRONT, BEHIND = "on the Pareto front", "another point is better"
OPTIONS = (
    "scheme",
    "micro_batch",
    "zero",
    "interleave",
    "pipeline_schedule",
    "recompute",
    "gathered",
    "overlap",
    "offload",
)


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a search: its time [s], its memory [B], its GPUs, and what tells it from others."""

    name: str
    seconds: float
    memory_bytes: float
    gpus: int
    options: Mapping[str, str] = field(default_factory=dict)
    fits: bool = True


def pareto_section(points: Sequence[Point], title: str) -> Section:
    """The section with the Pareto front of time, memory and GPUs."""
    front = set(pareto_front([(point.seconds, point.memory_bytes, point.gpus) for point in points]))
    order = sorted(range(len(points)), key=lambda place: (place not in front, points[place].seconds))
    shown = [(points[place], place in front) for place in order[:MOST_POINTS]]
    several_gpus = len({point.gpus for point in points}) > 1
    hidden = len(points) - len(shown)
    lines = (
        [f"The chart shows {len(shown):,} of {len(points):,} points: the front, then the fastest."] if hidden else []
    )
    on_front = sorted((points[place] for place in front), key=lambda point: point.seconds)
    amounts = "time, memory and GPUs" if several_gpus else "time and memory"
    label = (
        f"Time over memory of {len(shown):,} points. Large diamonds are the {len(front)} on the Pareto front: no other "
        f"point is better in {amounts}. The fastest is {on_front[0].name}."
    )
    columns = ("point on the front", "time", "memory", "GPUs")
    rows = [
        (point.name, milliseconds(point.seconds), format_bytes(int(point.memory_bytes)), f"{point.gpus:,}")
        for point in on_front
    ]
    spec = _spec([_value(*pair) for pair in shown], several_gpus=several_gpus)
    chart = Chart(with_filters(spec, filters([point for point, _ in shown])), label, Table(columns, rows))
    return Section(title, lines, [chart])


def _value(point: Point, is_on_front: bool) -> dict[str, Any]:
    return {
        "time": compact(point.seconds),
        "memory": compact(point.memory_bytes / GB),
        "GPUs": point.gpus,
        "point": point.name,
        "place": FRONT if is_on_front else BEHIND,
        "fits": "yes" if point.fits else "no",
        **point.options,
    }


def filters(points: Sequence[Point]) -> dict[str, list[str]]:
    """The values of each option by which the points differ; of GPUs too."""
    choices: dict[str, list[str]] = {}
    gpus = sorted({point.gpus for point in points})
    has_key = any("gpus" in point.options for point in points)
    if 1 < len(gpus) <= MOST_CHOICES and not has_key:
        choices["GPUs"] = [str(count) for count in gpus]
    for name in dict.fromkeys(name for point in points for name in point.options):
        values = sorted({point.options.get(name, "") for point in points}, key=_by_number)
        if 1 < len(values) <= MOST_CHOICES and len(choices) < MOST_FILTERS:
            choices[name] = values
    return choices


def _by_number(text: str) -> tuple[bool, float, str]:
    return (False, float(text), text) if text.replace(".", "", 1).isdigit() else (True, 0.0, text)


def _spec(values: Sequence[Mapping[str, Any]], *, several_gpus: bool) -> Spec:
    """Points of time over memory; the shape says what is on the front, the colour the number of GPUs."""
    tooltip = [{"field": name} for name in values[0] if name != "place"]
    scale = {"zero": False, "nice": True}
    times = [value["time"] for value in values]
    if min(times) > 0 and max(times) > 8 * min(times):
        scale = {"type": "log", "nice": False}  # type: ignore[dict-item]
    colour: Spec = {"value": COLOURS[0]}
    if several_gpus:
        counts = sorted({value["GPUs"] for value in values})
        colours = [COLOURS[number % len(COLOURS)] for number in range(len(counts))]
        colour = {"field": "GPUs", "type": "ordinal", "scale": {"domain": counts, "range": colours}}
        colour["legend"] = {**LEGEND, "title": "GPUs"}
    places = {"domain": [FRONT, BEHIND]}
    return {
        **PAGE_WIDTH,
        "height": 340,
        "data": {"values": list(values)},
        "mark": {"type": "point", "filled": True, "opacity": 0.9, "stroke": INK, "strokeWidth": 0.5},
        "encoding": {
            "x": {
                "field": "memory",
                "type": "quantitative",
                "title": "memory of a rank [GB]",
                "scale": {"zero": False},
            },
            "y": {"field": "time", "type": "quantitative", "title": "time [s]", "scale": scale},
            "color": colour,
            "shape": {
                "field": "place",
                "type": "nominal",
                "scale": {**places, "range": ["diamond", "circle"]},
                "legend": LEGEND,
            },
            "size": {"condition": {"test": f"datum.place == '{FRONT}'", "value": 190}, "value": 45},
            "tooltip": tooltip,
        },
    }


# Rankings


def ranking_part(answer: GridsAnswer | SchemesAnswer, source: str) -> Part:
    """The part of a report about a ranking."""
    best = answer.simulated[0]
    title = f"Ranking: {answer.model} on {answer.gpus:,} GPUs of {answer.machine}"
    verdict = f"The fastest is {entry_name(best)}: {format_seconds(best.seconds)} an iteration."
    lines = [f"{agreement_text(answer.kendall_tau).capitalize()}.", *answer.why]
    sections = [_simulated_section(answer), *_modelled_section(answer), _question_section(answer)]
    return Part(title, verdict, lines, [*sections, repeat_section(answer.provenance)], source)


def entry_name(entry: Any) -> str:
    """The grid of an entry, and its microbatch if it has one."""
    micro_batch = getattr(entry, "micro_batch", None)
    return grid_flag(entry.grid) + (f", micro-batch {micro_batch}" if micro_batch is not None else "")


def _options_of(entry: Any) -> dict[str, str]:
    """The options of an entry by which a reader may filter: pipeline stages, then those of a configuration."""
    options = {"pipeline": str(entry.grid.get("pipeline", 1))}
    return options | {
        name.replace("_", " "): str(getattr(entry, name)) for name in OPTIONS if getattr(entry, name, None) is not None
    }


def _simulated_section(answer: GridsAnswer | SchemesAnswer) -> Section:
    entries: Sequence[SimulatedEntry] = answer.simulated
    points = [
        Point(entry_name(entry), entry.seconds, entry.memory_bytes, answer.gpus, _options_of(entry))
        for entry in entries
    ]
    section = pareto_section(points, "Simulated: time and memory")
    columns = ("", "place by model", "time", "by model", "compute", "transfer", "hidden", "waiting", "memory", "HFU")
    rows = [
        (
            entry_name(entry),
            str(entry.analytical_place),
            milliseconds(entry.seconds),
            milliseconds(entry.analytical_seconds),
            milliseconds(entry.compute_seconds),
            milliseconds(entry.transfer_seconds),
            milliseconds(entry.hidden_seconds),
            milliseconds(entry.waiting_seconds),
            format_bytes(entry.memory_bytes),
            percent(None if entry.percent_of_peak is None else entry.percent_of_peak / 100, signed=False),
        )
        for entry in entries
    ]
    return Section(section.title, section.lines, section.charts, [Table(columns, rows)])


def _modelled_section(answer: GridsAnswer | SchemesAnswer) -> Iterator[Section]:
    """The section of all entries by the model; the model of grids knows communication alone."""
    if len(answer.analytical) < 2:
        return
    points = [
        Point(entry_name(entry), entry.seconds, entry.memory_bytes, answer.gpus, _options_of(entry))
        for entry in answer.analytical
    ]
    kind = "whole step" if isinstance(answer, SchemesAnswer) else "communication alone"
    yield pareto_section(points, f"By the quick model, {kind}: time and memory")


def _question_section(answer: GridsAnswer | SchemesAnswer) -> Section:
    rows = [("model", answer.model), ("machine", answer.machine), ("GPUs", f"{answer.gpus:,}")]
    rows += [(name.replace("_", " "), str(value)) for name, value in answer.options.items()]
    tables = [Table(("", ""), rows, names=2)]
    if isinstance(answer, SchemesAnswer) and answer.left_out:
        left_out = [(entry.reason, entry.example, f"{entry.configurations:,}") for entry in answer.left_out]
        tables.append(Table(("left out by", "the first", "configurations"), left_out, names=2))
    return Section("Question", tables=tables)


# Sweeps


def sweep_part(sweep: Sweep, source: str) -> Part:
    """The part of a report about a sweep."""
    answered = [row for row in sweep.points if row.answer.seconds is not None]
    keys = ", ".join(sweep.varied)
    title = f"Sweep of {len(sweep.points):,} points over {keys}"
    missing = len(sweep.points) - len(answered)
    lines = [f"{missing:,} points have no answer; the table says why."] if missing else []
    if not answered:
        verdict = "No point has an answer."
    else:
        best = min(answered, key=lambda row: row.answer.seconds or 0.0)
        verdict = f"The fastest point is {point_name(best)}: {format_seconds(best.answer.seconds or 0.0)}."
    sections = [*_sweep_sections(sweep, answered), _sweep_table(sweep), repeat_section(sweep.provenance)]
    return Part(title, verdict, lines, sections, source)


def point_name(row: SweepRow) -> str:
    """The values of the varied keys, and the grid that the sweep found."""
    return ", ".join(f"{key}={value}" for key, value in row.point.items())


def _sweep_sections(sweep: Sweep, answered: Sequence[SweepRow]) -> Iterator[Section]:
    """The sections with the time over the first key, and with the Pareto front where memory is known."""
    if answered:
        yield _time_section(sweep, answered)
    points = [
        Point(
            point_name(row),
            row.answer.seconds or 0.0,
            row.answer.peak_bytes_per_rank_max or 0,
            row.answer.ranks or 1,
            dict(row.point),
            fits=row.answer.fits is not False,
        )
        for row in answered
        if row.answer.peak_bytes_per_rank_max
    ]
    if len(points) > 1:
        yield pareto_section(points, "Time, memory and GPUs")


def _time_section(sweep: Sweep, answered: Sequence[SweepRow]) -> Section:
    """The time over the key with most values, with a line for each combination of the others."""
    key = max(sweep.varied, key=lambda name: len(sweep.varied[name]))
    others = [name for name in sweep.varied if name != key]
    values = [
        {
            "x": row.point[key],
            "line": ", ".join(f"{name}={row.point[name]}" for name in others) or "time",
            "v": compact(row.answer.seconds or 0.0),
            "fits": "no" if row.answer.fits is False else "yes",
            "point": point_name(row),
        }
        for row in answered[:MOST_POINTS]
    ]
    lines = list(dict.fromkeys(str(value["line"]) for value in values))
    times = [float(value["v"]) for value in values if isinstance(value["v"], float)]
    is_wide = min(times) > 0 and max(times) > 8 * min(times)
    scale: Spec = {"type": "log"} if is_wide else {"zero": True}
    spec = {
        **PAGE_WIDTH,
        "height": 320,
        "data": {"values": values},
        "mark": {"type": "line", "point": {"size": 60, "filled": True}},
        "encoding": {
            "x": {
                "field": "x",
                "type": "ordinal",
                "sort": list(sweep.varied[key]),
                "title": key,
                "axis": {"labelAngle": 0},
            },
            "y": {"field": "v", "type": "quantitative", "title": "time [s]", "scale": scale},
            "color": _by_line(lines, COLOURS),
            "strokeDash": _by_line(lines, [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]]),
            "tooltip": [{"field": name} for name in ("point", "v", "fits")],
        },
    }
    rows = [(point_name(row), milliseconds(row.answer.seconds), _yes_or_no(row.answer.fits)) for row in answered]
    label = f"Predicted time over {key}" + (f", a line for each value of {', '.join(others)}." if others else ".")
    return Section(f"Time over {key}", charts=[Chart(spec, label, Table(("point", "time", "fits"), rows))])


def _by_line(lines: Sequence[str], values: Sequence[Any]) -> Spec:
    """A channel that tells lines apart."""
    scale = {"domain": list(lines), "range": [values[number % len(values)] for number in range(len(lines))]}
    return {"field": "line", "type": "nominal", "scale": scale, "legend": LEGEND if len(lines) > 1 else None}


def _yes_or_no(answer: bool | None) -> str:
    return "" if answer is None else "yes" if answer else "no"


def _sweep_table(sweep: Sweep) -> Section:
    rows = [
        (
            point_name(row),
            row.answer.grid,
            milliseconds(row.answer.seconds),
            "" if row.speedup is None else f"{row.speedup:.3g}",
            percent(row.answer.communication_share, signed=False),
            format_bytes(row.answer.peak_bytes_per_rank_max) if row.answer.peak_bytes_per_rank_max else "",
            row.answer.reason or ("does not fit in memory" if row.answer.fits is False else ""),
        )
        for row in sweep.points
    ]
    columns = ("point", "grid", "time", "speed-up", "communication", "memory", "remark")
    flags = [(name, value if isinstance(value, str) else ", ".join(value)) for name, value in sweep.flags.items()]
    tables = [Table(columns, rows, names=2)]
    tables += [Table(("flag of all points", ""), flags, names=2)] if flags else []
    return Section("All points", tables=tables)
