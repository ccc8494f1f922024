"""A time limit for a computation: it runs in a process of its own, which is killed at the limit."""

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar

from quadrille.runtime.host.processes import end_with_parent

Result = TypeVar("Result")


def run_with_time_limit(work: Callable[[], Result], seconds: float) -> Result | None:
    """The result of a function that runs in a new process, or None if it takes longer than the limit.

    Parameters
    ----------
    work : function without arguments, which can be pickled; so can its result
    seconds : time limit [s], the start of the process included

    Raises
    ------
    RuntimeError : the function failed; its process wrote the reason to stderr
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(sender, work), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            return None
        result: Result = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{work} has failed in its process, with status {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
        receiver.close()
    return result


def _send_result(sender: Connection, work: Callable[[], object]) -> None:
    """Run the function and send its result; this is the new process, which ends with its parent."""
    end_with_parent()
    sender.send(work())
