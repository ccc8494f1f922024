"""A program as a readable table: one row for each op, one column for each lane."""

from collections.abc import Iterable, Iterator

from quadrille.algorithms.schedule.ops import AllReduce, Communication, Op, Receive, Send, kind, lane, reads, writes
from quadrille.algorithms.schedule.parts import Panel
from quadrille.algorithms.schedule.program import Program, Repeat, ops


def lane_table(program: Program) -> list[str]:
    """Returns the lines of the table: lane names, then each op in the column of its lane."""
    lanes = list(dict.fromkeys(["compute", *(lane(op) for op in ops(program))]))
    rows = [(name, *cells) for name, *cells in _rows(program, lanes, "")]
    heads = ("", *lanes)
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [heads, *rows]
    ]


def _rows(program: Program, lanes: Iterable[str], indent: str) -> Iterator[tuple[str, ...]]:
    for entry in program:
        if isinstance(entry, Repeat):
            count = f"panels of {entry.count.dimension}" if isinstance(entry.count, Panel) else entry.count
            direction = ", backwards" if entry.backwards else ""
            yield (f"{indent}repeat {entry.loop}, {count}{direction}", *("" for _ in lanes))
            yield from _rows(entry.body, lanes, indent + "  ")
        else:
            cell = _cell(entry)
            yield (indent + entry.name, *(cell if name == lane(entry) else "" for name in lanes))


def _cell(op: Op) -> str:
    """Returns what the op does, from source to destination; the peer of a send or receive is a coordinate."""
    source, into = "+".join(reads(op)), "+".join(writes(op)[:1])
    if isinstance(op, AllReduce) and op.more:
        source = into = f"{op.buffer} and {len(op.more)} more"
    if isinstance(op, Send):
        into = f"{op.axis}={op.to}"
    if isinstance(op, Receive):
        source = f"{op.axis}={op.sender}"
    mark = " ∥" if isinstance(op, Communication) and op.concurrent else ""
    return f"{kind(op)}{mark}: {source} → {into}" if source or into else f"{kind(op)}{mark}"
