"""`export_ranks`: the files of ranks from the files of their classes, see `rank_table.py`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.chakra import ChakraNode, read_nodes, trace_bytes
from quadrille.algorithms.formats.goal import head_text, rank_text, read_goal
from quadrille.algorithms.formats.input_files import read_bytes
from quadrille.algorithms.formats.message_graph import GraphTask
from quadrille.algorithms.formats.rank_table import RankTable
from quadrille.algorithms.formats.schema_files import STDOUT, check_writable, write_bytes, write_text
from quadrille.experiments.output.destinations import check_paths_differ

MOST_BYTES = 1 << 30


def export_ranks(path: str, table: RankTable, out: str, ranks: Sequence[int]) -> None:
    """Writes the files of ranks as an export without classes would.

    Parameters
    ----------
    path : path of the table
    out : path of a GOAL file, `-` for stdout; beginning of the paths of Chakra traces
    ranks : the ranks to write; other ranks do nothing in a GOAL file

    Raises
    ------
    InputError : a file of a class that is missing or does not fit the table, or a path that cannot be written
    """
    folder = Path(path).parent
    files = {f"class {number}": str(folder / entry.file) for number, entry in enumerate(table.classes)}
    if table.format == "goal":
        if out != STDOUT:
            check_paths_differ({"--out": out}, files)
            check_writable(out)
        write_text(out, "".join(_goal_texts(folder, table, ranks)))
        return
    if out in ("", STDOUT):
        raise InputError("--out: the beginning of the names of the files is needed, such as --out traces/step")
    traces = {f"{out}.{rank}.et": rank for rank in ranks}
    check_writable(f"{out}.{ranks[0]}.et")
    classes = [_nodes(folder / entry.file) for entry in table.classes]
    for trace, rank in traces.items():
        write_bytes(trace, trace_bytes(_renamed_nodes(classes[table.ranks[rank].of], table, rank)))


def _goal_texts(folder: Path, table: RankTable, ranks: Sequence[int]) -> Iterator[str]:
    """Yields the parts of a GOAL file."""
    classes = []
    for entry in table.classes:
        tasks = read_goal(str(folder / entry.file)).ranks
        if len(tasks) != len(table.ranks):
            raise InputError(f"{folder / entry.file}: has {len(tasks)} ranks; the table has {len(table.ranks)}")
        classes.append(tasks[entry.rank])
    yield head_text(len(table.ranks))
    for rank in ranks:
        own = table.ranks[rank].of
        yield rank_text(rank, list(_renamed_tasks(classes[own], table, rank)))


def _renamed_tasks(tasks: Sequence[GraphTask], table: RankTable, rank: int) -> Iterator[GraphTask]:
    peers, name = table.peers(rank), table.classes[table.ranks[rank].of].file
    for task in tasks:
        if task.peer >= 0 and task.peer not in peers:
            raise InputError(f"{name}: peer {task.peer} is not in the table")
        yield task._replace(peer=peers[task.peer]) if task.peer >= 0 else task


def _nodes(path: Path) -> list[ChakraNode]:
    try:
        return list(read_nodes(read_bytes(str(path), MOST_BYTES)))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as fault:
        raise InputError(f"{path}: {fault}") from None


def _renamed_nodes(nodes: Sequence[ChakraNode], table: RankTable, rank: int) -> Iterator[ChakraNode]:
    entry = table.classes[table.ranks[rank].of]
    ranks = {**table.peers(rank), entry.rank: rank}
    groups = table.groups(rank)
    for node in nodes:
        new = dict(node.attributes)
        try:
            new |= {key: ranks[node.number(key)] for key in ("comm_src", "comm_dst") if key in new}
            new |= {key: groups[str(new[key])] for key in ("pg_name",) if key in new}
        except (KeyError, ValueError):
            raise InputError(f"{entry.file}: node {node.id} has a peer or a group that is not in the table") from None
        yield replace(node, attributes=new)
