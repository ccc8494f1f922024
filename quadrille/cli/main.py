"""`quadrille`: the commands, and how they end.

Every mistake of a user is one line on stderr and exit status 2, every failed run
one line and 1, an interruption one line and 130; a traceback is shown with --debug only.  On
ranks the line and the end of all others come from `quadrille.runtime.host.world`.  What a
command needs is imported when it runs, so that `quadrille --help` answers at once.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from quadrille.algorithms.errors import InputError, ParameterError, QuadrilleError
from quadrille.algorithms.optional_packages import missing_extra
from quadrille.cli.app import app, is_first, laboratory_group, study, topology_group
from quadrille.cli.commands import Area
from quadrille.runtime.host.console import INTERRUPTED, remark

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

DEBUG = "QUADRILLE_DEBUG"
TAKES_A_COMMAND = "lab run"
"""What takes another command behind `--`, and cannot know its flags."""


def print_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    """Prints the version of Quadrille and ends."""
    if asked and not context.resilient_parsing:
        from quadrille.algorithms.provenance import own_version

        click.echo(f"quadrille {own_version()}")
        context.exit()


def load_experiments() -> object:
    """Commands about experiments."""
    from quadrille.cli import experiments

    return experiments


def load_ranking() -> object:
    """The command that ranks grids."""
    from quadrille.cli import ranking

    return ranking


def load_networks() -> object:
    """Commands about networks and machines."""
    from quadrille.cli import networks

    return networks


def load_hosts() -> object:
    """Commands that start ranks or measure this host."""
    from quadrille.cli import hosts

    return hosts


def load_laboratories() -> object:
    """Commands about laboratories."""
    from quadrille.cli import laboratories

    return laboratories


def load_lookups() -> object:
    """Commands that tell what is known."""
    from quadrille.cli import lookups

    return lookups


def load_studies() -> object:
    """The studies."""
    from quadrille.cli import studies

    return studies


app.areas += [
    Area(("simulate", "run", "schedule", "compare", "explain", "sweep", "operands"), load_experiments),
    Area(("rank",), load_ranking),
    Area(("launch", "calibrate", "bench"), load_hosts),
    Area(("models", "topologies", "schema", "completion"), load_lookups),
    Area(("collective", "flows", "machines", "topology"), load_networks),
]
topology_group.areas.append(Area(("show",), load_networks))
laboratory_group.areas.append(Area(("up", "run", "down", "status"), load_laboratories))
study.areas.append(Area((), load_studies))
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
    """Exit status of the program: of its command line, on its own streams."""
    from quadrille.cli import streams

    streams.prepare()
    status = main()
    try:
        sys.stdout.flush()
    except QuadrilleError as error:
        status = status or fail(error)
    except BrokenPipeError:  # nobody reads any more
        streams.discard(sys.stdout)
    streams.end()
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status of the command line, this process's if not given."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    own = words[: words.index("--")] if "--" in words else words
    if "--debug" in own:  # behind -- words are another program's
        words.remove("--debug")
        os.environ[DEBUG] = "1"
    try:
        status = invoke(words)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last place that can turn it into a line
        return fail(InputError(missing) if (missing := missing_extra(error)) else with_flag(error))
    if status == INTERRUPTED and is_first(os.environ):
        remark("interrupted")
    return status


def invoke(words: Sequence[str]) -> int:
    """Exit status of a command that did not fail.

    Raises
    ------
    InputError : a word that is no command or flag, a value that is missing
    """
    try:
        status = app.main(list(words), prog_name="quadrille", standalone_mode=False, obj=["quadrille", *words])
    except click.UsageError as error:
        raise InputError(usage_line(error)) from error
    except click.Abort:
        return INTERRUPTED
    return status if isinstance(status, int) else 0


def usage_line(error: click.UsageError) -> str:
    """The message about a wrong word, with the command that explains the right words."""
    path = error.ctx.command_path if error.ctx is not None else "quadrille"
    text = error.format_message()
    command = path.removeprefix("quadrille").strip()
    if command == TAKES_A_COMMAND and hasattr(error, "option_name"):
        text = f"{text.rstrip('.')}; what runs there, with its flags, goes behind --"
    return f"{command}: {text}".removeprefix(": ").rstrip(".") + f" (see {path} --help)"


def with_flag(error: Exception) -> Exception:
    """The error, whose message names a flag where the error names a parameter of the library.

    >>> print(with_flag(ParameterError("micro_batch", "3: accepted are divisors of 8")))
    --micro-batch 3: accepted are divisors of 8
    """
    if not isinstance(error, ParameterError):
        return error
    named = InputError(f"--{error.parameter.replace('_', '-')} {error.fault}")
    named.__cause__ = error
    return named


def fail(error: Exception) -> int:
    """Says what went wrong, in one line, and gives the exit status; of several ranks, ends all."""
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
    """All ranks, if MPI shows that there are several."""
    from quadrille.runtime.host import world

    try:
        communicator = world.world()
    except (ImportError, RuntimeError):  # no MPI library: each process is alone
        return None
    return communicator if communicator.size > 1 else None
