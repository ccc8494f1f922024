"""The section of the machine of a record: its numbers with their sources, where the machine has a name."""

from quadrille.algorithms.formats.record import Record
from quadrille.algorithms.units import unit_by_name
from quadrille.experiments.records.record_machine import RecordMachine
from quadrille.experiments.report.amounts import amount_text
from quadrille.experiments.report.elements import Section, Table
from quadrille.topologies.find_machine import path_of
from quadrille.topologies.machines.machine_catalogue import machine, quantities_of


def machine_section(record: Record, built: RecordMachine) -> Section:
    """The section of the machine of a record."""
    title = "Machine"
    entry = record.machine
    if entry is None:
        return Section(title, ["This record names no machine."])
    facts = [("machine", entry.name), ("routing", entry.routing), ("placement of ranks", entry.placement)]
    facts += [("sha256", entry.sha256)] if entry.sha256 else []
    facts += [("faults", str(entry.faults))] if entry.faults is not None else []
    tables = [Table(("", ""), facts, names=2)]
    if built.machine is None:
        line = "The machine is described by a file of its own: the record has its hash, not its numbers."
        return Section(title, [line], tables=tables)
    lines = (
        []
        if built.unchanged
        else ["The experiment changed this machine: its command says how. These are the numbers before."]
    )
    named = machine(entry.name)
    rows = [
        (
            path,
            quantity.value if isinstance(quantity.value, str) else amount_text(quantity.value, unit_by_name(path)),
            quantity.source,
        )
        for quantity in quantities_of(named)
        for path in [path_of(named, quantity) or quantity.quantity]
    ]
    numbers = Table(("number", "value", "source"), rows, names=3, title=f"{named.name}: {named.summary}")
    return Section(title, lines, tables=[*tables, numbers])
