"""`kept_words`: the line after an interruption, about the results that are kept and the command that goes on."""

import shlex
from collections.abc import Sequence


def kept_words(kept: str, store: str, command: Sequence[str], files: Sequence[str] = ()) -> str:
    """The results that are kept, and how to go on, as text.

    Without a store, the number of results is said only if files have them.

    >>> kept_words("3 of 8 points", "s.sqlite", ["quadrille", "sweep", "--vary", "gpus=1,2"])
    '3 of 8 points are kept in s.sqlite; go on with: quadrille sweep --vary gpus=1,2'
    >>> kept_words("3 of 8 points", "", ["quadrille", "sweep"])
    'nothing is kept; --store FILE.sqlite keeps each answer'
    >>> kept_words("3 of 8 points", "", [], ["rows.csv"])
    '3 of 8 points are in rows.csv, and the same command computes them again; --store FILE.sqlite keeps each answer'

    Parameters
    ----------
    kept : number of results, and of how many
    store : path of the store; empty for none
    command : words of the command line; empty if they are unknown
    files : paths of the files that have the results so far
    """
    if store:
        again = f"go on with: {shlex.join(command)}" if command else "the same command goes on"
        return f"{kept} are kept in {store}; {again}"
    hint = "--store FILE.sqlite keeps each answer"
    if files:
        return f"{kept} are in {' and '.join(files)}, and the same command computes them again; {hint}"
    return f"nothing is kept; {hint}"
