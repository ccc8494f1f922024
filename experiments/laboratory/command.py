"""The `quadrille lab` commands: from the user's words to a laboratory, and the printed results."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import files
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.units import format_bytes_per_second, parse_rate
from quadrille.experiments.calibrate.topology_option import FILE
from quadrille.experiments.laboratory.topology_plan import (
    SINGLE_PATH_RULES,
    check_places,
    namespace_plan,
    scaled,
    slowest_of_hosts,
)
from quadrille.experiments.network.topology import find_topology
from quadrille.runtime.host.console import remark
from quadrille.runtime.laboratory import laboratory, namespaces, register
from quadrille.runtime.laboratory.laboratory import Laboratory
from quadrille.runtime.laboratory.register import LaboratoryRecord
from quadrille.runtime.launching.supervise import signals_as_interrupts
from quadrille.simulator.machine.network import network_of
from quadrille.topologies.build import FAMILIES, build, parse_topology, with_stand_ins
from quadrille.topologies.families.number_lists import as_word
from quadrille.topologies.files.topology_file import is_topology_file
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Argument, Network
from quadrille.topologies.routes.routing import parse_routing

SCHEMA = "quadrille/laboratories/1"


class LaboratoryStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A laboratory, as `lab status --json` reports it.

    Parameters
    ----------
    topology : topology as the user typed it
    addresses : address of each host
    namespaces : namespace of each node, hosts and switches
    bytes_per_second : rate of each link by its name
    owner : process whose end is the laboratory's end; null for a laboratory that stays until it is taken down
    abandoned : whether that process was killed
    """

    name: str
    topology: str
    addresses: dict[str, str]
    namespaces: dict[str, str]
    bytes_per_second: dict[str, float]
    owner: int | None
    abandoned: bool


class LaboratoryList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The laboratories of this machine."""

    laboratories: list[LaboratoryStatus]
    provenance: Provenance


def bring_up(topology: str, *, rate: str, routing: str, name: str) -> None:
    """Bring up a laboratory that stays, and print how to use it."""
    wanted = laboratory_of(topology, rate, routing, register.check_name(name))
    with signals_as_interrupts():
        entry = laboratory.up(wanted)
    print("\n".join(_described(entry)))


def run_in(
    topology: str,
    ranks: int,
    command: Sequence[str],
    launcher_options: Sequence[str],
    *,
    rate: str,
    routing: str,
    name: str,
    is_program: bool = False,
) -> int:
    """The exit status of a command on the ranks of a laboratory that is up while the command runs.

    Parameters
    ----------
    is_program : whether the command is a program of its own and no Quadrille command
    """
    from quadrille.experiments.laboratory.ranks import launch_in, with_topology
    from quadrille.runtime.launching.launch import PROGRAM

    wanted = laboratory_of(topology, rate, routing, name)
    with_topology(wanted.entry, ranks, command)  # or what cannot be is known only when all stands
    with laboratory.standing(wanted) as entry:
        return launch_in(entry, ranks, command, launcher_options, program=None if is_program else PROGRAM)


def take_down(name: str) -> None:
    """Take one laboratory down and print whether it existed."""
    if laboratory.down(name):
        print(f"laboratory {name} is down")
        return
    others = [entry.name for entry in register.every()]
    print(f"laboratory {name} was not up" + (f"; {', '.join(others)} may be taken down" if others else ""))


def show(*, json: str, command: Sequence[str]) -> None:
    """Print all laboratories of this machine.

    Parameters
    ----------
    json : file for the JSON output, `-` for stdout; nothing else is printed then
    command : words of the command line, for provenance
    """
    entries = list(register.every())
    if json:
        shown = [_shown(entry) for entry in entries]
        listing = LaboratoryList(laboratories=shown, provenance=provenance(list(command)))
        files.write_json(json, listing, SCHEMA)
        return
    lines = [line for entry in entries for line in _described(entry)]
    print("\n".join(lines) if lines else "no laboratory is up")


def laboratory_of(topology: str, rate: str = "", routing: str = "", name: str = "") -> Laboratory:
    """The laboratory that the words describe, checked before anything is created.

    Raises
    ------
    InputError : no permission here; a topology, rate, routing or name that is impossible
    """
    namespaces.check_allowed()
    name = register.check_name(name or f"run{os.getpid()}")
    machine = find_machine(topology) if topology.endswith(".toml") else None
    rule = parse_routing(routing or (machine.routing if machine is not None else "shortest"), SINGLE_PATH_RULES)
    net, factor = _network(topology, machine), 1.0
    check_places(net, topology)
    if rate:
        factor = parse_rate(rate) / slowest_of_hosts(net)
        net = scaled(net, parse_rate(rate))
    elif machine is None:
        _check_rates_are_said(topology)
    _say_what_is_not_set(topology)
    plan = namespace_plan(net, rule)
    working = np.flatnonzero(~net.failed)
    rates = dict(zip(net.link_names(working), net.bandwidths[working].tolist(), strict=True))
    in_full = _in_full(topology if machine is None else _typed(machine), factor)
    return Laboratory(name, topology, plan, rates, in_full, str(rule))


def _network(topology: str, machine: Machine | None) -> Network:
    """The topology, with placeholders for missing rates and for latencies, which cannot be set.

    A machine file gives the links' own rates: the overhead of packet headers occurs again in the laboratory.
    """
    if machine is not None:
        return network_of(msgspec.structs.replace(machine, network=None))
    family = topology.partition(":")[0]
    if family not in FAMILIES:
        return find_topology(topology)
    return build(family, _arguments(topology))


def _arguments(topology: str) -> dict[str, Argument]:
    """The arguments of a topology family, with placeholders for optional ones."""
    return with_stand_ins(*parse_topology(topology), {"latency": 0.0, "bandwidth": 1.0})


def _check_rates_are_said(topology: str) -> None:
    """Refuse a family without rates if no --rate is given."""
    family = topology.partition(":")[0]
    if family in FAMILIES and not any(name.startswith("bandwidth") for name in parse_topology(topology)[1]):
        raise InputError(
            f"topology {topology!r}: the rate of its links is missing: --rate 200mbit sets the hosts', or write "
            "bandwidth=25e6 [B/s] into the topology"
        )


def _say_what_is_not_set(topology: str) -> None:
    family = topology.partition(":")[0]
    if family in FAMILIES and (said := [name for name in parse_topology(topology)[1] if "latency" in name]):
        remark(f"{', '.join(said)}: a laboratory has the kernel's latency, which calibrate measures, and sets none")


def _typed(machine: Machine) -> str:
    """A machine's topology as command line text; empty with failed or slower links, which cannot be written so."""
    if machine.faults is not None and (machine.faults.fail or machine.faults.degrade):
        return ""
    said = {
        name: as_word(cast("Sequence[float]", value)) if isinstance(value, list) else value
        for name, value in machine.topology.items()
    }
    if FILE in said:
        return str(said[FILE])
    return f"{said.pop('family')}:" + ",".join(f"{name}={value}" for name, value in said.items())


def _in_full(topology: str, factor: float) -> str:
    """The topology with the rates of its links, as `calibrate` takes it.

    It is empty if it cannot be written so: for a file whose rates were changed.

    >>> _in_full("star:hosts=2", 25e6)
    'star:bandwidth=25000000.0,hosts=2'
    >>> _in_full("/nets/four.json", 1.0), _in_full("/nets/four.json", 8.0)
    ('/nets/four.json', '')
    """
    family = topology.partition(":")[0]
    if is_topology_file(topology):
        return str(Path(topology).resolve()) if factor == 1.0 else ""
    if family not in FAMILIES:
        return ""
    arguments = _arguments(topology)
    said = {name: _faster(value, factor) if "bandwidth" in name else value for name, value in arguments.items()}
    return f"{family}:" + ",".join(f"{name}={value}" for name, value in said.items() if "latency" not in name)


def _faster(bandwidths: Argument, factor: float) -> str:
    """A bandwidth, or several bandwidths joined by x, multiplied by a factor."""
    return "x".join(str(float(word) * factor) for word in str(bandwidths).split("x"))


def _described(entry: LaboratoryRecord) -> Iterator[str]:
    """The printed lines of one laboratory."""
    slowest, fastest = min(entry.rates.values()), max(entry.rates.values())
    rates = format_bytes_per_second(slowest) + (f" to {format_bytes_per_second(fastest)}" if fastest > slowest else "")
    switches = len(entry.namespaces) - len(entry.addresses)
    state = "left by a killed process" if entry.abandoned else f"of process {entry.owner}" if entry.owner else "up"
    yield f"{entry.name}: {entry.topology}, {state}"
    yield f"  hosts {len(entry.addresses)}, switches {switches}, links {len(entry.rates)} of {rates}"
    for host, address in entry.addresses.items():
        yield f"  {host:<10} {address:<12} namespace {entry.namespaces[host]}"


def _shown(entry: LaboratoryRecord) -> LaboratoryStatus:
    return LaboratoryStatus(
        name=entry.name,
        topology=entry.topology,
        addresses=entry.addresses,
        namespaces=entry.namespaces,
        bytes_per_second=entry.rates,
        owner=entry.owner or None,
        abandoned=entry.abandoned,
    )
