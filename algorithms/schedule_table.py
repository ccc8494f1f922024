"""A schedule as a table that a person can read: a row for each op, a column for each lane."""

from collections.abc import Iterable, Iterator

from algorithms.ops import Communication, Op, Receive, Send, kind, lane, reads, writes
from algorithms.parts import Panel
from algorithms.schedule import Program, Repeat, Schedule, ops


def as_table(schedule: Schedule) -> str:
    """The schedule as a grid of lanes and ops that a person can read."""
    lines = [
        f"{schedule.name} on {schedule.grid}: "
        + ", ".join(f"{letter}={size}" for letter, size in schedule.sizes.items())
        + f", {schedule.dtype}"
        + (f", overlap {','.join(sorted(schedule.overlap))}" if schedule.overlap else "")
    ]
    lines += [f"  {_duty(schedule, tensor.name):6} {tensor}" for tensor in schedule.tensors.values()]
    for role in schedule.roles:
        if role.axis is not None:
            lines.append(f"role {role.axis}={role.start}..{'' if role.stop is None else role.stop - 1}")
        lines += _lane_table(role.program)
    return "\n".join(lines)


def _duty(schedule: Schedule, name: str) -> str:
    if name in schedule.state:
        return "state"
    return "input" if name in schedule.inputs else "output" if name in schedule.outputs else ""


def _lane_table(program: Program) -> list[str]:
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
            turned = ", backwards" if entry.backwards else ""
            yield (f"{indent}repeat {entry.loop}, {count}{turned}", *("" for _ in lanes))
            yield from _rows(entry.body, lanes, indent + "  ")
        else:
            cell = _cell(entry)
            yield (indent + entry.name, *(cell if name == lane(entry) else "" for name in lanes))


def _cell(op: Op) -> str:
    """What the op does, from what to what; the other end of a send or receive is a coordinate."""
    source, into = "+".join(reads(op)), "+".join(writes(op)[:1])
    if isinstance(op, Send):
        into = f"{op.axis}={op.to}"
    if isinstance(op, Receive):
        source = f"{op.axis}={op.sender}"
    mark = " ∥" if isinstance(op, Communication) and op.concurrent else ""
    return f"{kind(op)}{mark}: {source} → {into}" if source or into else f"{kind(op)}{mark}"
