"""Ranks on the hosts of a laboratory: mpirun on its first host, and its agent instead of ssh."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from algorithms.errors import InputError
from runtime.world import LABORATORY
from simulator.machine_network import spread_evenly
from studies.laboratory import laboratory, register
from studies.laboratory.register import Entry
from studies.laboratory.wiring import HOST_INTERFACE
from studies.launching.launch import PROGRAM, launch, must_succeed
from studies.launching.mpirun import loaded_mpi
from studies.launching.surroundings import THREAD_VARIABLES, usable_cores

if TYPE_CHECKING:
    from studies.experiments.batch import Launched

ENTER = ("-P", "-m", "studies.laboratory.enter")
NETWORK = {"pml": "ob1", "btl": "tcp,self", "btl_tcp_if_include": HOST_INTERFACE, "mpi_yield_when_idle": "1"}
"""Open MPI over this network only; hosts share cores, so a rank that waits gives its own away."""


def launch_in(
    entry: Entry,
    ranks: int,
    command: Sequence[str],
    launcher_options: Sequence[str] = (),
    *,
    program: Sequence[str] = PROGRAM,
) -> int:
    """Exit status of a command on ranks that are spread evenly over the hosts, in order.

    Parameters
    ----------
    program : how Python is told what a rank runs

    Raises
    ------
    InputError : fewer than one rank, another MPI than Open MPI, a calibration where the topology is a file
    """
    library = loaded_mpi(os.environ)
    if library.vendor != "Open MPI":
        raise InputError(f"mpi4py loads {library}: a laboratory starts its ranks by Open MPI: install its package")
    threads = str(max(1, usable_cores() // ranks))
    environment = dict(os.environ) | {LABORATORY: entry.name} | dict.fromkeys(THREAD_VARIABLES, threads)
    first = next(iter(entry.addresses))
    return launch(
        ranks,
        with_wiring(entry, command),
        [*_options(entry, ranks), *launcher_options],
        environment=environment,
        program=program,
        suspects=lambda: laboratory.links_down(entry),
        starter=[sys.executable, *ENTER, first],
    )


def launched_in(entry: Entry) -> "Launched":
    """What starts ranks in a laboratory that stands, for a batch of runs."""

    def launched(what: str, ranks: int, command: Sequence[str], *, program: Sequence[str] = PROGRAM) -> None:
        must_succeed(what, launch_in(entry, ranks, command, program=program))

    return launched


def with_wiring(entry: Entry, command: Sequence[str]) -> list[str]:
    """A calibration is told how the hosts are wired, unless it was."""
    if list(command[:1]) != ["calibrate"] or any(word.partition("=")[0] == "--topology" for word in command):
        return list(command)
    if not entry.in_full:
        raise InputError(
            f"calibrate: a laboratory of a family is needed, such as star:hosts=4; {entry.topology} is a file"
        )
    return [*command, "--topology", entry.in_full]


def _options(entry: Entry, ranks: int) -> list[str]:
    """What mpirun is told."""
    agent = register.write_agent(entry.name, [sys.executable, *ENTER, "--agent"])
    slots = _slots(ranks, len(entry.addresses))
    named = ",".join(
        f"{address}:{count}" for address, count in zip(entry.addresses.values(), slots, strict=True) if count
    )
    carried = [word for name in (LABORATORY, *THREAD_VARIABLES) for word in ("-x", name)]
    network = [word for name, value in NETWORK.items() for word in ("--mca", name, value)]
    return ["--host", named, "--prtemca", "plm_ssh_agent", f"sh {agent}", *carried, *network]


def _slots(ranks: int, hosts: int) -> list[int]:
    """Ranks of each host, as predictions have them.

    >>> _slots(4, 4), _slots(2, 4), _slots(6, 4)
    ([1, 1, 1, 1], [1, 1, 0, 0], [2, 2, 1, 1])
    """
    return [int(count) for count in np.bincount(spread_evenly(ranks, hosts), minlength=hosts)]
