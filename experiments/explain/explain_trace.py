"""`quadrille explain TRACE`: where the time of a traced GPU goes; the verdict comes first."""

from typing import TYPE_CHECKING

from quadrille.algorithms.units import format_bytes_per_second, format_percent, format_seconds
from quadrille.experiments.output.tables import UNKNOWN, duration, percent, print_tables, table
from quadrille.experiments.traces.kernel_works import short_name
from quadrille.experiments.traces.trace_summary import CollectiveTime, TraceSummary

if TYPE_CHECKING:
    from rich.console import Group

SHOWN = 10
"""Rows of the tables of kernels, collectives and iterations."""
NOTABLE = 0.05
"""Share of an iteration from which the verdict names a loss."""


def print_trace(summary: TraceSummary) -> None:
    """Prints the verdict and the tables of a trace."""
    for line in verdict(summary):
        print(line)
    print()
    print_tables(*trace_tables(summary))


def verdict(summary: TraceSummary) -> list[str]:
    """Where the time goes, in sentences: the main finding first."""
    rank = f"rank {summary.rank}" if summary.rank is not None else "one rank"
    rank += f" of {summary.ranks}" if summary.ranks is not None else ""
    gpu = f" on {summary.device}" if summary.device else ""
    count = f"{summary.iterations} iteration{'s' if summary.iterations > 1 else ''}"
    each = " each" if summary.iterations > 1 else ""
    source = {
        "annotations": "annotated",
        "repeated kernels": "found by repeated kernels",
        "whole trace": "the whole trace; it has no ProfilerStep annotations, and no sequence of kernels fills it",
    }[summary.iterations_from]
    return [
        *_main_finding(summary),
        f"{rank}{gpu}: {count} ({source}) of {format_seconds(summary.seconds)}{each}.",
        *_communication_line(summary),
        *_outside_line(summary),
        *summary.remarks,
    ]


def _main_finding(summary: TraceSummary) -> list[str]:
    """The share that the GPU computes, and the largest loss with the collective that has most of it."""
    losses = {
        "exposed communication": summary.exposed_communication_seconds,
        "idle time": summary.idle_seconds,
        "memory copies beside which nothing runs": summary.exposed_copy_seconds,
    }
    computing = _share(summary.computing_seconds, summary)
    loss = max(losses, key=lambda name: losses[name])
    if losses[loss] < NOTABLE * summary.seconds:
        works = [work for work in summary.works[:3] if work.share_seconds > 0]
        largest = max(works, key=lambda work: work.share_seconds, default=None)
        most = f", most in {largest.work} ({_share(largest.share_seconds, summary)})" if largest else ""
        return [f"The GPU computes {computing} of the time{most}."]
    lines = [f"The GPU computes {computing} of the time; the largest loss is {loss}, {_share(losses[loss], summary)}."]
    longest = max(summary.collectives, key=lambda row: row.exposed_seconds, default=None)
    if loss == "exposed communication" and longest is not None:
        lines.append(f"Most of it is in {longest.label} ({_share(longest.exposed_seconds, summary)}).")
    return lines


def _communication_line(summary: TraceSummary) -> list[str]:
    total = summary.communication_seconds
    if total <= 0:
        return []
    hidden = format_percent(summary.hidden_communication_seconds / total)
    return [f"Computation hides {hidden} of {format_seconds(total)} of communication in an iteration."]


def _outside_line(summary: TraceSummary) -> list[str]:
    if summary.outside < 0.01:
        return []
    return [f"{format_percent(summary.outside)} of the GPU's work is outside these iterations and does not count."]


def _share(seconds: float, summary: TraceSummary) -> str:
    return format_percent(seconds / summary.seconds if summary.seconds else 0.0)


def trace_tables(summary: TraceSummary) -> "list[Group]":
    """The tables of a trace: time by state, collectives, kernels, streams, iterations."""
    tables = [_states_table(summary)]
    if summary.collectives:
        tables.append(_collectives_table(summary.collectives))
    tables.append(_kernels_table(summary))
    if len(summary.streams) > 1:
        rows = [(row.name, str(row.count), duration(row.seconds)) for row in summary.streams[:SHOWN]]
        tables.append(table("streams (GPU/stream)", ("", "runs", "busy"), rows))
    if summary.iterations > 1:
        tables.append(_iterations_table(summary))
    return tables


def _states_table(summary: TraceSummary) -> "Group":
    rows = [
        (
            "exposed communication"
            if row.work == "communication"
            else f"exposed {row.work}"
            if row.work == "copies"
            else row.work,
            duration(row.share_seconds),
            percent(row.share_seconds / summary.seconds if summary.seconds else None, signed=False),
            duration(row.kernel_seconds),
            str(row.count),
        )
        for row in summary.works
        if row.count
    ]
    idle = percent(summary.idle_seconds / summary.seconds if summary.seconds else None, signed=False)
    rows.append(("idle", duration(summary.idle_seconds), idle, "", ""))
    title = f"an iteration: {duration(summary.seconds)}"
    return table(title, ("", "time", "", "sum of kernels", "kernels in all"), rows)


def _collectives_table(collectives: tuple[CollectiveTime, ...]) -> "Group":
    rows = [
        (
            row.label,
            str(row.count),
            duration(row.seconds),
            duration(row.exposed_seconds),
            duration(row.median_seconds),
            _rate(row.algorithm_bandwidth),
            _rate(row.bus_bandwidth),
        )
        for row in collectives[:SHOWN]
    ]
    more = f", {len(collectives) - SHOWN} more in --json" if len(collectives) > SHOWN else ""
    columns = ("", "calls", "time", "exposed", "median call", "algorithm bw", "bus bw")
    return table(f"collectives, of an iteration (calls: of all{more})", columns, rows)


def _kernels_table(summary: TraceSummary) -> "Group":
    rows = [
        (
            short_name(row.name),
            row.work,
            str(row.count),
            duration(row.seconds),
            percent(row.seconds / summary.seconds if summary.seconds else None, signed=False),
            duration(row.median_seconds),
        )
        for row in summary.kernels[:SHOWN]
    ]
    return table("longest kernels", ("", "work", "runs", "time", "", "median run"), rows, names=2)


def _iterations_table(summary: TraceSummary) -> "Group":
    rows = [
        (
            row.name,
            duration(row.seconds),
            duration(row.computing_seconds),
            duration(row.exposed_communication_seconds),
            duration(row.hidden_communication_seconds),
            duration(row.exposed_copy_seconds),
            duration(row.idle_seconds),
        )
        for row in summary.by_iteration[:SHOWN]
    ]
    title = (
        "iterations" if len(rows) == summary.iterations else f"the first {len(rows)} of {summary.iterations} iterations"
    )
    columns = ("", "time", "computing", "exposed comm.", "hidden comm.", "exposed copies", "idle")
    return table(title, columns, rows)


def _rate(rate: float | None) -> str:
    return UNKNOWN if rate is None else format_bytes_per_second(rate)
