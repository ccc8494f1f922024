"""The summary of a predicted or an executed run: the line of `repr`, and the HTML that a notebook shows."""

from collections.abc import Mapping, Sequence
from heapq import nlargest
from importlib.util import find_spec
from typing import Protocol

from quadrille.algorithms.schedule.grid import AXES
from quadrille.algorithms.tabular import html_table
from quadrille.algorithms.timelines.op_times import OpTimes, TimedOp, activity_shares, bound_by
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.units import format_seconds

OPS_SHOWN = 10
"""Most ops of the table."""
RANKS_SHOWN, BARS_SHOWN = 2, 160
"""Most ranks and bars of the small timeline."""
MOST_BYTES = 60_000
"""Most bytes of the HTML; a larger timeline is left out."""


class CountedOp(TimedOp, Protocol):
    """An op of a run or of a record that tells how often it runs and how long it waits [s]."""

    @property
    def count(self) -> int: ...

    @property
    def waiting_seconds(self) -> float: ...


class Run(Protocol):
    """A predicted or an executed run: what its table, its line and its figure are made of.

    `seconds` is the predicted time or the median of the repeats, `interval` the low and the high end of its interval
    [s], `interval_text` these as text, `timeline` the timeline of the run or of its median repeat, and `machine` the
    name of its machine, empty if it is not known.
    """

    @property
    def machine(self) -> str: ...

    @property
    def seconds(self) -> float: ...

    @property
    def interval(self) -> tuple[float, float]: ...

    @property
    def interval_text(self) -> str: ...

    @property
    def timeline(self) -> Timeline: ...

    def op_times(self) -> Mapping[str, OpTimes]: ...


def headline(run: Run) -> str:
    """The number of ranks, the time, its interval, and the activity that takes most of the time, in one line."""
    timeline = run.timeline
    ranks = f"{timeline.ranks} rank{'s' if timeline.ranks > 1 else ''}"
    facts = [f"{timeline.kind} on {ranks}: {format_seconds(run.seconds)} ({run.interval_text})"]
    return ", ".join([*facts, *filter(None, [bound(run)])])


def bound(run: Run) -> str:
    """The activities that take the time, as text; empty if the grid is not known."""
    grid = run.timeline.grid
    if grid is None:
        return ""
    lengths = {axis: grid.length(axis) for axis in AXES}
    return bound_by(activity_shares(run.op_times().values(), lengths, run.seconds))


def run_html(run: Run) -> str:
    """HTML of the summary, the longest ops, and a small timeline if matplotlib is installed.

    The HTML has no script, and at most `MOST_BYTES` bytes.
    """
    table = ops_html(list(run.op_times().values()), headline(run))
    picture = _small_timeline(run.timeline)
    if not picture or len(table) + len(picture) > MOST_BYTES - 1000:
        return table
    return (
        '<div style="display: flex; flex-wrap: wrap; gap: 1em; align-items: flex-start">'
        f"<div>{table}</div><div>{picture}</div></div>"
    )


def ops_html(ops: Sequence[CountedOp], heading: str) -> str:
    """HTML of a heading, of the ops that take longest, and of the number of the others."""
    table = html_table(_longest_ops(ops), heading, dict.fromkeys(("time", "waiting", "exposed"), "s"))
    return table if len(ops) <= OPS_SHOWN else f"{table}<p>and {len(ops) - OPS_SHOWN} more; rows() has all</p>"


def _longest_ops(ops: Sequence[CountedOp]) -> list[dict[str, object]]:
    """The rows of the ops that take longest, the longest first."""
    return [
        {
            "op": op.name,
            "kind": op.kind,
            "axis": op.axis,
            "times": op.count,
            "time": op.seconds,
            "waiting": op.waiting_seconds,
            "exposed": op.exposed_seconds,
        }
        for op in nlargest(OPS_SHOWN, ops, key=lambda op: op.seconds)
    ]


def _small_timeline(timeline: Timeline) -> str:
    """The timeline as an SVG element; empty without matplotlib."""
    if find_spec("matplotlib") is None or not timeline.spans:
        return ""
    from quadrille.algorithms.timelines.timeline_figure import timeline_svg

    return timeline_svg(timeline, most_ranks=RANKS_SHOWN, most_bars=BARS_SHOWN)
