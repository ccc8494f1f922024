"""`quadrille explain FILE`: where the time of a run goes, and which links limit it.

FILE is a predicted or measured record, the JSON of `quadrille collective` or
`quadrille flows`, or a profiler's trace.
"""

from collections.abc import Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Literal

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.input_files import read_bytes
from quadrille.algorithms.formats.record import SCHEMA as RECORD_SCHEMA
from quadrille.algorithms.formats.record import PathPart, PathSegment, load_record
from quadrille.algorithms.provenance import provenance
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.explain.explanation import (
    SCHEMA,
    ExplainedLink,
    Explanation,
    MeanPart,
    explain_record,
    is_link,
    limiting_link_sentences,
    summary_sentences,
)
from quadrille.experiments.import_.file_kinds import refusal
from quadrille.experiments.import_.trace_files import is_trace
from quadrille.experiments.network.late_flows import LateFlow
from quadrille.experiments.output.destinations import Destinations, check_plot_named, write_or_show
from quadrille.experiments.output.tables import UNKNOWN, duration, percent, print_tables, table
from quadrille.experiments.records.path_segments import PARTS, joined_by_op

if TYPE_CHECKING:
    from rich.console import Group

    from quadrille.experiments.predict.prepared_experiment import PreparedExperiment
    from quadrille.experiments.traces.trace_summary import TraceSummary

ExplainedFigure = Literal["causes", "links", "roofline"]
"""Subject of the figure: time by cause and memory by kind, the use of links, or the roofline."""
EXPLAINED_FILES = "a record, the JSON of collective or flows, or a profiler's trace is accepted"
MOST_LINKS = 20
MOST_ROWS = 10
"""Number of ops and of links that are printed without `--all`."""
MOST_SEGMENTS_SHOWN = 24
"""Number of stretches of a path, and of ops on it, that are printed: the longest, in their order."""


class LinkLoad(msgspec.Struct, frozen=True):
    """The entry of a link in a file of `collective` or `flows`; keys that are not explained are ignored."""

    link: str
    bytes: float
    utilisation: float
    busy_s: float | None = None
    alike: int = 1


class ExplainableAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of a file of `collective` or `flows` that are explained; other keys are ignored."""

    seconds: float | None = None
    makespan_s: float | None = None
    seconds_by_part: dict[PathPart, float] | None = None
    mean_seconds_by_part: dict[MeanPart, float] | None = None
    links: tuple[LinkLoad, ...] = ()
    bottlenecks: tuple[LinkLoad, ...] = ()
    last: tuple[LateFlow, ...] = ()


class _Header(msgspec.Struct, frozen=True):
    schema: str = ""


def explain(
    path: str,
    *,
    json: str = "",
    plot: str = "",
    plot_of: ExplainedFigure = "causes",
    prepared: "PreparedExperiment | None" = None,
    every: bool = False,
    command: Sequence[str] = (),
) -> "Explanation | TraceSummary":
    """Prints where the time of a run goes, and writes it as JSON and as a figure if paths are given.

    Parameters
    ----------
    path : file to explain
    json : path of the JSON file; `-` for stdout, which then has nothing else
    plot, plot_of : path and subject of the figure
    prepared : experiment of the record on its machine, which a roofline needs
    every : whether all tables are printed, not the ten longest rows
    command : words of the command line, for provenance

    Raises
    ------
    InputError : a file that cannot be read or explained, or a path that cannot be written
    """
    Destinations(json=json, plot=plot).check({"FILE": path})
    if plot_of != "causes":
        check_plot_named(f"--plot-of {plot_of}", plot)
    if is_trace(path):
        if plot:
            raise InputError(f"--plot {plot}: goes with a record or the JSON of collective or flows, not with a trace")
        return _explain_trace(path, json, command)
    if error := refusal(path, EXPLAINED_FILES):
        raise error
    explanation = msgspec.structs.replace(explain_file(path), file=path, provenance=provenance(command))
    if plot:
        _draw(plot_of, explanation, path, plot, prepared)
    write_or_show(explanation, json, SCHEMA, lambda: _print(explanation, every=every))
    return explanation


def _draw(
    subject: ExplainedFigure, explanation: Explanation, path: str, plot: str, prepared: "PreparedExperiment | None"
) -> None:
    """Writes the figure of a subject."""
    from quadrille.experiments.explain.explanation_figure import draw_explained_links, draw_explanation

    if subject == "roofline":
        from quadrille.experiments.predict.roofline import recorded_ops, roofline
        from quadrille.experiments.predict.roofline_figure import draw_roofline
        from quadrille.experiments.records.run_figure import run_setting

        assert prepared is not None
        record = load_record(path)
        draw_roofline(roofline(prepared, recorded_ops(prepared, record)), run_setting(record), plot)
        return
    draw = draw_explanation if subject == "causes" else draw_explained_links
    draw(explanation, path, plot)


def _explain_trace(path: str, json: str, command: Sequence[str]) -> "TraceSummary":
    """Prints the summary of a profiler's trace, and writes it as JSON if `json` is given."""
    from quadrille.experiments.explain.explain_trace import print_trace
    from quadrille.experiments.import_.trace_files import read_trace
    from quadrille.experiments.traces.trace_summary import SCHEMA as TRACE_SCHEMA
    from quadrille.experiments.traces.trace_summary import summarise

    summary = msgspec.structs.replace(summarise(read_trace(path)), file=path, provenance=provenance(command))
    write_or_show(summary, json, TRACE_SCHEMA, lambda: print_trace(summary))
    return summary


def _print(explanation: Explanation, *, every: bool) -> None:
    print_tables(*(explanation_tables(explanation) if every else longest_tables(explanation)))
    for line in (*explanation.summary, *explanation.lacking):
        print(line)


def explain_file(path: str) -> Explanation:
    """The explanation of a record, or of an answer of `collective` or `flows`.

    Raises
    ------
    InputError : a file of another kind
    """
    schema = schema_of(path)
    if schema in EXPLAINABLE_SCHEMAS:
        return _explain_answer(schema_files.read(path, ExplainableAnswer, schema), EXPLAINABLE_SCHEMAS[schema])
    if schema.startswith("quadrille/") and not schema.startswith("quadrille/record/"):
        kinds = ", ".join((RECORD_SCHEMA, *EXPLAINABLE_SCHEMAS))
        raise InputError(f"{path} has the schema {schema!r:.60}: accepted are {kinds}")
    return explain_record(load_record(path))


VIEW_NAMES = {"collective": ("last rank", "mean rank"), "flows": ("last flow", "mean flow")}
"""Names of the two time breakdowns in files that are not records."""
EXPLAINABLE_SCHEMAS = {"quadrille/collective/1": "collective", "quadrille/flows/1": "flows"}
"""Schemas that can be explained in addition to records, and the name of each kind of file."""


def schema_of(path: str) -> str:
    """The schema that a JSON file names; empty for any other file, whose fault `load_record` then reports."""
    try:
        return msgspec.json.decode(read_bytes(path), type=_Header).schema
    except (OSError, ValueError, msgspec.DecodeError, RecursionError):
        return ""


def _explain_answer(answer: ExplainableAnswer, label: str) -> Explanation:
    """The explanation of an answer of `collective` or `flows`, from its time breakdowns and links."""
    seconds = answer.seconds if answer.seconds is not None else answer.makespan_s
    if seconds is None:
        raise InputError(f"{label} file: neither seconds nor makespan_s; one of them is needed")
    most = nlargest(MOST_LINKS, answer.links or answer.bottlenecks, key=lambda link: link.utilisation)
    links = tuple(ExplainedLink(link.link, link.bytes, link.utilisation, link.busy_s, link.alike) for link in most)
    parts, mean = answer.seconds_by_part or {}, answer.mean_seconds_by_part or {}
    lacking = [] if links else ["no link carries anything"]
    if links and not parts:
        lacking.append(
            f"this file is of an older version and has no times by cause; write it again with quadrille {label}"
        )
    return Explanation(
        what=label,
        seconds=seconds,
        path_seconds_by_part=parts,
        mean_seconds_by_part=mean,
        links=links,
        flows=answer.last,
        summary=(*summary_sentences(seconds, parts, (), links), *limiting_link_sentences(answer.last[:1])),
        lacking=tuple(lacking),
    )


def explanation_tables(explanation: Explanation) -> "list[Group]":
    """The tables of an explanation: time by cause in both views, the critical path by op and in order, the links."""
    tables = [_parts_table(explanation)] if explanation.path_seconds_by_part or explanation.mean_seconds_by_part else []
    if explanation.critical_path:
        ops = joined_by_op(explanation.critical_path)
        tables.append(_path_table("critical path, by op", "ops", ops, explanation.seconds))
        if len(ops) != len(explanation.critical_path):
            path = explanation.critical_path
            tables.append(_path_table("critical path, in order", "stretches", path, explanation.seconds))
    if explanation.flows:
        tables.append(_flows_table(explanation.flows))
    if explanation.links:
        tables.append(_links_table(explanation.links))
    return tables


def longest_tables(explanation: Explanation) -> "list[Group]":
    """The ten longest rows first: the ops of the critical path, then time by cause, flows and links."""
    tables = []
    if explanation.critical_path:
        ops = joined_by_op(explanation.critical_path)
        longest = nlargest(MOST_ROWS, ops, key=lambda segment: segment.seconds)
        tables.append(_path_table("critical path, by op", "ops", ops, explanation.seconds, longest))
    if explanation.path_seconds_by_part or explanation.mean_seconds_by_part:
        tables.append(_parts_table(explanation))
    if explanation.flows:
        tables.append(_flows_table(explanation.flows[:MOST_ROWS]))
    if explanation.links:
        tables.append(_links_table(explanation.links[:MOST_ROWS]))
    return tables


def _parts_table(explanation: Explanation) -> "Group":
    path = {str(part): seconds for part, seconds in explanation.path_seconds_by_part.items()}
    mean = {str(part): seconds for part, seconds in explanation.mean_seconds_by_part.items()}
    rows = []
    for part in dict.fromkeys((*path, *mean)):
        cells = [part]
        for view in (path, mean):
            if view:
                has_part = part in view
                cells += [duration(view[part]), _percent_of(view[part], explanation.seconds)] if has_part else ["", ""]
        rows.append(cells)
    path_heading, mean_heading = VIEW_NAMES.get(explanation.what, ("critical path", "mean rank"))
    columns = ["", *([path_heading, ""] if path else []), *([mean_heading, ""] if mean else [])]
    return table(f"{explanation.what}: {duration(explanation.seconds)}", columns, rows)


def longest_segments(path: Sequence[PathSegment]) -> list[PathSegment]:
    """The `MOST_SEGMENTS_SHOWN` longest segments of a path, in its order, or all if there are no more."""
    longest = nlargest(MOST_SEGMENTS_SHOWN, range(len(path)), key=lambda place: (path[place].seconds, -place))
    return [path[place] for place in sorted(longest)]


def _path_table(
    title: str, noun: str, path: Sequence[PathSegment], seconds: float, longest: Sequence[PathSegment] = ()
) -> "Group":
    """The table of the longest segments of a path; the title says what is left out, and how long that takes.

    Parameters
    ----------
    longest : segments that are shown; by default the `MOST_SEGMENTS_SHOWN` longest, in the order of the path
    """
    shown = longest or longest_segments(path)
    if len(shown) < len(path):
        hidden = sum(segment.seconds for segment in path) - sum(segment.seconds for segment in shown)
        others = "--all or --json FILE" if longest else "--json FILE"
        title += f": the {len(shown)} longest of {len(path)} {noun}; {others} has the others, {duration(hidden)}"
    parts = [part for part in PARTS if any(segment.seconds_by_part.get(part) for segment in shown)]
    has_ranks = any(segment.rank is not None for segment in shown)
    rows = [
        (
            segment.op,
            *(["" if segment.rank is None else str(segment.rank)] if has_ranks else []),
            str(segment.count),
            duration(segment.seconds),
            _percent_of(segment.seconds, seconds),
            *(duration(segment.seconds_by_part.get(part, 0.0)) for part in parts),
        )
        for segment in shown
    ]
    return table(title, ("op", *(["rank"] if has_ranks else []), "times", "time", "", *parts), rows)


def _flows_table(flows: Sequence[LateFlow]) -> "Group":
    rows = [
        (
            str(flow.row),
            f"{flow.source} > {flow.destination}",
            format_bytes(flow.bytes),
            duration(flow.finish_s - flow.start_s),
            *(duration(flow.seconds_by_part.get(part)) for part in ("latency", "bandwidth", "contention")),
            ", ".join(f"{by.link} ({percent(by.utilisation, signed=False)})" for by in flow.held_by),
        )
        for flow in flows
    ]
    columns = ("row", "from > to", "bytes", "takes", "latency", "bandwidth", "contention", "links it took, used to")
    return table("flows that ended last", columns, rows, names=2)


def _percent_of(seconds: float, path_heading: float) -> str:
    return percent(seconds / path_heading if path_heading else None, signed=False)


def _links_table(links: Sequence[ExplainedLink]) -> "Group":
    """The table of links; bytes are shown for links only, because cores and memory of a host count other quantities."""
    rows = [
        (
            link.link + (f" and {link.alike - 1} more like it" if link.alike > 1 else ""),
            format_bytes(link.bytes) if is_link(link.link) else UNKNOWN,
            duration(link.busy_s),
            percent(link.utilisation, signed=False),
        )
        for link in links
    ]
    return table("links and other shared resources", ("", "carried", "in use", "used"), rows)
