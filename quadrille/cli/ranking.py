"""The command `rank`: the best grids of a model on a machine."""

from typing import Annotated, Any

import click

from quadrille.cli.app import app
from quadrille.cli.commands import flag, switch
from quadrille.cli.options import (
    GRANULARITY,
    ON_MACHINE,
    Dtype,
    Gathered,
    GradientBytes,
    Json,
    Overlap,
    Recompute,
    SequenceParallel,
    flags_of,
    machine_words,
    taken,
    with_flags,
)

RANKED = flags_of(
    gpt=(
        Annotated[str, flag("--gpt", "NAME|SIZES|FILE.json", "The model: 20b, layers=2,… or a config.json; needed.")],
        "",
    ),
    batch=(Annotated[str, flag("--batch", "N", "Sequences of one step, over all GPUs; needed.")], ""),
    gpus=(Annotated[str, flag("--gpus", "N", "How many; needed.")], ""),
    top=(Annotated[str, flag("--top", "N", "Grids that are simulated, the first by the model.")], "8"),
    form=(Annotated[str, flag("--form", "exact|authors", "Of the model: authors reproduces their script.")], "exact"),
    order=(
        Annotated[
            str, flag("--order", "AXIS,…|auto", "Rank order, the fastest axis first; auto, the default, tries all.")
        ],
        "",
    ),
    powers_of_two=(Annotated[bool, switch("--powers-of-two", "Only lengths that are powers of two.")], False),
    min_model_parallel=(Annotated[str, flag("--min-model-parallel", "N", "Least product of x, y and z.")], "1"),
    overlap=(Overlap, "none"),
    recompute=(Recompute, "full"),
    gathered=(Gathered, "again"),
    gradient_bytes=(GradientBytes, "4"),
    dtype=(Dtype, "bfloat16"),
    collectives=(
        Annotated[str, flag("--collectives", "WHO", "own, own:NAME, nccl, …; by default nccl, own with --overlap.")],
        "",
    ),
    scheme=(Annotated[str, flag("--scheme", "NAME,…|all", "Also other schemes than 4d: megatron, optimus, ….")], ""),
    sequence_parallel=(SequenceParallel, False),
    pipeline=(Annotated[str, flag("--pipeline", "N,…|auto", "Stages; auto tries all numbers of them.")], ""),
    zero=(Annotated[str, flag("--zero", "0|1|2|3,…", "Sharded over data, each of them tried.")], ""),
    micro_batch=(Annotated[str, flag("--micro-batch", "B,…|auto", "Sequences at once; by default what fits.")], ""),
    interleave=(Annotated[str, flag("--interleave", "V,…", "Chunks of layers of a stage, each tried.")], ""),
)
"""What is ranked, and how it is simulated."""


@app.command("rank")
@with_flags(RANKED, GRANULARITY, ON_MACHINE, flags_of(json=(Json, "")))
def rank(context: click.Context, **given: Any) -> None:
    """Rank all grids of a GPT by a communication model, simulate the best, and set both orders side by side.

    With --scheme, --pipeline, --zero, --micro-batch or --interleave, rank all of these by a closed form of the step.

    As: quadrille rank --gpt 20b --batch 32 --gpus 32 --machine perlmutter
    """
    from quadrille.cli.words.ranking import RankWords, command_of_fastest, parse_question, parse_space
    from quadrille.cli.words.runs import files_read
    from quadrille.experiments.output.destinations import Destinations
    from quadrille.experiments.rank.rank import rank as rank_grids

    words, on = RankWords(**taken(given, RANKED), **taken(given, GRANULARITY)), machine_words(given)
    rank_grids(
        parse_question(words, on),
        parse_space(words) if words.of_schemes else None,
        destinations=Destinations(json=given["json"], read=on.files | files_read(words)),
        command=context.obj,
        again=lambda best: command_of_fastest(words, on, best),
    )
