"""`--gpus N` of one experiment: how many GPUs there are, and the grid that follows from them or has to fit."""

from dataclasses import replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import DEFAULT_ORDER, Axis, Grid, parse_grid
from quadrille.cli.words.flags import MatmulWords
from quadrille.cli.words.machines import MachineWords
from quadrille.cli.words.numbers import whole_number

FOLLOWS = "*"
"""The length of the axis that follows from the number of GPUs, in a grid."""
EXAMPLE = f"data={FOLLOWS},x=4"


def on_gpus(words: MatmulWords, gpus: str, machine: str = "", *, grid_given: bool = True) -> MatmulWords:
    """The words with a grid for so many GPUs: the one given, its length `*` filled in.

    >>> on_gpus(MatmulWords(matmul="8,8,8", grid="data=*,x=4"), "64").grid
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
        if FOLLOWS in words.grid:
            raise InputError(f"grid {words.grid!r}: {FOLLOWS} follows from the number of GPUs; give --gpus N")
        return words
    count = whole_number(gpus, "--gpus")
    if not grid_given and count > 1:
        raise InputError(
            f"--gpus {count}: no --grid says how the ranks are laid out: give one with a length {FOLLOWS} that "
            f"follows, as {EXAMPLE}, or ask which is best: {_finder(words, count, machine)}"
        )
    if words.grid.count(FOLLOWS) > 1:
        raise InputError(f"grid {words.grid!r}: one length {FOLLOWS} is accepted, as {EXAMPLE}")
    if FOLLOWS in words.grid:
        return replace(words, grid=str(following(words.grid, count)))
    size = _size(words)
    if size > count:
        raise InputError(
            f"--gpus {count}: the grid {words.grid} has {size} ranks, one for each GPU: a grid of {count} is accepted"
        )
    return words


def idle_gpus(words: MatmulWords, gpus: str, on: MachineWords) -> str:
    """What to say of a grid that leaves some of the GPUs idle; empty where it uses all.

    >>> idle_gpus(MatmulWords(grid="x=48"), "64", MachineWords(machine="perlmutter"))
    'the grid x=48 has 48 ranks: 16 of 64 GPUs stay idle'

    Raises
    ------
    InputError : more GPUs than the machine has
    """
    size = _size(words) if gpus else 0
    if not gpus or size == (count := whole_number(gpus, "--gpus")):
        return ""
    if on.machine:
        _check_has(on, count)
    return f"the grid {words.grid} has {size} rank{'s' if size > 1 else ''}: {count - size} of {count} GPUs stay idle"


def _check_has(on: MachineWords, count: int) -> None:
    from quadrille.cli.words.machines import chosen_machine
    from quadrille.simulator.machine.network import network_of

    machine = chosen_machine(on, count)
    kind, most = network_of(machine).endpoints
    if count > most:
        raise InputError(f"--gpus {count}: {machine.name} has {most} {kind}s: at most {most} are accepted")


def _size(words: MatmulWords) -> int:
    return parse_grid(words.grid).size


def _finder(words: MatmulWords, gpus: int, machine: str) -> str:
    """The command that finds the best grid of so many GPUs."""
    where = f"--gpus {gpus} --machine {machine or 'NAME'}"
    model, stack, batch = (getattr(words, name, "") for name in ("gpt", "mlp", "batch"))
    if model:
        return f"quadrille rank --gpt {model} --batch {batch or 'N'} {where}"
    if stack:
        return f"quadrille sweep --mlp {stack} --batch {batch or 'N'} {where} --vary 'grid=data={FOLLOWS};x={FOLLOWS}'"
    return f"quadrille sweep --matmul {words.matmul or 'M,K,N'} {where} --vary algorithm=4d --best-grid"


def following(text: str, gpus: int, order: tuple[Axis, ...] = DEFAULT_ORDER) -> Grid:
    """The grid of so many ranks whose one length `*` follows from the others.

    >>> str(following("data=*,x=4", 64))
    'data=16,x=4'

    Raises
    ------
    InputError : a number of GPUs that the other lengths do not divide
    """
    others = parse_grid(text.replace(FOLLOWS, "1"), order).size
    if gpus % others:
        count = f"{gpus} GPU{'s' if gpus > 1 else ''}"
        raise InputError(f"grid {text!r}: {count} cannot be shared out over groups of {others}, its other lengths")
    return parse_grid(text.replace(FOLLOWS, str(gpus // others)), order)
