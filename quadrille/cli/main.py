"""`quadrille`: the commands, and how they end.

Every mistake of a user is one line on stderr and exit status 2, every failed run
one line and 1, an interruption one line and 130; a traceback is shown with --debug only.  On
ranks the line and the end of all others come from `quadrille.runtime.host.world`.  What a
command needs is imported when it runs, so that `quadrille --help` answers at once.
"""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from quadrille.algorithms.errors import InputError, QuadrilleError
from quadrille.algorithms.extras import missing_extra
from quadrille.cli import experiments, hosts, laboratories, networks, ranking, studies
from quadrille.cli.app import app
from quadrille.cli.options import switch
from quadrille.cli.root_rank import is_first
from quadrille.runtime.host.console import remark
from quadrille.runtime.launching.interruption import INTERRUPTED

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

COMMANDS = (hosts, laboratories, experiments, ranking, networks, studies)
"""The modules whose commands there are, imported so that they are known."""

DEBUG = "QUADRILLE_DEBUG"
TAKES_A_COMMAND = "lab run"
"""What takes another command behind `--`, and cannot know its flags."""


@app.callback()
def options(debug: Annotated[bool, switch("--debug", "Show where an error comes from.")] = False) -> None:
    """Sharded matrix multiplication and training steps, written once: predicted by a simulator, measured on ranks."""
    if debug:
        os.environ[DEBUG] = "1"


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
        return fail(InputError(missing) if (missing := missing_extra(error)) else error)
    if status == INTERRUPTED and is_first(os.environ):
        remark("interrupted")
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
    if command == TAKES_A_COMMAND and hasattr(error, "option_name"):
        text = f"{text.rstrip('.')}; what runs there, with its flags, goes behind --"
    return f"{command}: {text}".removeprefix(": ").rstrip(".") + f" (see {path} --help)"


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
