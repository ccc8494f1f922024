"""Where results go: files that were asked for, and a table for a person on stdout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest

from algorithms.errors import InputError
from algorithms.formats import files
from algorithms.formats.record import OpRecord, Record, Verified, save_record
from algorithms.grid import Grid
from algorithms.timelines.timeline import Timeline
from algorithms.units import format_bytes, format_seconds
from studies.comparing.figures import check_figure_path
from studies.experiments.plan import same_file
from studies.training.lines import training_lines, workload_words

OPS_SHOWN = 32
"""Most ops in the table that is printed; a transformer has hundreds."""


@dataclass(frozen=True, slots=True)
class Destinations:
    """The files that results go to, each empty if not asked for; `-` is stdout.

    Parameters
    ----------
    json : the record
    trace : the timeline as a Chrome trace
    timeline : the timeline as a file of Quadrille, for figures
    csv : a table
    plot : a figure, which never goes to stdout
    ranks : those that the trace and the timeline show, such as `0-7,12`; by default all, or of many ranks those that
        stand for all
    """

    json: str = ""
    trace: str = ""
    timeline: str = ""
    csv: str = ""
    plot: str = ""
    ranks: str = ""

    @property
    def to_stdout(self) -> bool:
        """Whether stdout is taken by a file."""
        return files.STDOUT in (self.json, self.trace, self.timeline, self.csv)

    def check(self, others: Mapping[str, str] | None = None, *, ranks: int = 0) -> None:
        """Refuse, before anything runs, what could not be written.

        Parameters
        ----------
        others : the other files of the command, by flag or by what they are
        ranks : how many there are, where `ranks` may be given

        Raises
        ------
        InputError : a path that cannot be written, or is named twice; ranks that are not there
        """
        if self.ranks:
            if not (self.trace or self.timeline):
                raise InputError(f"--ranks {self.ranks}: says what --trace or --timeline shows; give one of them")
            parse_ranks(self.ranks, ranks)
        named = ("json", "trace", "timeline", "csv", "plot")
        given = {f"--{name}": path for name in named if (path := getattr(self, name))}
        for flag, path in given.items():
            every = (given | dict(others or {})).items()
            same = [other for other, its_path in every if same_file(its_path, path)]
            if len(same) > 1:
                raise InputError(f"{' and '.join(same)} both name {path}: give each its own file")
            try:
                (check_figure_path if flag == "--plot" else files.check_writable)(path)
            except InputError as error:
                raise InputError(f"{flag} {error}") from None


def parse_ranks(text: str, ranks: int) -> list[int]:
    """Ranks written as numbers and ranges.

    >>> parse_ranks("0-2,7", 8)
    [0, 1, 2, 7]

    Parameters
    ----------
    ranks : how many there are

    Raises
    ------
    InputError : no such ranks
    """
    found: set[int] = set()
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        last = last if dash else first
        whole = all(end.isascii() and end.isdigit() for end in (first, last))
        if not whole or not int(first) <= int(last) < ranks:
            raise InputError(f"--ranks {text}: {word.strip()!r} is no rank or range of ranks from 0 to {ranks - 1}")
        found |= set(range(int(first), int(last) + 1))
    return sorted(found)


def write_results(destinations: Destinations, made: Record, timeline: Timeline) -> None:
    """Writes the record and the timeline to where they were asked for, or else prints a table of the record."""
    from algorithms.formats.chrome_trace import write_chrome_trace
    from algorithms.formats.timeline_files import save_timeline

    named = replace(timeline, name=f"{made.kind} {made.algorithm}", provenance=made.provenance)
    if destinations.ranks:
        named = named.expanded(Grid(**made.grid, order=made.order), parse_ranks(destinations.ranks, made.ranks))
    if destinations.trace:
        write_chrome_trace(destinations.trace, [named], made.provenance)
    if destinations.timeline:
        save_timeline(named, destinations.timeline)
    if destinations.json:
        save_record(made, destinations.json)
    if not destinations.to_stdout:
        print_record(made)


def print_record(made: Record) -> None:
    """Prints a record for a person: the total, then every op."""
    heads = ("op", "what", "times", "seconds", "waiting", "exposed", "sent by a rank", "")
    shown = shown_ops(made.ops)
    rows = [
        (
            op.name,
            _what(op),
            str(op.count),
            format_seconds(op.seconds),
            format_seconds(op.waiting_seconds),
            format_seconds(op.exposed_seconds),
            format_bytes(op.bytes_sent_per_rank_max),
            "extrapolated" if op.extrapolated else "",
        )
        for op in shown
    ]
    left = _left_out(made.ops, shown)
    print("\n".join([_title(made), "", *_aligned([heads, *rows]), *left, "", *_closing_lines(made)]))


def shown_ops(ops: Sequence[OpRecord]) -> list[OpRecord]:
    """All ops, or of very many those that take longest, in the order of the program."""
    if len(ops) <= OPS_SHOWN:
        return list(ops)
    longest = set(nlargest(OPS_SHOWN, range(len(ops)), key=lambda number: (ops[number].seconds, -number)))
    return [op for number, op in enumerate(ops) if number in longest]


def _left_out(ops: Sequence[OpRecord], shown: Sequence[OpRecord]) -> list[str]:
    """What is said of the ops that are not shown."""
    if len(shown) == len(ops):
        return []
    seconds = sum(op.seconds for op in ops) - sum(op.seconds for op in shown)
    return [f"and {len(ops) - len(shown)} more, {format_seconds(seconds)} together; --json has all"]


def _what(op: OpRecord) -> str:
    """Kind, axis and algorithm of an op.

    >>> _what(OpRecord(name="gather B", kind="all_gather", axis="z", algorithm="ring", seconds=0.0))
    'all_gather over z, ring'
    """
    return op.kind + (f" over {op.axis}" if op.axis else "") + (f", {op.algorithm}" if op.algorithm else "")


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of columns: two of names, then numbers, a note last."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - 1
    return [
        "  ".join(
            cell.ljust(width) if place < 2 or place == last else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _title(made: Record) -> str:
    grid = ",".join(f"{axis}={length}" for axis, length in made.grid.items() if length > 1) or "x=1"
    threads = f"{made.options.threads} thread{'s' if made.options.threads > 1 else ''} each"
    return (
        f"{made.kind}: {made.algorithm}, {made.passes}, {workload_words(made.workload)} {made.dtype}, "
        f"grid {grid}, {made.ranks} rank{'s' if made.ranks > 1 else ''}, {threads}"
    )


def _spread(made: Record) -> str:
    """Low and high of a record, and what they are; a prediction from data sheets alone has none."""
    bounded = made.simulation is not None and made.simulation.granularity == "collective"
    if made.kind == "predicted" and made.seconds_low == made.seconds_high and not bounded:
        return "from data sheets: no interval is known"
    what = f"5th to 95th percentile of {made.repeats} repeats" if made.kind == "measured" else "90 % interval"
    if bounded and made.simulation is not None:
        what = "collective granularity, " + ("exact is" if made.simulation.bound_proven else "as axes meet")
    return f"{what}: {format_seconds(made.seconds_low)} to {format_seconds(made.seconds_high)}"


def _closing_lines(made: Record) -> list[str]:
    lines = [
        f"total: {format_seconds(made.seconds)} ({_spread(made)})",
        f"sent: at most {format_bytes(made.bytes_sent_per_rank_max)} by a rank, {format_bytes(made.bytes_sent_total)} "
        f"by all; kept: at most {format_bytes(made.peak_bytes_per_rank_max)} on a rank",
    ]
    if made.bytes_lower_bound_per_rank is not None:
        lines.append(f"some rank must send at least {format_bytes(made.bytes_lower_bound_per_rank)}")
    lines += training_lines(made)
    if made.verified is not None:
        lines.append(_verdict(made.verified))
    return lines


def _verdict(verified: Verified) -> str:
    error = "not a number" if verified.max_error is None else f"{verified.max_error:.2g}"
    text = f"relative error {error}, bound {verified.bound:.2g}, by the {verified.method} check"
    if verified.vectors is not None and verified.smallest_error_seen is not None:
        text += f" with {verified.vectors} vectors, which sees errors from {verified.smallest_error_seen:.2g}"
    return f"verified: {text}" if verified.ok else f"NOT VERIFIED: {text}: {verified.reason}"
