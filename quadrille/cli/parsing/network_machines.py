"""From flags to the machine of `quadrille collective` and `quadrille flows`, for which a topology is enough."""

from quadrille.algorithms.errors import InputError
from quadrille.cli.parsing.machines import MachineFlags, chosen_machine
from quadrille.cli.parsing.numbers import whole_number
from quadrille.simulator.machine.network import network_of, speeds_of
from quadrille.topologies.machines.benchmark_clusters import BENCH
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.network import Network

ANY_SIZE = [machine.name for machine in BENCH]
"""Machines with any number of GPUs."""


def collective_machine(on: MachineFlags, gpus: str = "") -> tuple[Machine, Network]:
    """The machine on which a collective runs, with its faults and routing, and the network of the machine.

    Parameters
    ----------
    on : flags of the machine
    gpus : number of GPUs of a named machine that are modelled, as typed; all by default

    Raises
    ------
    InputError : an unknown machine, a machine with fewer GPUs, or a slow GPU that it lacks
    """
    count = whole_number(gpus, "--gpus") if gpus else None
    chosen = chosen_machine(on, count if on.machine in MACHINES else None, topology_suffices=True)
    net = network_of(chosen)
    speeds_of(chosen, net)
    if count is not None and count > net.endpoint_count:
        raise InputError(f"--gpus {gpus}: {chosen.name} has {net.endpoint_count}")
    return chosen, net


def flows_machine(on: MachineFlags, gpus: int | None, needed: int) -> Machine:
    """The machine on which flows run; no GPU computes there.

    Parameters
    ----------
    on : flags of the machine
    gpus : number of GPUs of the machine; by default the machine's own number
    needed : number of GPUs that the flows use, for a machine with any number of GPUs

    Raises
    ------
    InputError : an unknown machine, --gpus for a machine with a fixed number of GPUs, or a slow GPU
    """
    if on.slow:
        raise InputError("--slow: flows compute nothing, so no GPU can be slow; --degrade makes its links slower")
    if gpus is not None and on.machine and on.machine not in MACHINES:
        chosen_machine(on, topology_suffices=True)  # an unknown name is the greater mistake
        raise InputError(f"--gpus {gpus}: {on.machine} says itself how many GPUs there are; named machines take --gpus")
    count = gpus or (needed if on.machine in ANY_SIZE else None)
    return chosen_machine(on, count, topology_suffices=True)
