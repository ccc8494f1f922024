"""The section of the machine of a record: its numbers with their sources, where the machine has a name."""

from dataclasses import dataclass

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.formats.record import Record
from quadrille.experiments.report.amounts import amount_text
from quadrille.experiments.report.elements import Section, Table
from quadrille.experiments.report.repeat import settings_of
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.find_machine import find_machine, gpus_with_placement, path_of
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES, machine, quantities_of
from quadrille.topologies.network import Network


@dataclass(frozen=True, slots=True)
class RecordMachine:
    """The machine of a record as far as it can be built again.

    Parameters
    ----------
    machine : the machine, with the settings of the record's command if these give its hash, else the named one; None
        if the record names no machine, or one of a file
    unchanged : whether the named machine without settings is that of the record, by its hash
    network : network of the machine; None if the machine is not that of the record
    """

    machine: Machine | None = None
    unchanged: bool = False
    network: Network | None = None

    @classmethod
    def of(cls, record: Record) -> "RecordMachine":
        """The machine of a record."""
        entry = record.machine
        if entry is None or entry.name not in MACHINES:
            return cls()
        try:
            gpus = gpus_with_placement(entry.name, record.ranks, entry.placement)
            again = find_machine(entry.name, gpus=gpus)
            if again.sha256 == entry.sha256:
                return cls(again, True, network_of(again))
            changed = find_machine(entry.name, settings_of(record.provenance), gpus=gpus)
            if changed.sha256 == entry.sha256:
                return cls(changed, False, network_of(changed))
            return cls(again, False)
        except QuadrilleError:
            return cls()

    @property
    def memory_bytes(self) -> float:
        """Memory of a device [B]; 0 if it is unknown."""
        return self.machine.device.memory_bytes if self.machine is not None and self.network is not None else 0.0


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
            quantity.value if isinstance(quantity.value, str) else amount_text(path, quantity.value),
            quantity.source,
        )
        for quantity in quantities_of(named)
        for path in [path_of(named, quantity) or quantity.quantity]
    ]
    numbers = Table(("number", "value", "source"), rows, names=3, title=f"{named.name}: {named.summary}")
    return Section(title, lines, tables=[*tables, numbers])
