"""Work in a process of its own, which may take so long and no longer."""

from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TypeVar

Result = TypeVar("Result")


def limited(work: Callable[[], Result], seconds: float) -> Result | None:
    """What the work gives, or None where it is not done after so many seconds; its process has then been ended.

    Parameters
    ----------
    work : a function that can be pickled

    Raises
    ------
    RuntimeError : the work has failed; its process has said why on stderr
    """
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_carry_out, args=(there, work), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(seconds):
            return None
        found: Result = here.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{work} has failed in its process, with status {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
        here.close()
    return found


def _carry_out(out: Connection, work: Callable[[], object]) -> None:
    out.send(work())
