"""Laboratories: functions that bring up and take down emulated networks of Linux namespaces on one machine.

What a killed process left behind is taken down, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import msgspec

from quadrille.algorithms.errors import InputError, RunError
from quadrille.runtime.host.console import remark
from quadrille.runtime.laboratory import namespaces
from quadrille.runtime.laboratory.namespace_plan import NamespacePlan
from quadrille.runtime.laboratory.register import MACHINE_REGISTER, LaboratoryRecord, Register, check_name, own_start
from quadrille.runtime.launching.launch_folder import remove_abandoned
from quadrille.runtime.launching.supervise import signals_as_interrupts

PREFIX = "quadrille"


@dataclass(frozen=True, slots=True)
class Laboratory:
    """The description of a laboratory to bring up.

    Parameters
    ----------
    name : name of the laboratory
    topology : topology as the user typed it
    plan : namespace plan of the topology
    rates : rate of each link by its name [B/s]
    in_full : topology with all its rates, in the notation of `calibrate`; empty if the notation cannot express it
    routing : routing rule of the plan
    """

    name: str
    topology: str
    plan: NamespacePlan
    rates: dict[str, float]
    in_full: str = ""
    routing: str = "shortest"

    @property
    def namespaces(self) -> dict[str, str]:
        """The namespace of each node, with the laboratory's name in it."""
        return {place: f"{PREFIX}-{self.name}-{place.replace(':', '')}" for place in self.plan.places}

    @property
    def entry(self) -> LaboratoryRecord:
        """The register entry of the laboratory, without an owner."""
        return LaboratoryRecord(
            name=self.name,
            topology=self.topology,
            addresses=dict(self.plan.addresses),
            namespaces=self.namespaces,
            rates=self.rates,
            in_full=self.in_full,
            routing=self.routing,
        )


def up(laboratory: Laboratory, register: Register = MACHINE_REGISTER, *, owned: bool = False) -> LaboratoryRecord:
    """Bring a laboratory up, after removing what a killed laboratory of the same name left behind.

    Parameters
    ----------
    laboratory : description of the laboratory
    register : register in which the laboratory is entered
    owned : whether the laboratory ends with this process

    Raises
    ------
    InputError : no permission here, or a name that is taken
    RunError : the kernel refused something; nothing is left then
    """
    namespaces.check_allowed()
    check_name(laboratory.name)
    owner, started = own_start()
    entry = msgspec.structs.replace(laboratory.entry, owner=owner, owner_started=started)
    with register.locked():
        _make_room(laboratory, register)
        register.write(entry)
    built = entry if owned else laboratory.entry
    try:
        namespaces.build(laboratory.plan, entry.namespaces)
        with register.locked():
            if register.read(laboratory.name) != entry:
                raise RunError(f"laboratory {laboratory.name!r} was taken down while it was brought up")
            register.write(built)
    except BaseException:
        _end(register, entry, built)
        raise
    return built


def _make_room(laboratory: Laboratory, register: Register) -> None:
    """Take down what killed processes left behind, first under this name.

    Raises
    ------
    InputError : a name that is taken
    RunError : a laboratory of this name was left behind and cannot be taken down
    """
    standing = register.read(laboratory.name)
    if standing is not None and not standing.abandoned:
        raise InputError(
            f"laboratory {laboratory.name!r} is up ({standing.topology}): end it with quadrille lab down "
            f"{laboratory.name}, or give another --name"
        )
    if standing is not None:
        _take_down(standing, register)
    clean(register)
    if taken := [name for name in laboratory.namespaces.values() if namespaces.exists(name)]:
        raise InputError(f"namespace {taken[0]} is there and not of a laboratory: give another --name")


def down(name: str, register: Register = MACHINE_REGISTER) -> bool:
    """Take a laboratory down, and all laboratories of killed processes; returns whether it existed."""
    namespaces.check_allowed()
    check_name(name)
    with register.locked():
        entry = register.read(name)
        if entry is not None:
            _take_down(entry, register)
        clean(register)
    return entry is not None


def links_down(entry: LaboratoryRecord) -> list[str]:
    """The network interfaces of a laboratory that are down, in words.

    >>> links_down(LaboratoryRecord(name="none", topology="", addresses={}, namespaces={}, rates={}))
    []
    """
    interfaces = []
    for place, name in entry.namespaces.items():
        with suppress(RunError):  # one that is gone
            interfaces += [f"{interface} of {place} is down" for interface in namespaces.interfaces_down(name)]
    return interfaces


def clean(register: Register = MACHINE_REGISTER) -> None:
    """Take down the laboratories of killed processes and free their shared memory; failures become remarks."""
    remove_abandoned()
    for entry in register.every():
        if entry.abandoned:
            try:
                _take_down(entry, register)
            except (RunError, OSError) as error:
                remark(f"laboratory {entry.name}, left by a killed process, is not down: {error}")


@contextmanager
def standing(laboratory: Laboratory, register: Register = MACHINE_REGISTER) -> Iterator[LaboratoryRecord]:
    """A context in which a laboratory is up. TERM and HUP end it as Ctrl-C does."""
    with signals_as_interrupts():
        entry = up(laboratory, register, owned=True)
        try:
            yield entry
        finally:
            _end(register, entry)


def _end(register: Register, *own: LaboratoryRecord) -> None:
    """Take down what this process brought up, unless another process has done so and reuses the name.

    Parameters
    ----------
    register : register of the laboratory
    own : entries that this process has registered for it
    """
    with register.locked():
        if not register.belongs_to_other(*own):
            _take_down(own[0], register)


def _take_down(entry: LaboratoryRecord, register: Register) -> None:
    for name in entry.namespaces.values():
        namespaces.remove(name)
    register.remove(entry.name)
