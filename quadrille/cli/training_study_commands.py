"""The commands of `quadrille study` about training steps: which-scheme, overlap-worth, message-driven-worth, …."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import click

from quadrille.cli.app import study
from quadrille.cli.command_declarations import flag, switch, with_report
from quadrille.cli.shared_flags import Json, Plot, by_default, flags_of, group_values, with_flags

if TYPE_CHECKING:
    from quadrille.experiments.sweep.training_study import StudyOptions

Gpt = Annotated[str, flag("--gpt", "NAME|SIZES|FILE.json", "The model that is trained; by default the study's own.")]
Gpus = Annotated[str, flag("--gpus", "N,…", "Numbers of GPUs.")]
STUDY_OPTIONS = flags_of(
    quick=(Annotated[bool, switch("--quick", "A small model on few GPUs, in seconds.")], False),
    top=(Annotated[str, flag("--top", "N", "Grids simulated where the best is sought: 2, 1 with --quick.")], ""),
    most_seconds=(
        Annotated[
            str,
            flag(
                "--most-seconds",
                "S",
                "Processor time after which a simulation, or the search of a layout, is given up.",
            ),
        ],
        "45",
    ),
    jobs=(Annotated[str, flag("--jobs", "N", "Processes that share the points.")], "2"),
    json=(Json, ""),
    plot=(Plot, ""),
    quiet=(Annotated[bool, switch("--quiet", "Show no progress.")], False),
)
"""The flags of a study of training steps: search effort, processes and output files."""
WITHOUT_SEARCH = [parameter for parameter in STUDY_OPTIONS if parameter.name != "top"]
"""The flags of a study that simulates a fixed number of layouts."""
WITHOUT_LIMIT = [parameter for parameter in WITHOUT_SEARCH if parameter.name != "most_seconds"]
"""The flags of a study whose simulations are never given up."""


def asking(context: click.Context, values: Mapping[str, Any]) -> "StudyOptions":
    """The options of a study of training steps, from the flags."""
    from quadrille.cli.parsing.numbers import jobs_number, whole_number
    from quadrille.experiments.sweep.training_study import StudyOptions

    texts = {"top": "1" if values["quick"] else "2"}
    texts |= {name: values[name] for name in ("top", "most_seconds") if values.get(name)}
    counts = {name: whole_number(text, f"--{name.replace('_', '-')}") for name, text in texts.items()}
    counts["jobs"] = jobs_number(values["jobs"])
    return StudyOptions(**counts, json=values["json"], plot=values["plot"], quiet=values["quiet"], command=context.obj)


def changed_fields(defaults: object, **texts: str) -> dict[str, Any]:
    """The fields of a study's question that the flags change, parsed by the type of the default.

    >>> from quadrille.studies.which_scheme.study import QUICK
    >>> changed_fields(QUICK, models="", gpus="8,27", each="6")
    {'gpus': (8, 27), 'each': 6}

    Values with commas of their own, such as the sizes of a model, are separated by semicolons.

    >>> from quadrille.studies.bandwidth_or_memory.study import ResourceQuestion
    >>> changed_fields(ResourceQuestion(), gpt="layers=2,hidden=64;llama2-7b")
    {'gpt': ('layers=2,hidden=64', 'llama2-7b')}

    Raises
    ------
    InputError : a text that is no whole number, for a numeric field
    """
    from quadrille.cli.parsing.numbers import whole_number

    changes: dict[str, Any] = {}
    for name, text in texts.items():
        own = getattr(defaults, name)
        if not text:
            continue
        words = [word.strip() for word in text.split(";" if "=" in text or ";" in text else ",")]
        if isinstance(own, int):
            changes[name] = whole_number(text, f"--{name}")
        elif isinstance(own, str):
            changes[name] = text
        else:
            numbers = bool(own) and isinstance(own[0], int)
            changes[name] = tuple(whole_number(word, f"--{name}") if numbers else word for word in words)
    return changes


WHICH_SCHEME = flags_of(
    models=(Annotated[str, flag("--models", "NAME,…", "Models.", "--gpt")], ""),
    machines=(Annotated[str, flag("--machines", "NAME,…", "Named machines.", "--machine")], ""),
    gpus=(Gpus, ""),
    sharing=(Annotated[str, flag("--sharing", "N", "GPUs that share a sequence of the small batch.")], ""),
    each=(Annotated[str, flag("--each", "N", "Sequences of each GPU of the large batch.")], ""),
    schemes=(Annotated[str, flag("--schemes", "NAME,…", "Of megatron, optimus, tesseract, bian and 4d.")], ""),
)


@study.command("which-scheme")
@with_report
@with_flags(WHICH_SCHEME, by_default(STUDY_OPTIONS, most_seconds="120"))
def which_scheme(context: click.Context, **values: Any) -> None:
    """When does 4D tensor parallelism beat Megatron-LM's 1-D, on how many GPUs of which machine?"""
    from quadrille.studies.which_scheme import study as which

    defaults = which.QUICK if values["quick"] else which.SchemeQuestion()
    question = replace(defaults, **changed_fields(defaults, **group_values(values, WHICH_SCHEME)))
    which.which_scheme(question, asking(context, values))


OVERLAP_WORTH = flags_of(
    machine=(Annotated[str, flag("--machine", "NAME|FILE", "A machine; by default perlmutter.")], ""),
    gpt=(Gpt, ""),
    gpus=(Gpus, ""),
    each=(Annotated[str, flag("--each", "N,…", "Sequences of each GPU.")], ""),
    bandwidths=(Annotated[str, flag("--bandwidths", "xF,…", "Factors of the network's bandwidth.")], ""),
)


@study.command("overlap-worth")
@with_report
@with_flags(OVERLAP_WORTH, STUDY_OPTIONS)
def overlap_worth(context: click.Context, **values: Any) -> None:
    """What is each overlap of communication with computing worth, and when is it worth nothing?"""
    from quadrille.studies.overlap_worth import study as worth

    defaults = worth.QUICK if values["quick"] else worth.OverlapQuestion()
    question = replace(defaults, **changed_fields(defaults, **group_values(values, OVERLAP_WORTH)))
    worth.overlap_worth(question, asking(context, values))


WHICH_GRID = flags_of(
    machines=(Annotated[str, flag("--machines", "NAME,…", "Named machines.", "--machine")], ""),
    gpt=(Gpt, ""),
    gpus=(Annotated[str, flag("--gpus", "N", "How many GPUs.")], ""),
    batch=(Annotated[str, flag("--batch", "N", "Sequences of a step.")], ""),
)

FOUR_GRIDS = flags_of(top=(Annotated[str, flag("--top", "N", "Grids simulated where the best is sought.")], "4"))


@study.command("which-grid")
@with_report
@with_flags(WHICH_GRID, FOUR_GRIDS, WITHOUT_SEARCH)
def which_grid(context: click.Context, **values: Any) -> None:
    """Which grid is the best on which machine, and why?"""
    from quadrille.studies.which_grid import study as which

    defaults = which.QUICK if values["quick"] else which.GridQuestion()
    question = replace(defaults, **changed_fields(defaults, **group_values(values, WHICH_GRID)))
    which.which_grid(question, asking(context, values))


BETTER_NETWORK = flags_of(
    machine=(
        Annotated[str, flag("--machine", "NAME", "Whose GPUs a switch joins; by default h100-superpod.")],
        "",
    ),
    gpt=(Gpt, ""),
    gpus=(Gpus, ""),
    each=(Annotated[str, flag("--each", "N", "Sequences of each GPU.")], ""),
)


@study.command("better-network")
@with_report
@with_flags(BETTER_NETWORK, STUDY_OPTIONS)
def better_network(context: click.Context, **values: Any) -> None:
    """What would a better network buy: twice the bandwidth, half the latency, an NVLink domain of 72?"""
    from quadrille.studies.better_network import study as better

    defaults = better.QUICK if values["quick"] else better.NetworkQuestion()
    question = replace(defaults, **changed_fields(defaults, **group_values(values, BETTER_NETWORK)))
    better.better_network(question, asking(context, values))


MESSAGE_DRIVEN_WORTH = flags_of(
    machine=(Annotated[str, flag("--machine", "NAME|FILE", "A machine; by default perlmutter.")], ""),
    gpt=(Gpt, ""),
    stages=(Annotated[str, flag("--stages", "N", "Stages of the pipeline.")], ""),
    grid=(
        Annotated[str, flag("--grid", "AXIS=N,…", "Axes of the GPUs of a stage, as data=16,x=8; by default one GPU.")],
        "",
    ),
    microbatches=(Annotated[str, flag("--microbatches", "N", "Microbatches of a step, with one sequence each.")], ""),
    interleave=(Annotated[str, flag("--interleave", "V", "Chunks of layers of an interleaved stage.")], ""),
    link_percent=(Annotated[str, flag("--link-percent", "N", "Bandwidth that the slow link keeps.")], ""),
    noise=(Annotated[str, flag("--noise", "PERCENT,…", "Sigmas of the noise of local work.")], ""),
    seeds=(Annotated[str, flag("--seeds", "N", "Seeds of each noise.")], ""),
)


@study.command("message-driven-worth")
@with_report
@with_flags(MESSAGE_DRIVEN_WORTH, by_default(STUDY_OPTIONS, most_seconds="240"))
def message_driven_worth(context: click.Context, **values: Any) -> None:
    """When is a message-driven pipeline faster than 1F1B, GPipe, interleaved stages and zero bubbles?"""
    from quadrille.studies.message_driven_worth import study as worth

    defaults = worth.QUICK if values["quick"] else worth.DrivenQuestion()
    question = replace(defaults, **changed_fields(defaults, **group_values(values, MESSAGE_DRIVEN_WORTH)))
    worth.message_driven_worth(question, asking(context, values))


BEST_LAYOUT = flags_of(
    models=(Annotated[str, flag("--models", "NAME,…", "Models.", "--gpt")], ""),
    machines=(Annotated[str, flag("--machines", "NAME,…", "Named machines.", "--machine")], ""),
    gpus=(Annotated[str, flag("--gpus", "N,…", "Number of GPUs of each machine.")], ""),
    each=(Annotated[str, flag("--each", "N", "Sequences of each GPU.")], ""),
)


@study.command("best-layout")
@with_report
@with_flags(BEST_LAYOUT, WITHOUT_SEARCH)
def best_layout(context: click.Context, **values: Any) -> None:
    """Which layout is the best for large models on 512 H100 and on NVL72 racks, and why?"""
    from quadrille.studies.best_layout import study as best

    defaults = best.QUICK if values["quick"] else best.BestLayoutQuestion()
    question = replace(defaults, **changed_fields(defaults, **group_values(values, BEST_LAYOUT)))
    best.best_layout(question, asking(context, values))


SCALING_END = flags_of(
    models=(Annotated[str, flag("--models", "NAME,…", "Models.", "--gpt")], ""),
    machines=(Annotated[str, flag("--machines", "NAME,…", "Named machines.", "--machine")], ""),
    gpus=(Gpus, ""),
    batches=(Annotated[str, flag("--batches", "N,…", "Sequences of a step.", "--batch")], ""),
)


@study.command("scaling-end")
@with_report
@with_flags(SCALING_END, WITHOUT_LIMIT)
def scaling_end(context: click.Context, **values: Any) -> None:
    """On how many GPUs do twice the GPUs hardly shorten a training step with the same batch, and why?"""
    from quadrille.studies.scaling_end import study as scaling

    defaults = scaling.QUICK if values["quick"] else scaling.ScalingEndQuestion()
    question = replace(defaults, **changed_fields(defaults, **group_values(values, SCALING_END)))
    scaling.scaling_end(question, asking(context, values))
