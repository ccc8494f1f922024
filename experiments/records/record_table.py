"""The printed form of a record: the total time with what bounds it, a table of ops, and closing lines."""

from collections.abc import Mapping, Sequence
from heapq import nlargest

from quadrille.algorithms.formats.record import (
    Messages,
    OpRecord,
    Record,
    Verified,
)
from quadrille.algorithms.schedule.grid import Axis, lengths_text
from quadrille.algorithms.tabular import Row, duration, in_one_unit
from quadrille.algorithms.timelines.op_times import activity as activity
from quadrille.algorithms.timelines.op_times import activity_shares, bound_by, is_of_one_rank
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.output.destinations import Detail
from quadrille.experiments.workloads.training_lines import (
    memory_warning,
    model_lines,
    training_lines,
    workload_text,
)

HEADINGS = ("op", "what", "times", "time", "waiting", "exposed", "sent by a rank", "")
SHORT_SHARE = 0.001
"""Share of the time of all ops up to which an op over an axis of one rank is left out of the table."""
OPS_SHOWN = 32
"""Largest number of ops in the printed table; a transformer has hundreds."""


def print_record(record: Record, detail: Detail = "table") -> None:
    """Prints the total of a record and what bounds it, then the ops that take longest, or all ops.

    Parameters
    ----------
    detail : `verdict` for the total alone, `table` for the longest ops too, `all` for all ops
    """
    lines = [title_line(record), *model_lines(record.workload), *summary_lines(record)]
    if detail != "verdict":
        ops = list(record.ops) if detail == "all" else shown_ops(record.ops, record.grid)
        rows = [_row(op) for op in ops]
        notes = [*_hidden_ops_line(record.ops, ops), *_waiting_line(ops)]
        lines += ["", *_aligned([HEADINGS, *in_one_unit([rows])[0]]), *notes, "", *_closing_lines(record)]
    elif record.verified is not None:
        lines.append(verification_line(record.verified))
    print("\n".join(lines))


def _row(op: OpRecord) -> tuple[str, ...]:
    """The cells of an op's row."""
    return (
        op.name,
        op_description(op),
        str(op.count),
        duration(op.seconds),
        duration(op.waiting_seconds),
        duration(op.exposed_seconds),
        format_bytes(op.bytes_sent_per_rank_max),
        "extrapolated" if op.extrapolated else "",
    )


def summary_lines(record: Record) -> list[str]:
    """The total time, whether the step does not fit in memory, and the activity that takes most of the time."""
    lines = [f"total: {format_seconds(record.seconds)} ({record.interval_text})", *memory_warning(record)]
    if of_total := shares(record):
        lines.append(bound_by(of_total))
    return lines


def shares(record: Record) -> list[tuple[str, float]]:
    """The shares of the total that local work and exposed communication take on the mean rank, the largest first.

    Copies from and to the host and updates on the host count as far as they are exposed, too.

    >>> from types import SimpleNamespace
    >>> ops = (
    ...     OpRecord(name="gather B", kind="all_gather", axis="z", seconds=3.0, exposed_seconds=3.0),
    ...     OpRecord(name="multiply C", kind="gemm", seconds=1.0),
    ... )
    >>> shares(SimpleNamespace(ops=ops, seconds=4.0, grid={"z": 2}))
    [('communication over z', 0.75), ('products', 0.25)]
    >>> shares(SimpleNamespace(ops=ops, seconds=4.0, grid={"z": 1, "x": 2}))
    [('other local work', 0.75), ('products', 0.25)]
    >>> copy = OpRecord(name="fetch W", kind="host_copy", seconds=4.0, exposed_seconds=1.0)
    >>> shares(SimpleNamespace(ops=(*ops[1:], copy), seconds=4.0, grid={}))
    [('products', 0.25), ('host copies', 0.25)]
    """
    return activity_shares(record.ops, record.grid, record.seconds)


def shown_ops(every: Sequence[OpRecord], grid: Mapping[Axis, int]) -> list[OpRecord]:
    """The ops of the printed table in program order: all ops, or the `OPS_SHOWN` longest if there are more.

    Ops over an axis of one rank are left out unless they take time, as a copy does.

    Parameters
    ----------
    grid : length of each axis
    """
    least = SHORT_SHARE * sum(op.seconds for op in every)
    ops = [op for op in every if not is_of_one_rank(op, grid) or op.seconds > least]
    if len(ops) <= OPS_SHOWN:
        return ops
    longest = set(nlargest(OPS_SHOWN, range(len(ops)), key=lambda number: (ops[number].seconds, -number)))
    return [op for number, op in enumerate(ops) if number in longest]


def _hidden_ops_line(ops: Sequence[OpRecord], shown: Sequence[OpRecord]) -> list[str]:
    """The line about the ops that are not shown."""
    if len(shown) == len(ops):
        return []
    seconds = sum(op.seconds for op in ops) - sum(op.seconds for op in shown)
    return [f"and {len(ops) - len(shown)} more, {format_seconds(seconds)} together; --verbose shows all"]


def _waiting_line(ops: Sequence[OpRecord]) -> list[str]:
    """The line that says what waiting is, if some op waits longer than it works.

    >>> _waiting_line([OpRecord(name="sum C", kind="all_reduce", seconds=1.0, waiting_seconds=2.0)])
    ['waiting comes before the time of an op: a rank waits until the last rank of its group has started']
    """
    if all(op.waiting_seconds <= op.seconds for op in ops):
        return []
    return ["waiting comes before the time of an op: a rank waits until the last rank of its group has started"]


def op_description(op: OpRecord) -> str:
    """Kind, axis and algorithm of an op, as text.

    >>> op_description(OpRecord(name="gather B", kind="all_gather", axis="z", algorithm="ring", seconds=0.0))
    'all_gather over z, ring'
    """
    return op.kind + (f" over {op.axis}" if op.axis else "") + (f", {op.algorithm}" if op.algorithm else "")


def _aligned(rows: Sequence[Row]) -> list[str]:
    """Lines with aligned columns: two columns of names, then columns of numbers, and a column of notes at the end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if column_number < 2 or column_number == last else cell.rjust(width)
            for column_number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def title_line(record: Record) -> str:
    """The kind, algorithm, workload and grid of a record, in one line."""
    ranks = f"{record.ranks} rank{'s' if record.ranks > 1 else ''}"
    threads = f"{record.options.threads} thread{'s' if record.options.threads > 1 else ''} each"
    collectives = f", {_collectives_word(record)}" if record.ranks > 1 else ""
    return (
        f"{record.kind}: {record.algorithm}, {record.passes}, {workload_text(record.workload)} {record.dtype}, "
        f"grid {lengths_text(record.grid)}, {ranks}, {threads}{collectives}"
    )


def _collectives_word(record: Record) -> str:
    """The collectives of a run; those of NCCL's model on AMD's GPUs are RCCL's."""
    word = record.options.collectives
    is_rccl = any(op.algorithm is not None and op.algorithm.startswith("rccl") for op in record.ops)
    return "r" + word[1:] if is_rccl and word.startswith("nccl") else word


def _closing_lines(record: Record) -> list[str]:
    lines = [
        f"sent: at most {format_bytes(record.bytes_sent_per_rank_max)} by a rank, "
        f"{format_bytes(record.bytes_sent_total)} by all; "
        f"kept: at most {format_bytes(record.peak_bytes_per_rank_max)} on a rank",
    ]
    if record.bytes_lower_bound_per_rank is not None:
        lines.append(f"some rank must send at least {format_bytes(record.bytes_lower_bound_per_rank)}")
    lines += [*outside_lines(record), *training_lines(record)]
    if isinstance(record.messages, Messages):
        lines.append(messages_line(record.messages))
    if record.verified is not None:
        lines.append(verification_line(record.verified))
    return lines


def outside_lines(record: Record) -> list[str]:
    """The line about the measured time outside ops, on the mean rank; empty if it was not measured."""
    if not isinstance(record.outside_ops_seconds, dict) or not record.outside_ops_seconds:
        return []
    parts = ", ".join(f"{format_seconds(seconds)} {part}" for part, seconds in record.outside_ops_seconds.items())
    return [f"outside ops, the mean rank spends {parts}"]


def messages_line(messages: Messages) -> str:
    """The message options of a run, and the obtained overlap, as text.

    >>> messages_line(Messages(61440, "thread", 0.925, {"sum dA": 0.925}))
    'messages: in chunks of 60 KiB, progress by a thread; beside local work as fast as 92 % of alone'
    >>> messages_line(Messages(0, "none", 0.0, {"sum dA": 0.0}))
    'messages: whole, progress none; beside local work as fast as 0 % of alone'
    """
    size = f"in chunks of {format_bytes(messages.chunk_bytes)}" if messages.chunk_bytes else "whole"
    progress = "by a thread" if messages.progress == "thread" else messages.progress
    obtained = messages.overlap_obtained
    beside = f"; beside local work as fast as {obtained:.0%} of alone" if isinstance(obtained, float) else ""
    return f"messages: {size}, progress {progress}{beside}".replace("%", " %")


def verification_line(verified: Verified) -> str:
    error = "not a number" if verified.max_error is None else f"{verified.max_error:.2g}"
    text = f"relative error {error}, bound {verified.bound:.2g}, by the {verified.method} check"
    if verified.vectors is not None and verified.smallest_error_seen is not None:
        text += f" with {verified.vectors} vectors, which sees errors from {verified.smallest_error_seen:.2g}"
    return f"verified: {text}" if verified.ok else f"NOT VERIFIED: {text}: {verified.reason}"
