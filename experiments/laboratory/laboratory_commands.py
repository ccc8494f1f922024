"""The `quadrille lab` commands: start, use, list and stop laboratories.

A laboratory is an emulated network on this machine: a network namespace for each host and
switch of a topology, joined by virtual cables with rate limits.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec
import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.field_units import BytesPerSecond
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.provenance import Provenance, provenance
from quadrille.algorithms.units import format_bytes_per_second, parse_rate
from quadrille.experiments.calibrate.topology_option import FILE
from quadrille.experiments.laboratory.topology_plan import (
    SINGLE_PATH_RULES,
    check_node_counts,
    namespace_plan,
    scaled_network,
    slowest_host_bandwidth,
)
from quadrille.experiments.network.topology_show import find_topology
from quadrille.runtime.host.console import remark
from quadrille.runtime.laboratory import laboratory
from quadrille.runtime.laboratory.laboratory import Laboratory
from quadrille.runtime.laboratory.register import MACHINE_REGISTER, LaboratoryRecord, Register, check_name
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
    owner : process with which the laboratory ends; null for a laboratory that stays until it is taken down
    abandoned : whether the owner was killed
    """

    name: str
    topology: str
    addresses: dict[str, str]
    namespaces: dict[str, str]
    bytes_per_second: dict[str, BytesPerSecond]
    owner: int | None
    abandoned: bool


class LaboratoryList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The laboratories of this machine."""

    laboratories: list[LaboratoryStatus]
    provenance: Provenance


def bring_up(topology: str, *, rate: str, routing: str, name: str, register: Register = MACHINE_REGISTER) -> None:
    """Starts a laboratory that stays until it is taken down, and prints its hosts.

    Parameters
    ----------
    topology : topology as the user typed it
    rate : rate of the hosts' links, as `200mbit`; empty for the rates of the topology
    routing : routing rule; empty for the rule of the machine file, or `shortest`
    name : name of the laboratory
    register : register in which the laboratory is entered
    """
    laboratory_to_start = parse_laboratory(topology, rate, routing, check_name(name))
    with signals_as_interrupts():
        entry = laboratory.up(laboratory_to_start, register)
    _remark_ignored_latencies(topology)
    print("\n".join(_laboratory_lines(entry)))


def run_in_laboratory(
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
    """Runs a command on the ranks of a laboratory that exists while the command runs, and returns its exit status.

    Parameters
    ----------
    topology, rate, routing, name : as for `bring_up`
    ranks : number of ranks
    command : words of a Quadrille command, or of a program
    launcher_options : further options of mpirun
    is_program : whether the command is a program of its own and not a Quadrille command
    """
    from quadrille.experiments.laboratory.laboratory_ranks import command_with_topology, launch_in_laboratory
    from quadrille.runtime.launching.launch import PROGRAM

    laboratory_to_start = parse_laboratory(topology, rate, routing, name)
    command_with_topology(laboratory_to_start.entry, ranks, command)  # checks the command before the laboratory starts
    with laboratory.standing(laboratory_to_start) as entry:
        _remark_ignored_latencies(topology)
        return launch_in_laboratory(entry, ranks, command, launcher_options, program=None if is_program else PROGRAM)


def take_down(name: str) -> None:
    """Stops a laboratory, and prints whether it existed."""
    if laboratory.down(name):
        print(f"laboratory {name} is down")
        return
    others = [entry.name for entry in MACHINE_REGISTER.every()]
    print(f"laboratory {name} was not up" + (f"; {', '.join(others)} may be taken down" if others else ""))


def show_laboratories(*, json: str, command: Sequence[str], register: Register = MACHINE_REGISTER) -> None:
    """Prints all laboratories of a register, or writes them as JSON.

    Parameters
    ----------
    json : file for the JSON output, `-` for stdout; nothing else is printed then
    command : words of the command line, for provenance
    register : register that is listed; the machine's if not given
    """
    entries = list(register.every())
    if json:
        statuses = [_laboratory_status(entry) for entry in entries]
        listing = LaboratoryList(laboratories=statuses, provenance=provenance(list(command)))
        schema_files.write_json(json, listing, SCHEMA)
        return
    lines = [line for entry in entries for line in _laboratory_lines(entry)]
    print("\n".join(lines) if lines else "no laboratory is up")


def parse_laboratory(topology: str, rate: str = "", routing: str = "", name: str = "") -> Laboratory:
    """The laboratory that the options of a `lab` command describe, checked before anything is created.

    Parameters
    ----------
    topology, rate, routing, name : as for `bring_up`

    Raises
    ------
    InputError : invalid topology, rate, routing rule or name
    """
    name = check_name(name or f"run{os.getpid()}")
    machine = find_machine(topology) if topology.endswith(".toml") else None
    rule = parse_routing(routing or (machine.routing if machine is not None else "shortest"), SINGLE_PATH_RULES)
    net, factor = _network(topology, machine), 1.0
    check_node_counts(net, topology)
    if rate:
        factor = parse_rate(rate) / slowest_host_bandwidth(net)
        net = scaled_network(net, parse_rate(rate))
    elif machine is None:
        _check_rates_given(topology)
    plan = namespace_plan(net, rule)
    working = np.flatnonzero(~net.failed)
    rates = dict(zip(net.link_names(working), net.bandwidths[working].tolist(), strict=True))
    topology_with_rates = _topology_with_rates(topology if machine is None else _topology_text(machine), factor)
    return Laboratory(name, topology, plan, rates, topology_with_rates, str(rule))


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


def _check_rates_given(topology: str) -> None:
    """Raises InputError for a topology family without link rates if no --rate is given."""
    family = topology.partition(":")[0]
    if family in FAMILIES and not any(name.startswith("bandwidth") for name in parse_topology(topology)[1]):
        raise InputError(
            f"topology {topology!r}: the rate of its links is missing: --rate 200mbit sets the hosts', or write "
            "bandwidth=25e6 [B/s] into the topology"
        )


def _remark_ignored_latencies(topology: str) -> None:
    family = topology.partition(":")[0]
    if family in FAMILIES and (arguments := [name for name in parse_topology(topology)[1] if "latency" in name]):
        remark(
            f"{', '.join(arguments)}: a laboratory has the kernel's latency, which calibrate measures, and sets none"
        )


def _topology_text(machine: Machine) -> str:
    """A machine's topology as command line text; empty with failed or slower links, which cannot be written so."""
    if machine.faults is not None and (machine.faults.fail or machine.faults.degrade):
        return ""
    arguments = {
        name: as_word(cast("Sequence[float]", value)) if isinstance(value, list) else value
        for name, value in machine.topology.items()
    }
    if FILE in arguments:
        return str(arguments[FILE])
    return f"{arguments.pop('family')}:" + ",".join(f"{name}={value}" for name, value in arguments.items())


def _topology_with_rates(topology: str, factor: float) -> str:
    """The topology with the rates of its links, as `calibrate --topology` takes it.

    The text is empty if there is none: for a topology file whose rates were changed.

    >>> _topology_with_rates("star:hosts=2", 25e6)
    'star:bandwidth=25000000.0,hosts=2'
    >>> _topology_with_rates("/nets/four.json", 1.0), _topology_with_rates("/nets/four.json", 8.0)
    ('/nets/four.json', '')
    """
    family = topology.partition(":")[0]
    if is_topology_file(topology):
        return str(Path(topology).resolve()) if factor == 1.0 else ""
    if family not in FAMILIES:
        return ""
    arguments = {
        name: _scaled_bandwidths(value, factor) if "bandwidth" in name else value
        for name, value in _arguments(topology).items()
    }
    return f"{family}:" + ",".join(f"{name}={value}" for name, value in arguments.items() if "latency" not in name)


def _scaled_bandwidths(bandwidths: Argument, factor: float) -> str:
    """A bandwidth, or several bandwidths joined by x, multiplied by a factor."""
    return "x".join(str(float(word) * factor) for word in str(bandwidths).split("x"))


def _laboratory_lines(entry: LaboratoryRecord) -> Iterator[str]:
    """The printed lines of one laboratory."""
    slowest, fastest = min(entry.rates.values()), max(entry.rates.values())
    rates = format_bytes_per_second(slowest) + (f" to {format_bytes_per_second(fastest)}" if fastest > slowest else "")
    switches = len(entry.namespaces) - len(entry.addresses)
    state = "left by a killed process" if entry.abandoned else f"of process {entry.owner}" if entry.owner else "up"
    yield f"{entry.name}: {entry.topology}, {state}"
    yield f"  hosts {len(entry.addresses)}, switches {switches}, links {len(entry.rates)} of {rates}"
    for host, address in entry.addresses.items():
        yield f"  {host:<10} {address:<12} namespace {entry.namespaces[host]}"


def _laboratory_status(entry: LaboratoryRecord) -> LaboratoryStatus:
    return LaboratoryStatus(
        name=entry.name,
        topology=entry.topology,
        addresses=entry.addresses,
        namespaces=entry.namespaces,
        bytes_per_second=entry.rates,
        owner=entry.owner or None,
        abandoned=entry.abandoned,
    )
