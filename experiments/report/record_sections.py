"""The part of a report about one record, predicted or measured."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec
from msgspec import UNSET

from quadrille.algorithms.formats.record import HOST_MEMORY_KIND, OpRecord, Record
from quadrille.algorithms.schedule.grid import lengths_text
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.units import NOISE_SECONDS, format_bytes, format_seconds, time_unit
from quadrille.experiments.explain.explanation import Explanation, explain_record
from quadrille.experiments.output.tables import duration, percent
from quadrille.experiments.predict.roofline import Roofline
from quadrille.experiments.records.record_machine import RecordMachine
from quadrille.experiments.records.record_table import activity, op_description, shown_ops
from quadrille.experiments.report.amounts import memory_unit
from quadrille.experiments.report.axis_levels import axis_levels_section
from quadrille.experiments.report.charts import bars, stacked_bars
from quadrille.experiments.report.elements import Chart, Part, Section, Table
from quadrille.experiments.report.link_drawing import links_section
from quadrille.experiments.report.machine_section import machine_section
from quadrille.experiments.report.palette import axis_colour
from quadrille.experiments.report.path_chart import path_section
from quadrille.experiments.report.repeat import repeat_section, without_command
from quadrille.experiments.report.roofline_section import roofline_section
from quadrille.experiments.report.timeline_chart import timeline_chart
from quadrille.experiments.report.verdict import record_points, record_verdict
from quadrille.experiments.workloads.training_lines import (
    approximation_lines,
    model_lines,
    training_lines,
    workload_text,
)

OPS = "Ops"
"""The title of the section of ops."""
LEAST_SHARE = 0.02
"""Share of a device's memory from which the device's memory is drawn beside that of a rank."""


def record_part(record: Record, source: str, timeline: Timeline | None, roofline: Roofline | None = None) -> Part:
    """The part of a report about a record.

    Parameters
    ----------
    source : name of the record's file
    timeline : timeline of the run; None if there is no file of it
    roofline : roofline of the record; None if its machine or its ops are unknown
    """
    explanation = explain_record(record)
    machine = RecordMachine.of(record)
    lacking = next((without_command(line)[0] for line in explanation.lacking), "")
    sections = [
        causes_section(explanation),
        *_record_memory(record, machine),
        _timeline_section(record, timeline),
        *_exposed_section(record),
        *axis_levels_section(record, machine.machine if machine.network is not None else None, exposed_by_axis(record)),
        *path_section(explanation),
        *links_section(explanation.links, machine.network, lacking),
        _ops_section(record),
        repeat_section(record.provenance, explanation.lacking),
        _experiment_section(record),
        machine_section(record, machine),
    ]
    verdict, points = record_verdict(record, machine.memory_bytes), record_points(record, explanation)
    part = Part(part_title(record), verdict, points, sections, source, format_seconds(record.seconds))
    return part if roofline is None else with_roofline(part, roofline)


def with_roofline(part: Part, roofline: Roofline) -> Part:
    """The part of a record with the section of its roofline, before that of its ops."""
    place = next(place for place, section in enumerate(part.sections) if section.title == OPS)
    return replace(part, sections=[*part.sections[:place], roofline_section(roofline), *part.sections[place:]])


def part_title(record: Record) -> str:
    """The kind, the workload, the grid and the machine."""
    on = f" on {record.machine.name}" if record.machine is not None else ""
    return f"{record.kind.capitalize()}: {workload_text(record.workload)}, {lengths_text(record.grid)}{on}"


def causes_section(explanation: Explanation, names: tuple[str, str] = ("critical path", "mean rank")) -> Section:
    """The section of the time by cause, on the critical path and on the mean rank.

    Parameters
    ----------
    names : names of the two views
    """
    unit = time_unit([explanation.seconds])
    views: list[Mapping[str, float]] = [
        {str(part): seconds for part, seconds in explanation.path_seconds_by_part.items()},
        {str(part): seconds for part, seconds in explanation.mean_seconds_by_part.items()},
    ]
    shown = {name: view for name, view in zip(names, views, strict=True) if view}
    title = "Time by cause"
    if not shown:
        return Section(title, ["This file has no times by cause."])
    scaled = {name: {part: unit.number(seconds) for part, seconds in view.items()} for name, view in shown.items()}
    causes = [part for part in dict.fromkeys(part for view in shown.values() for part in view) if _counts(part, shown)]
    rows = [
        (cause, *(cell for view in shown.values() for cell in _with_share(view.get(cause, 0.0), explanation.seconds)))
        for cause in causes
    ]
    table = Table(("cause", *(column for name in shown for column in (name, "share"))), rows)
    label = (
        f"The time by cause: {'; '.join(_largest(name, view, explanation.seconds) for name, view in shown.items())}."
    )
    why = "overlap, or are medians over repeats" if explanation.what == "measured record" else "overlap"
    lines = [
        f"On the {name} times {why}: they add up to more than the total."
        for name, view in shown.items()
        if min(view.values()) < 0
    ]
    return Section(title, lines, [Chart(stacked_bars(scaled, f"time [{unit.name}]"), label, table)])


def _counts(cause: str, views: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether a cause takes time in some view."""
    return any(abs(view.get(cause, 0.0)) >= NOISE_SECONDS for view in views.values())


def _with_share(seconds: float, total: float) -> tuple[str, str]:
    return duration(seconds), percent(seconds / total if total else None, signed=False)


def _largest(name: str, view: Mapping[str, float], total: float) -> str:
    cause, most = max(view.items(), key=lambda item: item[1])
    return f"on the {name} most is {cause}, {percent(most / total if total else None, signed=False)}"


def _timeline_section(record: Record, timeline: Timeline | None) -> Section:
    if timeline is None or not timeline.spans:
        return Section(
            "Timeline",
            [
                "There is no timeline beside this record. A run with --json NAME.json --timeline NAME.timeline.json "
                "writes both, and the report of NAME.json shows it."
            ],
        )
    activities = {op.name: activity(op, record.grid) for op in record.ops}
    return Section("Timeline", charts=[timeline_chart(timeline, activities)])


def _exposed_section(record: Record) -> Iterator[Section]:
    """The section of exposed communication; none for a record of one rank."""
    by_axis = exposed_by_axis(record)
    if not by_axis:
        return
    unit = time_unit(by_axis.values())
    rows = [(axis, *_with_share(seconds, record.seconds)) for axis, seconds in by_axis.items()]
    most = max(by_axis, key=lambda axis: by_axis[axis])
    label = (
        f"Communication that no computation hides, of the mean rank, by grid axis: most is over {most}, "
        f"{format_seconds(by_axis[most])} of {format_seconds(record.seconds)}."
    )
    grid = {str(axis): length for axis, length in record.grid.items()}
    values = {f"{axis} ({grid.get(axis, 1)})": unit.number(seconds) for axis, seconds in by_axis.items()}
    spec = bars(values, f"time [{unit.name}]", [axis_colour(axis) for axis in by_axis])
    yield Section("Exposed communication", charts=[Chart(spec, label, Table(("axis", "time", "of total"), rows))])


def exposed_by_axis(record: Record) -> dict[str, float]:
    """The exposed communication of the mean rank by grid axis [s], without axes of one rank."""
    if record.exposed_seconds_by_axis is not UNSET:
        return {axis: seconds for axis, seconds in record.exposed_seconds_by_axis.items() if seconds > 0}
    seconds_of: dict[str, float] = {}
    for op in record.ops:
        if op.axis is not None and dict(record.grid).get(op.axis, 1) > 1:  # type: ignore[call-overload]
            seconds_of[op.axis] = seconds_of.get(op.axis, 0.0) + op.exposed_seconds
    return seconds_of


def _record_memory(record: Record, machine: RecordMachine) -> Iterator[Section]:
    kinds = record.memory_bytes_by_kind
    sizes = dict(kinds) if kinds is not UNSET else {"operands and results": record.peak_bytes_per_rank_max}
    return memory_section(sizes, machine.memory_bytes)


def memory_section(sizes: Mapping[str, float], held: float) -> Iterator[Section]:
    """The section of the memory of the fullest rank; none for a rank that keeps nothing.

    Parameters
    ----------
    sizes : memory by kind [B]
    held : memory of a device [B]; 0 if it is unknown
    """
    by_kind = {kind: size for kind, size in sizes.items() if size > 0 and kind != HOST_MEMORY_KIND}
    if not by_kind:
        return
    total = sum(by_kind.values())
    has_limit = total > LEAST_SHARE * held > 0
    factor, unit = memory_unit(max(held, total) if has_limit else total)
    limit = (factor * held, f"a device has {format_bytes(held)}") if has_limit else None
    spec = stacked_bars(
        {"fullest rank": {kind: factor * size for kind, size in by_kind.items()}}, f"memory [{unit}]", limit=limit
    )
    room = f" of {format_bytes(held)}" if held else ""
    most = max(by_kind, key=lambda kind: by_kind[kind])
    label = f"The fullest rank keeps {format_bytes(total)}{room}" + (f"; most is {most}." if len(by_kind) > 1 else ".")
    rows = [
        (kind, format_bytes(size), percent(size / held if held else None, signed=False))
        for kind, size in by_kind.items()
    ]
    on_host = sizes.get(HOST_MEMORY_KIND, 0)
    lines = [f"Beside that, the host keeps {format_bytes(on_host)} of the optimizer."] if on_host else []
    yield Section("Memory by kind", lines, [Chart(spec, label, Table(("kind", "memory", "of a device"), rows))])


def _ops_section(record: Record) -> Section:
    """The section with the longest ops."""
    ops = shown_ops(record.ops, record.grid)
    hidden = len(record.ops) - len(ops)
    lines = [f"Ops that take little are left out ({hidden:,}); the record has all."] if hidden > 0 else []
    columns = ("op", "what", "time", "share", "exposed", "waiting", "times", "sent by a rank")
    return Section(OPS, lines, tables=[Table(columns, [_op_row(op, record.seconds) for op in ops], names=2)])


def _op_row(op: OpRecord, total: float) -> tuple[str, ...]:
    return (
        op.name + (" (extrapolated)" if op.extrapolated else ""),
        op_description(op),
        duration(op.seconds),
        percent(op.seconds / total if total else None, signed=False),
        duration(op.exposed_seconds),
        duration(op.waiting_seconds),
        str(op.count),
        format_bytes(op.bytes_sent_per_rank_max),
    )


def _experiment_section(record: Record) -> Section:
    """The section of the experiment: the work, the grid, and the options that were set."""
    options = {
        name: value for name, value in msgspec.to_builtins(record.options).items() if value not in (None, [], (), "")
    }
    rows = [
        ("workload", workload_text(record.workload)),
        *(("model", line.removeprefix("model: ")) for line in model_lines(record.workload)),
        ("dtype", record.dtype),
        ("passes", record.passes),
        ("algorithm", record.algorithm),
        ("grid", ", ".join(f"{axis} {length}" for axis, length in record.grid.items())),
        ("order of ranks", ", ".join(record.order) + ", the innermost axis first"),
        ("ranks", f"{record.ranks:,}"),
        *((name.replace("_", " "), _option_text(value)) for name, value in options.items() if name != "approximate"),
    ]
    lines = [*training_lines(record)] if record.workload.matmul is None else []
    return Section("Experiment", [*lines, *approximation_lines(record)], tables=[Table(("", ""), rows, names=2)])


def _option_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
