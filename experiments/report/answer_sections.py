"""The parts of a report about other answers: what `explain` explains, and answers of which only tables are known."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.schedule.short_names import hyphenated
from quadrille.algorithms.units import format_bytes, format_bytes_per_second, format_percent, format_seconds
from quadrille.experiments.explain.explain import VIEW_NAMES
from quadrille.experiments.explain.explanation import Explanation
from quadrille.experiments.output.tables import duration
from quadrille.experiments.predict.roofline import Roofline
from quadrille.experiments.records.record_machine import network_of_answer
from quadrille.experiments.report.amounts import amount_text
from quadrille.experiments.report.answer_units import unit_of_key
from quadrille.experiments.report.elements import Part, Section, Table, sentence
from quadrille.experiments.report.link_drawing import links_section
from quadrille.experiments.report.path_chart import path_section
from quadrille.experiments.report.record_sections import causes_section
from quadrille.experiments.report.repeat import repeat_section
from quadrille.experiments.report.roofline_section import roofline_section

MOST_ROWS = 200
"""Number of rows of a table of an answer."""
MOST_LINES = 4
"""Number of sentences beside a verdict."""
SHOWN_ELSEWHERE = {
    *("schema", "seconds", "makespan_s", "seconds_by_part", "mean_seconds_by_part", "bottlenecks", "links", "last"),
    *("events", "transfers", "classes", "rank_classes", "flow_classes", "folded", "not_folded_reason", "error_seconds"),
    *("wall_seconds", "peak_memory_bytes", "shards", "shards_bound", "stride", "concurrent", "method"),
}
"""Keys that other sections show, and keys about the simulation rather than about its answer."""
UnitOfKey = Callable[[str], str]
"""A function from the path of a key to the unit of its values; empty for plain numbers."""
LONG = 200
"""Number of letters up to which a value is shown."""


def explained_part(
    explanation: Explanation, source: str, facts: Mapping[str, object], roofline: Roofline | None = None
) -> Part:
    """The part of a report about an explanation, or about an answer of `collective` or `flows`.

    Parameters
    ----------
    facts : keys of the file, for a table
    roofline : roofline of an explained record; None if there is none
    """
    unit = unit_of_key(str(facts.get("schema", "")))
    names = VIEW_NAMES.get(explanation.what, ("critical path", "mean rank"))
    title, verdict = _titles(explanation, source, facts)
    sections = [
        causes_section(explanation, names),
        *path_section(explanation),
        *_flows_section(explanation),
        *links_section(explanation.links, network_of_answer(facts)),
        *([roofline_section(roofline)] if roofline is not None else []),
        repeat_section(explanation.provenance or origin_of(facts), explanation.lacking),
        *_facts_sections({key: value for key, value in facts.items() if key not in SHOWN_ELSEWHERE}, unit),
    ]
    has_causes = explanation.path_seconds_by_part or explanation.mean_seconds_by_part
    points = [sentence(line) for line in explanation.summary[1 if has_causes else 0 :]]
    return Part(title, verdict, points[:MOST_LINES], sections, source, format_seconds(explanation.seconds))


def _titles(explanation: Explanation, source: str, facts: Mapping[str, object]) -> tuple[str, str]:
    """The title and the verdict of an explanation or an answer."""
    took, bound = format_seconds(explanation.seconds), _bound_words(explanation)
    machine = facts.get("machine")
    name = machine.get("name", "") if isinstance(machine, dict) else machine
    if explanation.what == "collective" and "kind" in facts:
        words = hyphenated(str(facts["kind"]))
        where = f"{_bytes_text(facts.get('bytes'))} on {facts.get('gpus', '?')} GPUs of {name}"
        rate = facts.get("bus_bandwidth")
        rates = f" ({format_bytes_per_second(float(str(rate)))} bus bandwidth)" if rate else ""
        return f"Collective: {words} of {where}", (f"The {words} of {where} is predicted to take {took}{rates}{bound}.")
    if explanation.what == "flows":
        ends = facts.get("finish_s")
        count = f"{len(ends):,} " if isinstance(ends, list) else ""
        return (
            f"Flows on {name}: {source}",
            f"The last of {count}flows on {name} is predicted to end after {took}{bound}.",
        )
    of = explanation.file or source
    return (
        f"Explanation of the {explanation.what} {of}",
        f"The {explanation.what.partition(' ')[0]} time is {took}{bound}.",
    )


def _bound_words(explanation: Explanation) -> str:
    """The cause with the largest part of the time, as the end of a sentence."""
    parts = explanation.path_seconds_by_part or explanation.mean_seconds_by_part
    if not parts or explanation.seconds <= 0:
        return ""
    cause, most = max(((str(part), seconds) for part, seconds in parts.items()), key=lambda part: part[1])
    return f", {format_percent(most / explanation.seconds, digits=0)} of it {cause}"


def _flows_section(explanation: Explanation) -> Iterator[Section]:
    """The flows that end last, and the links that they wait for."""
    if not explanation.flows:
        return
    rows = [
        (
            f"{flow.source} > {flow.destination}",
            ", ".join(link.link for link in flow.held_by),
            str(flow.row),
            format_bytes(flow.bytes),
            duration(flow.start_s),
            duration(flow.finish_s),
        )
        for flow in explanation.flows
    ]
    columns = ("flow", "links that hold it", "row", "size", "starts", "ends")
    yield Section("Flows that end last", tables=[Table(columns, rows, names=2)])


def origin_of(facts: Mapping[str, object]) -> Provenance | None:
    """The provenance in the keys of a file; None if it has none."""
    try:
        return msgspec.convert(facts.get("provenance"), Provenance)
    except msgspec.ValidationError:
        return None


def tables_part(facts: Mapping[str, object], schema: str, source: str) -> Part:
    """The part of a report about an answer of another kind: all its values as tables."""
    kind = schema.split("/")[1]
    seconds = next((facts[key] for key in ("seconds", "makespan_s") if isinstance(facts.get(key), int | float)), None)
    amount = "" if seconds is None else format_seconds(float(str(seconds)))
    verdict = f"It takes {amount}." if amount else f"The answer of kind {kind}."
    sections = [*_facts_sections(facts, unit_of_key(schema)), repeat_section(origin_of(facts))]
    return Part(f"{kind.replace('-', ' ').capitalize()}: {source}", verdict, [], sections, source, amount)


def _facts_sections(facts: Mapping[str, object], unit: UnitOfKey) -> Iterator[Section]:
    """A table of the plain values, and a table for each list of rows."""
    plain = {key: value for key, value in facts.items() if not isinstance(value, list | dict) and key != "schema"}
    rows = [(_heading(key), _value(key, value, unit)) for key, value in plain.items() if value not in (None, "")]
    tables = [Table(("", ""), rows, names=2)] if rows else []
    for key, value in facts.items():
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            tables.append(_rows_table(key, value, unit))
        elif isinstance(value, list) and value and not any(isinstance(row, list) for row in value):
            tables.append(Table((_heading(key),), [(_value(key, item, unit),) for item in value[:MOST_ROWS]], names=1))
        elif isinstance(value, dict) and value and key != "provenance":
            cells = [(_heading(str(name)), _value(f"{key}.{name}", item, unit)) for name, item in value.items()]
            tables.append(Table((_heading(key), ""), cells, names=2))
    if tables:
        yield Section("Values", tables=tables)


def _rows_table(key: str, rows: Sequence[Mapping[str, object]], unit: UnitOfKey) -> Table:
    """A table with a column for each key of the rows."""
    keys = list(dict.fromkeys(name for row in rows for name in row))
    cells = [tuple(_cell(f"{key}.{name}", row.get(name), unit) for name in keys) for row in rows[:MOST_ROWS]]
    more = f", the first {MOST_ROWS} of {len(rows):,}" if len(rows) > MOST_ROWS else ""
    return Table([_heading(name) for name in keys], cells, names=len(keys), title=_heading(key) + more)


def _heading(key: str) -> str:
    """The name of a key, without the unit that its values are written with.

    >>> _heading("finish_s"), _heading("peak_memory_bytes"), _heading("by_size"), _heading("seconds")
    ('finish', 'peak memory', 'by size', 'time')
    """
    if key.startswith("seconds"):
        key = key.replace("seconds", "time", 1)
    bare = next((key.removesuffix(end) for end in ("_seconds", "_s", "_bytes") if key.endswith(end)), key)
    return bare.replace("_", " ")


def _cell(path: str, value: object, unit: UnitOfKey) -> str:
    """A value as the cell of a table of rows, whose times have one unit."""
    is_time = isinstance(value, int | float) and not isinstance(value, bool) and unit(path) == "s"
    return duration(float(str(value))) if is_time else _value(path, value, unit)


def _value(path: str, value: object, unit: UnitOfKey) -> str:
    """A value as text; a number has the unit of its key.

    >>> unit = unit_of_key("quadrille/flows/1")
    >>> _value("links.busy_s", 0.00126, unit), _value("links.bytes", 67108864.0, unit), _value("events", 12, unit)
    ('1.26 ms', '64 MiB', '12')

    Parameters
    ----------
    path : names of the keys from the answer to the value, joined by points
    """
    if isinstance(value, list):
        return ", ".join(_value(path, item, unit) for item in value)
    if isinstance(value, dict):
        return ", ".join(
            f"{_heading(str(name))} {_value(f'{path}.{name}', item, unit)}" for name, item in value.items()
        )
    if isinstance(value, int | float) and not isinstance(value, bool):
        return amount_text(value, unit(path))
    return _text(value)


def _bytes_text(size: object) -> str:
    """A size of an answer; empty for an answer that lacks it."""
    return format_bytes(size) if isinstance(size, int | float) else ""


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    return text if len(text) <= LONG else f"{text[:LONG]}…"
