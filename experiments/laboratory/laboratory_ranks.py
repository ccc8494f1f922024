"""Ranks on the hosts of a laboratory (an emulated network of namespaces), launched by mpirun without ssh.

mpirun runs on the first host, and the laboratory's agent enters the namespaces of the other hosts in place of ssh.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.experiments.calibrate.topology_option import network_without_speeds, parse_topology_option
from quadrille.runtime.host.world import LABORATORY
from quadrille.runtime.laboratory import laboratory
from quadrille.runtime.laboratory.namespace_plan import HOST_INTERFACE
from quadrille.runtime.laboratory.register import MACHINE_REGISTER, LaboratoryRecord, Register
from quadrille.runtime.launching.environment import THREAD_VARIABLES, usable_cores
from quadrille.runtime.launching.hang_detection import DEFAULT_LIMITS, TimeLimits
from quadrille.runtime.launching.launch import PROGRAM, launch, raise_for_status
from quadrille.runtime.launching.mpirun import Mpi, loaded_mpi
from quadrille.simulator.machine.placement import spread_evenly

if TYPE_CHECKING:
    from quadrille.experiments.measure.batch import StartRanks

ENTER = ("-P", "-m", "quadrille.runtime.laboratory.remote_shell")
NETWORK = {"pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": HOST_INTERFACE, "mpi_yield_when_idle": "1"}
"""Open MPI options: only this network; a waiting rank yields its core, which hosts share."""


def launch_in_laboratory(
    entry: LaboratoryRecord,
    ranks: int,
    command: Sequence[str],
    launcher_options: Sequence[str] = (),
    *,
    program: Sequence[str] | None = PROGRAM,
    limits: TimeLimits = DEFAULT_LIMITS,
) -> int:
    """Runs a command on ranks that are spread evenly over the hosts, in order, and returns its exit status.

    Parameters
    ----------
    entry : running laboratory
    ranks : number of ranks
    command : words of a Quadrille command, or of a program
    launcher_options : further options of mpirun
    program : Python arguments that select what a rank runs; None if the command is a program of its own
    limits : times after which a launch without progress is ended

    Raises
    ------
    InputError : a command that cannot run here (see `command_with_topology`), or an MPI other than Open MPI
    """
    full_command = command_with_topology(entry, ranks, command)
    library = loaded_mpi(os.environ)
    if library.vendor != "Open MPI":
        raise InputError(f"mpi4py loads {library}: a laboratory starts its ranks by Open MPI: install its package")
    threads = str(max(1, usable_cores() // ranks))
    environment = dict(os.environ) | {LABORATORY: entry.name} | dict.fromkeys(THREAD_VARIABLES, threads)
    first = next(iter(entry.addresses))
    return launch(
        ranks,
        full_command,
        [*_mpirun_options(entry, ranks, library), *launcher_options],
        environment=environment,
        program=program,
        diagnose_network=lambda: laboratory.links_down(entry),
        limits=limits,
        starter=[sys.executable, *ENTER, first],
    )


def laboratory_launcher(entry: LaboratoryRecord, launcher_options: Sequence[str] = ()) -> "StartRanks":
    """A function that starts ranks in a running laboratory, for a batch of runs."""

    def start(name: str, ranks: int, command: Sequence[str], *, program: Sequence[str] = PROGRAM) -> None:
        raise_for_status(name, launch_in_laboratory(entry, ranks, command, launcher_options, program=program))

    return start


def command_with_topology(entry: LaboratoryRecord, ranks: int, command: Sequence[str]) -> list[str]:
    """The command of the ranks: a calibration gets the laboratory's topology and routing unless it names its own.

    Raises
    ------
    InputError : fewer than one rank; a calibration whose link rates no text or file describes, that names other links,
        or that has fewer ranks than hosts
    """
    hosts = len(entry.addresses)
    if ranks < 1:
        raise InputError(f"-n {ranks}: the number of ranks is a whole number from 1")
    flags = [word.partition("=")[0] for word in command]
    if flags[:1] != ["calibrate"]:
        return list(command)
    routing_words = [] if "--routing" in flags else ["--routing", entry.routing]
    if "--topology" in flags:
        _check_links(entry, _flag_value("--topology", command))
        return [*command, *routing_words]
    if not entry.in_full:
        raise InputError(
            f"calibrate: a machine file tells rates by its topology, and those of {entry.topology} were changed: "
            "write the rates that are wanted into a topology file, and leave out --rate and faults"
        )
    if ranks < hosts:
        raise InputError(
            f"-n {ranks}: calibrate measures between all {hosts} hosts of {entry.topology}, with a rank on each: "
            f"-n {hosts} or more is accepted"
        )
    return [*command, "--topology", entry.in_full, *routing_words]


def _flag_value(flag: str, command: Sequence[str]) -> str:
    """The value of a flag in a command; empty if its value is missing.

    >>> [_flag_value("--out", command) for command in (["calibrate", "--out=a"], ["--out", "b"], ["--out"])]
    ['a', 'b', '']
    """
    number = next(number for number, word in enumerate(command) if word.partition("=")[0] == flag)
    _, equals, value = command[number].partition("=")
    return value if equals else next(iter(command[number + 1 :]), "")


def _check_links(entry: LaboratoryRecord, topology: str) -> None:
    """Raises InputError for a topology whose links are not those of the laboratory."""
    net = network_without_speeds(parse_topology_option(topology, len(entry.addresses)))
    if not entry.rates.keys() <= set(net.link_names(np.arange(net.link_count))):
        raise InputError(
            f"calibrate --topology {topology}: it has other links than the laboratory, {entry.topology}: "
            "leave it out, and the laboratory's is taken"
        )


def _mpirun_options(
    entry: LaboratoryRecord, ranks: int, library: Mpi, register: Register = MACHINE_REGISTER
) -> list[str]:
    """The mpirun options; one of them is a script beside the laboratory's entry in the register."""
    agent = register.write_agent(entry.name, [sys.executable, *ENTER, "--agent"])
    ranks_by_host = _ranks_by_host(ranks, len(entry.addresses))
    hosts_and_slots = ",".join(
        f"{address}:{count}" for address, count in zip(entry.addresses.values(), ranks_by_host, strict=True) if count
    )
    environment_options = [word for name in (LABORATORY, *THREAD_VARIABLES) for word in ("-x", name)]
    network_options = [word for name, value in NETWORK.items() for word in ("--mca", name, value)]
    return ["--host", hosts_and_slots, *_agent_option(library), f"sh {agent}", *environment_options, *network_options]


def _agent_option(library: Mpi) -> tuple[str, str]:
    """The mpirun option that names the replacement of ssh.

    >>> _agent_option(Mpi("Open MPI", "4.1.6")), _agent_option(Mpi("Open MPI", "5.0.11"))
    (('--mca', 'plm_rsh_agent'), ('--prtemca', 'plm_ssh_agent'))

    Source: Open MPI 4.1, orte/mca/plm/rsh; PRRTE 3.0, which starts ranks from Open MPI 5 on, src/mca/plm/ssh.
    """
    return ("--mca", "plm_rsh_agent") if int(library.major) < 5 else ("--prtemca", "plm_ssh_agent")


def _ranks_by_host(ranks: int, hosts: int) -> list[int]:
    """The number of ranks on each host, as predictions assume it.

    >>> _ranks_by_host(4, 4), _ranks_by_host(2, 4), _ranks_by_host(6, 4)
    ([1, 1, 1, 1], [1, 1, 0, 0], [2, 2, 1, 1])
    """
    return [int(count) for count in np.bincount(spread_evenly(ranks, hosts), minlength=hosts)]
