"""What a file is that a command cannot take, and the command that takes it: for refusals in one line."""

import re
from collections.abc import Callable

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.input_files import is_folder, open_regular
from quadrille.experiments.import_.collective_logs import (
    FOUND_BY,
    CollectiveLog,
    is_collective_log,
    read_collective_log,
)
from quadrille.experiments.import_.job_formats import is_job
from quadrille.experiments.import_.message_graphs import graph_format
from quadrille.experiments.import_.trace_files import is_trace
from quadrille.experiments.import_.training_logs import is_step_line
from quadrille.topologies.files.imported.import_topology import is_topology

HEAD_BYTES = 2**18
"""Bytes of a file by which it is recognised [B]."""
SCHEMA = re.compile(r'"?schema"?\s*[:=]\s*"[\w./-]+/\d+"')
"""A schema and its version, in JSON or TOML."""


def refusal(path: str, accepted: str) -> InputError | None:
    """The error about a file that is none of ours; None if it names a schema, or cannot be read.

    Parameters
    ----------
    path : file that the command was given
    accepted : files that the command takes, such as "a record is accepted"
    """
    try:
        with open_regular(path) as file:
            content = file.read(HEAD_BYTES)
    except OSError:
        return InputError(f"{path}: is a folder: {accepted}") if is_folder(path) else None
    head = content.decode("utf-8-sig", errors="replace")
    if SCHEMA.search(head):
        return None
    return InputError(f"{path}: {description(path, head) or 'names no schema of Quadrille'}: {accepted}")


def read_measured(path: str) -> CollectiveLog:
    """The measured collectives in a file; the error about another file says what the file is.

    Raises
    ------
    InputError : a file that cannot be read, or without measured times
    """
    try:
        return read_collective_log(path)
    except InputError:
        try:
            with open_regular(path) as file:
                head = file.read(HEAD_BYTES).decode("utf-8-sig", errors="replace")
        except OSError:
            head = ""
        kind = "is a file of Quadrille" if SCHEMA.search(head) else description(path, head) if head else ""
        if not kind or is_collective_log(head):
            raise
        raise InputError(f"{path}: {kind}: {FOUND_BY}") from None


def description(path: str, head: str) -> str:
    """What a file is, as a predicate, and the command that takes it; empty for a text of no known kind.

    Parameters
    ----------
    path : name of the file
    head : its first characters
    """
    if not head.strip():
        return "is empty"
    if is_trace(path):
        return "is a profiler's trace (for quadrille explain FILE)"
    if "\0" in head or head.count("\ufffd") > len(head) // 100:
        return "is binary data"
    if name := graph_format(head):
        return f"is a message graph of {name} (for quadrille replay FILE --machine NAME)"
    return next((words for fits, words in KINDS if fits(head)), "")


def _is_training_log(head: str) -> bool:
    return any(map(is_step_line, head.splitlines()))


def _is_node_link(head: str) -> bool:
    return head.lstrip().startswith("{") and '"nodes"' in head and ('"edges"' in head or '"links"' in head)


KINDS: tuple[tuple[Callable[[str], bool], str], ...] = (
    (is_collective_log, "has measured collectives (for quadrille check FILE --machine NAME)"),
    (_is_training_log, "is the log of a training program (for quadrille compare PREDICTED FILE)"),
    (is_job, "is the configuration of a job (for quadrille simulate FILE)"),
    (lambda head: "<platform" in head, "is a network of SimGrid (for --machine FILE)"),
    (_is_node_link, "is a network in node-link form (for --machine FILE)"),
    (is_topology, "describes a fabric or a node (for quadrille import topology FILE)"),
)
"""Kinds of texts in the order in which they are asked: whether the first characters are those of one, and its words."""
