"""The commands that start ranks or measure this host: launch, calibrate, bench."""

from collections.abc import Sequence
from typing import Annotated, cast

import click

from quadrille.algorithms.errors import InputError, Interruption, QuadrilleError
from quadrille.algorithms.formats.schema_files import STDOUT
from quadrille.cli.app import app
from quadrille.cli.command_declarations import flag, switch
from quadrille.cli.shared_flags import Blas, Json
from quadrille.runtime.host.console import INTERRUPTED

LAUNCHABLE = ("run", "calibrate", "rank", "sweep")
"""The commands that run on ranks."""
STORING = ("rank", "sweep")
"""The commands of these that keep answers in a store."""
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}


@app.command(context_settings=ANYTHING, usage="-n RANKS [LAUNCHER OPTIONS] COMMAND …")
def launch(context: click.Context) -> int:
    """Start MPI ranks of a command (run, calibrate, rank, sweep).  The mpirun is that of the MPI that mpi4py loads.

    As in: quadrille launch -n 2 run --matmul 512,512,512 --grid z=2. What stands before the command goes to mpirun:
    launch -n 8 --hostfile hosts.txt run …
    """
    from quadrille.runtime.launching import launch as launching

    before, command = launching.split_launcher_options(context.args, LAUNCHABLE)
    if "--help" in command:
        return cast(int, app(command, prog_name="quadrille", standalone_mode=False))
    ranks, launcher_options = take_ranks(before)
    status = launching.launch(ranks, command, launcher_options)
    if status == INTERRUPTED and (kept := kept_of_ranks(context, command)):
        raise Interruption(kept)
    return status


def kept_of_ranks(launch_context: click.Context, command: Sequence[str]) -> str:
    """The text about the answers of an interrupted sweep or ranking on ranks, which end too fast to print it.

    It is empty for commands without a store, for files that may have the answers, and where the store cannot be read.

    Parameters
    ----------
    launch_context : context of launch, with the words of the command line
    command : words that the ranks run
    """
    from quadrille.experiments.tasks.kept_words import kept_words
    from quadrille.experiments.tasks.task_store import count_results

    name, *arguments = command
    declared = app.get_command(launch_context, name) if name in STORING else None
    if declared is None:
        return ""
    try:
        with declared.make_context(name, arguments, obj=launch_context.obj) as context:
            values = context.params
    except (click.ClickException, QuadrilleError):  # the ranks have said it
        return ""
    store = values["store"]
    if not store:
        has_files = name == "sweep" and {values["json"], values["csv"]} - {"", STDOUT}
        return "" if has_files else kept_words("", "", launch_context.obj)
    count = count_results(store)
    kept = f"{count} answers, of this and earlier commands,"
    return "" if count is None else kept_words(kept, store, launch_context.obj)


@app.command()
def calibrate(
    context: click.Context,
    out: Annotated[str, flag("--out", "FILE.toml", "The machine file; - is stdout.")] = "",
    plot: Annotated[
        str,
        flag("--plot", "FILE", "Draw the measured rows, their fit and its residuals (.png, .svg, .pdf).", "--figure"),
    ] = "",
    topology: Annotated[str, flag("--topology", "FAMILY:KEY=VALUE,…", "Topology that joins several hosts.")] = "",
    routing: Annotated[str, flag("--routing", "RULE", "Routing between the hosts; by default shortest.")] = "",
    quick: Annotated[bool, switch("--quick", "Fewer sizes, no tuning of messages: about two minutes.")] = False,
    blas: Blas = "numpy",
) -> None:
    """Measure this machine, and write its machine file.  All ranks of launch take part."""
    if not out:
        raise InputError("out is missing: --out FILE.toml is needed, or --out - for stdout")
    from quadrille.runtime.execution.rank_environment import start_world

    start_world()  # before the benchmarks, whose import would start MPI in another way
    from quadrille.experiments.calibrate.calibrate import calibrate as calibrate_machine
    from quadrille.runtime.measuring.calibration_sizes import FULL, QUICK

    sizes = QUICK if quick else FULL
    calibrate_machine(
        out, plot=plot, topology=topology or None, routing=routing, blas=blas, command=context.obj, sizes=sizes
    )


@app.command()
def bench(
    context: click.Context,
    json: Json = "",
    no_tests: Annotated[bool, switch("--no-tests", "Leave out the wall time of the test suite.")] = False,
) -> None:
    """Measure the figures that the project must reach."""
    from quadrille.studies.benchmarks.bench import bench as print_figures

    print_figures(json=json or None, tests=not no_tests, command=context.obj)


def take_ranks(words: Sequence[str]) -> tuple[int, list[str]]:
    """The number of ranks among the words before a command, and the launcher's own options.

    >>> take_ranks(["--map-by", "core", "-n", "8"])
    (8, ['--map-by', 'core'])

    Raises
    ------
    InputError : no `-n`, or no whole number after it
    """
    from quadrille.cli.parsing.numbers import whole_number

    for position, word in enumerate(words):
        if word in ("-n", "-np", "--np"):
            number = words[position + 1] if position + 1 < len(words) else ""
            return whole_number(number, "-n"), [*words[:position], *words[position + 2 :]]
    raise InputError("launch: the number of ranks is missing: quadrille launch -n RANKS [launcher options] COMMAND …")
