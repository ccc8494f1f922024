"""`read_graph`: the message graph in files of other simulators, whose format is found by itself."""

import re
from collections.abc import Sequence

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.chakra import is_trace
from quadrille.algorithms.formats.goal import is_goal, parse_goal
from quadrille.algorithms.formats.input_files import read_bytes
from quadrille.algorithms.formats.message_graph import MessageGraph
from quadrille.algorithms.formats.rank_table import is_rank_table
from quadrille.experiments.import_.chakra_graph import Groups, chakra_graph, read_groups
from quadrille.experiments.import_.rank_classes import class_graph
from quadrille.experiments.import_.simai_workload import is_workload, workload_graph

MOST_BYTES = 1 << 30
ACCEPTED = (
    "a GOAL file (num_ranks N, rank N { … }), a workload of SimAI (HYBRID_TRANSFORMER…), the Chakra traces of all "
    "ranks and a JSON file of their groups, or PREFIX.classes.json"
)
RANK = re.compile(r"\.(\d{1,9})\.et$")


def read_graph(paths: Sequence[str]) -> tuple[MessageGraph, list[str]]:
    """The message graph in the files, and remarks on what was not used.

    Parameters
    ----------
    paths : a GOAL file, a workload of SimAI, or one Chakra trace a rank, with an optional JSON file of groups; traces
        are in the order of the numbers in their names, as `PREFIX.3.et`, or as they stand; or a table of classes of
        ranks, `PREFIX.classes.json`, with an optional JSON file of groups

    Raises
    ------
    InputError : a file that cannot be read, or has another format
    """
    contents = {path: _content(path) for path in paths}
    if len(contents) < len(paths):
        raise InputError(f"{paths[0]}: a file stands twice; each rank has its own")
    if tables := [path for path, content in contents.items() if is_rank_table(content)]:
        others = [path for path in contents if path != tables[0]]
        return class_graph(tables[0], _groups(contents, others))
    traces = [(path, content) for path, content in contents.items() if is_trace(content)]
    if not traces:
        return _text_graph(contents)
    groups = _groups(contents, [path for path, content in contents.items() if not is_trace(content)])
    return chakra_graph(_in_order(traces), groups)


def _groups(contents: dict[str, bytes], paths: Sequence[str]) -> Groups:
    """The groups in some of the files."""
    groups: Groups = {}
    for path in paths:
        groups |= read_groups(_text(contents[path], path), path)
    return groups


def _in_order(traces: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """The traces by the numbers in their names, if all have one."""
    ranks = [int(match[1]) if (match := RANK.search(path)) else None for path, _ in traces]
    by_rank = {rank: trace for rank, trace in zip(ranks, traces, strict=True) if rank is not None}
    if not by_rank:
        return traces
    if sorted(by_rank) != list(range(len(traces))):
        missing = next(rank for rank in range(len(traces) + 1) if rank not in by_rank)
        raise InputError(f"{traces[0][0]}: the trace of rank {missing} is missing; one of each rank is needed")
    return [by_rank[rank] for rank in range(len(traces))]


def _text_graph(contents: dict[str, bytes]) -> tuple[MessageGraph, list[str]]:
    path, content = next(iter(contents.items()))
    if len(contents) != 1:
        raise InputError(f"{len(contents)} files: accepted is {ACCEPTED}")
    text = _text(content, path)
    if is_workload(text):
        return workload_graph(text, path)
    if not is_goal(text):
        raise InputError(f"{path}: accepted is {ACCEPTED}")
    return parse_goal(text, path), []


def _content(path: str) -> bytes:
    try:
        return read_bytes(path, MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _text(content: bytes, path: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text in UTF-8; accepted is {ACCEPTED}") from None
