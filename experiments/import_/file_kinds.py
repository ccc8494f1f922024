"""The kinds of files that `quadrille import` reads, and the kind of a file by its first characters.

`quadrille import FILE` asks the kinds in the order of the table; `quadrille import KIND FILE` names one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import open_regular
from quadrille.experiments.import_.job_formats import is_job
from quadrille.topologies.files.imported.import_topology import is_topology

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
    FileKind("job", "jobs of Megatron-LM and other programs", is_job),
    FileKind("topology", "fabrics and nodes", is_topology),
)
"""The kinds, in the order in which they are asked."""


def command_of(path: str) -> str:
    """The command of `quadrille import` that reads a file.

    Raises
    ------
    InputError : a file that cannot be read, or of no kind
    """
    try:
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES).decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    for kind in FILE_KINDS:
        if "\0" not in head and kind.fits(head):
            return kind.command
    kinds = ", ".join(dict.fromkeys(kind.text for kind in FILE_KINDS))
    raise InputError(f"{path}: is of no kind that is found by itself ({kinds}): name it: quadrille import KIND FILE")
