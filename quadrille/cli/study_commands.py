"""The commands of `quadrille study`, one for each study; training studies are in `training_study_commands.py`."""

from collections.abc import Callable
from typing import Annotated, Any

import click

from quadrille.cli import training_study_commands, what_if_study_commands
from quadrille.cli.app import study
from quadrille.cli.command_declarations import argument, flag, switch, toggle
from quadrille.cli.shared_flags import (
    ON_MACHINE,
    ORDER,
    Collectives,
    Dtype,
    Gathered,
    Json,
    NamedOrder,
    Overlap,
    Panel,
    Passes,
    Plot,
    Store,
    Threads,
    Transposed,
    by_default,
    flags_of,
    machine_flags,
    with_flags,
)

MORE = (training_study_commands, what_if_study_commands)
"""Modules that declare further commands when they are imported."""

Jobs = Annotated[str, flag("--jobs", "N", "Processes that share the rows.")]


@study.command("main-job")
def main_job(folder: Annotated[str, flag("--folder", "DIR", "Where its files go.")] = "") -> None:
    """Calibrate this machine, predict and run several multiplications, verify and compare them."""
    from pathlib import Path

    from quadrille.studies.main_job.study import FOLDER
    from quadrille.studies.main_job.study import main_job as do_main_job

    do_main_job(Path(folder) if folder else FOLDER)


@study.command("host-fidelity")
def host_fidelity(
    context: click.Context,
    seed: Annotated[str, flag("--seed", "S", "Draw other cases.")] = "0",
    cases: Annotated[str, flag("--cases", "N", "How many multiplications are drawn.")] = "24",
    machine: Annotated[str, flag("--machine", "FILE.toml", "Of this host; by default it is calibrated first.")] = "",
    oversubscribed: Annotated[bool, toggle("--oversubscribed", "Report 4 and 8 ranks too.")] = True,
    json: Json = "",
) -> None:
    """How far off are predictions of this host, over cases drawn by the seed?"""
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.studies.host_fidelity.study import host_fidelity as measure_fidelity

    measure_fidelity(
        seed=whole_number(seed, "--seed", least=0),
        cases=whole_number(cases, "--cases"),
        json=json,
        machine=machine,
        oversubscribed=oversubscribed,
        command=context.obj,
    )


@study.command("fidelity")
def fidelity(
    context: click.Context,
    sites: Annotated[
        str, flag("--sites", "WORD …", "Those whose names begin so: shared, star, leaf-spine, GPU ….")
    ] = "",
    seed: Annotated[str, flag("--seed", "S", "Draw cases outside the matrix by this seed.")] = "",
    cases: Annotated[
        str, flag("--cases", "N", "How many are drawn, with a seed or at a topology; 24 by default.")
    ] = "",
    topology: Annotated[
        str, flag("--topology", "TOPOLOGY", "Draw them in a laboratory of this one, as lab run takes it; with -n.")
    ] = "",
    rate: Annotated[str, flag("--rate", "RATE", "Of the links of its hosts, such as 200mbit.")] = "",
    ranks: Annotated[str, flag("-n", "RANKS", "How many ranks, spread evenly over its hosts.")] = "",
    folder: Annotated[str, flag("--folder", "DIR", "Where machine files and records stay.")] = "",
    json: Json = "",
    figure: Plot = "",
) -> None:
    """How far off are predictions from calibration alone, in shared memory, on laboratory networks and on a GPU?"""
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.studies.fidelity.study import chosen_trials
    from quadrille.studies.fidelity.study import fidelity as judge
    from quadrille.studies.fidelity.trial_sites import laboratory_site

    site = laboratory_site(topology, rate, whole_number(ranks, "-n") if ranks else None)
    chosen = whole_number(seed, "--seed", least=0) if seed else None
    trials = chosen_trials(sites, chosen, whole_number(cases, "--cases") if cases else None, site)
    judge(trials, folder=folder, json=json, plot=figure, command=context.obj)


@study.command("simulator-speed")
def simulator_speed(
    context: click.Context,
    quick: Annotated[bool, switch("--quick", "One repeat, at most 16,384 GPUs, nothing switched off.")] = False,
    simgrid: Annotated[bool, toggle("--simgrid", "Run SimGrid beside, where it is installed.")] = True,
    json: Json = "",
) -> None:
    """How fast is the network simulator, on pinned workloads, beside SimGrid?"""
    from quadrille.studies.simulator_speed.study import simulator_speed as measure_speed

    measure_speed(json_file=json, quick=quick, simgrid=simgrid, command=context.obj)


@study.command("runtime-speed")
def runtime_speed(
    context: click.Context,
    matmul: Annotated[str, flag("--matmul", "M,K,N", "One product; four usual ones by default.")] = "",
    ranks: Annotated[str, flag("-n", "RANKS", "Of this host.")] = "2",
    turns: Annotated[str, flag("--turns", "N", "Of every entrant.")] = "20",
    json: Json = "",
) -> None:
    """How fast is our product, beside what else one would use here?"""
    from quadrille.cli.parsing.numbers import whole_number
    from quadrille.studies.runtime_speed.study import SHAPES
    from quadrille.studies.runtime_speed.study import runtime_speed as measure_speed

    measure_speed(
        ranks=whole_number(ranks, "-n"),
        shapes=[matmul] if matmul else SHAPES,
        turns=whole_number(turns, "--turns", least=2),
        json=json,
        command=context.obj,
    )


@study.command("gpu")
def gpu(
    context: click.Context,
    ranks: Annotated[str, flag("--ranks", "N,…", "How many share the GPU: of 1, 2, 4 and 8.")] = "1,2,4,8",
    out: Annotated[str, flag("--out", "FILE.toml", "Write what was measured as a machine file.")] = "",
    json: Json = "",
) -> None:
    """How fast is this GPU by shape and dtype, and are ranks that share it predicted?"""
    from quadrille.cli.parsing.numbers import one_of
    from quadrille.studies.gpu.study import GRIDS
    from quadrille.studies.gpu.study import gpu as measure_gpu

    counts = [int(one_of(word.strip(), "ranks", tuple(map(str, GRIDS)))) for word in ranks.split(",")]
    measure_gpu(json=json, out=out, ranks=counts, command=context.obj)


@study.command("published-collectives")
def published_collectives(
    context: click.Context,
    rows: Annotated[str, flag("--rows", "FILE.csv", "Published measurements; by default the project's own.")] = "",
    json: Json = "",
    figure: Plot = "",
) -> None:
    """How far off are predictions of NCCL on named machines, against published measurements?"""
    from quadrille.studies.published_collectives.study import published_collectives as judge

    judge(rows, json=json, figure=figure, command=context.obj)


@study.command("published-training")
def published_training(
    context: click.Context,
    rows: Annotated[str, flag("--rows", "FILE.csv", "Published training runs; by default the project's own.")] = "",
    listed: Annotated[bool, switch("--list", "List the rows and which are judged, without predictions.")] = False,
    row: Annotated[str, flag("--row", "N", "Predict the row with this id alone, and print its command line.")] = "",
    explain: Annotated[bool, switch("--explain", "Print where the time of --row goes.")] = False,
    claims: Annotated[
        bool, switch("--claims", "Predict what papers claim of their schemes instead of rows: minutes.")
    ] = False,
    only: Annotated[str, flag("--only", "TEXT", "Claims whose name has this text; by default all claims.")] = "",
    weak_scaling: Annotated[
        bool, switch("--weak-scaling", "Predict the weak scaling of AxoNN instead of rows: minutes.")
    ] = False,
    jobs: Jobs = "1",
    store: Store = "",
    json: Json = "",
    figure: Plot = "",
) -> None:
    """How far off are predictions of whole training steps, against published runs?"""
    from quadrille.algorithms.errors import InputError
    from quadrille.cli.parsing.numbers import jobs_number
    from quadrille.studies.published_training.study import list_rows, published_row
    from quadrille.studies.published_training.study import published_training as judge

    alone = [name for name, typed_value in (("--row", row), ("--list", listed)) if typed_value]
    others = [name for name, typed_value in (("--claims", claims), ("--weak-scaling", weak_scaling)) if typed_value]
    if len(alone + others) > 1 and alone:
        raise InputError(f"{' and '.join(alone + others)}: one of them is accepted")
    if explain and not row:
        raise InputError("--explain: explains one row; --row N is needed")
    if listed:
        list_rows(rows)
        return
    if row:
        published_row(row, rows, explain=explain, json=json, command=context.obj)
        return
    judge(
        rows,
        claims=claims,
        only=only,
        weak_scaling=weak_scaling,
        json=json,
        figure=figure,
        jobs=jobs_number(jobs),
        store=store,
        command=context.obj,
    )


@study.command("megatron-bridge")
def megatron_bridge(
    context: click.Context,
    file: Annotated[str, flag("--rows", "FILE.csv", "Its performance tables: megatron_bridge_performance.csv.")] = "",
    only: Annotated[str, flag("--only", "TEXT", "Models whose name has this text; then no results are written.")] = "",
    plot: Plot = "",
    jobs: Jobs = "1",
    store: Store = "",
) -> None:
    """How far off are predicted steps from the performance tables of Megatron Bridge: experts, 8 and 4 bits?"""
    from quadrille.cli.parsing.numbers import jobs_number
    from quadrille.studies.megatron_bridge.study import megatron_bridge as judge

    judge(file, only, plot=plot, jobs=jobs_number(jobs), store=store, command=context.obj)


@study.command("draw")
def draw(
    file: Annotated[str, argument("FILE", "Kept answer of a study: its JSON, or rows.csv of megatron-bridge.")],
    plot: Plot = "",
) -> None:
    """Draw the figure of a study again from its kept answer, without a prediction."""
    from quadrille.studies.kept_figures import draw_again

    draw_again(file, plot)


@study.command("megatron-recordings")
def megatron_recordings(
    folder: Annotated[str, flag("--folder", "DIR", "megatron_golden*.csv and simumax_b200_steps.csv.")] = "",
    times: Annotated[bool, switch("--times", "Times of large steps instead of memory: ten minutes.")] = False,
) -> None:
    """How much memory, and time, does a Megatron-LM job take, against what its tests and SimuMax recorded?"""
    from quadrille.studies.megatron_recordings.study import megatron_recordings as judge

    judge(folder, "times" if times else "memory")


@study.command("kernel-tables")
def kernel_tables(
    file: Annotated[str, flag("--rows", "FILE.csv", "Kernels of training: simumax_kernels.csv.")] = "",
) -> None:
    """How long do kernels of training take, beside the tables of measured kernels?"""
    from quadrille.studies.kernel_tables.study import kernel_tables as compare

    compare(file)


SCALING = flags_of(
    matmul=(Annotated[str, flag("--matmul", "M,K,N", "Of each GPU (weak) or of all together (strong).")], ""),
    gpus=(Annotated[str, flag("--gpus", "N,…", "Numbers of GPUs.")], "1,2,4,8,16,32,64"),
    algorithm=(Annotated[str, flag("--algorithm", "NAME,…", "One, several, or all.")], "4d"),
    order=(NamedOrder, ORDER),
    dtype=(Dtype, "bfloat16"),
    passes=(Passes, "training"),
    gathered=(Gathered, "again"),
    panel=(Panel, "256"),
    transposed=(Transposed, "none"),
    overlap=(Overlap, "none"),
    collectives=(Collectives, "default"),
    threads=(Threads, ""),
    top=(Annotated[str, flag("--top", "N", "Grids of each algorithm simulated for each number of GPUs.")], "3"),
    memory_per_gpu=(
        Annotated[
            str,
            flag(
                "--memory-per-gpu",
                "SIZE|equal",
                "Grids need at most so much of a GPU; equal: the least at which each algorithm has a grid.",
            ),
        ],
        "",
    ),
    json=(Json, ""),
    csv=(Annotated[str, flag("--csv", "FILE|-", "Write the table as CSV.")], ""),
    plot=(Plot, ""),
)
"""The flags of a scaling study, besides its machine."""


def scaling_command(kind: str) -> Callable[..., None]:
    """The function of the command for weak or strong scaling, which have the same flags."""

    @with_flags(by_default(ON_MACHINE, machine="perlmutter"), SCALING)
    def command(context: click.Context, **values: Any) -> None:
        from quadrille.algorithms.matmuls.matmul import parse_sizes
        from quadrille.cli.parsing.machines import chosen_machine
        from quadrille.cli.parsing.numbers import whole_number
        from quadrille.studies.scaling.problem import memory_limit, parse_problem
        from quadrille.studies.scaling.study import scaling

        threads = values["threads"]
        problem = parse_problem(
            kind,
            matmul=parse_sizes(values["matmul"]) if values["matmul"] else None,
            gpus=[whole_number(word.strip(), "--gpus") for word in values["gpus"].split(",")],
            top=whole_number(values["top"], "--top"),
            overlaps=values["overlap"],
            panel=whole_number(values["panel"], "--panel"),
            transposed=values["transposed"],
            threads=whole_number(threads, "--threads") if threads else None,
            memory_per_gpu=memory_limit(values["memory_per_gpu"]),
            **{name: values[name] for name in ("algorithm", "passes", "dtype", "order", "gathered", "collectives")},
        )
        written = {name: values[name] for name in ("json", "csv", "plot")}
        on = machine_flags(values)
        scaling(problem, lambda count: chosen_machine(on, count), **written, read=on.files, command=context.obj)

    return command


study.command("weak-scaling", text="How does the time of a multiplication that grows with the GPUs change?")(
    scaling_command("weak")
)
study.command("strong-scaling", text="How much faster is the same multiplication on more GPUs?")(
    scaling_command("strong")
)
