"""The machine of a record or of an answer, built again from its name as far as its hash confirms it."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.formats.record import Record
from quadrille.algorithms.provenance import Provenance
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.find_machine import find_machine, gpus_with_placement
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES
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


def network_of_answer(facts: Mapping[str, object]) -> Network | None:
    """The network of a named machine without changes; None for others.

    Parameters
    ----------
    facts : keys of a file of `collective` or `flows`
    """
    machine, gpus = facts.get("machine"), facts.get("gpus")
    gpus = machine.get("gpus") if isinstance(machine, dict) else gpus
    name, sha256 = (machine.get("name"), machine.get("sha256")) if isinstance(machine, dict) else (machine, None)
    if not isinstance(name, str) or name not in MACHINES or not isinstance(gpus, int):
        return None
    try:
        built = find_machine(name, gpus=gpus)
        return network_of(built) if sha256 in (None, built.sha256) else None
    except QuadrilleError:
        return None


def settings_of(origin: Provenance | None) -> list[str]:
    """The values of --set in the command that wrote a file; none if the command is unknown.

    >>> settings_of(None)
    []
    """
    command = origin.command if origin is not None else ""
    at = re.search(r"--set[ =]", command)
    try:
        words = shlex.split(command[at.start() :].replace("--set=", "--set ")) if at is not None else []
    except ValueError:
        return []
    return [value for word, value in pairwise(words) if word == "--set"]
