"""The parts of a report about rankings and sweeps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from textwrap import wrap
from typing import Any, cast

from msgspec import UnsetType

from quadrille.algorithms.units import TimeUnit, format_bytes, format_seconds, time_unit
from quadrille.experiments.output.tables import duration, percent
from quadrille.experiments.rank.grids_report import COLUMNS as GRID_COLUMNS
from quadrille.experiments.rank.grids_report import GridsAnswer
from quadrille.experiments.rank.ranking import OPTIONS, SimulatedEntry
from quadrille.experiments.rank.ranking_page import Columns, agreement_text, model_utilisation
from quadrille.experiments.rank.schemes_report import COLUMNS as CONFIGURATION_COLUMNS
from quadrille.experiments.rank.schemes_report import MICRO_BATCH, SchemesAnswer, comparison_lines
from quadrille.experiments.rank.search_report import searched_lines
from quadrille.experiments.report.amounts import compact
from quadrille.experiments.report.charts import LEGEND, PAGE_WIDTH, with_filters
from quadrille.experiments.report.elements import Chart, Part, Section, Spec, Table, sentence
from quadrille.experiments.report.palette import COLOURS
from quadrille.experiments.report.pareto_chart import MOST_CHOICES, MOST_POINTS, TOO_LARGE, Point, pareto_section
from quadrille.experiments.report.repeat import repeat_section, without_command
from quadrille.experiments.sweep.point_search import Objective, SearchOptions
from quadrille.experiments.sweep.sweep_result import (
    SearchResult,
    Sweep,
    SweepAnswer,
    SweepRow,
    TrainingResult,
    baseline_place,
    list_text,
    point_text,
)

FITS = "fits in memory"
DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2])
"""Dashes of the lines of a chart."""
WORDS_ON_LINES = "width < 500 ? split(datum.label, ' ') : datum.label"
"""Label of a category, whose words stand below each other on a phone."""
TITLE_LETTERS = 40
"""Letters of a line of a chart's title, which fit on a phone."""
LOGARITHMIC_FROM = 8.0
"""Ratio of the longest to the shortest time from which an axis is logarithmic."""
JOB_KEYS = ("matmul", "mlp", "gpt", "model", "size", "batch", "passes", "collective", "bytes")
"""Keys of a sweep or a study that say what is computed; times of points that differ in them are of different jobs."""
STEP_SETTINGS = ("schedule", "micro-batch", "recompute")
"""Settings of training steps that a table has where points differ in them, as best layouts do."""
NAMED_BEST = 2
"""Number of best points of a search with several objectives that are named above the charts."""
OBJECTIVE_NAMES = {"gpus": "GPUs"}
"""Words for objectives of a search that are no words themselves."""
MOST_PANELS = 6
"""Number of charts up to which each combination of the keys that are left over has its own."""


# Rankings


def ranking_part(answer: GridsAnswer | SchemesAnswer, source: str) -> Part:
    """The part of a report about a ranking."""
    best, names = answer.simulated[0], entry_names(answer, answer.simulated)
    title = f"Ranking: {answer.model} on {answer.gpus:,} GPUs of {answer.machine}"
    verdict = f"The fastest of {len(answer.analytical):,} is {names[0]}: {_entry_facts(best)}."
    lines = [*_second_best(answer.simulated, names), *(answer.why or [agreement_text(answer.kendall_tau)])]
    sections = [_simulated_section(answer), *_modelled_section(answer)]
    sections += [*_commands_section(answer), repeat_section(answer.provenance), _question_section(answer)]
    return Part(title, verdict, [sentence(line) for line in lines], sections, source, format_seconds(best.seconds))


def _entry_facts(entry: SimulatedEntry) -> str:
    """Time, MFU, HFU and memory of an entry."""
    facts = [f"{format_seconds(entry.seconds)} an iteration"]
    used = model_utilisation(entry)
    facts += [f"MFU {100 * used:.3g} %"] if used else []
    facts += [f"HFU {entry.percent_of_peak:.3g} %"] if entry.percent_of_peak else []
    return ", ".join([*facts, *([f"{format_bytes(entry.memory_bytes)} on a rank"] if entry.memory_bytes else [])])


def _second_best(simulated: Sequence[SimulatedEntry], names: Sequence[str]) -> list[str]:
    """The sentence about the entry after the fastest; none if there is no other."""
    if len(simulated) < 2:
        return []
    best, second = simulated[:2]
    return [f"next is {names[1]}, {percent(second.seconds / best.seconds - 1, signed=False)} slower"]


def entry_names(answer: GridsAnswer | SchemesAnswer, entries: Sequence[Any]) -> list[str]:
    """A name of each entry: the grid, the microbatch if it has one, and the options in which entries differ."""
    heading = MICRO_BATCH
    shared = heading not in _columns(answer).differing(entries)
    return [
        f"{name}, {heading} {entry.micro_batch}" if shared and hasattr(entry, "micro_batch") else name
        for name, entry in zip(_columns(answer).entry_names(entries), entries, strict=True)
    ]


def _options_of(entry: Any) -> dict[str, str]:
    """The options of an entry by which a reader may filter: pipeline stages, then those of a configuration."""
    options = {"pipeline": str(entry.grid.get("pipeline", 1))}
    return options | {
        name.replace("_", " "): str(getattr(entry, name)) for name in OPTIONS if getattr(entry, name, None) is not None
    }


def _simulated_section(answer: GridsAnswer | SchemesAnswer) -> Section:
    entries: Sequence[SimulatedEntry] = answer.simulated
    points = [
        Point(name, entry.seconds, entry.memory_bytes, answer.gpus, _options_of(entry))
        for name, entry in zip(entry_names(answer, entries), entries, strict=True)
    ]
    section = pareto_section(points, "Simulated: time and memory")
    columns, rows, names = _columns(answer).cells(entries)
    common = _columns(answer).common(entries)
    lines = [*section.lines, *([f"All have {common}."] if common else [])]
    return Section(section.title, lines, section.charts, [Table(columns, rows, names)])


def _columns(answer: GridsAnswer | SchemesAnswer) -> Columns[Any]:
    """The columns of the printed table."""
    return GRID_COLUMNS if isinstance(answer, GridsAnswer) else CONFIGURATION_COLUMNS


def _commands_section(answer: GridsAnswer | SchemesAnswer) -> Iterator[Section]:
    """The section with the command that simulates each entry; none for files without commands."""
    if not answer.simulated[0].command:
        return
    code = [
        (f"{place}. {name}, {format_seconds(entry.seconds)}", entry.command)
        for place, (name, entry) in enumerate(
            zip(entry_names(answer, answer.simulated), answer.simulated, strict=True), 1
        )
    ]
    yield Section("Commands that simulate each entry", code=code)


def _modelled_section(answer: GridsAnswer | SchemesAnswer) -> Iterator[Section]:
    """The section of all entries by the model; the model of grids knows communication alone."""
    if len(answer.analytical) < 2:
        return
    entries: Sequence[Any] = answer.analytical
    points = [
        Point(name, entry.seconds, entry.memory_bytes, answer.gpus, _options_of(entry))
        for name, entry in zip(entry_names(answer, entries), entries, strict=True)
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
    lines = []
    if isinstance(answer, SchemesAnswer):
        lines = [without_command(line)[0] for line in comparison_lines(answer)]
        lines += [sentence(line) for line in searched_lines(answer.tried)]
    return Section("Question", lines, tables=tables)


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
        if not isinstance(sweep.search, UnsetType) and sweep.search.best:
            verdict, *more = searched_sentences(sweep, sweep.search)
            lines += more
        lines += (
            [f"{_of_all(len(answered) - len(fitting), len(answered))} not fit in memory."]
            if (len(fitting) < len(answered))
            else []
        )
    sections = [*_sweep_sections(sweep, answered), _sweep_table(sweep), repeat_section(sweep.provenance)]
    sections += list(_flags_section(sweep))
    return Part(title, verdict, lines, sections, source, amount)


def searched_sentences(sweep: Sweep, search: SearchResult) -> list[str]:
    """The sentences about the best points of a search, by its objectives."""
    options = SearchOptions(objectives=cast(tuple[Objective, ...], search.objectives))
    best = [sweep.points[place] for place in search.best]
    objectives = list_text([OBJECTIVE_NAMES.get(name, name) for name in search.objectives])
    named = [f"{point_text(row.point)}: {options.words(row.answer)}." for row in best[:NAMED_BEST]]
    asked = f"The search answered {len(sweep.points):,} of {search.combinations:,} points"
    if len(best) == 1:
        return [f"{asked}; the best by {objectives} is {named[0]}"]
    shown = f", of which {NAMED_BEST} are named below" if len(best) > NAMED_BEST else ""
    return [f"{asked}; no point is better by {objectives} together than {len(best):,} points{shown}.", *named]


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
        yield from _time_sections(sweep, answered)
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


def _time_sections(sweep: Sweep, answered: Sequence[SweepRow]) -> Iterator[Section]:
    """The section with the time over the key with most values; up to `MOST_PANELS` charts for the keys left over."""
    x, *others = telling_keys(answered, list(sweep.varied)) or [next(iter(sweep.varied))]
    is_number = all(_is_number(row.point.get(x, "")) for row in answered)
    colour, dash = (others[0] if others else ""), (others[1] if is_number and len(others) > 1 else "")
    if dash and len({row.point.get(dash, "") for row in answered}) > len(DASHES):
        dash = ""
    rest = [key for key in others if key not in (colour, dash)]
    panels = list(dict.fromkeys(tuple(row.point.get(key, "") for key in rest) for row in answered))
    if len(panels) > MOST_PANELS:
        panels = [()]
    seconds = [row.answer.seconds or 0.0 for row in answered]
    is_logarithmic = min(seconds) > 0 and max(seconds) > LOGARITHMIC_FROM * min(seconds)
    form = TimeChart(x, colour, dash, is_number, time_unit(seconds), is_logarithmic)
    charts = []
    for panel in panels:
        rows = [row for row in answered if not panel or tuple(row.point.get(key, "") for key in rest) == panel]
        where = point_text(dict(zip(rest, panel, strict=False)))
        charts.append(form.of(rows[:MOST_POINTS], where, [] if panel else rest))
    yield Section(f"Time over {x}", charts=charts)


def telling_keys(rows: Sequence[SweepRow], keys: Sequence[str]) -> list[str]:
    """The keys by which rows differ, those with most values first; keys that follow from an earlier one are left out.

    >>> from quadrille.experiments.sweep.sweep_result import SweepAnswer
    >>> points = [{"node": "a", "gpus": "8", "zero": z} for z in "01"] + [{"node": "b", "gpus": "4", "zero": "0"}]
    >>> telling_keys([SweepRow(point=point, answer=SweepAnswer(seconds=1)) for point in points], [*points[0]])
    ['node', 'zero']
    """
    count = {key: len({row.point.get(key, "") for row in rows}) for key in keys}
    chosen: list[str] = []
    for key in sorted((key for key in keys if count[key] > 1), key=lambda key: -count[key]):
        pairs = [{(row.point.get(earlier, ""), row.point.get(key, "")) for row in rows} for earlier in chosen]
        if all(len(pair) > count[earlier] for earlier, pair in zip(chosen, pairs, strict=True)):
            chosen.append(key)
    return chosen


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class TimeChart:
    """The form of charts of the time of points over a key.

    Parameters
    ----------
    x, colour, dash : key of the axis, of the colours and of the dashes of lines; empty for none
    is_joined : whether lines join the points, as where the key is a number; points of categories stand side by side
    unit : unit of the axis of time
    is_logarithmic : whether the axis of time is logarithmic
    """

    x: str
    colour: str
    dash: str
    is_joined: bool
    unit: TimeUnit
    is_logarithmic: bool = False

    def of(self, rows: Sequence[SweepRow], where: str, filtered: Sequence[str]) -> Chart:
        """The chart of some points.

        Parameters
        ----------
        where : values of other keys that all points share, as text, the title of the chart
        filtered : keys by which the points differ besides, which get a menu each
        """
        options = {key: sorted({row.point.get(key, "") for row in rows}) for key in filtered}
        menus = {key: choices for key, choices in options.items() if len(choices) <= MOST_CHOICES}
        cells = [(point_text(row.point), duration(row.answer.seconds), _yes_or_no(row.answer.fits)) for row in rows]
        told_apart = [
            f"{mark} for {key}"
            for mark, key in (("colours", self.colour), ("dashes", self.dash))
            if key and len({row.point.get(key, "") for row in rows}) > 1
        ]
        label = f"Predicted time over {', '.join([self.x, *([where] if where else [])])}"
        label += f": {', '.join(told_apart)}." if told_apart else "."
        return Chart(with_filters(self._spec(rows, where), menus), label, Table(("point", "time", "fits"), cells))

    def _spec(self, rows: Sequence[SweepRow], where: str) -> Spec:
        values = [self._value(row) for row in rows]
        encoding: Spec = self._axes(rows) | {
            "detail": {"field": "line", "type": "nominal"},
            "color": _by_category("colour", self.colour, values, COLOURS),
            "tooltip": [{"field": name} for name in ("point", "time", "fits")],
        }
        points: Spec = {"mark": {"type": "point", "filled": True, "size": 90, "opacity": 1}}
        layers = [points | {"encoding": _fit_shapes([value["fits"] for value in values])}]
        if self.is_joined:
            dashes = _by_category("dash", self.dash, values, DASHES)
            layers = [{"mark": "line", "encoding": {"strokeDash": dashes}}, *layers]
        else:
            encoding["xOffset"] = {"field": "line", "type": "nominal"}
        spec = {**PAGE_WIDTH, "height": 320, "data": {"values": values}, "layer": layers, "encoding": encoding}
        title = {"text": wrap(where, TITLE_LETTERS), "anchor": "start", "fontSize": 13}
        return {**spec, "title": title} if where else spec

    def _value(self, row: SweepRow) -> dict[str, Any]:
        """The data of a point: the values of its keys, and what the channels show."""
        return {
            **row.point,
            "key": row.point.get(self.x, ""),
            "colour": row.point.get(self.colour, ""),
            "dash": row.point.get(self.dash, ""),
            "line": point_text({key: value for key, value in row.point.items() if key != self.x}),
            "time": compact(self.unit.number(row.answer.seconds or 0.0)),
            "fits": TOO_LARGE if row.answer.fits is False else FITS,
            "point": point_text(row.point),
        }

    def _axes(self, rows: Sequence[SweepRow]) -> Spec:
        """The axes of the key and of the time."""
        return {
            "x": {
                "field": "key",
                "type": "ordinal",
                "sort": list(dict.fromkeys(row.point.get(self.x, "") for row in rows)),
                "title": self.x,
                "axis": {"labelAngle": 0, "labelExpr": WORDS_ON_LINES},
            },
            "y": {
                "field": "time",
                "type": "quantitative",
                "title": f"time [{self.unit.name}]",
                "scale": {"type": "log", "nice": False, "padding": 12} if self.is_logarithmic else {"zero": True},
            },
        }


def _fit_shapes(present: Sequence[str]) -> Spec:
    """Crosses for points that do not fit in memory; no channel if all points fit."""
    if TOO_LARGE not in present:
        return {}
    shapes = {FITS: "circle", TOO_LARGE: "cross"}
    domain = [name for name in shapes if name in present]
    scale = {"domain": domain, "range": [shapes[name] for name in domain]}
    return {"shape": {"field": "fits", "type": "nominal", "scale": scale, "legend": LEGEND}}


def _by_category(field: str, key: str, values: Sequence[Mapping[str, Any]], marks: Sequence[Any]) -> Spec:
    """A channel that tells the values of a key apart, with a legend that has the key as its title.

    Parameters
    ----------
    field : field of the data that has the values
    key : name of the key; empty for none
    values : data of the points
    marks : colours or dashes
    """
    domain = list(dict.fromkeys(value[field] for value in values))
    scale = {"domain": domain, "range": [marks[number % len(marks)] for number in range(len(domain))]}
    legend = {**LEGEND, "title": key} if key and len(domain) > 1 else None
    return {"field": field, "type": "nominal", "scale": scale, "legend": legend}


def _yes_or_no(answer: bool | None) -> str:
    return "" if answer is None else "yes" if answer else "no"


def speedups(sweep: Sweep) -> list[float | None]:
    """The speed-up of each point over the first point of the same job that fits in memory; None without a time.

    If no point of a job fits, it is over the first with an answer.

    >>> from quadrille.experiments.sweep.sweep_result import SweepAnswer
    >>> times = {("a", "8"): 4.0, ("b", "8"): 9.0, ("a", "16"): 2.0}
    >>> rows = tuple(
    ...     SweepRow(point={"gpt": gpt, "gpus": gpus}, answer=SweepAnswer(seconds=seconds))
    ...     for (gpt, gpus), seconds in times.items()
    ... )
    >>> varied = {"gpt": ("a", "b"), "gpus": ("8", "16")}
    >>> speedups(Sweep(flags={}, varied=varied, best_grid=True, points=rows))
    [1.0, 1.0, 2.0]
    """
    jobs = [tuple(row.point.get(key, "") for key in JOB_KEYS) for row in sweep.points]
    by_job: dict[tuple[str, ...], list[SweepAnswer]] = {}
    for job, row in zip(jobs, sweep.points, strict=True):
        by_job.setdefault(job, []).append(row.answer)
    places = {job: baseline_place(answers) for job, answers in by_job.items()}
    base = {job: by_job[job][place].seconds or 0.0 for job, place in places.items() if place is not None}
    return [
        base[job] / row.answer.seconds if row.answer.seconds else None
        for job, row in zip(jobs, sweep.points, strict=True)
    ]


def _speedup_lines(sweep: Sweep) -> list[str]:
    """The sentence about the points that speed-ups compare with; none if all points are of one job."""
    keys = [key for key in JOB_KEYS if len({row.point.get(key, "") for row in sweep.points}) > 1]
    return [f"A speed-up is over the first point that fits, with the same {' and '.join(keys)}."] if keys else []


def _sweep_table(sweep: Sweep) -> Section:
    faster = speedups(sweep)
    has_speedups = any(speedup not in (None, 1.0) for speedup in faster)
    keys = [key for key in sweep.varied if len({row.point.get(key, "") for row in sweep.points}) > 1] or [*sweep.varied]
    has_grid = "grid" not in keys
    settings = [
        name for name in STEP_SETTINGS if name not in keys and len({_setting(row, name) for row in sweep.points}) > 1
    ]
    rows = [
        (
            *(row.point.get(key, "") for key in keys),
            *([row.answer.grid] if has_grid else []),
            duration(row.answer.seconds),
            *(["" if speedup is None else f"{speedup:.3g}"] if has_speedups else []),
            percent(row.answer.communication_share, signed=False),
            *_utilisations(row.answer.trained),
            format_bytes(row.answer.peak_bytes_per_rank_max) if row.answer.peak_bytes_per_rank_max else "",
            row.answer.reason or ("does not fit" if row.answer.fits is False else ""),
            *(_setting(row, name) for name in settings),
        )
        for row, speedup in zip(sweep.points, faster, strict=True)
    ]
    more = ("communication", "MFU", "HFU", "memory", "remark", *settings)
    columns = (*keys, *(["grid"] if has_grid else []), "time", *(["speed-up"] if has_speedups else []), *more)
    lines = _speedup_lines(sweep) if has_speedups else []
    return Section("All points", lines, tables=[Table(columns, rows, names=len(keys) + has_grid)])


def _utilisations(trained: TrainingResult | None) -> tuple[str, str]:
    """MFU and HFU of a training step; empty if no peak is known."""
    shares = (trained.model_percent_of_peak, trained.percent_of_peak) if trained else (None, None)
    model, hardware = ("" if share is None else percent(share / 100, signed=False) for share in shares)
    return model, hardware


def _setting(row: SweepRow, name: str) -> str:
    """A setting of the training step of a point, by the name of its flag; empty for other workloads."""
    value = getattr(row.answer.trained, name.replace("-", "_")) if row.answer.trained else None
    return "" if value is None else str(value)


def _flags_section(sweep: Sweep) -> Iterator[Section]:
    """The section with the flags that all points share; the varied keys are left out."""
    flags = [
        (name.replace("_", "-"), value if isinstance(value, str) else ", ".join(value))
        for name, value in sweep.flags.items()
        if name not in sweep.varied
    ]
    if flags:
        yield Section("Flags of all points", tables=[Table(("", ""), flags, names=2)])
