"""From the flags of `quadrille rank` to the question and the search space, and the command that repeats the best."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from quadrille.algorithms.analysis.axonn import Form
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import AskedGranularity
from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.grid import lengths_text, parse_order
from quadrille.algorithms.schedule.program import PipelineSchedule
from quadrille.algorithms.schedule.short_names import hyphenated
from quadrille.algorithms.training.offload import parse_offload
from quadrille.algorithms.training.recompute import Recompute
from quadrille.algorithms.training.scheme import Scheme
from quadrille.algorithms.training.scheme_catalogue import SCHEMES, SEQUENCE_PARALLEL, find_scheme
from quadrille.algorithms.training.zero import STAGES
from quadrille.cli.parsing.flags import AUTO, RankFlags, TrainingFlags
from quadrille.cli.parsing.machines import MachineFlags, chosen_machine
from quadrille.cli.parsing.matmul import parse_overlaps
from quadrille.cli.parsing.numbers import one_of, whole_number
from quadrille.cli.parsing.training import parse_training
from quadrille.experiments.rank.candidate_grids import GridLimits
from quadrille.experiments.rank.configurations import SearchSpace
from quadrille.experiments.rank.grids_report import SimulatedGrid
from quadrille.experiments.rank.rank_question import RankQuestion
from quadrille.experiments.rank.schemes_report import SimulatedConfiguration
from quadrille.experiments.rank.search_options import (
    INTERLEAVES,
    SEARCH_OPTIONS,
    SEARCHED_BY_DEFAULT,
    STATIC_SCHEDULES,
    SearchOption,
    Value,
    pass_orders,
)
from quadrille.experiments.workloads.rank_orders import ORDERS

OF_STEPS = (
    "gpt",
    "sequence",
    "approximate",
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
    "products",
    "fp8_param_gather",
    "offload",
    "expert_load",
    "dtype",
    "collectives",
    "context_parallel",
    "pipeline_limit",
    "stages",
)
"""Flags of `rank` that are also flags of training steps."""
OF_PIPELINES = ("interleave", "pipeline_schedule", "pipeline_limit", "stages")
"""Flags about the stages of a pipeline."""
ALL, NONE = "all", "none"
ALWAYS = ("gpt", "batch", "dtype")
"""Flags that the `simulate` command always names, as its defaults differ or it needs them."""
SEARCHED = (*SEARCH_OPTIONS, "micro-batch", "pipeline", "sequence-parallel")
"""Names that `--search` accepts; microbatches are searched without them, too, as grids and orders of ranks are."""


def parse_question(flags: RankFlags, on: MachineFlags) -> RankQuestion:
    """The question that the flags ask, with all defaults filled in.

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    for name, example in (("gpt", "--gpt 20b"), ("batch", "--batch 1024"), ("gpus", "--gpus 32")):
        if not getattr(flags, name):
            raise InputError(f"--{name} is missing: rank needs it, as in {example}")
    _check_form(flags)
    usual = TrainingFlags()
    steps = {name: getattr(flags, name) or getattr(usual, name) for name in OF_STEPS}
    steps |= {name: steps[name].partition(",")[0] for name in ("recompute", "gathered")}
    training = parse_training(TrainingFlags(**steps))
    assert training.shape is not None
    if flags.form and training.shape.experts is not None:
        raise InputError(
            f"--form {flags.form}: the communication model has no experts, and {training.shape.name} has some: "
            "leave out --form"
        )
    gpus = whole_number(flags.gpus, "--gpus")
    return RankQuestion(
        training=training,
        shape=training.shape,
        gpus=gpus,
        machine=chosen_machine(on, gpus),
        top=whole_number(flags.top, "--top"),
        form=cast(Form, one_of(flags.form or "exact", "form", get_args(Form))),
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
    least = whole_number(flags.min_model_parallel, "--min-model-parallel")
    return GridLimits(order, flags.powers_of_two, least)


def _check_form(flags: RankFlags) -> None:
    """Checks that only grids are asked for if a form of the communication model is."""
    several = [name for name in ("recompute", "gathered") if "," in getattr(flags, name)]
    if flags.form and (others := [*flags.of_configurations, *several]):
        name = hyphenated(others[0])
        raise InputError(
            f"--form {flags.form}: the communication model ranks grids alone: leave out --{name}, or --form"
        )


def parse_space(flags: RankFlags, *, has_experts: bool = False) -> SearchSpace:
    """The search space that the flags describe: typed values, else those that --search tries, else the usual value.

    Without --search, `SEARCHED_BY_DEFAULT` are searched.  A space of a typed --search names the space of --search none,
    for comparison.  A pipeline is always searched for a model with experts.

    Raises
    ------
    InputError : naming the flag, its value and what would be accepted
    """
    searched = _searched(flags.search)
    is_piped = flags.pipeline or "pipeline" in searched or has_experts
    stages = _stage_counts(flags.pipeline or AUTO) if is_piped else (1,)
    if stages == (1,):
        _check_has_pipeline(flags)
    options = {
        "zero": _numbers_of(flags.zero, "--zero", least=0, most=max(STAGES)),
        "recompute": _words_of(flags.recompute, "recompute", get_args(Recompute)),
        "gathered": _words_of(flags.gathered, "gathered", get_args(Gathered)),
        "overlap": ((parse_overlaps(flags.overlap),),) if flags.overlap else (),
        "offload": ((parse_offload(flags.offload),),) if flags.offload else (),
        "pipeline-schedule": _pass_orders(flags, is_searched="pipeline-schedule" in searched),
    }
    return SearchSpace(
        _schemes(flags, is_searched="sequence-parallel" in searched),
        stages,
        None if flags.micro_batch in ("", AUTO) else _numbers(flags.micro_batch, "--micro-batch"),
        {
            name: typed or _tried(SEARCH_OPTIONS[name], flags.search, is_searched=name in searched)
            for name, typed in options.items()
        },
        parse_space(_unsearched(flags), has_experts=has_experts) if searched and flags.search else None,
        _numbers(flags.context or "1", "--context"),
        wide=bool(searched),
    )


def _tried(option: SearchOption, search: str, *, is_searched: bool) -> tuple[Value, ...]:
    """The values of an option that no flag sets.

    Parameters
    ----------
    search : value of --search; empty without it
    """
    if not search:
        return option.by_default
    return option.tried if is_searched else (option.usual,)


def _unsearched(flags: RankFlags) -> RankFlags:
    """The flags with --search none, and without flags of pipelines if only --search asks for pipelines."""
    of_pipelines: dict[str, Any] = {} if flags.pipeline else dict.fromkeys(OF_PIPELINES, "")
    return replace(flags, search=NONE, **of_pipelines)


def _searched(text: str) -> frozenset[str]:
    """The names of the options that --search lists, or those that are searched by default."""
    if not text:
        return frozenset(SEARCHED_BY_DEFAULT)
    if text == NONE:
        return frozenset()
    names = [word.strip() for word in text.split(",")]
    for name in names:
        one_of(name, "search", (*SEARCHED, ALL, NONE))
    if NONE in names:
        raise InputError(f"--search {text}: none is accepted alone")
    return frozenset(SEARCHED if ALL in names else names)


def _check_has_pipeline(flags: RankFlags) -> None:
    """Raises InputError for flags of pipelines, if no grid has one."""
    for name in OF_PIPELINES:
        if getattr(flags, name) not in ("", "1", "1f1b"):
            words = f"--{name.replace('_', '-')} {getattr(flags, name)}"
            raise InputError(f"{words}: is about a pipeline's stages: --pipeline auto or N is needed")
    if "pipeline-schedule" in flags.search.split(",") and not flags.search == ALL:
        raise InputError(
            f"--search {flags.search}: pipeline-schedule is about a pipeline's stages: --pipeline auto or N, or "
            "--search pipeline,pipeline-schedule is needed"
        )


def _stage_counts(text: str) -> tuple[int, ...] | None:
    return None if text == AUTO else _numbers(text, "--pipeline")


def _pass_orders(flags: RankFlags, *, is_searched: bool) -> tuple[Value, ...]:
    """The orders of passes that the flags name; empty if they name none."""
    if not (flags.pipeline_schedule or flags.interleave or flags.pipeline_limit):
        return ()
    limit = whole_number(flags.pipeline_limit, "--pipeline-limit") if flags.pipeline_limit else 0
    chunks = _numbers(flags.interleave or "1", "--interleave")
    schedules = (
        tuple(one_of(word.strip(), "pipeline-schedule", get_args(PipelineSchedule)) for word in typed.split(","))
        if (typed := flags.pipeline_schedule)
        else STATIC_SCHEDULES
        if is_searched
        else ("1f1b",) * (1 in chunks) + ("interleaved",) * (max(chunks) > 1)
    )
    if limit and "message-driven" not in schedules:
        raise InputError(
            f"--pipeline-limit {limit}: is for --pipeline-schedule message-driven, not for {', '.join(schedules)}"
        )
    several = tuple(count for count in chunks if count > 1)
    if several and "interleaved" not in schedules:
        raise InputError(f"--interleave {flags.interleave}: several chunks are for --pipeline-schedule interleaved")
    return pass_orders(cast("tuple[PipelineSchedule, ...]", schedules), several or INTERLEAVES, limit)


def _words_of(text: str, name: str, accepted: tuple[str, ...]) -> tuple[Value, ...]:
    """The words of a list as typed, each once."""
    words = [word.strip() for word in text.split(",")] if text else []
    return tuple((one_of(word, name, accepted),) for word in dict.fromkeys(words))


def _numbers_of(text: str, flag: str, *, least: int, most: int) -> tuple[Value, ...]:
    return tuple((number,) for number in _numbers(text, flag, least=least, most=most)) if text else ()


def _schemes(flags: RankFlags, *, is_searched: bool) -> tuple[Scheme, ...]:
    """The schemes that the flags name; if sequence parallelism is searched, Megatron-LM's is tried with it, too."""
    names = list(SCHEMES) if flags.scheme == ALL else [word.strip() for word in (flags.scheme or "4d").split(",")]
    scattered = flags.sequence_parallel
    if scattered and not set(names) & set(SEQUENCE_PARALLEL):
        find_scheme(names[0], sequence_parallel=True)
    schemes = [find_scheme(name, sequence_parallel=scattered and name in SEQUENCE_PARALLEL) for name in names]
    more = [SEQUENCE_PARALLEL[name] for name in SEQUENCE_PARALLEL if name in names or not flags.scheme]
    return tuple(dict.fromkeys([*schemes, *(more if is_searched else [])]))


def _numbers(text: str, flag: str, *, least: int = 1, most: int | None = None) -> tuple[int, ...]:
    return tuple(dict.fromkeys(whole_number(word.strip(), flag, least=least, most=most) for word in text.split(",")))


def command_of_fastest(flags: RankFlags, on: MachineFlags, best: SimulatedGrid | SimulatedConfiguration) -> str:
    """The `quadrille simulate` command that repeats the prediction of the fastest grid or configuration."""
    more: list[str] = []
    if isinstance(best, SimulatedConfiguration):
        more += ["--scheme", best.scheme, "--micro-batch", str(best.micro_batch)]
        more += ["--sequence-parallel"] if best.sequence_parallel else []
        more += ["--zero", str(best.zero)] if best.zero else []
        more += ["--pipeline-schedule", best.pipeline_schedule] if best.pipeline_schedule != "1f1b" else []
        more += ["--interleave", str(best.interleave)] if best.interleave > 1 else []
        flags = replace(flags, recompute=best.recompute, gathered=best.gathered, overlap=best.overlap)
        flags = replace(flags, offload="" if best.offload == "none" else best.offload)
        flags = replace(
            flags, pipeline_limit=flags.pipeline_limit if best.pipeline_schedule == "message-driven" else ""
        )
    grid, even = lengths_text(best.grid), best.shards == "even"
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
        if name in ALWAYS or value not in ("", getattr(usual, name)):
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
