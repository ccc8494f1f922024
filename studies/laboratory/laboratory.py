"""Laboratories: brought up, listed, taken down, whatever happens in between."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from algorithms.errors import InputError
from studies.laboratory import namespaces, register
from studies.laboratory.register import Entry
from studies.laboratory.wiring import Wiring

PREFIX = "quadrille"


@dataclass(frozen=True, slots=True)
class Laboratory:
    """What is to stand.

    Parameters
    ----------
    topology : what was asked for, as it was typed
    wiring : what that comes to
    rates : of each link, by its name [B/s]
    in_full : the topology with all its rates, as `calibrate` takes it; empty for one from a file
    """

    name: str
    topology: str
    wiring: Wiring
    rates: dict[str, float]
    in_full: str = ""

    @property
    def namespaces(self) -> dict[str, str]:
        """The namespace of each place, by a name that says whose it is."""
        return {place: f"{PREFIX}-{self.name}-{place.replace(':', '')}" for place in self.wiring.places}


def up(laboratory: Laboratory, *, owned: bool = False) -> Entry:
    """Bring a laboratory up; what an earlier one of this name left when it was killed is taken down first.

    Parameters
    ----------
    owned : whether it ends with this process

    Raises
    ------
    InputError : not allowed here; a name that is taken
    RunError : what the kernel refused; nothing is left then
    """
    namespaces.check_allowed()
    register.check_name(laboratory.name)
    clean()
    if (standing := register.read(laboratory.name)) is not None:
        raise InputError(
            f"laboratory {laboratory.name!r} is up ({standing.topology}): end it with quadrille lab down "
            f"{laboratory.name}, or give another --name"
        )
    if taken := [name for name in laboratory.namespaces.values() if namespaces.exists(name)]:
        raise InputError(f"namespace {taken[0]} is there and not of a laboratory: give another --name")
    owner, started = register.own_start() if owned else (0, 0)
    entry = Entry(
        name=laboratory.name,
        topology=laboratory.topology,
        addresses=dict(laboratory.wiring.addresses),
        namespaces=laboratory.namespaces,
        rates=laboratory.rates,
        in_full=laboratory.in_full,
        owner=owner,
        owner_started=started,
    )
    register.write(entry)
    try:
        namespaces.build(laboratory.wiring, entry.namespaces)
    except BaseException:
        _take_down(entry)
        raise
    return entry


def down(name: str) -> bool:
    """Take a laboratory down, and what killed ones have left; whether there was one of this name."""
    namespaces.check_allowed()
    register.check_name(name)
    entry = register.read(name)
    if entry is not None:
        _take_down(entry)
    clean()
    return entry is not None


def links_down(entry: Entry) -> list[str]:
    """Interfaces of a laboratory that somebody has taken down.

    >>> links_down(Entry(name="none", topology="", addresses={}, namespaces={}, rates={}))
    []
    """
    standing = {place: name for place, name in entry.namespaces.items() if namespaces.exists(name)}
    return [f"{one} of {place} is down" for place, name in standing.items() for one in namespaces.interfaces_down(name)]


def clean() -> None:
    """Take down what processes have left that were killed."""
    for entry in register.every():
        if entry.abandoned:
            _take_down(entry)


@contextmanager
def standing(laboratory: Laboratory) -> Iterator[Entry]:
    """A laboratory for as long as this lasts."""
    entry = up(laboratory, owned=True)
    try:
        yield entry
    finally:
        _take_down(entry)


def _take_down(entry: Entry) -> None:
    for name in entry.namespaces.values():
        namespaces.remove(name)
    register.remove(entry.name)
