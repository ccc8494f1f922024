"""Commands about one experiment, or many: run, simulate, schedule, compare, sweep, explain, operands."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from quadrille.cli.app import app
from quadrille.cli.networks import COLLECTIVE
from quadrille.cli.options import (
    CARRIED_OUT,
    DESTINATIONS,
    EXPERIMENT,
    GRANULARITY,
    INPUTS,
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
    experiment_flags,
    flag,
    flags_of,
    machine_flags,
    switch,
    taken,
    typed,
    with_flags,
)

if TYPE_CHECKING:
    from quadrille.algorithms.formats.record import AskedGranularity
    from quadrille.experiments.workloads.matmul import Flags


COUNTED = flags_of(gpus=(Gpus, ""))
"""How many GPUs the grid of one experiment has to fit."""


def grid_on_gpus(context: typer.Context, given: dict[str, Any]) -> "Flags":
    """The flags that name the experiment, with a grid that fits the GPUs; says which ones stay idle."""
    import os

    from quadrille.cli.root_rank import is_first
    from quadrille.experiments.workloads.gpu_count import idle_gpus, on_gpus
    from quadrille.runtime.host.console import remark

    on = machine_flags(given)
    grid_given = "grid" in typed(context, given)
    flags = on_gpus(experiment_flags(context, given), given["gpus"], on.machine, grid_given=grid_given)
    idle = idle_gpus(flags, given["gpus"], on)
    if idle and is_first(os.environ):
        remark(idle)
    return flags


def experiment_command(verb: Callable[[set[str], "AskedGranularity"], Callable[..., None]]) -> Callable[..., None]:
    """A command that measures or predicts a multiplication or training steps: all words but the first are the same.

    `simulate` checks what only a run heeds (files, repeats, verification) and is
    not changed by it; `run` checks the machine and names it in its record.

    Parameters
    ----------
    verb : gives what the command does with its flags, when some of what makes simulations fast is switched off, at a
        granularity
    """

    @with_flags(
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
    )
    def command(context: typer.Context, **given: Any) -> None:
        from quadrille.algorithms.formats.record import AskedGranularity
        from quadrille.experiments.options.run_options import RunFlags
        from quadrille.experiments.options.values import one_of
        from quadrille.experiments.output.destinations import Destinations

        flags = grid_on_gpus(context, given)
        inputs = {"A": given["a"], "B": given["b"], "dC": given["dc"]}
        outputs = {"C": given["c"], "dA": given["da"], "dB": given["db"]}
        run_flags = RunFlags(**taken(given, PLAN), inputs=inputs, outputs=outputs)  # type: ignore[arg-type]
        destinations = Destinations(**taken(given, DESTINATIONS))
        off = {name.removeprefix("no_") for name, given_ in taken(given, SWITCHES).items() if given_}
        granularity = cast(AskedGranularity, one_of(given["granularity"], "granularity", get_args(AskedGranularity)))
        verb(off, granularity)(flags, run_flags, machine_flags(given), destinations=destinations, command=context.obj)

    return command


def measuring(off: set[str], granularity: "AskedGranularity") -> Callable[..., None]:  # noqa: ARG001 - not simulated
    """What `run` does; imported when it is asked for."""
    from quadrille.experiments.measure.run import run

    return run


def predicting(off: set[str], granularity: "AskedGranularity") -> Callable[..., None]:
    """What `simulate` does; imported when it is asked for."""
    from functools import partial

    from quadrille.simulator.gc_paused import gc_paused

    with gc_paused():
        from quadrille.experiments.predict.predict import predict
        from quadrille.simulator.simulate import Shortcuts

    return gc_paused()(partial(predict, shortcuts=Shortcuts(**dict.fromkeys(off, False)), granularity=granularity))


app.command(
    "run", help="Measure a multiplication or training steps: as one rank, or as many under launch, mpirun or srun."
)(experiment_command(measuring))
app.command("simulate", help="Predict a multiplication or training steps on a machine.")(experiment_command(predicting))


@app.command()
@with_flags(COUNTED, EXPERIMENT, TRAINING)
def schedule(context: typer.Context, **given: Any) -> None:
    """Print a schedule: its tensors, then its lanes and ops."""
    from quadrille.algorithms.errors import InputError
    from quadrille.experiments.workloads.workloads import experiment_of

    experiment = experiment_of(grid_on_gpus(context, given))
    if experiment.manner.any_order:
        raise InputError("order 'auto': run and simulate find it for a --machine; name the axes, such as z,y,x,data")
    print(experiment.schedule())


@app.command()
def compare(
    context: typer.Context,
    predicted: Annotated[str, typer.Argument(metavar="PREDICTED", help="A record, or a folder of records.")],
    measured: Annotated[str, typer.Argument(metavar="MEASURED", help="A record, or a folder of records.")],
    json: Json = "",
    figure: Plot = "",
    trace: Annotated[str, flag("--trace", "FILE", "Write both timelines as one Chrome trace.")] = "",
    timelines: Annotated[
        tuple[str, str], flag("--timelines", "PREDICTED MEASURED", "Their timelines, for the figure and the trace.")
    ] = ("", ""),
) -> None:
    """Compare predicted with measured, op by op."""
    from quadrille.experiments.compare.compare import compare as compare_records

    named = timelines if any(timelines) else None
    compare_records(predicted, measured, json=json, figure=figure, trace=trace, timelines=named, command=context.obj)


SWEPT_COLLECTIVE = [
    *flags_of(collective=(Annotated[str, flag("--collective", "KIND", "Ask for a collective, as all-reduce.")], "")),
    *(one for one in COLLECTIVE if one.name in ("bytes", "group", "stride", "concurrent", "channels", "root")),
]
"""What `collective` takes and a multiplication does not."""
SWEEP = flags_of(
    vary=(Annotated[list[str], flag("--vary", "KEY=VALUE,…", VARY_HELP)], []),
    gpus=(Annotated[str, flag("--gpus", "N", "How many GPUs; a --grid with one length * follows, as data=*,x=4.")], ""),
    best_grid=(Annotated[bool, switch("--best-grid", "Take the fastest of all grids of that many GPUs.")], False),
    top=(Annotated[str, flag("--top", "N", "Grids that --best-grid simulates, the first by closed form.")], "3"),
    jobs=(Annotated[str, flag("--jobs", "N", "Processes that share the points.")], "1"),
    csv=(
        Annotated[str, flag("--csv", "FILE|-", "Write the table as CSV; after Ctrl-C too, as far as it is known.")],
        "",
    ),
    plot=(Plot, ""),
    json=(Json, ""),
)


@app.command()
@with_flags(EXPERIMENT, TRAINING, CARRIED_OUT, SWEPT_COLLECTIVE, ON_MACHINE, SWEEP)
def sweep(context: typer.Context, **given: Any) -> None:
    """Predict a multiplication, training steps or a collective for every combination of the values of some flags.

    As: quadrille sweep --collective all-reduce --group 16 --concurrent all --machine h100-superpod
    --vary bytes=1MiB,1GiB --vary gpus=64,256 --vary collectives=nccl,own:ring
    """
    from quadrille.experiments.options.values import whole_number
    from quadrille.experiments.sweep.sweep import sweep as sweep_points
    from quadrille.experiments.sweep.sweep_flags import base_of

    base = base_of(given, machine_flags(given), given["vary"], typed(context, given))
    written = {name: given[name] for name in ("json", "csv", "plot")}
    sweep_points(base, given["vary"], **written, jobs=whole_number(given["jobs"], "--jobs"), command=context.obj)


@app.command()
def explain(
    context: typer.Context,
    record: Annotated[str, typer.Argument(metavar="FILE", help="A record, or the JSON of collective or flows.")],
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
    from quadrille.experiments.measure.operand_files import write_operands
    from quadrille.experiments.options.values import whole_number
    from quadrille.experiments.workloads.matmul import Flags

    chosen = whole_number(seed, "--seed", least=0)
    named = Flags(matmul=matmul, transposed=transposed, dtype=dtype)
    write_operands(named, seed=chosen, kind=operands, paths={"A": a, "B": b, "dC": dc})
