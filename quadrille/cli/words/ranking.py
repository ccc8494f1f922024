"""The words of `quadrille rank`: the question that they ask, and the command that simulates what was found."""

import shlex
from collections.abc import Iterator, Sequence
from typing import cast, get_args

from quadrille.algorithms.analysis.axonn import Form
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.schedule.grid import AXES, parse_order
from quadrille.algorithms.training.scheme import Scheme
from quadrille.algorithms.training.scheme_catalogue import SCHEMES, SEQUENCE_PARALLEL, find_scheme
from quadrille.algorithms.training.zero import STAGES
from quadrille.cli.words.flags import AUTO, RankWords, TrainingWords
from quadrille.cli.words.machines import MachineWords, chosen_machine
from quadrille.cli.words.numbers import one_of, whole_number
from quadrille.cli.words.training import parse_training
from quadrille.experiments.rank.candidate_grids import GridLimits
from quadrille.experiments.rank.configurations import SearchSpace
from quadrille.experiments.rank.grids_report import SimulatedGrid
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.ranking_page import grid_flag
from quadrille.experiments.rank.schemes_report import SimulatedConfiguration
from quadrille.experiments.workloads.rank_orders import ORDERS

OF_STEPS = ("gpt", "batch", "overlap", "attention", "recompute", "gathered", "gradient_bytes", "dtype", "collectives")
"""Flags that are those of training steps."""
ALL = "all"
ALWAYS = ("gpt", "batch", "dtype")
"""Flags that `simulate` would take otherwise, or not at all, if they were not given."""


def parse_question(words: RankWords, on: MachineWords) -> RankQuestion:
    """What the words ask, in full.

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    words = words.in_full
    for name, example in (("gpt", "--gpt 20b"), ("batch", "--batch 1024"), ("gpus", "--gpus 32")):
        if not getattr(words, name):
            raise InputError(f"--{name} is missing: rank needs it, as in {example}")
    training = parse_training(TrainingWords(**{name: getattr(words, name) for name in OF_STEPS}))
    assert training.shape is not None
    gpus = whole_number(words.gpus, "--gpus")
    return RankQuestion(
        training=training,
        shape=training.shape,
        gpus=gpus,
        machine=chosen_machine(on, gpus),
        top=whole_number(words.top, "--top"),
        form=cast(Form, one_of(words.form, "form", get_args(Form))),
        limits=_limits(words),
        granularity=cast(AskedGranularity, one_of(words.granularity, "granularity", get_args(AskedGranularity))),
    )


def _limits(words: RankWords) -> GridLimits:
    order = None
    if words.order not in ("", AUTO):
        every = parse_order(words.order)
        if "pipeline" in every[:-1]:
            raise InputError(f"order {words.order!r}: pipeline is the slowest axis: leave it out")
        order = tuple(axis for axis in every if axis in ORDERS[0])
        assert len(order) == len(AXES) - 1
    least = whole_number(words.min_model_parallel, "--min-model-parallel")
    return GridLimits(order, words.powers_of_two, least)


def parse_space(words: RankWords) -> SearchSpace:
    """The space that words name; each takes several values, with commas.

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    if words.pipeline in ("", "1") and words.interleave not in ("", "1"):
        raise InputError(
            f"--interleave {words.interleave}: chunks are of a pipeline's stages: --pipeline auto or N is needed"
        )
    return SearchSpace(
        _schemes(words.scheme, sequence_parallel=words.sequence_parallel),
        None if words.pipeline == AUTO else _numbers(words.pipeline or "1", "--pipeline"),
        _numbers(words.zero or "0", "--zero", least=0, most=max(STAGES)),
        _numbers(words.interleave or "1", "--interleave"),
        None if words.micro_batch in ("", AUTO) else _numbers(words.micro_batch, "--micro-batch"),
    )


def _schemes(text: str, *, sequence_parallel: bool) -> tuple[Scheme, ...]:
    names = list(SCHEMES) if text == ALL else [word.strip() for word in (text or "4d").split(",")]
    if sequence_parallel and not set(names) & set(SEQUENCE_PARALLEL):
        find_scheme(names[0], sequence_parallel=True)
    return tuple(find_scheme(name, sequence_parallel=sequence_parallel and name in SEQUENCE_PARALLEL) for name in names)


def _numbers(text: str, flag: str, *, least: int = 1, most: int | None = None) -> tuple[int, ...]:
    return tuple(dict.fromkeys(whole_number(word.strip(), flag, least=least, most=most) for word in text.split(",")))


def command_of_fastest(words: RankWords, on: MachineWords, best: SimulatedGrid | SimulatedConfiguration) -> str:
    """The command that simulates the fastest grid or configuration of a ranking, and says the same seconds."""
    more: list[str] = []
    if isinstance(best, SimulatedConfiguration):
        more += ["--scheme", best.scheme, "--micro-batch", str(best.micro_batch)]
        more += ["--sequence-parallel"] if best.sequence_parallel else []
        more += ["--zero", str(best.zero)] if best.zero else []
        more += ["--interleave", str(best.interleave)] if best.interleave > 1 else []
    grid, even = grid_flag(best.grid), best.shards == "even"
    return simulate_command(words.in_full, on, grid, ",".join(best.order), even_shards=even, more=more)


def simulate_command(
    words: RankWords, on: MachineWords, grid: str, order: str, *, even_shards: bool = False, more: Sequence[str] = ()
) -> str:
    """The command, to be pasted into a shell; `more` are words of a scheme.

    >>> words = RankWords(gpt="tiny", batch="8", gpus="4", collectives="own")
    >>> found = simulate_command(words, MachineWords(machine="alps"), "z=4", "x,y,z,data")
    >>> found.removeprefix("quadrille simulate --gpt tiny --batch 8 ")
    '--recompute full --dtype bfloat16 --grid z=4 --order x,y,z,data --gpus 4 --machine alps'
    """
    command = ["quadrille", "simulate", *_steps(words), *more, "--grid", grid, "--order", order, "--gpus", words.gpus]
    command += ["--shards", "even"] if even_shards else []
    command += ["--granularity", words.granularity] if words.granularity != "auto" else []
    return shlex.join([*command, *_machine(on)])


def _steps(words: RankWords) -> Iterator[str]:
    """Flags of training steps that are not what `simulate` takes by itself."""
    usual = TrainingWords()
    for name in OF_STEPS:
        value: str = getattr(words, name)
        if name in ALWAYS or value != getattr(usual, name):
            yield from (f"--{name.replace('_', '-')}", value)


def _machine(on: MachineWords) -> Iterator[str]:
    yield from ("--machine", on.machine)
    if on.routing:
        yield from ("--routing", on.routing)
    for flag, values in (("--set", on.settings), ("--fail", on.fail), ("--degrade", on.degrade), ("--slow", on.slow)):
        for value in values:
            yield from (flag, value)
