"""The command that simulates the fastest grid of a ranking, and says the same seconds."""

import shlex
from collections.abc import Iterator, Sequence

from quadrille.experiments.rank.question import OF_STEPS, RankFlags
from quadrille.experiments.words.machines import MachineWords
from quadrille.experiments.words.training import TrainingWords

ALWAYS = ("gpt", "batch", "dtype")
"""Flags that `simulate` would take otherwise, or not at all, if they were not given."""


def simulate_command(
    flags: RankFlags, on: MachineWords, grid: str, order: str, *, even_shards: bool = False, more: Sequence[str] = ()
) -> str:
    """The command, to be pasted into a shell; `more` are flags of a scheme.

    >>> flags = RankFlags(gpt="tiny", batch="8", gpus="4", collectives="own")
    >>> found = simulate_command(flags, MachineWords(machine="alps"), "z=4", "x,y,z,data")
    >>> found.removeprefix("quadrille simulate --gpt tiny --batch 8 ")
    '--recompute full --dtype bfloat16 --grid z=4 --order x,y,z,data --gpus 4 --machine alps'
    """
    words = ["quadrille", "simulate", *_steps(flags), *more, "--grid", grid, "--order", order, "--gpus", flags.gpus]
    words += ["--shards", "even"] if even_shards else []
    words += ["--granularity", flags.granularity] if flags.granularity != "auto" else []
    return shlex.join([*words, *_machine(on)])


def _steps(flags: RankFlags) -> Iterator[str]:
    """Flags of training steps that are not what `simulate` takes by itself."""
    usual = TrainingWords()
    for name in OF_STEPS:
        value: str = getattr(flags, name)
        if name in ALWAYS or value != getattr(usual, name):
            yield from (f"--{name.replace('_', '-')}", value)


def _machine(on: MachineWords) -> Iterator[str]:
    yield from ("--machine", on.machine)
    if on.routing:
        yield from ("--routing", on.routing)
    for flag, values in (("--set", on.settings), ("--fail", on.fail), ("--degrade", on.degrade), ("--slow", on.slow)):
        for value in values:
            yield from (flag, value)
