"""The kinds of files that `quadrille import` reads, and the kind of a file by its first characters.

`quadrille import FILE` asks the kinds in the order of the table; `quadrille import KIND FILE` names one.  A file that
another command reads is refused with the words of that command.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import open_regular
from quadrille.experiments.import_.collective_logs import is_collective_log
from quadrille.experiments.import_.job_formats import is_job
from quadrille.experiments.import_.message_graphs import graph_format
from quadrille.experiments.import_.trace_files import is_trace
from quadrille.topologies.files.imported.import_topology import is_topology

OWN_FILE = re.compile(r'^[{\s]*"?schema"?\s*[:=]\s*"quadrille/', re.MULTILINE)
"""The first key of Quadrille's own files."""
SIMAI_RATES = re.compile(r"test\s+TP:\s+allreduce,:")
"""The first lines of SimAI's table of bus bandwidths."""
HEAD_BYTES = 2**18
"""Bytes of a file that decide its kind."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of files.

    Parameters
    ----------
    command : command of `quadrille import` that reads it
    text : what the files are, in words
    fits : function that says whether the first characters of a file are those of this kind
    """

    command: str
    text: str
    fits: Callable[[str], bool]


FILE_KINDS: tuple[FileKind, ...] = (
    FileKind("machine", "measured collectives", is_collective_log),
    FileKind("job", "jobs of Megatron-LM and other programs", is_job),
    FileKind("topology", "fabrics and nodes", is_topology),
)
"""The kinds, in the order in which they are asked."""


def command_of(path: str) -> str:
    """The command of `quadrille import` that reads a file.

    Raises
    ------
    InputError : a file that cannot be read, of no kind, or that another command reads
    """
    try:
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if is_trace(path):
        raise InputError(
            f"{path}: is a profiler's trace: quadrille explain FILE, or compare PREDICTED FILE, reads it as it is"
        )
    if used := _read_as_it_is(head):
        raise InputError(f"{path}: {used}")
    for kind in FILE_KINDS:
        if "\0" not in head and kind.fits(head):
            return kind.command
    kinds = ", ".join(dict.fromkeys(kind.text for kind in FILE_KINDS))
    raise InputError(f"{path}: is of no kind that is found by itself ({kinds}): name it: quadrille import KIND FILE")


def _read_as_it_is(head: str) -> str:
    """What a file is that commands read without an import, and how they take it; empty for another file."""
    start = head.lstrip()
    if start.startswith("<") and "<platform" in start:
        return "is a network of SimGrid: --machine FILE takes it as it is, in collective, flows and topology show"
    if start.startswith("{") and '"nodes"' in start and ('"edges"' in start or '"links"' in start):
        return "is a network in node-link form: --machine FILE takes it as it is"
    if name := graph_format(head):
        return f"is a message graph of {name}: quadrille replay FILE --machine NAME takes it as it is"
    if SIMAI_RATES.match(head):
        return "is SimAI's table of bus bandwidths, which quadrille collective predicts: no command reads it"
    if OWN_FILE.search(start[:1000]):
        return "is a file of Quadrille already: no import is needed"
    return ""
