"""Work in a process of its own, which may take so long and no longer."""

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar

Result = TypeVar("Result")


def limited(work: Callable[[], Result], seconds: float) -> Result | None:
    """The result of the work, or None if it takes longer than the limit, in which case its process is ended.

    Parameters
    ----------
    work : function that can be pickled
    seconds : limit [s]

    Raises
    ------
    RuntimeError : the work failed; its process wrote the reason to stderr
    """
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_carry_out, args=(there, work), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(seconds):
            return None
        result: Result = here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{work} has failed in its process, with status {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
        here.close()
    return result


def _carry_out(out: Connection, work: Callable[[], object]) -> None:
    out.send(work())
