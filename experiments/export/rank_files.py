"""`export_ranks`: the files of ranks from the files of their classes, see `rank_table.py`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.chakra import trace_bytes
from quadrille.algorithms.formats.goal import head_text, rank_text
from quadrille.algorithms.formats.rank_table import RankTable
from quadrille.algorithms.formats.schema_files import STDOUT, check_writable, write_bytes, write_text
from quadrille.experiments.import_.rank_classes import chakra_classes, chakra_rank, goal_classes, goal_tasks
from quadrille.experiments.output.destinations import check_paths_differ


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
        write_text(out, "".join(_goal_texts(path, table, ranks)))
        return
    if out in ("", STDOUT):
        raise InputError("--out: the beginning of the names of the files is needed, such as --out traces/step")
    traces = {f"{out}.{rank}.et": rank for rank in ranks}
    check_writable(f"{out}.{ranks[0]}.et")
    classes = chakra_classes(path, table)
    for trace, rank in traces.items():
        write_bytes(trace, trace_bytes(chakra_rank(classes, table, rank)))


def _goal_texts(path: str, table: RankTable, ranks: Sequence[int]) -> Iterator[str]:
    """Yields the parts of a GOAL file."""
    classes = goal_classes(path, table)
    yield head_text(len(table.ranks))
    for rank in ranks:
        yield rank_text(rank, goal_tasks(classes, table, rank))
