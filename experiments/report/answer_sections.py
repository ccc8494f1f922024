"""The parts of a report about other answers: what `explain` explains, and answers of which only tables are known."""

from collections.abc import Iterator, Mapping

import msgspec

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.units import format_seconds
from quadrille.experiments.explain.explain import VIEW_NAMES
from quadrille.experiments.explain.explanation import Explanation
from quadrille.experiments.report.elements import Part, Section, Table
from quadrille.experiments.report.link_drawing import links_section
from quadrille.experiments.report.path_chart import path_section
from quadrille.experiments.report.record_sections import causes_section
from quadrille.experiments.report.repeat import repeat_section
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.network import Network

MOST_ROWS = 200
"""Number of rows of a table of an answer."""
LONG = 200
"""Number of letters up to which a value is shown."""


def explained_part(explanation: Explanation, source: str, facts: Mapping[str, object]) -> Part:
    """The part of a report about an explanation, or about an answer of `collective` or `flows`.

    Parameters
    ----------
    facts : keys of the file, for a table
    """
    names = VIEW_NAMES.get(explanation.what, ("critical path", "mean rank"))
    title, verdict = f"{explanation.what.capitalize()}: {source}", f"It takes {format_seconds(explanation.seconds)}."
    if explanation.what == "collective" and "kind" in facts:
        words = str(facts["kind"]).replace("_", "-")
        size, gpus, machine = (facts.get(key, "?") for key in ("bytes", "gpus", "machine"))
        title = f"Collective: {words} of {_text(size)} bytes on {gpus} GPUs of {machine}"
        verdict = f"The {words} is predicted to take {format_seconds(explanation.seconds)}."
    sections = [
        causes_section(explanation, names),
        *links_section(explanation.links, _network(facts)),
        *path_section(explanation),
        *_facts_sections(facts),
        repeat_section(explanation.provenance or origin_of(facts)),
    ]
    return Part(title, verdict, [*explanation.summary, *explanation.lacking], sections, source)


def _network(facts: Mapping[str, object]) -> Network | None:
    """The network of a named machine without changes; None for others."""
    name, gpus = facts.get("machine"), facts.get("gpus")
    if not isinstance(name, str) or name not in MACHINES or not isinstance(gpus, int):
        return None
    try:
        return network_of(find_machine(name, gpus=gpus))
    except QuadrilleError:
        return None


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
    verdict = f"The answer of kind {kind}." if seconds is None else f"It takes {format_seconds(float(str(seconds)))}."
    return Part(
        f"{kind.capitalize()}: {source}",
        verdict,
        [],
        [*_facts_sections(facts), repeat_section(origin_of(facts))],
        source,
    )


def _facts_sections(facts: Mapping[str, object]) -> Iterator[Section]:
    """A table of the plain values, and a table for each list of rows."""
    plain = {key: value for key, value in facts.items() if not isinstance(value, list | dict) and key != "schema"}
    rows = [(key.replace("_", " "), _text(value)) for key, value in plain.items()]
    tables = [Table(("", ""), rows, names=2)] if rows else []
    for key, value in facts.items():
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            columns = list(dict.fromkeys(name for row in value for name in row))
            cells = [tuple(_text(row.get(name)) for name in columns) for row in value[:MOST_ROWS]]
            tables.append(Table(columns, cells, names=len(columns), title=key.replace("_", " ")))
        elif isinstance(value, dict) and key != "provenance":
            tables.append(
                Table((key.replace("_", " "), ""), [(str(name), _text(item)) for name, item in value.items()], names=2)
            )
    if tables:
        yield Section("Values", tables=tables)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONG else f"{text[:LONG]}…"
