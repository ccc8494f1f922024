"""`quadrille`: the commands, and how they end.

Every mistake of a user is one line on stderr and exit status 2, every failed run
one line and 1, an interruption one line and 130; a traceback is shown with --debug only.  On
ranks the line and the end of all others come from `runtime.world`.  What a
command needs is imported when it runs, so that `quadrille --help` answers at once.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from algorithms.errors import InputError, QuadrilleError

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from simulator.simulate import Asked
    from studies.machine_flags import MachineFlags

DEBUG = "QUADRILLE_DEBUG"
LAUNCHABLE = ("run", "calibrate")
"""The commands that ranks take part in."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as typer and the shells give it; a launch gives it too."""
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}

app = typer.Typer(
    name="quadrille",
    help="Sharded matrix multiplication, written once: predicted by a simulator, measured on MPI ranks.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
study = typer.Typer(help="Questions asked of the simulator and of this machine.", rich_markup_mode=None)
app.add_typer(study, name="study")
topology_group = typer.Typer(
    help="Networks: what they are made of, how wide and how far they are.", rich_markup_mode=None
)
app.add_typer(topology_group, name="topology")


# Flags that several commands take


def flag(name: str, metavar: str, text: str, *more_names: str) -> typer.models.OptionInfo:
    """An option whose value is read as it was typed; the command parses it and says what is accepted."""
    option: typer.models.OptionInfo = typer.Option(name, *more_names, metavar=metavar, help=text)
    return option


def switch(name: str, text: str) -> typer.models.OptionInfo:
    """An option that is given or not."""
    option: typer.models.OptionInfo = typer.Option(name, help=text, show_default=False)
    return option


Sizes = Annotated[str, flag("--matmul", "M,K,N", "C (M x N) = A (M x K) B (K x N); needed.")]
Algorithm = Annotated[str, flag("--algorithm", "NAME", "1d-column, 1d-row, cannon, summa, 2.5d, 3d or 4d.")]
GridLengths = Annotated[str, flag("--grid", "AXIS=N,…", "Lengths of the axes data, z, y, x; others are 1.")]
Order = Annotated[str, flag("--order", "AXIS,…", "Axes from the fastest to the slowest in the order of ranks.")]
Dtype = Annotated[str, flag("--dtype", "NAME", "float64, float32; with cupy float16 and bfloat16.")]
Passes = Annotated[str, flag("--passes", "NAME", "forward (C) or training (C, dA, dB).")]
Gathered = Annotated[str, flag("--gathered", "NAME", "keep, or gather again, what a forward pass gathered.")]
Panel = Annotated[str, flag("--panel", "W", "Columns that summa broadcasts at once.")]
Overlap = Annotated[str, flag("--overlap", "LIST", "none, or a list of oar, ors, oag.")]
Collectives = Annotated[str, flag("--collectives", "WHO", "own, own:NAME, library, auto or (simulate) nccl.")]
Threads = Annotated[str, flag("--threads", "T", "BLAS threads of a rank; by default its share of the cores.")]
Machine = Annotated[str, flag("--machine", "NAME|FILE", "A machine file (.toml, or with a /) or a name.")]
Wiring = Annotated[str, flag("--machine", "NAME|FILE|TOPOLOGY", "A machine, or a topology as topology show takes it.")]
Settings = Annotated[list[str], flag("--set", "PATH=VALUE|xFACTOR", "What if; may be given several times.")]
Routing = Annotated[str, flag("--routing", "RULE", "shortest, spray, ecmp[:SEED], …; by default the machine's.")]
Fail = Annotated[list[str], flag("--fail", "LINK", "A link that has failed; may be given several times.")]
Degrade = Annotated[list[str], flag("--degrade", "LINK=SHARE", "A link with less bandwidth, such as gpu:0>leaf:0=0.5.")]
Slow = Annotated[list[str], flag("--slow", "GPU=SHARE", "A slower GPU, such as gpu:7=0.8.")]
PlacementRule = Annotated[str, flag("--placement", "RULE", "packed, scattered, axes:AXIS,… or a file: a place a line.")]
Shards = Annotated[str, flag("--shards", "exact|even", "Sizes in a prediction; even above 4,096 ranks.")]
NoFold = Annotated[bool, switch("--no-fold", "Simulate every rank, also those that behave alike.")]
NoFoldTime = Annotated[bool, switch("--no-fold-time", "Simulate every turn of a loop, also those that repeat.")]
NoMemory = Annotated[bool, switch("--no-memory", "Find rates anew in states that were seen before.")]
NoLocal = Annotated[bool, switch("--no-local", "Find all rates anew at every change.")]
Granularity = Annotated[str, flag("--granularity", "WORD", "exact, collective (bounded) or auto: what is quick.")]
Ranks = Annotated[str, flag("--ranks", "0-7,12", "Those that the trace shows; of many, by default one of each kind.")]
Plot = Annotated[str, flag("--plot", "FILE", "Write a figure (.png, .svg, .pdf).", "--figure")]
Json = Annotated[str, flag("--json", "FILE|-", "Write the result as JSON; - is stdout.")]
Trace = Annotated[str, flag("--trace", "FILE", "Write a Chrome trace, for ui.perfetto.dev.")]
TimelineFile = Annotated[str, flag("--timeline", "FILE", "Write the timeline, for the figure of compare.")]
Backend = Annotated[str, flag("--backend", "NAME", "numpy or cupy.")]
Carrier = Annotated[str, flag("--carrier", "NAME", "Of cupy's messages: auto, mpi or nccl.")]
Seed = Annotated[str, flag("--seed", "S", "Of the generated operands.")]
Operands = Annotated[str, flag("--operands", "KIND", "uniform or integers (whose sums are exact).")]
FileA = Annotated[str, flag("--a", "FILE.npy", "Operand A.")]
FileB = Annotated[str, flag("--b", "FILE.npy", "Operand B.")]
FileDC = Annotated[str, flag("--dc", "FILE.npy", "Operand dC, in training.")]
FileC = Annotated[str, flag("--c", "FILE.npy", "Where C is written.")]
FileDA = Annotated[str, flag("--da", "FILE.npy", "Where dA is written.")]
FileDB = Annotated[str, flag("--db", "FILE.npy", "Where dB is written.")]
Warmups = Annotated[str, flag("--warmups", "N", "Runs before those that are measured.")]
Repeats = Annotated[str, flag("--repeats", "N", "Runs that are measured.")]
Verify = Annotated[bool, switch("--verify", "Check the result; exit status 1 if it is wrong.")]
VerifyMethod = Annotated[str, flag("--verify-method", "NAME", "auto, serial or freivalds.")]

ORDER = "x,y,z,data"
VARY_HELP = (
    "Values of gpus, fail, degrade, slow, set:PATH or any flag that changes a prediction (of a collective: bytes, "
    "group, …); with ; between them where they hold commas. May be given several times: all combinations."
)


# Commands


@app.callback()
def options(debug: Annotated[bool, switch("--debug", "Show where an error comes from.")] = False) -> None:
    """Sharded matrix multiplication, written once: predicted by a simulator, measured on MPI ranks."""
    if debug:
        os.environ[DEBUG] = "1"


@app.command(context_settings=ANYTHING, options_metavar="-n RANKS [LAUNCHER OPTIONS] COMMAND …")
def launch(context: typer.Context) -> int:
    """Start RANKS ranks of a command (run, calibrate) under the mpirun of the MPI that mpi4py loads."""
    from studies import launch as launching

    before, command = launching.split_launcher_options(context.args, LAUNCHABLE)
    if "--help" in command:
        return main(command)
    ranks, launcher_options = take_ranks(before)
    return launching.launch(ranks, command, launcher_options)


def flags_of(**defaults: tuple[object, object]) -> list[Parameter]:
    """Parameters of a command: by name, the type of the option and its default."""
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, annotation=option, default=default)
        for name, (option, default) in defaults.items()
    ]


EXPERIMENT = flags_of(
    matmul=(Sizes, ""),
    algorithm=(Algorithm, "4d"),
    grid=(GridLengths, "x=1"),
    order=(Order, ORDER),
    dtype=(Dtype, "float32"),
    passes=(Passes, "forward"),
    gathered=(Gathered, "again"),
    panel=(Panel, "256"),
    overlap=(Overlap, "none"),
)
"""What names a multiplication and its schedule."""
CARRIED_OUT = flags_of(
    collectives=(Collectives, "own"), threads=(Threads, ""), placement=(PlacementRule, "packed"), shards=(Shards, "")
)
"""What else names an experiment."""
PLAN = flags_of(
    backend=(Backend, "numpy"),
    carrier=(Carrier, "auto"),
    seed=(Seed, "0"),
    operands=(Operands, "uniform"),
    warmups=(Warmups, "1"),
    repeats=(Repeats, "5"),
    verify=(Verify, False),
    verify_method=(VerifyMethod, "auto"),
)
"""How it is run."""
INPUTS = flags_of(a=(FileA, ""), b=(FileB, ""), dc=(FileDC, ""))
OUTPUTS = flags_of(c=(FileC, ""), da=(FileDA, ""), db=(FileDB, ""))
ON_MACHINE = flags_of(
    machine=(Machine, ""),
    settings=(Settings, []),
    routing=(Routing, ""),
    fail=(Fail, []),
    degrade=(Degrade, []),
    slow=(Slow, []),
)
"""A machine, and what is different about it."""
ON_WIRING = [*flags_of(machine=(Wiring, "")), *ON_MACHINE[1:]]
"""The same where a topology is enough."""
SWITCHES = flags_of(
    no_fold=(NoFold, False), no_fold_time=(NoFoldTime, False), no_memory=(NoMemory, False), no_local=(NoLocal, False)
)
"""What makes a simulation fast; no answer depends on it."""
GRANULARITY = flags_of(granularity=(Granularity, "auto"))
"""Whether a prediction may be a bounded approximation."""
DESTINATIONS = flags_of(json=(Json, ""), trace=(Trace, ""), timeline=(TimelineFile, ""), ranks=(Ranks, ""))


def with_flags(*groups: Sequence[Parameter]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command that takes any flags these ones, as typer reads them, after its context."""

    def declared(command: Callable[..., None]) -> Callable[..., None]:
        context = Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        parameters = [context, *(one for group in groups for one in group)]
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return declared


def taken(given: Mapping[str, Any], group: Sequence[Parameter]) -> dict[str, Any]:
    """The values given to the flags of a group."""
    return {one.name: given[one.name] for one in group}


def machine_flags(given: Mapping[str, Any]) -> "MachineFlags":
    """The machine that the flags name, and what is different about it."""
    from studies.machine_flags import MachineFlags

    values = taken(given, ON_MACHINE).items()
    on: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values}
    return MachineFlags(**on)


def experiment_command(verb: Callable[[set[str], "Asked"], Callable[..., None]]) -> Callable[..., None]:
    """A command that measures or predicts a multiplication: all words but the first are the same.

    `simulate` checks what only a run heeds (files, repeats, verification) and is
    not changed by it; `run` checks the machine and names it in its record.

    Parameters
    ----------
    verb : gives what the command does with its flags, when some of what makes simulations fast is switched off, at a
        granularity
    """

    @with_flags(EXPERIMENT, CARRIED_OUT, PLAN, INPUTS, OUTPUTS, ON_MACHINE, SWITCHES, GRANULARITY, DESTINATIONS)
    def command(context: typer.Context, **given: Any) -> None:
        from studies.experiment import Flags, RunFlags, one_of
        from studies.results import Destinations

        flags = Flags(**taken(given, EXPERIMENT), **taken(given, CARRIED_OUT))
        inputs = {"A": given["a"], "B": given["b"], "dC": given["dc"]}
        outputs = {"C": given["c"], "dA": given["da"], "dB": given["db"]}
        run_flags = RunFlags(**taken(given, PLAN), inputs=inputs, outputs=outputs)  # type: ignore[arg-type]
        destinations = Destinations(**taken(given, DESTINATIONS))
        off = {name.removeprefix("no_") for name, given_ in taken(given, SWITCHES).items() if given_}
        granularity = one_of(given["granularity"], "granularity", ("auto", "exact", "collective"))
        verb(off, cast("Asked", granularity))(
            flags, run_flags, machine_flags(given), destinations=destinations, command=context.obj
        )

    return command


def measuring(off: set[str], granularity: "Asked") -> Callable[..., None]:  # noqa: ARG001 - a run simulates nothing
    """What `run` does; imported when it is asked for."""
    from studies.run import run

    return run


def predicting(off: set[str], granularity: "Asked") -> Callable[..., None]:
    """What `simulate` does; imported when it is asked for."""
    from functools import partial

    from simulator.simulate import Switches
    from studies.predict import predict

    return partial(predict, switches=Switches(**dict.fromkeys(off, False)), granularity=granularity)


app.command("run", help="Measure a multiplication: as one rank, or as many under launch, mpirun or srun.")(
    experiment_command(measuring)
)
app.command("simulate", help="Predict a multiplication on a machine.")(experiment_command(predicting))


@app.command()
@with_flags(EXPERIMENT)
def schedule(context: typer.Context, **given: Any) -> None:  # noqa: ARG001 - as every command with these flags
    """Print a schedule: its tensors, then its lanes and ops."""
    from studies.experiment import Flags, parse_experiment

    print(parse_experiment(Flags(**given)).schedule())


@app.command()
def compare(
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
    from studies.compare import compare as compare_records

    given = timelines if any(timelines) else None
    written = {"json": json or None, "figure": figure or None, "trace": trace or None}
    compare_records(predicted, measured, **written, timelines=given)


COLLECTIVE = flags_of(
    bytes=(
        Annotated[str, flag("--bytes", "SIZE", "Of the whole buffer, such as 1GiB: what a rank has after a gather.")],
        "",
    ),
    gpus=(Annotated[str, flag("--gpus", "N", "How many; by default all that the machine has.")], ""),
    group=(Annotated[str, flag("--group", "G", "Ranks of a group; by default all that the stride reaches.")], ""),
    stride=(Annotated[str, flag("--stride", "S", "How far apart neighbours of a group are.")], "1"),
    concurrent=(
        Annotated[str, flag("--concurrent", "all|one", "All groups of that kind at once, or the first.")],
        "one",
    ),
    collectives=(
        Annotated[str, flag("--collectives", "WHO", "own, own:NAME, nccl, nccl:ALGORITHM[:PROTOCOL].")],
        "own",
    ),
    channels=(Annotated[str, flag("--channels", "N|all", "Rings on different links, of own:ring; all that pay.")], "1"),
    shards=(Annotated[str, flag("--shards", "exact|even", "Sizes of pieces; even above 4,096 ranks.")], ""),
    dtype=(Annotated[str, flag("--dtype", "NAME", "Of the elements, for exact pieces; by default bytes.")], ""),
    root=(Annotated[str, flag("--root", "R", "Of broadcast and reduce, numbered within the group.")], "0"),
    placement=(Annotated[str, flag("--placement", "RULE", "packed, scattered or a file: a place a line.")], "packed"),
)
"""What names a collective of groups, besides its kind."""
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
@with_flags(EXPERIMENT, CARRIED_OUT, SWEPT_COLLECTIVE, ON_MACHINE, SWEEP)
def sweep(context: typer.Context, **given: Any) -> None:
    """Predict a multiplication, or a collective, for every combination of the values of some flags.

    As: quadrille sweep --collective all-reduce --group 16 --concurrent all --machine h100-superpod
    --vary bytes=1MiB,1GiB --vary gpus=64,256 --vary collectives=nccl,own:ring
    """
    from studies.experiment import whole_number
    from studies.sweep.base import base_of
    from studies.sweep.sweep import sweep as sweep_points

    sources = {name: context.get_parameter_source(name) for name in given}
    typed = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    base = base_of(given, machine_flags(given), given["vary"], typed)
    written = {name: given[name] for name in ("json", "csv", "plot")}
    sweep_points(base, given["vary"], **written, jobs=whole_number(given["jobs"], "--jobs"), command=context.obj)


@app.command()
def explain(
    context: typer.Context,
    record: Annotated[str, typer.Argument(metavar="FILE", help="A record, or the JSON of collective or flows.")],
    json: Json = "",
) -> None:
    """Explain where the time of a run goes: critical path, causes, and the links that fill."""
    from studies.explain.explain import explain as explain_run

    explain_run(record, json=json, command=context.obj)


COLLECTIVE_SWITCHES = flags_of(
    no_fold=(NoFold, False),
    no_fold_time=(NoFoldTime, False),
    no_memory=(Annotated[bool, switch("--no-memory", "Changes nothing here: no states are remembered.")], False),
    no_local=(NoLocal, False),
)


@app.command()
@with_flags(
    [
        Parameter(
            "traffic",
            Parameter.KEYWORD_ONLY,
            annotation=Annotated[str, typer.Argument(metavar="TRAFFIC.csv", help="source,destination,bytes,start_s")],
        )
    ],
    flags_of(
        gpus=(
            Annotated[str, flag("--gpus", "N", "GPUs of the machine; by default what it has, or what is needed.")],
            "",
        ),
        weights=(
            Annotated[str, flag("--weights", "NAME", "none, or latency: shares as 1 / latency of the route.")],
            "none",
        ),
        no_local=(NoLocal, False),
        json=(Json, ""),
    ),
    ON_WIRING,
)
def flows(context: typer.Context, **given: Any) -> None:
    """Predict when many flows between GPUs, each of its own size and start, end on a machine."""
    from studies.experiment import whole_number
    from studies.network.flows import flows as simulate

    count = whole_number(given["gpus"], "--gpus") if given["gpus"] else None
    chosen = {name: given[name] for name in ("traffic", "weights", "json")}
    simulate(**chosen, on=machine_flags(given), gpus=count, local=not given["no_local"], command=context.obj)


def collective_command() -> Callable[..., None]:
    """`collective`: its flags come in groups, after the kind."""
    kind = Parameter(
        "kind",
        Parameter.KEYWORD_ONLY,
        annotation=Annotated[str, typer.Argument(metavar="KIND", help="all-gather, all-reduce, broadcast, …")],
    )

    @with_flags([kind], COLLECTIVE, flags_of(json=(Json, "")), ON_WIRING, COLLECTIVE_SWITCHES)
    def command(context: typer.Context, **given: Any) -> None:
        from simulator.collectives.collective import Ways
        from studies.network.collective_command import collective as predict
        from studies.network.collective_flags import CollectiveFlags

        flags = CollectiveFlags(kind=given["kind"], **taken(given, COLLECTIVE))
        off = {name.removeprefix("no_"): not value for name, value in taken(given, COLLECTIVE_SWITCHES).items()}
        no_memory = not off.pop("memory")
        ways = Ways(causes=True, **off)
        predict(flags, machine_flags(given), ways=ways, no_memory=no_memory, json=given["json"], command=context.obj)

    return command


app.command("collective", help="Predict one collective of many groups on a machine, and what holds it back.")(
    collective_command()
)


@app.command()
def calibrate(
    context: typer.Context,
    out: Annotated[str, flag("--out", "FILE.toml", "The machine file; - is stdout.")] = "",
    topology: Annotated[str, flag("--topology", "FAMILY:KEY=VALUE,…", "How several hosts are wired.")] = "",
    quick: Annotated[bool, switch("--quick", "Fewer points, for a first look.")] = False,
) -> None:
    """Measure this machine by microbenchmarks, on all ranks of launch, and write its machine file."""
    if not out:
        raise InputError("out is missing: --out FILE.toml is needed, or --out - for stdout")
    from studies.calibrate import calibrate as calibrate_machine
    from studies.site import start_world

    start_world()
    calibrate_machine(out, topology=topology or None, quick=quick, command=context.obj)


@app.command()
def machines(name: Annotated[str, typer.Argument(metavar="[NAME]", help="One of them only.")] = "") -> None:
    """List the machines known by name, and the source of every number."""
    from studies.machines import list_machines

    list_machines(name)


@topology_group.command("show")
def topology_show(
    context: typer.Context,
    topology: Annotated[
        str,
        typer.Argument(metavar="TOPOLOGY", help="A machine, FAMILY:KEY=VALUE,…, or a file (.json, .xml, .toml)."),
    ],
    gpus: Annotated[str, flag("--gpus", "N", "Of a named machine; by default all that it has.")] = "",
    json: Annotated[str, flag("--json", "FILE|-", "Write the network as node-link JSON; - is stdout.")] = "",
    figure: Annotated[
        str, flag("--plot", "FILE", "Draw it (.png, .svg, .pdf), up to a few hundred nodes.", "--figure")
    ] = "",
) -> None:
    """Show a network: counts, diameter, bisection bandwidth, oversubscription, and a sketch."""
    from studies.network.topology import show

    show(topology, gpus=gpus, json=json, figure=figure, command=context.obj)


@app.command()
def operands(
    matmul: Sizes = "",
    dtype: Dtype = "float32",
    seed: Seed = "0",
    operands: Operands = "uniform",
    a: FileA = "",
    b: FileB = "",
    dc: FileDC = "",
) -> None:
    """Write to files the operands that run generates from the same seed."""
    from studies.experiment import Flags, whole_number
    from studies.operand_files import write_operands

    chosen = whole_number(seed, "--seed", least=0)
    write_operands(Flags(matmul=matmul, dtype=dtype), seed=chosen, kind=operands, paths={"A": a, "B": b, "dC": dc})


@app.command()
def bench(
    context: typer.Context,
    json: Json = "",
    no_tests: Annotated[bool, switch("--no-tests", "Leave out the wall time of the test suite.")] = False,
) -> None:
    """Print the figures that the project must reach, measured here."""
    from studies.bench import bench as print_figures

    print_figures(json=json or None, tests=not no_tests, command=context.obj)


# Studies


@study.command("main-job")
def main_job(folder: Annotated[str, flag("--folder", "DIR", "Where its files go.")] = "") -> None:
    """Calibrate this machine, predict and run several multiplications, verify and compare them."""
    from pathlib import Path

    from studies.main_job.study import FOLDER
    from studies.main_job.study import main_job as do_main_job

    do_main_job(Path(folder) if folder else FOLDER)


@study.command("host-fidelity")
def host_fidelity(
    context: typer.Context,
    seed: Seed = "0",
    cases: Annotated[str, flag("--cases", "N", "How many multiplications are drawn.")] = "24",
    machine: Annotated[str, flag("--machine", "FILE.toml", "Of this host; by default it is calibrated first.")] = "",
    oversubscribed: Annotated[bool, typer.Option(help="Report 4 and 8 ranks too.")] = True,
    json: Json = "",
) -> None:
    """How far off are predictions of this host, over cases drawn by the seed?"""
    from studies.experiment import whole_number
    from studies.host_fidelity.study import host_fidelity as measure_fidelity

    measure_fidelity(
        seed=whole_number(seed, "--seed", least=0),
        cases=whole_number(cases, "--cases"),
        json=json,
        machine=machine,
        oversubscribed=oversubscribed,
        command=context.obj,
    )


@study.command("simulator-speed")
def simulator_speed(
    context: typer.Context,
    quick: Annotated[bool, switch("--quick", "One repeat, at most 16,384 GPUs, nothing switched off.")] = False,
    simgrid: Annotated[bool, typer.Option(help="Run SimGrid beside, where it is installed.")] = True,
    json: Json = "",
) -> None:
    """How fast is the network simulator, on pinned workloads, beside SimGrid?"""
    from studies.simulator_speed.study import simulator_speed as measure_speed

    measure_speed(json_file=json, quick=quick, simgrid=simgrid, command=context.obj)


@study.command("published-collectives")
def published_collectives(
    context: typer.Context,
    rows: Annotated[str, flag("--rows", "FILE.csv", "Published measurements; by default the project's own.")] = "",
    json: Json = "",
    figure: Plot = "",
) -> None:
    """How far off are predictions of NCCL on named machines, against published measurements?"""
    from studies.published_collectives.study import published_collectives as judge

    judge(rows, json=json, figure=figure, command=context.obj)


def scaling_command(kind: str) -> Callable[..., None]:
    """The command of one kind of scaling study: both take the same flags."""

    def command(
        context: typer.Context,
        machine: Machine = "perlmutter",
        settings: Settings = [],  # noqa: B006 - typer copies it
        routing: Routing = "",
        fail: Fail = [],  # noqa: B006
        degrade: Degrade = [],  # noqa: B006
        slow: Slow = [],  # noqa: B006
        matmul: Annotated[str, flag("--matmul", "M,K,N", "Of each GPU (weak) or of all together (strong).")] = "",
        gpus: Annotated[str, flag("--gpus", "N,…", "Numbers of GPUs.")] = "1,2,4,8,16,32,64",
        algorithm: Annotated[str, flag("--algorithm", "NAME,…", "One, several, or all.")] = "4d",
        order: Order = ORDER,
        dtype: Dtype = "bfloat16",
        passes: Passes = "training",
        gathered: Gathered = "again",
        panel: Panel = "256",
        overlap: Overlap = "none",
        collectives: Collectives = "own",
        threads: Threads = "",
        top: Annotated[str, flag("--top", "N", "Grids simulated for each number of GPUs.")] = "3",
        json: Json = "",
        csv: Annotated[str, flag("--csv", "FILE|-", "Write the table as CSV.")] = "",
        plot: Plot = "",
    ) -> None:
        from algorithms.matmul import parse_sizes
        from studies.experiment import whole_number
        from studies.machine_flags import MachineFlags
        from studies.scaling.study import scaling

        scaling(
            kind,
            MachineFlags(
                machine=machine,
                settings=tuple(settings),
                routing=routing,
                fail=tuple(fail),
                degrade=tuple(degrade),
                slow=tuple(slow),
            ),
            matmul=parse_sizes(matmul) if matmul else None,
            gpus=[whole_number(word.strip(), "--gpus") for word in gpus.split(",")],
            algorithm=algorithm,
            passes=passes,
            dtype=dtype,
            top=whole_number(top, "--top"),
            order=order,
            overlaps=overlap,
            gathered=gathered,
            collectives=collectives,
            panel=whole_number(panel, "--panel"),
            threads=whole_number(threads, "--threads") if threads else None,
            json=json or None,
            csv=csv or None,
            plot=plot or None,
            command=context.obj,
        )

    return command


study.command("weak-scaling", help="How a multiplication that grows goes on more GPUs.")(scaling_command("weak"))
study.command("strong-scaling", help="How the same multiplication goes on more GPUs.")(scaling_command("strong"))


# How it ends


def take_ranks(words: Sequence[str]) -> tuple[int, list[str]]:
    """The number of ranks among the words before a command, and the launcher's own options.

    >>> take_ranks(["--map-by", "core", "-n", "8"])
    (8, ['--map-by', 'core'])

    Raises
    ------
    InputError : no `-n`, or no whole number after it
    """
    from studies.experiment import whole_number

    for position, word in enumerate(words):
        if word in ("-n", "-np", "--np"):
            number = words[position + 1] if position + 1 < len(words) else ""
            return whole_number(number, "-n"), [*words[:position], *words[position + 2 :]]
    raise InputError("launch: the number of ranks is missing: quadrille launch -n RANKS [launcher options] COMMAND …")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status of the command line, this process's if not given."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if "--debug" in words:
        words.remove("--debug")
        os.environ[DEBUG] = "1"
    try:
        status = invoke(words)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last place that can turn it into a line
        return fail(error)
    if status == INTERRUPTED and is_first(os.environ):
        print("quadrille: interrupted", file=sys.stderr)
    return status


def invoke(words: Sequence[str]) -> int:
    """Exit status of a command that did not fail.

    Raises
    ------
    InputError : a word that is no command or flag, a value that is missing
    """
    usage_error = typer.BadParameter.__mro__[1]  # of the click inside typer, or beside older ones
    try:
        status = app(list(words), prog_name="quadrille", standalone_mode=False, obj=["quadrille", *words])
    except Exception as error:
        if isinstance(error, usage_error):
            raise InputError(usage_line(error)) from error
        raise
    return status if isinstance(status, int) else 0


def usage_line(error: BaseException) -> str:
    """What typer says of a wrong word, with the command that explains the right ones."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "quadrille"
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    command = path.removeprefix("quadrille").strip()
    return f"{command}: {text}".removeprefix(": ").rstrip(".") + f" (see {path} --help)"


def fail(error: Exception) -> int:
    """Says what went wrong, in one line, and gives the exit status; of several ranks, ends all."""
    from runtime import world

    debug = bool(os.environ.get(DEBUG))
    communicator = world_of_several() if world.announced_size(os.environ) > 1 or "mpi4py.MPI" in sys.modules else None
    if communicator is not None:
        world.fail_all(error, communicator=communicator, debug=debug)
    if debug:
        import traceback

        traceback.print_exception(error)
    if is_first(os.environ):
        hint = "" if isinstance(error, QuadrilleError) or debug else " (--debug shows where)"
        print(world.failure_line(error, 0, 1) + hint, file=sys.stderr)
    return error.exit_status if isinstance(error, QuadrilleError) else 1


def world_of_several() -> "Intracomm | None":
    """All ranks, if MPI shows that there are several."""
    from runtime import world

    try:
        communicator = world.world()
    except (ImportError, RuntimeError):  # no MPI library: each process is alone
        return None
    return communicator if communicator.size > 1 else None


def is_first(environment: Mapping[str, str]) -> bool:
    """Whether the launcher calls this process rank 0, or did not start it: of several alone, one speaks.

    >>> is_first({}), is_first({"PMI_RANK": "0"}), is_first({"PMI_RANK": "3"})
    (True, True, False)
    """
    from runtime.world import RANK_VARIABLES

    return all(environment.get(name, "0") == "0" for name in RANK_VARIABLES)


if __name__ == "__main__":
    sys.exit(main())
