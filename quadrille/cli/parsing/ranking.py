"""From the flags of `quadrille rank` to the question and the search space, and the command that repeats the best."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast, get_args

from quadrille.algorithms.analysis.axonn import Form
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.schedule.grid import AXES, parse_order
from quadrille.algorithms.training.recompute import Recompute, find_recompute
from quadrille.algorithms.training.scheme import Scheme
from quadrille.algorithms.training.scheme_catalogue import SCHEMES, SEQUENCE_PARALLEL, find_scheme
from quadrille.algorithms.training.zero import STAGES
from quadrille.cli.parsing.flags import AUTO, RankFlags, TrainingFlags
from quadrille.cli.parsing.machines import MachineFlags, chosen_machine
from quadrille.cli.parsing.numbers import one_of, whole_number
from quadrille.cli.parsing.training import parse_training
from quadrille.experiments.rank.candidate_grids import GridLimits
from quadrille.experiments.rank.configurations import SearchSpace
from quadrille.experiments.rank.grids_report import SimulatedGrid
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.ranking_page import grid_flag
from quadrille.experiments.rank.schemes_report import SimulatedConfiguration
from quadrille.experiments.workloads.rank_orders import ORDERS

OF_STEPS = (
    "gpt",
    "sequence",
    "batch",
    "overlap",
    "attention",
    "recompute",
    "gathered",
    "gradient_bytes",
    "dropout",
    "sparsity",
    "prune",
    "sparse_states",
    "dtype",
    "collectives",
)
"""Flags of `rank` that are also flags of training steps."""
ALL = "all"
ALWAYS = ("gpt", "batch", "dtype")
"""Flags that the `simulate` command always names, as its defaults differ or it needs them."""


def parse_question(flags: RankFlags, on: MachineFlags) -> RankQuestion:
    """The question that the flags ask, with all defaults filled in.

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    for name, example in (("gpt", "--gpt 20b"), ("batch", "--batch 1024"), ("gpus", "--gpus 32")):
        if not getattr(flags, name):
            raise InputError(f"--{name} is missing: rank needs it, as in {example}")
    steps = {name: getattr(flags, name) for name in OF_STEPS} | {"recompute": _recomputes(flags)[0]}
    training = parse_training(TrainingFlags(**steps))
    assert training.shape is not None
    gpus = whole_number(flags.gpus, "--gpus")
    return RankQuestion(
        training=training,
        shape=training.shape,
        gpus=gpus,
        machine=chosen_machine(on, gpus),
        top=whole_number(flags.top, "--top"),
        form=cast(Form, one_of(flags.form, "form", get_args(Form))),
        limits=_limits(flags),
        granularity=cast(AskedGranularity, one_of(flags.granularity, "granularity", get_args(AskedGranularity))),
    )


def _limits(flags: RankFlags) -> GridLimits:
    order = None
    if flags.order not in ("", AUTO):
        every = parse_order(flags.order)
        if "pipeline" in every[:-1]:
            raise InputError(f"order {flags.order!r}: pipeline is the slowest axis: leave it out")
        order = tuple(axis for axis in every if axis in ORDERS[0])
        assert len(order) == len(AXES) - 1
    least = whole_number(flags.min_model_parallel, "--min-model-parallel")
    return GridLimits(order, flags.powers_of_two, least)


def parse_space(flags: RankFlags) -> SearchSpace:
    """The search space that the flags describe: schemes, pipeline stages, ZeRO stages, chunks and microbatches.

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    if flags.pipeline in ("", "1") and flags.interleave not in ("", "1"):
        raise InputError(
            f"--interleave {flags.interleave}: chunks are of a pipeline's stages: --pipeline auto or N is needed"
        )
    return SearchSpace(
        _schemes(flags.scheme, sequence_parallel=flags.sequence_parallel),
        None if flags.pipeline == AUTO else _numbers(flags.pipeline or "1", "--pipeline"),
        _numbers(flags.zero or "0", "--zero", least=0, most=max(STAGES)),
        _numbers(flags.interleave or "1", "--interleave"),
        None if flags.micro_batch in ("", AUTO) else _numbers(flags.micro_batch, "--micro-batch"),
        _recomputes(flags),
    )


def _recomputes(flags: RankFlags) -> tuple[Recompute, ...]:
    """What is recomputed, each once, in the order typed."""
    return tuple(dict.fromkeys(find_recompute(word.strip()) for word in flags.recompute.split(",")))


def _schemes(text: str, *, sequence_parallel: bool) -> tuple[Scheme, ...]:
    names = list(SCHEMES) if text == ALL else [word.strip() for word in (text or "4d").split(",")]
    if sequence_parallel and not set(names) & set(SEQUENCE_PARALLEL):
        find_scheme(names[0], sequence_parallel=True)
    return tuple(find_scheme(name, sequence_parallel=sequence_parallel and name in SEQUENCE_PARALLEL) for name in names)


def _numbers(text: str, flag: str, *, least: int = 1, most: int | None = None) -> tuple[int, ...]:
    return tuple(dict.fromkeys(whole_number(word.strip(), flag, least=least, most=most) for word in text.split(",")))


def command_of_fastest(flags: RankFlags, on: MachineFlags, best: SimulatedGrid | SimulatedConfiguration) -> str:
    """The `quadrille simulate` command that repeats the prediction of the fastest grid or configuration."""
    more: list[str] = []
    if isinstance(best, SimulatedConfiguration):
        more += ["--scheme", best.scheme, "--micro-batch", str(best.micro_batch)]
        more += ["--sequence-parallel"] if best.sequence_parallel else []
        more += ["--zero", str(best.zero)] if best.zero else []
        more += ["--interleave", str(best.interleave)] if best.interleave > 1 else []
        flags = replace(flags, recompute=best.recompute)
    grid, even = grid_flag(best.grid), best.shards == "even"
    return simulate_command(flags, on, grid, ",".join(best.order), even_shards=even, more=more)


def simulate_command(
    flags: RankFlags, on: MachineFlags, grid: str, order: str, *, even_shards: bool = False, more: Sequence[str] = ()
) -> str:
    """The `quadrille simulate` command of a grid, quoted for a shell.

    Parameters
    ----------
    flags, on : flags of `rank`, and of the machine
    grid, order : values of --grid and --order
    even_shards : whether the prediction used even shards
    more : further words of the command, such as --scheme

    >>> words = RankFlags(gpt="tiny", batch="8", gpus="4", collectives="own")
    >>> found = simulate_command(words, MachineFlags(machine="alps"), "z=4", "x,y,z,data")
    >>> found.removeprefix("quadrille simulate --gpt tiny --batch 8 ")
    '--dtype bfloat16 --collectives own --grid z=4 --order x,y,z,data --gpus 4 --machine alps'
    """
    command = ["quadrille", "simulate", *_steps(flags), *more, "--grid", grid, "--order", order, "--gpus", flags.gpus]
    command += ["--shards", "even"] if even_shards else []
    command += ["--granularity", flags.granularity] if flags.granularity != "auto" else []
    return shlex.join([*command, *_machine(on)])


def _steps(flags: RankFlags) -> Iterator[str]:
    """The words of the training flags that differ from the defaults of `simulate`."""
    usual = TrainingFlags()
    for name in OF_STEPS:
        value: str | bool = getattr(flags, name)
        if name in ALWAYS or value != getattr(usual, name):
            yield f"--{name.replace('_', '-')}"
            yield from () if isinstance(value, bool) else (value,)


def _machine(on: MachineFlags) -> Iterator[str]:
    """The words of the machine's flags."""
    yield from ("--machine", on.machine)
    if on.routing:
        yield from ("--routing", on.routing)
    for flag, values in (("--set", on.settings), ("--fail", on.fail), ("--degrade", on.degrade), ("--slow", on.slow)):
        for value in values:
            yield from (flag, value)
