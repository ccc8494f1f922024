"""`read_graph`: the message graph in files of other simulators, whose format is found by itself."""

from collections.abc import Sequence

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.goal import is_goal, parse_goal
from quadrille.algorithms.formats.input_files import read_bytes
from quadrille.algorithms.formats.message_graph import MessageGraph

MOST_BYTES = 1 << 30
ACCEPTED = "a GOAL file (num_ranks N, rank N { … })"


def read_graph(paths: Sequence[str]) -> MessageGraph:
    """The message graph in the files.

    Raises
    ------
    InputError : a file that cannot be read, or has another format
    """
    if len(paths) != 1:
        raise InputError(f"{len(paths)} files: a GOAL file holds all ranks; one file is accepted")
    try:
        text = read_bytes(paths[0], MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{paths[0]}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{paths[0]}: is not text in UTF-8; {ACCEPTED} is accepted") from None
    if not is_goal(text):
        raise InputError(f"{paths[0]}: {ACCEPTED} is accepted")
    return parse_goal(text, paths[0])
