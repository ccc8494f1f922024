"""Commands about one experiment, or many: run, simulate, schedule, compare, sweep, explain, operands."""

from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import click

from quadrille.cli.app import app, is_first
from quadrille.cli.commands import argument, flag, switch, typed
from quadrille.cli.networks import COLLECTIVE
from quadrille.cli.options import (
    CARRIED_OUT,
    DESTINATIONS,
    DETAIL,
    EXPERIMENT,
    FROM_FILE,
    FROM_RECORD,
    GRANULARITY,
    INPUTS,
    NO_PROGRESS,
    ON_MACHINE,
    OUTPUTS,
    PLAN,
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
    Transposed,
    experiment_words,
    flags_of,
    machine_words,
    taken,
    with_flags,
)

if TYPE_CHECKING:
    from quadrille.algorithms.formats.record import AskedGranularity
    from quadrille.algorithms.matmuls.matmul import Operand
    from quadrille.cli.words.flags import MatmulWords
    from quadrille.experiments.output.destinations import Destinations, Detail
    from quadrille.experiments.workloads.run_options import RunOptions


COUNTED = flags_of(gpus=(Gpus, ""))
"""How many GPUs the grid of one experiment has to fit."""


def words_on_gpus(context: click.Context, values: dict[str, Any]) -> "MatmulWords":
    """The words that name the experiment, with a grid that fits the GPUs; says which GPUs stay idle."""
    import os

    from quadrille.cli.words.gpus import idle_gpus, on_gpus
    from quadrille.runtime.host.console import remark

    on = machine_words(values)
    grid_given = "grid" in typed(context, values)
    words = on_gpus(experiment_words(context, values), values["gpus"], on.machine, grid_given=grid_given)
    idle = idle_gpus(words, values["gpus"], on)
    if idle and is_first(os.environ):
        remark(idle)
    return words


EXPERIMENT_AND_RUN = (
    FROM_FILE,
    FROM_RECORD,
    COUNTED,
    EXPERIMENT,
    TRAINING,
    CARRIED_OUT,
    PLAN,
    INPUTS,
    OUTPUTS,
    ON_MACHINE,
    SWITCHES,
    GRANULARITY,
    DESTINATIONS,
    DETAIL,
)
"""The flags of `run` and `simulate`: all words but the first are the same.

`simulate` checks what only a run heeds (files, repeats, verification) and is
not changed by it; `run` checks the machine and names it in its record.
"""


def run_options(values: dict[str, Any]) -> "RunOptions":
    """The run options that the flags name."""
    from quadrille.cli.words.flags import RunWords
    from quadrille.cli.words.runs import parse_run

    inputs = {"A": values["a"], "B": values["b"], "dC": values["dc"]}
    outputs = {"C": values["c"], "dA": values["da"], "dB": values["db"]}
    return parse_run(RunWords(**taken(values, PLAN), inputs=inputs, outputs=outputs))  # type: ignore[arg-type]


def destinations(values: dict[str, Any], words: "MatmulWords", ranks: int) -> "Destinations":
    """The files that the flags name for results, beside those that are read."""
    from quadrille.algorithms.errors import InputError
    from quadrille.cli.words.runs import files_read, parse_ranks
    from quadrille.experiments.output.destinations import Destinations

    paths = taken(values, DESTINATIONS)
    text = paths.pop("ranks")
    if text and not (paths["trace"] or paths["timeline"]):
        raise InputError(f"--ranks {text}: says what --trace or --timeline shows; give one of them")
    shown = parse_ranks(text, ranks) if text else ()
    read = machine_words(values).files | files_read(words)
    return Destinations(**paths, ranks=shown, read=read, detail=detail_of(values))


def detail_of(values: dict[str, Any]) -> "Detail":
    """How much the flags ask to print.

    Raises
    ------
    InputError : both the least and the most
    """
    from quadrille.algorithms.errors import InputError

    if values["quiet"] and values["verbose"]:
        raise InputError("--quiet and --verbose: one of them is accepted")
    return "verdict" if values["quiet"] else "all" if values["verbose"] else "table"


@app.command(
    "run", text="Measure a multiplication or training steps: as one rank, or as many under launch, mpirun or srun."
)
@with_flags(*EXPERIMENT_AND_RUN)
def run(context: click.Context, **values: Any) -> None:
    """Measure the experiment."""
    import os

    from quadrille.cli.words.experiment import experiment_of
    from quadrille.experiments.measure.run import run as measure

    asked_granularity(values)
    words = words_on_gpus(context, values)
    experiment = experiment_of(words)
    options = run_options(values)
    written = destinations(values, words, experiment.grid.size)
    machine = None
    if machine_words(values).given and is_first(os.environ):
        from quadrille.cli.words.machines import chosen_machine

        machine = chosen_machine(machine_words(values), experiment.grid.size)
    measure(experiment, machine, options=options, destinations=written, command=context.obj)


@app.command("simulate", text="Predict a multiplication or training steps on a machine.")
@with_flags(*EXPERIMENT_AND_RUN)
def simulate(context: click.Context, **values: Any) -> None:
    """Predict the experiment."""
    from quadrille.simulator.gc_paused import gc_paused

    with gc_paused():
        from quadrille.cli.words.experiment import experiment_of
        from quadrille.cli.words.machines import chosen_machine, with_default_dtype
        from quadrille.experiments.output.destinations import check_paths_differ
        from quadrille.experiments.predict.predict import predict
        from quadrille.simulator.simulate import Shortcuts

        granularity = asked_granularity(values)
        on = machine_words(values)
        words = with_default_dtype(words_on_gpus(context, values), on)
        experiment = experiment_of(words)
        options = run_options(values)
        written = destinations(values, words, experiment.grid.size)
        experiment.check_run(options)
        check_paths_differ(options.written, written.read)
        machine = chosen_machine(on, experiment.grid.size)
        off = {name.removeprefix("no_") for name, is_off in taken(values, SWITCHES).items() if is_off}
        predict(
            experiment,
            machine,
            options=options,
            destinations=written,
            shortcuts=Shortcuts(**dict.fromkeys(off, False)),
            granularity=granularity,
            command=context.obj,
        )


def asked_granularity(values: dict[str, Any]) -> "AskedGranularity":
    """The granularity that the flags name."""
    from quadrille.algorithms.formats.record import AskedGranularity
    from quadrille.cli.words.numbers import one_of

    return cast("AskedGranularity", one_of(values["granularity"], "granularity", get_args(AskedGranularity)))


@app.command()
@with_flags(FROM_FILE, FROM_RECORD, COUNTED, EXPERIMENT, TRAINING)
def schedule(context: click.Context, **values: Any) -> None:
    """Print a schedule: its tensors, then its lanes and ops."""
    from quadrille.algorithms.errors import InputError
    from quadrille.cli.words.experiment import experiment_of

    experiment = experiment_of(words_on_gpus(context, values))
    if experiment.execution.any_order:
        raise InputError("order 'auto': run and simulate find it for a --machine; name the axes, such as z,y,x,data")
    print(experiment.schedule())


@app.command()
def compare(
    context: click.Context,
    predicted: Annotated[str, argument("PREDICTED", "A record, or a folder of records.")],
    measured: Annotated[str, argument("MEASURED", "A record, or a folder of records.")],
    json: Json = "",
    figure: Plot = "",
    trace: Annotated[str, flag("--trace", "FILE", "Write both timelines as one Chrome trace.")] = "",
    timelines: Annotated[
        tuple[str, str],
        flag("--timelines", "PREDICTED MEASURED", "Timelines of both records, for the figure and the trace."),
    ] = ("", ""),
) -> None:
    """Compare predicted with measured, op by op."""
    from quadrille.experiments.compare.compare import compare as compare_records

    named = timelines if any(timelines) else None
    compare_records(predicted, measured, json=json, figure=figure, trace=trace, timelines=named, command=context.obj)


SWEPT_COLLECTIVE = [
    *flags_of(collective=(Annotated[str, flag("--collective", "KIND", "Ask for a collective, as all-reduce.")], "")),
    *(
        parameter
        for parameter in COLLECTIVE
        if parameter.name in ("bytes", "group", "stride", "concurrent", "channels", "root")
    ),
]
"""What `collective` takes and a multiplication does not."""
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
    csv=(
        Annotated[str, flag("--csv", "FILE|-", "Write the table as CSV; after Ctrl-C the rows that are known.")],
        "",
    ),
    plot=(Plot, ""),
    json=(Json, ""),
)


@app.command()
@with_flags(FROM_FILE, EXPERIMENT, TRAINING, CARRIED_OUT, SWEPT_COLLECTIVE, ON_MACHINE, SWEEP, NO_PROGRESS)
def sweep(context: click.Context, **values: Any) -> None:
    """Predict a multiplication, training steps or a collective for every combination of the values of some flags.

    As: quadrille sweep --collective all-reduce --group 16 --concurrent all --machine h100-superpod
    --vary bytes=1MiB,1GiB --vary gpus=64,256 --vary collectives=nccl,own:ring
    """
    from quadrille.cli.words.numbers import whole_number
    from quadrille.cli.words.sweep import sweep as sweep_points
    from quadrille.cli.words.sweep_base import base_of

    base = base_of(values, machine_words(values), values["vary"], typed(context, values))
    written = {name: values[name] for name in ("json", "csv", "plot")}
    jobs = whole_number(values["jobs"], "--jobs")
    sweep_points(base, values["vary"], **written, jobs=jobs, quiet=values["quiet"], command=context.obj)


@app.command()
def explain(
    context: click.Context,
    record: Annotated[str, argument("FILE", "A record, or the JSON of collective or flows.")],
    json: Json = "",
) -> None:
    """Explain where the time of a run goes: critical path, causes, and the links that fill."""
    from quadrille.experiments.explain.explain import explain as explain_run

    explain_run(record, json=json, command=context.obj)


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
    """Write to files the operands that run generates from the same seed."""
    from quadrille.cli.words.flags import MatmulWords
    from quadrille.cli.words.matmul import parse_problem
    from quadrille.cli.words.numbers import one_of, whole_number
    from quadrille.experiments.measure.operand_files import write_operands
    from quadrille.runtime.operands.generator import Kind

    number = whole_number(seed, "--seed", least=0)
    problem = parse_problem(MatmulWords(matmul=matmul, transposed=transposed, dtype=dtype))
    kind = cast(Kind, one_of(operands, "operands", get_args(Kind)))
    paths: dict[Operand, str] = {"A": a, "B": b, "dC": dc}
    write_operands(problem, seed=number, kind=kind, paths={matrix: path for matrix, path in paths.items() if path})
