"""The commands about experiments: run, simulate, schedule, compare, sweep, explain, operands."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import click

from quadrille.cli.app import app, is_first
from quadrille.cli.command_declarations import argument, flag, switch, typed, with_report
from quadrille.cli.network_commands import COLLECTIVE
from quadrille.cli.shared_flags import (
    DESTINATIONS,
    DETAIL,
    EXECUTION,
    EXPERIMENT,
    FROM_FILE,
    FROM_RECORD,
    GRANULARITY,
    INPUTS,
    NO_PROGRESS,
    ON_MACHINE,
    OUTPUTS,
    RUN,
    SWITCHES,
    TRAINING,
    VARY_HELP,
    Dtype,
    FileA,
    FileB,
    FileDC,
    Gpus,
    Json,
    Operands,
    Plot,
    Seed,
    Sizes,
    Store,
    Transposed,
    experiment_flags,
    flags_of,
    group_values,
    machine_flags,
    with_flags,
)

if TYPE_CHECKING:
    from quadrille.algorithms.formats.record import AskedGranularity
    from quadrille.algorithms.matmuls.matmul import Operand
    from quadrille.cli.parsing.flags import MatmulFlags
    from quadrille.experiments.output.destinations import Destinations, Detail
    from quadrille.experiments.predict.prepared_experiment import PreparedExperiment
    from quadrille.experiments.predict.roofline import Roofline
    from quadrille.experiments.workloads.experiment import Experiment
    from quadrille.experiments.workloads.run_options import RunOptions
    from quadrille.topologies.machines.machine import Machine


GPU_COUNT = flags_of(gpus=(Gpus, ""))
"""The flag with the number of GPUs that the grid of one experiment must fit."""


def flags_on_gpus(context: click.Context, values: dict[str, Any]) -> "MatmulFlags":
    """The flags of the experiment, with a grid that fits the GPUs; prints a remark about idle GPUs."""
    import os

    from quadrille.cli.parsing.gpus import idle_gpus, with_grid_on_gpus
    from quadrille.runtime.host.console import remark

    asked_machine = machine_flags(values)
    grid_given = "grid" in typed(context, values)
    flags = with_grid_on_gpus(
        experiment_flags(context, values), values["gpus"], asked_machine.machine, grid_given=grid_given
    )
    idle = idle_gpus(flags, values["gpus"], asked_machine)
    if idle and is_first(os.environ):
        remark(idle)
    return flags


PLOT_OF = flags_of(
    plot_of=(
        Annotated[
            str,
            flag(
                "--plot-of",
                "timeline|links|roofline",
                "What --plot draws: the timeline, the use of links, or the roofline.",
            ),
        ],
        "timeline",
    )
)
"""The subject of a figure; a run has the timeline alone."""
EXPERIMENT_AND_RUN = (
    FROM_FILE,
    FROM_RECORD,
    GPU_COUNT,
    EXPERIMENT,
    TRAINING,
    EXECUTION,
    RUN,
    INPUTS,
    OUTPUTS,
    ON_MACHINE,
    SWITCHES,
    GRANULARITY,
    DESTINATIONS,
    PLOT_OF,
    DETAIL,
)
"""The flags of `run` and `simulate`, which are the same.

`simulate` checks the flags that concern only a run (files, repeats, verification) and otherwise ignores them. `run`
checks the machine and names it in the record.
"""


def run_options(values: dict[str, Any]) -> "RunOptions":
    """The run options that the flags describe."""
    from quadrille.cli.parsing.flags import RunFlags
    from quadrille.cli.parsing.runs import parse_run

    inputs = {"A": values["a"], "B": values["b"], "dC": values["dc"]}
    outputs = {"C": values["c"], "dA": values["da"], "dB": values["db"]}
    return parse_run(RunFlags(**group_values(values, RUN), inputs=inputs, outputs=outputs))  # type: ignore[arg-type]


def destinations(values: dict[str, Any], flags: "MatmulFlags", ranks: int) -> "Destinations":
    """The output files that the flags name, with the input files that they must not overwrite."""
    from quadrille.algorithms.errors import InputError
    from quadrille.cli.parsing.runs import files_read, parse_ranks
    from quadrille.experiments.output.destinations import Destinations

    paths = group_values(values, DESTINATIONS)
    text = paths.pop("ranks")
    if text and not (paths["trace"] or paths["timeline"] or paths["plot"]):
        raise InputError(f"--ranks {text}: says what --trace, --timeline or --plot shows; give one of them")
    shown = parse_ranks(text, ranks) if text else ()
    read = machine_flags(values).files | files_read(flags)
    return Destinations(**paths, ranks=shown, read=read, detail=detail_of(values))


def detail_of(values: dict[str, Any]) -> "Detail":
    """The level of detail of the printed result, from --quiet and --verbose.

    Raises
    ------
    InputError : both flags together
    """
    from quadrille.algorithms.errors import InputError

    if values["quiet"] and values["verbose"]:
        raise InputError("--quiet and --verbose: one of them is accepted")
    return "verdict" if values["quiet"] else "all" if values["verbose"] else "table"


def recorded_experiment(path: str) -> "PreparedExperiment":
    """The experiment of a record on its machine, from the command that wrote the record.

    Raises
    ------
    InputError : a file that is no record, a record of no command, of no machine, or of a machine that has changed
    """
    from quadrille.algorithms.errors import InputError
    from quadrille.algorithms.formats.record import load_record
    from quadrille.cli.parsing.experiment import experiment_of
    from quadrille.cli.parsing.machines import with_default_dtype
    from quadrille.experiments.predict.prepared_experiment import prepare

    record, command = load_record(path), app.commands["simulate"]
    context = command.make_context("simulate", ["--from", path])
    values = context.params
    if values["order"].lower() == "auto":
        values["order"] = ",".join(record.order)
    if record.machine is None or not machine_flags(values).given:
        raise InputError(f"--plot-of roofline: {path} names no machine, whose peak and memory bandwidth are the roof")
    experiment = experiment_of(with_default_dtype(flags_on_gpus(context, values), machine_flags(values)))
    machine = simulated_machine(values, experiment)
    if machine.sha256 != record.machine.sha256:
        again = f"quadrille simulate --from {path} --plot-of roofline predicts it again"
        raise InputError(f"--plot-of roofline: machine {machine.name} is not as {path} had it; {again}")
    return prepare(experiment, machine)


def recorded_roofline(path: str) -> "Roofline | None":
    """The roofline of a record; None if its command, its machine or its ops are unknown."""
    from quadrille.algorithms.errors import QuadrilleError
    from quadrille.algorithms.formats.record import load_record
    from quadrille.experiments.predict.roofline import roofline_of_record

    try:
        return roofline_of_record(recorded_experiment(path), load_record(path))
    except (QuadrilleError, click.ClickException):
        return None


def with_rooflines(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command with the flag `--report`, whose report shows the rooflines of records."""
    return with_report(command, recorded_roofline)


@app.command("run", text="Measure a multiplication or training steps on MPI ranks.")
@with_rooflines
@with_flags(*EXPERIMENT_AND_RUN)
def run(context: click.Context, **values: Any) -> None:
    """Measure the experiment."""
    import os

    from quadrille.cli.parsing.experiment import experiment_of
    from quadrille.experiments.measure.run import run as measure

    asked_granularity(values)
    if values["plot_of"] != PLOT_OF[0].default:
        from quadrille.cli.parsing.plots import refuse_for_run

        refuse_for_run(values)
    flags = flags_on_gpus(context, values)
    experiment = experiment_of(flags)
    options = run_options(values)
    output_files = destinations(values, flags, experiment.grid.size)
    machine = None
    if machine_flags(values).given and is_first(os.environ):
        from quadrille.cli.parsing.machines import chosen_machine

        machine = chosen_machine(machine_flags(values), experiment.grid.size)
    measure(experiment, machine, options=options, destinations=output_files, command=context.obj)


@app.command("simulate", text="Predict a multiplication or training steps on a machine.")
@with_rooflines
@with_flags(*EXPERIMENT_AND_RUN)
def simulate(context: click.Context, **values: Any) -> None:
    """Predict the experiment."""
    from quadrille.simulator.gc_paused import gc_paused

    with gc_paused():
        from dataclasses import replace

        from quadrille.experiments.output.destinations import check_paths_differ
        from quadrille.experiments.predict.predict import predict
        from quadrille.simulator.simulate import Shortcuts

        granularity = asked_granularity(values)
        flags, experiment = simulated_experiment(context, values)
        options = run_options(values)
        output_files = destinations(values, flags, experiment.grid.size)
        if values["plot_of"] != output_files.plot_of:
            from quadrille.cli.parsing.plots import parse_plot_of

            output_files = replace(output_files, plot_of=parse_plot_of(values))
        experiment.check_run(options)
        check_paths_differ(options.written, output_files.read)
        machine = simulated_machine(values, experiment)
        off = {name.removeprefix("no_") for name, is_off in group_values(values, SWITCHES).items() if is_off}
        predict(
            experiment,
            machine,
            options=options,
            destinations=output_files,
            shortcuts=Shortcuts(**dict.fromkeys(off, False)),
            granularity=granularity,
            command=context.obj,
        )


def simulated_experiment(context: click.Context, values: dict[str, Any]) -> "tuple[MatmulFlags, Experiment]":
    """The flags of `simulate` with the default dtype of the machine, and the experiment that they describe."""
    from quadrille.cli.parsing.experiment import experiment_of
    from quadrille.cli.parsing.machines import with_default_dtype

    flags = with_default_dtype(flags_on_gpus(context, values), machine_flags(values))
    return flags, experiment_of(flags)


def simulated_machine(values: dict[str, Any], experiment: "Experiment") -> "Machine":
    """The machine of `simulate`, with as many GPUs as the experiment needs."""
    from quadrille.cli.parsing.machines import chosen_machine
    from quadrille.topologies.find_machine import gpus_with_placement

    asked_machine = machine_flags(values)
    gpus = gpus_with_placement(asked_machine.machine, experiment.grid.size, experiment.execution.placement)
    return chosen_machine(asked_machine, gpus)


def asked_granularity(values: dict[str, Any]) -> "AskedGranularity":
    """The granularity of the simulation, from --granularity."""
    from quadrille.algorithms.formats.record import AskedGranularity
    from quadrille.cli.parsing.numbers import one_of

    return cast("AskedGranularity", one_of(values["granularity"], "granularity", get_args(AskedGranularity)))


PIPELINE_PLOT = flags_of(
    plot=(
        Annotated[
            str, flag("--plot", "FILE", "Draw the pipeline: stages, passes and bubbles (.png, .svg, .pdf).", "--figure")
        ],
        "",
    )
)


@app.command()
@with_flags(FROM_FILE, FROM_RECORD, GPU_COUNT, EXPERIMENT, TRAINING, PIPELINE_PLOT)
def schedule(context: click.Context, **values: Any) -> None:
    """Print a schedule: its tensors, then its lanes and ops; of a pipeline also the passes of each stage in time."""
    from quadrille.cli.parsing.experiment import experiment_of
    from quadrille.experiments.predict.show_schedule import show_schedule

    show_schedule(experiment_of(flags_on_gpus(context, values)), plot=values["plot"])


@app.command()
@with_report
def compare(
    context: click.Context,
    predicted: Annotated[str, argument("PREDICTED", "A record, or a folder of records.")],
    measured: Annotated[
        str,
        argument(
            "[MEASURED]",
            "A record, a folder of records, a training log, a profiler's trace or a folder of traces; or a what-if's "
            "predicted record.",
        ),
    ] = "",
    more: Annotated[list[str], argument("[FILE]…", "Traces of further ranks, or further predicted records.")] = [],  # noqa: B006 - click passes a new list
    value: Annotated[str, flag("--measured", "VALUE", "As 17.2s, 2357tokens/s/gpu, 412TFLOP/s/gpu.")] = "",
    json: Json = "",
    figure: Plot = "",
    trace: Annotated[str, flag("--trace", "FILE", "Write both timelines as one Chrome trace.")] = "",
    timelines: Annotated[
        tuple[str, str],
        flag("--timelines", "PREDICTED MEASURED", "Timelines of both records, for the figure and the trace."),
    ] = ("", ""),
) -> None:
    """Compare predicted with measured: a run op by op, a log, a trace.  Predictions are compared with the first."""
    from quadrille.algorithms.errors import InputError
    from quadrille.experiments.compare.compare import compare as compare_records
    from quadrille.experiments.what_if.compare_predictions import are_predictions, compare_predictions

    records = [predicted, measured, *more] if measured else [predicted]
    if not value and are_predictions(records):
        if trace or any(timelines):
            raise InputError(f"--{'trace' if trace else 'timelines'}: goes with a measurement; leave it out")
        compare_predictions(records, json=json, figure=figure, command=context.obj)
        return

    named = timelines if any(timelines) else None
    files = {"json": json, "figure": figure, "trace": trace}
    compare_records(predicted, measured, *more, value=value, **files, timelines=named, command=context.obj)


SWEPT_COLLECTIVE = [
    *flags_of(collective=(Annotated[str, flag("--collective", "KIND", "Ask for a collective, as all-reduce.")], "")),
    *(
        parameter
        for parameter in COLLECTIVE
        if parameter.name in ("bytes", "group", "stride", "concurrent", "channels", "root")
    ),
]
"""The flags of `sweep` for collectives, which a multiplication does not have."""
SWEEP = flags_of(
    vary=(Annotated[list[str], flag("--vary", "KEY=VALUE,…", VARY_HELP)], []),
    gpus=(
        Annotated[
            str, flag("--gpus", "N", "Number of GPUs; one length * of --grid follows from it, as in data=*,x=4.")
        ],
        "",
    ),
    best_grid=(Annotated[bool, switch("--best-grid", "Take the fastest of all grids of the number of GPUs.")], False),
    top=(
        Annotated[str, flag("--top", "N", "Grids that --best-grid simulates, the best ones by the closed form.")],
        "3",
    ),
    jobs=(Annotated[str, flag("--jobs", "N", "Processes that share the points.")], "1"),
    slurm=(
        Annotated[
            str,
            flag("--slurm", "KEY=VALUE,…", "Jobs of Slurm that share the points, as partition=cpu,jobs=8,minutes=60."),
        ],
        "",
    ),
    search=(
        Annotated[
            str,
            flag("--search", "time|memory|gpus,…", "Search for points where these are small, instead of all points."),
        ],
        "",
    ),
    budget=(Annotated[str, flag("--budget", "N|Ns", "Points that --search asks for, or seconds, as 600s.")], ""),
    most_gpus=(Annotated[str, flag("--most-gpus", "N", "Most GPUs of a point that --search accepts.")], ""),
    search_seed=(Annotated[str, flag("--search-seed", "S", "Seed of --search.")], "0"),
    csv=(
        Annotated[str, flag("--csv", "FILE|-", "Write the table as CSV; after Ctrl-C the rows that are known.")],
        "",
    ),
    plot=(Plot, ""),
    json=(Json, ""),
    store=(Store, ""),
)


@app.command()
@with_report
@with_flags(FROM_FILE, EXPERIMENT, TRAINING, EXECUTION, SWEPT_COLLECTIVE, ON_MACHINE, SWEEP, NO_PROGRESS)
def sweep(context: click.Context, **values: Any) -> None:
    """Predict every combination of the values of some flags.

    As: quadrille sweep --collective all-reduce --group 16 --concurrent all --machine h100-superpod
    --vary bytes=1MiB,1GiB --vary gpus=64,256 --vary collectives=nccl,own:ring
    """
    from quadrille.algorithms.errors import InputError
    from quadrille.cli.parsing.numbers import jobs_number
    from quadrille.cli.parsing.point_search import parse_search
    from quadrille.cli.parsing.slurm import parse_slurm
    from quadrille.cli.parsing.sweep import sweep as sweep_points
    from quadrille.cli.parsing.sweep_base import base_of
    from quadrille.experiments.tasks.mpi_workers import launched_ranks, serve_tasks
    from quadrille.experiments.tasks.task_options import TaskOptions

    jobs = jobs_number(values["jobs"])
    if jobs > 1 and values["slurm"]:
        raise InputError(f"--jobs {jobs} and --slurm {values['slurm']}: one of them is accepted")
    search = parse_search(values)
    ranks = launched_ranks(jobs)
    if ranks is not None and ranks.rank > 0:
        serve_tasks(ranks)
        return
    options = TaskOptions(jobs=jobs, store=values["store"], ranks=ranks, slurm=parse_slurm(values["slurm"]))
    base = base_of(values, machine_flags(values), values["vary"], typed(context, values))
    output_files = {name: values[name] for name in ("json", "csv", "plot")}
    temporary = {values["json"]} - {context.params["json"]}  # the JSON of which --report makes a page
    sweep_points(
        base,
        values["vary"],
        **output_files,
        options=options,
        search=search,
        quiet=values["quiet"],
        command=context.obj,
        temporary=temporary,
    )


@app.command()
@with_rooflines
def explain(
    context: click.Context,
    record: Annotated[
        str, argument("FILE", "A record, the JSON of collective or flows, or a trace (PyTorch, Nsight).")
    ],
    json: Json = "",
    plot: Plot = "",
    plot_of: Annotated[
        str,
        flag(
            "--plot-of",
            "causes|links|roofline",
            "What --plot draws: time by cause and memory, the use of links, or the roofline.",
        ),
    ] = "causes",
    every: Annotated[bool, switch("--all", "Print all tables, not the ten longest rows.")] = False,
) -> None:
    """Explain where the time of a run or of a profiler's trace goes.

    The figure has the time by cause and the memory by kind, and the timeline where NAME.timeline.json is next to
    NAME.json.
    """
    from quadrille.cli.parsing.numbers import one_of
    from quadrille.experiments.explain.explain import ExplainedFigure
    from quadrille.experiments.explain.explain import explain as explain_run

    subject = cast("ExplainedFigure", one_of(plot_of, "plot-of", get_args(ExplainedFigure)))
    prepared = recorded_experiment(record) if subject == "roofline" and plot else None
    explain_run(record, json=json, plot=plot, plot_of=subject, prepared=prepared, every=every, command=context.obj)


@app.command()
def operands(
    matmul: Sizes = "",
    transposed: Transposed = "none",
    dtype: Dtype = "float32",
    seed: Seed = "0",
    operands: Operands = "uniform",
    a: FileA = "",
    b: FileB = "",
    dc: FileDC = "",
) -> None:
    """Write the operands that run generates from a seed to files."""
    from quadrille.cli.parsing.flags import MatmulFlags
    from quadrille.cli.parsing.matmul import parse_problem
    from quadrille.cli.parsing.numbers import one_of, whole_number
    from quadrille.experiments.measure.operand_files import write_operands
    from quadrille.runtime.operands.generator import Kind

    number = whole_number(seed, "--seed", least=0)
    problem = parse_problem(MatmulFlags(matmul=matmul, transposed=transposed, dtype=dtype))
    kind = cast(Kind, one_of(operands, "operands", get_args(Kind)))
    paths: dict[Operand, str] = {"A": a, "B": b, "dC": dc}
    write_operands(problem, seed=number, kind=kind, paths={matrix: path for matrix, path in paths.items() if path})
