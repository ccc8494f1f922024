"""The command `rank`: it finds the fastest grids of a model on a machine."""

from typing import Annotated, Any

import click

from quadrille.cli.app import app
from quadrille.cli.command_declarations import flag, switch, with_report
from quadrille.cli.parsing.flags import RankFlags
from quadrille.cli.shared_flags import (
    FROM_FILE,
    GRANULARITY,
    NO_PROGRESS,
    ON_MACHINE,
    Approximate,
    Attention,
    ContextParallel,
    DropoutShare,
    Dtype,
    ExpertLoads,
    Fp8ParamGather,
    GradientBytes,
    Json,
    OptimizerOffload,
    PipelineLimit,
    Plot,
    Prune,
    SequenceParallel,
    SmallProducts,
    SparseStates,
    Sparsity,
    StageLayers,
    Store,
    Tokens,
    flags_from,
    flags_of,
    group_values,
    machine_flags,
    with_flags,
)

RANKED = flags_from(
    RankFlags(),
    gpt=Annotated[str, flag("--gpt", "NAME|SIZES|FILE.json", "The model: 20b, layers=2,… or a config.json; needed.")],
    sequence=Tokens,
    approximate=Approximate,
    batch=Annotated[str, flag("--batch", "N", "Global batch: sequences of one step over all GPUs; needed.")],
    gpus=Annotated[str, flag("--gpus", "N", "Number of GPUs; needed.")],
    top=Annotated[str, flag("--top", "N", "Configurations that are simulated, the best ones by the model.")],
    form=Annotated[
        str,
        flag(
            "--form",
            "exact|authors",
            "Rank grids by AxoNN's communication model alone, exact or as in the authors' script.",
        ),
    ],
    order=Annotated[
        str,
        flag(
            "--order",
            "AXIS,…|auto",
            "Order of the axes in rank numbers, the innermost axis first; auto, the default, tries all.",
        ),
    ],
    powers_of_two=Annotated[bool, switch("--powers-of-two", "Only axis lengths that are powers of two.")],
    min_model_parallel=Annotated[str, flag("--min-model-parallel", "N", "Least product of x, y and z.")],
    overlap=Annotated[
        str,
        flag(
            "--overlap",
            "LIST",
            "Communication beside products: none, or a list of oar (all-reduce), ors (reduce-scatter), oag "
            "(all-gather), ogr (gradients over data, in the backward pass), opg (weights of ZeRO 1 and 2, in the "
            "forward pass). By default all of them; none with --search.",
        ),
    ],
    attention=Attention,
    recompute=Annotated[
        str,
        flag(
            "--recompute",
            "none|selective|full|full-keep-exchange,…",
            "What the backward pass recomputes; several are searched. By default none, selective and full.",
        ),
    ],
    gathered=Annotated[
        str,
        flag(
            "--gathered",
            "again|keep,…",
            "Gathered weights: keep them for the backward pass, or gather them again (the default).",
        ),
    ],
    gradient_bytes=GradientBytes,
    dropout=DropoutShare,
    sparsity=Sparsity,
    prune=Prune,
    sparse_states=SparseStates,
    products=SmallProducts,
    fp8_param_gather=Fp8ParamGather,
    offload=OptimizerOffload,
    expert_load=ExpertLoads,
    dtype=Dtype,
    collectives=Annotated[
        str, flag("--collectives", "WHO", "own, own:NAME, nccl, …; by default what the machine runs: nccl on GPUs.")
    ],
    scheme=Annotated[
        str,
        flag("--scheme", "NAME,…|all", "Schemes to try: 4d, megatron, optimus, …, or all; by default 4d and megatron."),
    ],
    sequence_parallel=SequenceParallel,
    context=Annotated[
        str, flag("--context", "N,…", "Ranks along context to try, which cut every sequence; by default 1.")
    ],
    context_parallel=ContextParallel,
    pipeline=Annotated[
        str, flag("--pipeline", "N,…|auto", "Numbers of pipeline stages; auto, the default, tries all.")
    ],
    zero=Annotated[str, flag("--zero", "0|1|2|3,…", "ZeRO stages to try; by default all.")],
    micro_batch=Annotated[
        str, flag("--micro-batch", "B,…|auto", "Microbatches to try; by default the ones that fit into memory.")
    ],
    interleave=Annotated[str, flag("--interleave", "V,…", "Chunks of layers on a stage to try.")],
    pipeline_schedule=Annotated[
        str,
        flag(
            "--pipeline-schedule",
            "NAME,…",
            "Orders of passes to try: gpipe, 1f1b, interleaved, zb-h1, zb-v or message-driven; by default all but "
            "the last.",
        ),
    ],
    pipeline_limit=PipelineLimit,
    stages=StageLayers,
    search=Annotated[
        str,
        flag(
            "--search",
            "NAME,…|all|none",
            "Options to search beside grid, rank order and microbatch, in place of the default (zero, recompute, "
            "pipeline, pipeline-schedule, sequence-parallel): these, gathered, overlap, offload, or all or none. A "
            "typed flag fixes its option.",
        ),
    ],
)
"""The flags of the model, of the search space and of the simulation."""

Jobs = Annotated[str, flag("--jobs", "N", "Processes that share the configurations.")]


Csv = Annotated[str, flag("--csv", "FILE|-", "Write the simulated configurations as CSV; - is stdout.")]
OUTPUT = flags_of(json=(Json, ""), csv=(Csv, ""), plot=(Plot, ""), jobs=(Jobs, "1"), store=(Store, ""))


@app.command("rank")
@with_report
@with_flags(FROM_FILE, RANKED, GRANULARITY, ON_MACHINE, OUTPUT, NO_PROGRESS)
def rank(invocation: click.Context, **values: Any) -> None:
    """Rank the configurations of a GPT by a closed form of its step.  The best are simulated.

    By default grid, order of ranks, microbatch, the schemes 4D and Megatron-LM's, pipelines and their schedules, ZeRO,
    recomputation and sequence parallelism are searched, with all overlaps.  --search names other options, all of them
    or none.

    As: quadrille rank --gpt 20b --batch 32 --gpus 32 --machine perlmutter
    """
    from quadrille.cli.parsing.numbers import jobs_number
    from quadrille.cli.parsing.ranking import command_of_fastest, parse_question, parse_space
    from quadrille.cli.parsing.runs import files_read
    from quadrille.experiments.output.destinations import Destinations, Detail
    from quadrille.experiments.rank.rank import rank as rank_grids

    detail: Detail = "verdict" if values["quiet"] else "table"
    words, on = RankFlags(**group_values(values, RANKED), **group_values(values, GRANULARITY)), machine_flags(values)
    question = parse_question(words, on)
    rank_grids(
        question,
        parse_space(words, has_experts=question.problem.experts is not None) if words.ranks_schemes else None,
        destinations=Destinations(
            json=values["json"],
            csv=values["csv"],
            plot=values["plot"],
            read=on.files | files_read(words),
            detail=detail,
        ),
        jobs=jobs_number(values["jobs"]),
        store=values["store"],
        command=invocation.obj,
        again=lambda best: command_of_fastest(words, on, best),
    )
