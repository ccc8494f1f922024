"""`--gpus N` of one experiment: how many GPUs there are, and the grid that follows from them or has to fit."""

from dataclasses import replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.experiments.options.grids import FOLLOWS, following
from quadrille.experiments.options.machine_flags import MachineFlags
from quadrille.experiments.options.values import whole_number
from quadrille.experiments.workloads.matmul import Flags

EXAMPLE = f"data={FOLLOWS},x=4"


def on_gpus(flags: Flags, gpus: str, machine: str = "", *, grid_given: bool = True) -> Flags:
    """The flags with a grid for so many GPUs: the one given, its length `*` filled in.

    >>> on_gpus(Flags(matmul="8,8,8", grid="data=*,x=4"), "64").grid
    'data=16,x=4'

    Parameters
    ----------
    gpus : as typed; empty where nothing is said of them
    machine : as typed, for the command that finds a grid

    Raises
    ------
    InputError : no whole number, no grid for several GPUs, a grid of more ranks, or a `*` that follows from nothing
    """
    if not gpus:
        if FOLLOWS in flags.grid:
            raise InputError(f"grid {flags.grid!r}: {FOLLOWS} follows from the number of GPUs; give --gpus N")
        return flags
    count = whole_number(gpus, "--gpus")
    if not grid_given and count > 1:
        raise InputError(
            f"--gpus {count}: no --grid says how the ranks are laid out: give one with a length {FOLLOWS} that "
            f"follows, as {EXAMPLE}, or ask which is best: {_finder(flags, count, machine)}"
        )
    if flags.grid.count(FOLLOWS) > 1:
        raise InputError(f"grid {flags.grid!r}: one length {FOLLOWS} is accepted, as {EXAMPLE}")
    if FOLLOWS in flags.grid:
        return replace(flags, grid=str(following(flags.grid, count)))
    size = _size(flags)
    if size > count:
        raise InputError(
            f"--gpus {count}: the grid {flags.grid} has {size} ranks, one for each GPU: a grid of {count} is accepted"
        )
    return flags


def idle_gpus(flags: Flags, gpus: str, on: MachineFlags) -> str:
    """What to say of a grid that leaves some of the GPUs idle; empty where it uses all.

    >>> idle_gpus(Flags(grid="x=48"), "64", MachineFlags(machine="perlmutter"))
    'the grid x=48 has 48 ranks: 16 of 64 GPUs stay idle'

    Raises
    ------
    InputError : more GPUs than the machine has
    """
    size = _size(flags) if gpus else 0
    if not gpus or size == (count := whole_number(gpus, "--gpus")):
        return ""
    if on.machine:
        _check_has(on, count)
    return f"the grid {flags.grid} has {size} rank{'s' if size > 1 else ''}: {count - size} of {count} GPUs stay idle"


def _check_has(on: MachineFlags, count: int) -> None:
    from quadrille.experiments.options.machine_flags import chosen_machine
    from quadrille.simulator.machine.network import network_of

    machine = chosen_machine(on, count)
    kind, most = network_of(machine).places
    if count > most:
        raise InputError(f"--gpus {count}: {machine.name} has {most} {kind}s: at most {most} are accepted")


def _size(flags: Flags) -> int:
    return parse_grid(flags.grid).size


def _finder(flags: Flags, gpus: int, machine: str) -> str:
    """The command that finds the best grid of so many GPUs."""
    where = f"--gpus {gpus} --machine {machine or 'NAME'}"
    model, stack, batch = (getattr(flags, name, "") for name in ("gpt", "mlp", "batch"))
    if model:
        return f"quadrille rank --gpt {model} --batch {batch or 'N'} {where}"
    if stack:
        return f"quadrille sweep --mlp {stack} --batch {batch or 'N'} {where} --vary 'grid=data={FOLLOWS};x={FOLLOWS}'"
    return f"quadrille sweep --matmul {flags.matmul or 'M,K,N'} {where} --vary algorithm=4d --best-grid"
