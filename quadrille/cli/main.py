"""The entry point of the program `quadrille`: it runs a command and turns every failure into one line and a status.

    wrong input        one line on stderr, exit status 2
    failed run         one line on stderr, exit status 1
    interruption       one line on stderr, exit status 130

A traceback is shown only with --debug. On ranks, `quadrille.runtime.host.world` prints the line and ends all ranks. The
modules that a command needs are imported when it runs, so `quadrille --help` is fast.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from quadrille.algorithms.errors import InputError, Interruption, QuadrilleError
from quadrille.cli.app import app, export_group, import_group, is_first, laboratory_group, study, topology_group
from quadrille.cli.command_declarations import CommandModule
from quadrille.runtime.host.console import INTERRUPTED, remark

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

DEBUG = "QUADRILLE_DEBUG"


def print_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    """Print the version of Quadrille and end the program."""
    if asked and not context.resilient_parsing:
        from quadrille.algorithms.provenance import own_version

        click.echo(f"quadrille {own_version()}")
        context.exit()


def load_experiments() -> object:
    """The module with the commands about experiments."""
    from quadrille.cli import experiment_commands

    return experiment_commands


def load_ranking() -> object:
    """The module with the command that ranks grids."""
    from quadrille.cli import rank_command

    return rank_command


def load_placing() -> object:
    """The module with the command that orders the nodes of an allocation."""
    from quadrille.cli import place_command

    return place_command


def load_networks() -> object:
    """The module with the commands about networks and machines."""
    from quadrille.cli import network_commands

    return network_commands


def load_hosts() -> object:
    """The module with the commands that start ranks or measure this host."""
    from quadrille.cli import host_commands

    return host_commands


def load_laboratories() -> object:
    """The module with the commands about laboratories (emulated networks)."""
    from quadrille.cli import laboratory_commands

    return laboratory_commands


def load_lookups() -> object:
    """The module with the commands that list models, topologies and schemas."""
    from quadrille.cli import lookup_commands

    return lookup_commands


def load_reporting() -> object:
    """The module with the command that makes reports."""
    from quadrille.cli import report_command

    return report_command


def load_app() -> object:
    """The module with the command that serves the app."""
    from quadrille.cli import app_command

    return app_command


def load_imports() -> object:
    """The module with the commands that read files of other programs."""
    from quadrille.cli import import_commands

    return import_commands


def load_exports() -> object:
    """The module with the commands that write files for other programs, and read those back."""
    from quadrille.cli import export_commands

    return export_commands


def command_of_file(path: str) -> str:
    """The command of `quadrille import` that reads a file, by its content."""
    from quadrille.experiments.import_.file_kinds import command_of

    return command_of(path)


def load_studies() -> object:
    """The module with the commands of the studies."""
    from quadrille.cli import study_commands

    return study_commands


app.modules += [
    CommandModule(("simulate", "run", "schedule", "compare", "explain", "sweep", "operands"), load_experiments),
    CommandModule(("rank",), load_ranking),
    CommandModule(("place",), load_placing),
    CommandModule(("report",), load_reporting),
    CommandModule(("app",), load_app),
    CommandModule(("replay",), load_exports),
    CommandModule(("launch", "calibrate", "bench"), load_hosts),
    CommandModule(("models", "topologies", "schema", "completion"), load_lookups),
    CommandModule(("collective", "flows", "check", "machines", "topology"), load_networks),
]
topology_group.modules.append(CommandModule(("show",), load_networks))
laboratory_group.modules.append(CommandModule(("up", "run", "down", "status"), load_laboratories))
import_group.modules.append(CommandModule(("job", "topology", "machine"), load_imports))
export_group.modules.append(CommandModule(("goal", "chakra", "topology", "tuner"), load_exports))
import_group.command_of = command_of_file
study.modules.append(CommandModule((), load_studies))
app.params += [
    click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=print_version,
        help="Print the version.",
    ),
    click.Option(["--debug"], is_flag=True, expose_value=False, help="Show where an error comes from."),
]


def program() -> int:
    """Run the program with this process's command line and streams; returns the exit status."""
    from quadrille.cli import standard_streams

    standard_streams.prepare()
    status = main()
    try:
        sys.stdout.flush()
    except QuadrilleError as error:
        status = status or fail(error)
    except BrokenPipeError:  # nobody reads any more
        standard_streams.discard(sys.stdout)
    standard_streams.end()
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns its exit status.

    Parameters
    ----------
    arguments : words after `quadrille`; the words of this process by default
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    own = words[: words.index("--")] if "--" in words else words
    if "--debug" in own:  # behind -- words are another program's
        words.remove("--debug")
        os.environ[DEBUG] = "1"
    kept = ""
    try:
        status = invoke(words)
    except KeyboardInterrupt as interruption:
        status = INTERRUPTED
        kept = f": {interruption}" if isinstance(interruption, Interruption) else ""
    except Exception as error:  # noqa: BLE001 - the last place that can turn it into a line
        from quadrille.algorithms.optional_packages import missing_extra
        from quadrille.cli.error_lines import with_flag

        return fail(InputError(missing) if (missing := missing_extra(error)) else with_flag(error))
    if status == INTERRUPTED and is_first(os.environ):
        remark(f"interrupted{kept}")
    return status


def invoke(words: Sequence[str]) -> int:
    """Run the command that the words name; returns its exit status.

    Raises
    ------
    InputError : an unknown command or flag, or a missing value
    Interruption : an interruption of work of which something is kept
    """
    try:
        status = app.main(list(words), prog_name="quadrille", standalone_mode=False, obj=["quadrille", *words])
    except click.UsageError as error:
        from quadrille.cli.error_lines import usage_line

        raise InputError(usage_line(error)) from error
    except click.Abort as abort:
        if isinstance(abort.__cause__, Interruption):
            raise abort.__cause__ from None
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def fail(error: Exception) -> int:
    """Print an error in one line and return its exit status; with several ranks, end all ranks."""
    from quadrille.runtime.host import world

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
    """The communicator of all ranks, if MPI shows several ranks; None otherwise."""
    from quadrille.runtime.host import world

    try:
        communicator = world.world()
    except (ImportError, RuntimeError):  # no MPI library: each process is alone
        return None
    return communicator if communicator.size > 1 else None
