"""The report of a comparison with traces: the verdict, then tables of states, collectives and ranks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.provenance import Provenance
from quadrille.algorithms.units import format_bytes, format_percent, format_seconds
from quadrille.experiments.compare.compare_traces import (
    SCHEMA,
    ComparedCollective,
    TraceComparison,
    compare_traces,
)
from quadrille.experiments.import_.trace_files import read_trace
from quadrille.experiments.output.destinations import write_or_show
from quadrille.experiments.output.tables import UNKNOWN, duration, print_tables, table
from quadrille.experiments.traces.collective_calls import kind_label
from quadrille.experiments.traces.iterations import iterations_of
from quadrille.experiments.traces.rank_traces import RankTrace

if TYPE_CHECKING:
    from rich.console import Group

SHOWN_RANKS = 16
NOTABLE = 0.01
"""Share of an iteration from which the verdict names the slowest rank."""


def report_traces(predicted: str, traces: Sequence[str], json: str, origin: Provenance) -> TraceComparison:
    """Prints a predicted record beside traces, and writes the comparison as JSON if `json` is given."""
    record = load_record(predicted)
    comparison = msgspec.structs.replace(compare_traces(record, load_ranks(traces), predicted), provenance=origin)
    write_or_show(comparison, json, SCHEMA, lambda: _print(comparison))
    return comparison


def load_ranks(paths: Sequence[str]) -> list[RankTrace]:
    """The traces, by rank; a trace that does not say its rank takes the least number that is free."""
    rows = []
    for path in paths:
        trace = read_trace(path)
        rows.append((path, trace, iterations_of(trace)))
    taken = {trace.rank for _, trace, _ in rows}
    free = iter(number for number in range(len(rows) + len(taken)) if number not in taken)
    ranks = [
        RankTrace(file=path, rank=next(free) if trace.rank is None else trace.rank, trace=trace, iterations=iterations)
        for path, trace, iterations in rows
    ]
    return sorted(ranks, key=lambda rank: rank.rank)


def _print(comparison: TraceComparison) -> None:
    for line in verdict(comparison):
        print(line)
    print()
    print_tables(*trace_tables(comparison))


def verdict(comparison: TraceComparison) -> list[str]:
    """The main finding first: both times, the state that differs most, the overlap, the slowest rank, the remarks."""
    both = comparison.seconds
    ranks = f"{len(comparison.ranks)} ranks" if len(comparison.ranks) > 1 else f"rank {comparison.ranks[0].rank}"
    lines = [
        f"An iteration: {format_seconds(both.predicted)} predicted, {format_seconds(both.measured)} measured "
        f"on {ranks} ({format_percent(comparison.relative_error, signed=True)}); {_largest_difference(comparison)}.",
        f"Communication beside computation: {format_percent(comparison.overlap.predicted)} predicted, "
        f"{format_percent(comparison.overlap.measured)} measured.",
    ]
    slowest = max(comparison.ranks, key=lambda rank: rank.delay_seconds or 0.0)
    if (slowest.delay_seconds or 0.0) > NOTABLE * both.measured:
        lines.append(
            f"The others wait for rank {slowest.rank} most: {format_seconds(slowest.delay_seconds or 0.0)} together "
            f"in an iteration; the critical path is on it for {format_seconds(slowest.path_seconds or 0.0)}."
        )
    return [*lines, *comparison.remarks]


def _largest_difference(comparison: TraceComparison) -> str:
    state = max(comparison.states, key=lambda name: abs(_difference(comparison, name)))
    both = comparison.states[state]
    return (
        f"the largest difference is {state}, {format_seconds(both.predicted)} predicted and "
        f"{format_seconds(both.measured)} measured"
    )


def _difference(comparison: TraceComparison, state: str) -> float:
    both = comparison.states[state]  # type: ignore[index]
    return both.predicted - both.measured


def trace_tables(comparison: TraceComparison) -> "list[Group]":
    """The tables of a comparison with traces."""
    rows = [
        (
            state,
            duration(both.predicted),
            duration(both.measured),
            duration(both.predicted - both.measured),
            *([duration(comparison.path.get(state, 0.0))] if comparison.path else []),
        )
        for state, both in comparison.states.items()
    ]
    both = comparison.seconds
    path = sum(comparison.path.values())
    total = (
        "iteration",
        duration(both.predicted),
        duration(both.measured),
        duration(both.predicted - both.measured),
    )
    columns = ("", "predicted", "measured", "difference", *(["critical path"] if comparison.path else []))
    tables = [table("an iteration", columns, rows, [(*total, *([duration(path)] if comparison.path else []))])]
    if comparison.collectives:
        tables.append(_collectives_table(comparison.collectives))
    tables.append(_ranks_table(comparison))
    return tables


def _collectives_table(collectives: Sequence[ComparedCollective]) -> "Group":
    rows = [
        (
            kind_label(row.kind) + (f" over {row.members} ranks" if row.members and row.kind != "send_receive" else ""),
            f"{row.calls.predicted:.4g}",
            f"{row.calls.measured:.4g}",
            format_bytes(row.bytes.predicted) if row.bytes.predicted else UNKNOWN,
            format_bytes(row.bytes.measured) if row.bytes.measured else UNKNOWN,
            duration(row.seconds.predicted),
            duration(row.seconds.measured),
            duration(row.exposed_seconds.predicted),
            duration(row.exposed_seconds.measured),
        )
        for row in collectives
    ]
    columns = ("", "calls p", "calls m", "bytes p", "bytes m", "time p", "time m", "exposed p", "exposed m")
    return table("collectives of an iteration (p: predicted, m: measured, waiting included)", columns, rows)


def _ranks_table(comparison: TraceComparison) -> "Group":
    several = any(rank.waiting_seconds is not None for rank in comparison.ranks)
    shown = sorted(comparison.ranks, key=lambda rank: -(rank.delay_seconds or 0.0))[:SHOWN_RANKS]
    rows = [
        (
            f"rank {rank.rank}",
            duration(rank.seconds),
            duration(rank.computing_seconds),
            duration(rank.exposed_communication_seconds),
            duration(rank.idle_seconds),
            *(
                map(duration, (rank.waiting_seconds, rank.transfer_seconds, rank.delay_seconds, rank.path_seconds))
                if several
                else ()
            ),
        )
        for rank in sorted(shown, key=lambda rank: rank.rank)
    ]
    columns = ("", "iteration", "computing", "exposed comm.", "idle")
    more = ("waits", "transfers", "others wait for it", "on critical path") if several else ()
    left_out = len(comparison.ranks) - len(shown)
    title = "ranks, of an iteration" + (f"; {left_out} more, with less delay, in --json FILE" if left_out else "")
    return table(title, (*columns, *more), rows)
