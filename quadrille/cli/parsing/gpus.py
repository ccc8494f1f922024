"""The flag `--gpus N` of one experiment: it fills the length `*` of a grid, or checks that the grid fits the GPUs."""

from dataclasses import replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, FOLDED_AXES, Axis, Grid, parse_grid
from quadrille.cli.parsing.experiment import experiment_of
from quadrille.cli.parsing.flags import MatmulFlags
from quadrille.cli.parsing.machines import MachineFlags
from quadrille.cli.parsing.numbers import whole_number

FOLLOWS = "*"
"""The text in a grid for an axis length that follows from the number of GPUs."""
EXAMPLE = f"data={FOLLOWS},x=4"


def with_grid_on_gpus(flags: MatmulFlags, gpus: str, machine: str = "", *, grid_given: bool = True) -> MatmulFlags:
    """The flags with a grid for this number of GPUs: a length `*` of the grid is filled in.

    >>> with_grid_on_gpus(MatmulFlags(matmul="8,8,8", grid="data=*,x=4"), "64").grid
    'data=16,x=4'

    Parameters
    ----------
    flags : flags of the experiment
    gpus : number of GPUs as typed; empty if not given
    machine : name of the machine as typed, for the command that the message suggests
    grid_given : whether --grid was typed

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
        experiment_of(replace(flags, grid=MatmulFlags().grid))  # a fault of the model comes before a missing grid
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


def idle_gpus(flags: MatmulFlags, gpus: str, on: MachineFlags) -> str:
    """The remark about a grid that leaves GPUs idle; empty if it uses all.

    >>> idle_gpus(MatmulFlags(grid="x=48"), "64", MachineFlags(machine="perlmutter"))
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
    from quadrille.cli.parsing.machines import chosen_machine
    from quadrille.simulator.machine.network import network_of

    machine = chosen_machine(on, count)
    kind, most = network_of(machine).endpoints
    if count > most:
        raise InputError(f"--gpus {count}: {machine.name} has {most} {kind}s: at most {most} are accepted")


def _size(flags: MatmulFlags) -> int:
    return parse_grid(flags.grid).size


def _finder(flags: MatmulFlags, gpus: int, machine: str) -> str:
    """The command that finds the best grid for this number of GPUs."""
    where = f"--gpus {gpus} --machine {machine or 'NAME'}"
    model, stack, batch = (getattr(flags, name, "") for name in ("gpt", "mlp", "batch"))
    if model:
        sequence = getattr(flags, "sequence", "")
        model += f" --sequence {sequence}" if sequence else ""
        return f"quadrille rank --gpt {model} --batch {batch or 'N'} {where}"
    if stack:
        return f"quadrille sweep --mlp {stack} --batch {batch or 'N'} {where} --vary 'grid=data={FOLLOWS};x={FOLLOWS}'"
    return f"quadrille sweep --matmul {flags.matmul or 'M,K,N'} {where} --vary algorithm=4d --best-grid"


def following(text: str, gpus: int, order: tuple[Axis, ...] = DEFAULT_ORDER) -> Grid:
    """The grid with this number of GPUs as ranks, whose length `*` follows from the other lengths.

    >>> str(following("data=*,x=4", 64)), str(following("data=*,x=4,expert=32", 64))
    ('data=16,x=4', 'data=16,x=4,expert=32')

    Raises
    ------
    InputError : a number of GPUs that the other lengths do not divide
    """
    words = text.replace(FOLLOWS, "1").split(",")
    box = [word for word in words if word.partition("=")[0].strip() not in FOLDED_AXES]  # the others divide all ranks
    others = parse_grid(",".join(box or words), order).size
    if gpus % others:
        count = f"{gpus} GPU{'s' if gpus > 1 else ''}"
        raise InputError(f"grid {text!r}: {count} cannot be shared out over groups of {others}, its other lengths")
    return parse_grid(text.replace(FOLLOWS, str(gpus // others)), order)
