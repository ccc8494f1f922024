"""The tasks of every rank from the files of classes of ranks, which `export --classes` writes beside a rank table.

The tasks of a rank are those of the first rank of its class, with its own peers and groups.  A rank is expanded when it
is asked for: no file is written.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.chakra import ChakraNode, read_nodes
from quadrille.algorithms.formats.goal import read_goal
from quadrille.algorithms.formats.input_files import read_bytes, read_text
from quadrille.algorithms.formats.message_graph import GraphTask, MessageGraph, check_count
from quadrille.algorithms.formats.rank_table import RankTable, load_rank_table
from quadrille.experiments.import_.chakra_graph import Groups, graph_of_nodes, read_groups

MOST_BYTES = 1 << 30
ENDING, GROUPS_ENDING = ".classes.json", ".groups.json"


def class_graph(path: str, groups: Groups) -> tuple[MessageGraph, list[str]]:
    """The message graph of all ranks of a table, and remarks on what was not used.

    Parameters
    ----------
    path : path of the table; the files of the classes stand beside it
    groups : ranks of each group of whole collectives, by its name; those of `PREFIX.groups.json` if there are none

    Raises
    ------
    InputError : a file that is missing or does not fit the table, or more tasks than a graph may have
    """
    table = load_rank_table(path)
    if table.format == "goal":
        tasks = goal_classes(path, table)
        _check_tasks(table, [len(entry) for entry in tasks], path)
        return MessageGraph(tuple(goal_tasks(tasks, table, rank) for rank in range(len(table.ranks)))), []
    nodes = chakra_classes(path, table)
    _check_tasks(table, [len(entry) for entry in nodes], path)
    if not groups and any(entry.groups for entry in table.classes):
        groups = _groups_beside(path)
    names = [table.classes[member.of].file for member in table.ranks]
    ranks = ((name, list(chakra_rank(nodes, table, rank))) for rank, name in enumerate(names))
    return graph_of_nodes(ranks, len(table.ranks), groups)


def goal_classes(path: str, table: RankTable) -> list[Sequence[GraphTask]]:
    """The tasks of the first rank of each class, from the GOAL files beside the table.

    Raises
    ------
    InputError : a file that is missing, or has another number of ranks
    """
    classes = []
    for entry in table.classes:
        file = str(Path(path).parent / entry.file)
        ranks = read_goal(file).ranks
        if len(ranks) != len(table.ranks):
            raise InputError(f"{file}: has {len(ranks)} ranks; the table has {len(table.ranks)}")
        classes.append(ranks[entry.rank])
    return classes


def goal_tasks(classes: Sequence[Sequence[GraphTask]], table: RankTable, rank: int) -> list[GraphTask]:
    """The tasks of a rank.

    Raises
    ------
    InputError : a peer that is not in the table
    """
    peers, own = table.peers(rank), table.ranks[rank].of
    try:
        return [task if task.peer < 0 else task._replace(peer=peers[task.peer]) for task in classes[own]]
    except KeyError as peer:
        raise InputError(f"{table.classes[own].file}: peer {peer} is not in the table") from None


def chakra_classes(path: str, table: RankTable) -> list[list[ChakraNode]]:
    """The nodes of the first rank of each class, from the Chakra traces beside the table.

    Raises
    ------
    InputError : a file that is missing, or is no trace
    """
    return [_nodes(Path(path).parent / entry.file) for entry in table.classes]


def chakra_rank(classes: Sequence[Sequence[ChakraNode]], table: RankTable, rank: int) -> Iterator[ChakraNode]:
    """Yields the nodes of a rank.

    Raises
    ------
    InputError : a peer or a group that is not in the table
    """
    own = table.ranks[rank].of
    entry = table.classes[own]
    ranks, groups = {**table.peers(rank), entry.rank: rank}, table.groups(rank)
    for node in classes[own]:
        new = dict(node.attributes)
        try:
            new |= {key: ranks[node.number(key)] for key in ("comm_src", "comm_dst") if key in new}
            new |= {key: groups[str(new[key])] for key in ("pg_name",) if key in new}
        except (KeyError, ValueError):
            raise InputError(f"{entry.file}: node {node.id} has a peer or a group that is not in the table") from None
        yield replace(node, attributes=new)


def _nodes(path: Path) -> list[ChakraNode]:
    try:
        return list(read_nodes(read_bytes(str(path), MOST_BYTES)))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as fault:
        raise InputError(f"{path}: {fault}") from None


def _check_tasks(table: RankTable, sizes: Sequence[int], path: str) -> None:
    """Checks the number of tasks of all ranks before they are expanded."""
    check_count(sum(sizes[member.of] for member in table.ranks), path)


def _groups_beside(path: str) -> Groups:
    file = path.removesuffix(ENDING) + GROUPS_ENDING
    try:
        return read_groups(read_text(file, MOST_BYTES), file)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}; the table names groups") from None
