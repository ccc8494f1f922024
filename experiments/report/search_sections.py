"""The parts of a report about rankings and sweeps."""

from collections.abc import Iterator, Sequence, Set
from typing import Any

from quadrille.algorithms.schedule.grid import lengths_text
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.output.tables import percent
from quadrille.experiments.rank.grids_report import GridsAnswer
from quadrille.experiments.rank.ranking import SimulatedEntry
from quadrille.experiments.rank.ranking_page import agreement_text
from quadrille.experiments.rank.schemes_report import SchemesAnswer
from quadrille.experiments.report.amounts import compact, time_text, time_unit
from quadrille.experiments.report.charts import LEGEND, PAGE_WIDTH
from quadrille.experiments.report.elements import Chart, Part, Section, Spec, Table
from quadrille.experiments.report.palette import COLOURS
from quadrille.experiments.report.pareto_chart import MOST_POINTS, TOO_LARGE, Point, pareto_section
from quadrille.experiments.report.repeat import repeat_section
from quadrille.experiments.sweep.sweep_result import Sweep, SweepRow, point_text

FITS = "fits in memory"
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


# Rankings


def ranking_part(answer: GridsAnswer | SchemesAnswer, source: str) -> Part:
    """The part of a report about a ranking."""
    best = answer.simulated[0]
    title = f"Ranking: {answer.model} on {answer.gpus:,} GPUs of {answer.machine}"
    verdict = f"The fastest of {len(answer.analytical):,} is {entry_name(best)}: {_entry_facts(best)}."
    lines = [*_second_best(answer.simulated), *(answer.why or [agreement_text(answer.kendall_tau)])]
    sections = [_simulated_section(answer), *_modelled_section(answer)]
    sections += [repeat_section(answer.provenance), _question_section(answer)]
    return Part(title, verdict, [_sentence(line) for line in lines], sections, source, format_seconds(best.seconds))


def _entry_facts(entry: SimulatedEntry) -> str:
    """Time, HFU and memory of an entry."""
    facts = [f"{format_seconds(entry.seconds)} an iteration"]
    facts += [f"HFU {entry.percent_of_peak:.3g} %"] if entry.percent_of_peak else []
    return ", ".join([*facts, *([f"{format_bytes(entry.memory_bytes)} on a rank"] if entry.memory_bytes else [])])


def _second_best(simulated: Sequence[SimulatedEntry]) -> list[str]:
    """The sentence about the entry after the fastest; none if there is no other."""
    if len(simulated) < 2:
        return []
    best, second = simulated[:2]
    return [f"next is {entry_name(second)}, {percent(second.seconds / best.seconds - 1, signed=False)} slower"]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."


def entry_name(entry: Any) -> str:
    """The grid of an entry, and its microbatch if it has one."""
    micro_batch = getattr(entry, "micro_batch", None)
    return lengths_text(entry.grid) + (f", micro-batch {micro_batch}" if micro_batch is not None else "")


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
            time_text(entry.seconds),
            time_text(entry.analytical_seconds),
            time_text(entry.compute_seconds),
            time_text(entry.transfer_seconds),
            time_text(entry.hidden_seconds),
            time_text(entry.waiting_seconds),
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
    points = "1 point has" if missing == 1 else f"{missing:,} points have"
    lines = [f"{points} no answer; the table says why."] if missing else []
    amount = ""
    if not answered:
        verdict = "No point has an answer."
    else:
        fitting = [row for row in answered if row.answer.fits is not False]
        best = min(fitting or answered, key=lambda row: row.answer.seconds or 0.0)
        amount = format_seconds(best.answer.seconds or 0.0)
        that_fits = " that fits in memory" if 0 < len(fitting) < len(answered) else ""
        verdict = f"The fastest point{that_fits} is {point_text(best.point)}: {amount}."
        lines += (
            [f"{_of_all(len(answered) - len(fitting), len(answered))} not fit in memory."]
            if (len(fitting) < len(answered))
            else []
        )
    sections = [*_sweep_sections(sweep, answered), _sweep_table(sweep), repeat_section(sweep.provenance)]
    sections += list(_flags_section(sweep))
    return Part(title, verdict, lines, sections, source, amount)


def _of_all(count: int, whole: int) -> str:
    """The subject of a sentence about some points.

    >>> _of_all(1, 6), _of_all(2, 6), _of_all(6, 6)
    ('1 of 6 points does', '2 of 6 points do', 'All 6 points do')
    """
    if count == whole:
        return f"All {whole:,} points do"
    return f"{count:,} of {whole:,} points {'does' if count == 1 else 'do'}"


def _sweep_sections(sweep: Sweep, answered: Sequence[SweepRow]) -> Iterator[Section]:
    """The sections with the time over the first key, and with the Pareto front where memory is known."""
    if answered:
        yield _time_section(sweep, answered)
    points = [
        Point(
            point_text(row.point),
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
    factor, unit = time_unit(max(row.answer.seconds or 0.0 for row in answered))
    values = [
        {
            "x": row.point[key],
            "line": ", ".join(f"{name}={row.point[name]}" for name in others) or "time",
            "v": compact(factor * (row.answer.seconds or 0.0)),
            "fits": TOO_LARGE if row.answer.fits is False else FITS,
            "point": point_text(row.point),
        }
        for row in answered[:MOST_POINTS]
    ]
    lines = list(dict.fromkeys(str(value["line"]) for value in values))
    times = [float(value["v"]) for value in values if isinstance(value["v"], float)]
    is_wide = min(times) > 0 and max(times) > 8 * min(times)
    scale: Spec = {"type": "log"} if is_wide else {"zero": True}
    shapes = _fit_shapes({str(value["fits"]) for value in values})
    dashes = {"strokeDash": _by_line(lines, [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]])}
    spec = {
        **PAGE_WIDTH,
        "height": 320,
        "data": {"values": values},
        "layer": [
            {"mark": "line", "encoding": dashes},
            {"mark": {"type": "point", "filled": True, "size": 90, "opacity": 1}, "encoding": shapes},
        ],
        "encoding": {
            "x": {
                "field": "x",
                "type": "ordinal",
                "sort": list(sweep.varied[key]),
                "title": key,
                "axis": {"labelAngle": 0},
            },
            "y": {"field": "v", "type": "quantitative", "title": f"time [{unit}]", "scale": scale},
            "color": _by_line(lines, COLOURS),
            "tooltip": [{"field": name} for name in ("point", "v", "fits")],
        },
    }
    rows = [(point_text(row.point), time_text(row.answer.seconds), _yes_or_no(row.answer.fits)) for row in answered]
    label = f"Predicted time over {key}" + (f", a line for each value of {', '.join(others)}." if others else ".")
    return Section(f"Time over {key}", charts=[Chart(spec, label, Table(("point", "time", "fits"), rows))])


def _fit_shapes(present: Set[str]) -> Spec:
    """Crosses for points that do not fit in memory; no channel if all points fit."""
    if TOO_LARGE not in present:
        return {}
    scale = {"domain": [FITS, TOO_LARGE], "range": ["circle", "cross"]}
    return {"shape": {"field": "fits", "type": "nominal", "scale": scale, "legend": LEGEND}}


def _by_line(lines: Sequence[str], values: Sequence[Any]) -> Spec:
    """A channel that tells lines apart."""
    scale = {"domain": list(lines), "range": [values[number % len(values)] for number in range(len(lines))]}
    return {"field": "line", "type": "nominal", "scale": scale, "legend": LEGEND if len(lines) > 1 else None}


def _yes_or_no(answer: bool | None) -> str:
    return "" if answer is None else "yes" if answer else "no"


def _sweep_table(sweep: Sweep) -> Section:
    rows = [
        (
            point_text(row.point),
            row.answer.grid,
            time_text(row.answer.seconds),
            "" if row.speedup is None else f"{row.speedup:.3g}",
            percent(row.answer.communication_share, signed=False),
            format_bytes(row.answer.peak_bytes_per_rank_max) if row.answer.peak_bytes_per_rank_max else "",
            row.answer.reason or ("does not fit in memory" if row.answer.fits is False else ""),
        )
        for row in sweep.points
    ]
    columns = ("point", "grid", "time", "speed-up", "communication", "memory", "remark")
    return Section("All points", tables=[Table(columns, rows, names=2)])


def _flags_section(sweep: Sweep) -> Iterator[Section]:
    """The section with the flags that all points share; the varied keys are left out."""
    flags = [
        (name, value if isinstance(value, str) else ", ".join(value))
        for name, value in sweep.flags.items()
        if name not in sweep.varied
    ]
    if flags:
        yield Section("Flags of all points", tables=[Table(("", ""), flags, names=2)])
