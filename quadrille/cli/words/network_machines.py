"""The machine of a command about a network, with as many GPUs as were asked for; a topology alone is enough."""

from quadrille.algorithms.errors import InputError
from quadrille.cli.words.machines import MachineWords, chosen_machine
from quadrille.cli.words.numbers import whole_number
from quadrille.simulator.machine.network import network_of, speeds_of
from quadrille.topologies.machines.benchmark_clusters import BENCH
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.network import Network

ANY_SIZE = [machine.name for machine in BENCH]
"""Machines that have as many GPUs as are needed."""


def collective_machine(on: MachineWords, gpus: str = "") -> tuple[Machine, Network]:
    """The machine with its faults and routing, and its network, on which a collective runs.

    Parameters
    ----------
    gpus : how many of a named machine's GPUs are modelled, as typed; by default all that it has

    Raises
    ------
    InputError : a machine that cannot be, or has fewer GPUs; a slow GPU that is not there
    """
    count = whole_number(gpus, "--gpus") if gpus else None
    chosen = chosen_machine(on, count if on.machine in MACHINES else None, topology_suffices=True)
    net = network_of(chosen)
    speeds_of(chosen, net)
    if count is not None and count > net.endpoint_count:
        raise InputError(f"--gpus {gpus}: {chosen.name} has {net.endpoint_count}")
    return chosen, net


def flows_machine(on: MachineWords, gpus: int | None, needed: int) -> Machine:
    """The same on which flows run, where no GPU computes.

    Parameters
    ----------
    gpus : how many the machine has; by default its own number, and `needed` where it has any

    Raises
    ------
    InputError : a machine that cannot be, or says itself how many GPUs there are; a slow GPU
    """
    if on.slow:
        raise InputError("--slow: flows compute nothing, so no GPU can be slow; --degrade makes its links slower")
    if gpus is not None and on.machine and on.machine not in MACHINES:
        chosen_machine(on, topology_suffices=True)  # an unknown name is the greater mistake
        raise InputError(f"--gpus {gpus}: {on.machine} says itself how many GPUs there are; named machines take --gpus")
    count = gpus or (needed if on.machine in ANY_SIZE else None)
    return chosen_machine(on, count, topology_suffices=True)
