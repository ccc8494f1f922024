"""The kinds of files that a user may have: the kind of a file by its first characters, and the command that takes it.

`quadrille import FILE` asks the kinds in the order of `KINDS`; `quadrille import KIND FILE` names one.  A command that
cannot take a file says what the file is.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import chakra
from quadrille.algorithms.formats.goal import is_goal
from quadrille.algorithms.formats.input_files import is_folder, open_regular
from quadrille.algorithms.formats.rank_table import is_rank_table
from quadrille.experiments.import_.collective_logs import (
    FOUND_BY,
    CollectiveLog,
    is_collective_log,
    read_collective_log,
)
from quadrille.experiments.import_.job_formats import is_job
from quadrille.experiments.import_.simai_workload import is_workload
from quadrille.experiments.import_.trace_files import is_store, is_trace
from quadrille.experiments.import_.training_logs import is_step_line
from quadrille.topologies.files.imported.import_topology import is_topology

HEAD_BYTES = 2**18
"""Bytes of a file by which it is recognised [B]."""
SCHEMA = re.compile(r'"?schema"?\s*[:=]\s*"([\w./-]+/\d+)"')
"""A schema and its version, in JSON or TOML."""
OWN_FILE = re.compile(r'^[{\s]*"?schema"?\s*[:=]\s*"(quadrille/[\w./-]+)"', re.MULTILINE)
"""The first key of Quadrille's own files."""
SIMAI_RATES = re.compile(r"test\s+TP:\s+allreduce,:")
"""The first lines of SimAI's table of bus bandwidths."""
STDIN = "-"


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of files.

    Parameters
    ----------
    text : what a file of this kind is, as a predicate
    use : how a command takes it
    commands : commands that take it, of those that ask for kinds
    fits : function that says whether the first characters of a file are those of this kind
    """

    text: str
    use: str
    commands: tuple[str, ...]
    fits: Callable[[str], bool]

    @property
    def words(self) -> str:
        """The predicate and the use."""
        return f"{self.text} ({self.use})"


def _is_training_log(head: str) -> bool:
    return any(map(is_step_line, head.splitlines()))


def _is_node_link(head: str) -> bool:
    return head.lstrip().startswith("{") and '"nodes"' in head and ('"edges"' in head or '"links"' in head)


TRACE = FileKind("is a profiler's trace", "for quadrille explain FILE", (), lambda _: False)
CHAKRA = FileKind("is a Chakra trace", "for quadrille replay FILE… --machine NAME", ("replay",), lambda _: False)
STORE = FileKind("is a store of answers", "for quadrille sweep … or rank … --store FILE", (), lambda _: False)
"""Traces and stores, which are found by their bytes."""
KINDS: tuple[FileKind, ...] = (
    FileKind(
        *("is a table of classes of ranks", "for quadrille replay FILE --machine NAME", ("replay",)),
        lambda head: is_rank_table(head[:1000].encode(errors="replace")),
    ),
    FileKind(
        *("is a file of Quadrille", "no import is needed", ()),
        lambda head: OWN_FILE.search(head.lstrip()[:1000]) is not None,
    ),
    FileKind(
        "is a workload of SimAI",
        "for quadrille replay FILE --machine NAME, or quadrille import job FILE --model NAME",
        ("replay", "import job"),
        is_workload,
    ),
    FileKind("is a message graph of GOAL", "for quadrille replay FILE --machine NAME", ("replay",), is_goal),
    FileKind(
        *("has measured collectives", "for quadrille check FILE --machine NAME", ("import machine",)),
        is_collective_log,
    ),
    FileKind(
        "is the log of a training program with its arguments",
        "for quadrille compare PREDICTED FILE, or quadrille import job FILE",
        ("import job",),
        lambda head: _is_training_log(head) and is_job(head),
    ),
    FileKind(
        *("is the log of a training program", "for quadrille compare PREDICTED FILE", ()),
        _is_training_log,
    ),
    FileKind("is the configuration of a job", "for quadrille simulate FILE", ("import job",), is_job),
    FileKind("is a network of SimGrid", "for --machine FILE", (), lambda head: "<platform" in head),
    FileKind("is a network in node-link form", "for --machine FILE", (), _is_node_link),
    FileKind(
        *("is SimAI's table of bus bandwidths", "no command reads it: quadrille collective predicts them", ()),
        lambda head: SIMAI_RATES.match(head) is not None,
    ),
    FileKind(
        *("describes a fabric or a node", "for quadrille import topology FILE", ("import topology",)),
        is_topology,
    ),
)
"""The kinds of texts in the order in which they are asked."""


def command_of(path: str) -> str:
    """The command of `quadrille import` that reads a file.

    Raises
    ------
    InputError : a file that cannot be read, of no kind, or that another command reads
    """
    try:
        head = _head(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if (kind := _kind(path, head)) is None:
        raise InputError(f"{path}: is of no kind that is found by itself: name it: quadrille import KIND FILE")
    command = next((command for command in kind.commands if command.startswith("import ")), None)
    if command is None:
        raise InputError(f"{path}: {kind.words}")
    return command.removeprefix("import ")


def description(path: str, head: str) -> str:
    """What a file is, as a predicate, and the command that takes it; empty for a text of no known kind.

    Parameters
    ----------
    path : name of the file
    head : its first characters
    """
    if not head.strip():
        return "is empty"
    if kind := _kind(path, head):
        return kind.words
    return "is binary data" if _is_binary(head) else ""


def refusal(path: str, accepted: str) -> InputError | None:
    """The error about a file that is none of ours; None if it names a schema, or cannot be read.

    Parameters
    ----------
    path : file that the command was given
    accepted : files that the command takes, such as "a record is accepted"
    """
    try:
        head = _head(path)
    except OSError:
        return InputError(f"{path}: is a folder: {accepted}") if is_folder(path) else None
    if SCHEMA.search(head):
        return None
    return InputError(f"{path}: {description(path, head) or 'names no schema of Quadrille'}: {accepted}")


@contextmanager
def other_kinds_named(command: str, paths: Sequence[str], accepted: str) -> Iterator[None]:
    """A context whose errors about files say what a file is, if it is of a kind that the command does not take.

    Parameters
    ----------
    command : words of the command, such as "import job"
    paths : files that the command was given
    accepted : files that the command takes, such as "a job is accepted"

    Raises
    ------
    InputError : the error about the first file of another kind, or the error of the reader
    """
    try:
        yield
    except InputError:
        for path in paths:
            if words := other_kind(command, path):
                raise InputError(f"{path}: {words}: {accepted}") from None
        raise


def read_measured(path: str) -> CollectiveLog:
    """The measured collectives in a file; the error about another file says what the file is.

    Raises
    ------
    InputError : a file that cannot be read, or without measured times
    """
    with other_kinds_named("import machine", [path], FOUND_BY):
        return read_collective_log(path)


def is_record(path: str) -> bool:
    """Whether a file is a record in JSON; false for a file that cannot be read."""
    try:
        head = _head(path)
    except OSError:
        return False
    return head.lstrip().startswith("{") and '"quadrille/record/' in head


def other_kind(command: str, path: str) -> str:
    """What a file is that a command does not take, as a predicate; empty for other files.

    Parameters
    ----------
    command : words of the command, such as "import job"
    path : the file; a file that cannot be read, and one of no known kind, is not described
    """
    if path == STDIN:
        return ""
    try:
        head = _head(path)
    except OSError:
        return ""
    kind = _kind(path, head)
    return "" if kind is None or command in kind.commands else kind.words


def _kind(path: str, head: str) -> FileKind | None:
    """The kind of a file with these first characters; None for an unknown kind."""
    if kind := _kind_of_bytes(path):
        return kind
    return None if _is_binary(head) else next((kind for kind in KINDS if kind.fits(head)), None)


def _kind_of_bytes(path: str) -> FileKind | None:
    """The kind of a trace or a store; None for another file, and for a file that cannot be read."""
    if is_trace(path):
        return TRACE
    try:
        with open_regular(path) as file:
            begin = file.read(HEAD_BYTES)
    except OSError:
        return None
    if is_store(begin):
        return STORE
    return CHAKRA if begin[:1] != b"\0" and chakra.is_trace(begin) else None


def _is_binary(head: str) -> bool:
    return "\0" in head or head.count("\ufffd") > len(head) // 100


def _head(path: str) -> str:
    with open_regular(path) as file:
        return file.read(HEAD_BYTES).decode("utf-8-sig", errors="replace")
