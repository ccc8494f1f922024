"""The figure of a timeline: a row for each lane of a few ranks, drawn by matplotlib, and its SVG for a page.

matplotlib is imported only when a figure is drawn, and only its figure class, which needs
no window system and shares no state between figures.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quadrille.algorithms.figure_style import legend_below, new_figure, styled
from quadrille.algorithms.schedule.short_names import hyphenated
from quadrille.algorithms.timelines.spans import COMPUTE, Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.units import TimeUnit, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from quadrille.algorithms.shown_figure import ShownFigure

QUESTION = "What does each rank do, and when?"
MOST_RANKS = 8
"""Number of ranks of a timeline that are shown."""
FEWEST_ROWS = 5
"""Number of rows for which a figure has room, at least: as many as its label is long."""
MOST_SPANS = 20_000
"""Most spans of a figure; more are drawn for fewer ranks."""
FINEST = 4096
"""Number of slices of time that are tried first, where bars are too many."""
WAITING = "waiting"
COLOURS = {
    "gemm": "#0072b2",
    "pointwise": "#56b4e9",
    "kernel": "#004c6d",
    "host_copy": "#999999",
    "host_kernel": "#666666",
    "all_gather": "#e69f00",
    "reduce_scatter": "#009e73",
    "all_reduce": "#d55e00",
    "broadcast": "#f0e442",
    "reduce": "#cc79a7",
    "all_to_all": "#8c564b",
    "barrier": "#000000",
    "send": "#b15928",
    "receive": "#cab2d6",
    "shift": "#6a3d9a",
    WAITING: "#dddddd",
}
"""Colour of each kind of op.  Source of the first colours: Okabe, Ito, "Color universal design", 2008."""
OTHER_COLOUR = "#777777"
Lane = tuple[int, str]
Bars = Mapping[tuple[int, str], Sequence[tuple[float, float]]]
"""Start and duration [s] of the bars of each row and kind of op."""


@styled
def timeline_figure(
    timeline: Timeline,
    *,
    most_ranks: int = MOST_RANKS,
    most_bars: int | None = None,
    width: float = 10,
    question: str = "",
    setting: str = "",
) -> "ShownFigure":
    """The figure of one timeline, with all iterations of its loops.

    Parameters
    ----------
    most_ranks : most ranks that are shown
    most_bars : most bars of the figure; where there are more, `joined` makes them fewer; None for no limit
    width : width [inches]
    question, setting : title; none by default
    """
    title_height = 0.5 if question or setting else 0.0
    height = 1.2 + title_height + timeline_height(timeline, most_ranks)
    figure = new_figure(width, height, question=question, setting=setting)
    shown = draw_timeline(figure.subplots(), timeline, most_bars, most_ranks=most_ranks)
    draw_legend(figure, shown, columns=max(1, int(0.7 * width)))
    return figure


def timeline_height(timeline: Timeline, most_ranks: int = MOST_RANKS) -> float:
    """The height of the rows of a timeline's figure [inches]."""
    shown = shown_ranks(timeline, most_ranks)
    return 0.24 * max(FEWEST_ROWS, len({(span.rank, span.lane) for span in shown.spans}))


def draw_timeline(
    axis: "Axes", timeline: Timeline, most_bars: int | None = None, *, most_ranks: int = MOST_RANKS
) -> Sequence[Span]:
    """Draws a timeline into axes, and returns the spans that it shows.

    Parameters
    ----------
    most_bars, most_ranks : as in `timeline_figure`
    """
    shown = shown_ranks(timeline, most_ranks)
    rows = lanes(shown, {span.rank for span in shown.spans})
    bars = lane_bars(shown, rows)
    unit = time_unit([timeline.makespan])
    draw_lanes(axis, shown, rows, bars if most_bars is None else joined(bars, timeline.makespan, most_bars), unit)
    ranks = len({rank for rank, _ in rows})
    axis.set_ylabel(timeline.kind + (f",\n{ranks} of {timeline.ranks} ranks" if ranks < timeline.ranks else ""))
    axis.set_xlabel(f"time [{unit.name}]")
    axis.set_xlim(0, 1.01 * unit.number(max(timeline.makespan, 1e-9)))
    axis.grid(visible=False, axis="y")
    return shown.spans


def timeline_svg(timeline: Timeline, *, most_ranks: int, most_bars: int) -> str:
    """A small figure of the timeline as an `<svg>` element for a page of HTML, without script and style sheet."""
    figure = timeline_figure(timeline, most_ranks=most_ranks, most_bars=most_bars, width=5.5)
    before, _, after_style = figure._repr_svg_().partition("</style>\n </defs>\n")
    opening = before[before.index("<svg") :].partition(">")[0]
    label = f'role="img" aria-label="{timeline.kind} timeline" stroke-linejoin="round"'
    return re.sub(r"(\.\d\d)\d+", r"\1", f"{opening} {label}>\n{after_style}")


def shown_ranks(timeline: Timeline, most: int) -> Timeline:
    """The unrolled timeline of the first ranks that it has: at most `most`, and fewer if they have too many spans.

    Ops that take no time are left out.

    A loop with too many iterations stays run-length encoded, so that only its last iteration is drawn.
    """
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if span.end > span.start:
            by_rank[span.rank].append(span)
    kept: list[Span] = []
    drawn = 0
    for rank in sorted(by_rank)[:most]:
        spans = by_rank[rank]
        drawn += len(spans) + sum(each.times * sum(map(each.includes, spans)) for each in timeline.repeated)
        if kept and drawn > MOST_SPANS:
            break
        kept += spans
    part = replace(timeline, spans=tuple(kept))
    return part if drawn > MOST_SPANS and len({span.rank for span in kept}) == 1 else part.unrolled()


def with_distinct_ranks(timeline: Timeline) -> Timeline:
    """The timeline with the first of all ranks whose ops begin and end at the same times.

    >>> spans = [Span(rank, "multiply", "gemm", "compute", 0.0, 0.0, 0.0, 1.0 + rank // 2) for rank in range(4)]
    >>> sorted(span.rank for span in with_distinct_ranks(Timeline(tuple(spans), "predicted", 4)).spans)
    [0, 2]
    """
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        by_rank[span.rank].append(span)
    first: dict[tuple[tuple[str, str, float, float], ...], int] = {}
    for rank in sorted(by_rank):
        first.setdefault(tuple((span.op, span.lane, span.start, span.end) for span in by_rank[rank]), rank)
    ranks = set(first.values())
    return replace(timeline, spans=tuple(span for span in timeline.spans if span.rank in ranks))


def lanes(timeline: Timeline, ranks: Collection[int]) -> list[Lane]:
    """The rank and the lane of each row of a timeline; the compute lane first."""
    shown = {(span.rank, span.lane) for span in timeline.spans if span.rank in ranks}
    return sorted(shown, key=lambda lane: (lane[0], lane[1] != COMPUTE, lane[1]))


def lane_bars(timeline: Timeline, rows: Sequence[Lane]) -> Bars:
    """The bars of each row and kind of op, from the start of the timeline."""
    row_of = {lane: row for row, lane in enumerate(rows)}
    bars: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    origin = timeline.start
    for span in timeline.spans:
        if (span.rank, span.lane) in row_of:
            for kind, start, seconds in _span_bars(span, origin):
                bars[row_of[span.rank, span.lane], kind].append((start, seconds))
    return bars


def joined(bars: Bars, makespan: float, most: int) -> Bars:
    """The bars, or where they are more than `most` the kind that fills most of each slice of time.

    A row has as many filled slices as it is busy, to half a slice: the time of short bars adds up until it fills one.
    Neighbours of one kind are one bar.  The number of slices is halved until at most `most` bars remain.

    >>> joined({(0, "gemm"): [(0.0, 1.0), (1.25, 0.75), (3.0, 1.0)]}, 4.0, 2)
    {(0, 'gemm'): [(0.0, 2.0), (3.0, 1.0)]}
    """
    fewer, slices = bars, FINEST
    while slices and sum(map(len, fewer.values())) > most:
        fewer = _by_slice(bars, makespan / slices)
        slices //= 2
    return fewer


def _by_slice(bars: Bars, length: float) -> Bars:
    """The kind that fills most of each slice of `length` seconds, as bars."""
    filled: dict[tuple[int, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for (row, kind), intervals in bars.items():
        for start, seconds in intervals:
            for number in range(int(start / length), int((start + seconds) / length) + 1):
                within = min(start + seconds, (number + 1) * length) - max(start, number * length)
                filled[row, number][kind] += max(0.0, within)
    chosen: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    before: tuple[int, int, str] | None = None
    owed: dict[int, float] = defaultdict(float)
    for (row, number), of_slice in sorted(filled.items()):
        owed[row] += sum(of_slice.values())
        if 2 * owed[row] < length:
            continue
        owed[row] -= length
        kind = max(of_slice, key=lambda name: of_slice[name])
        of_row = chosen[row, kind]
        if before == (row, number - 1, kind):
            of_row[-1] = of_row[-1][0], of_row[-1][1] + length
        else:
            of_row.append((number * length, length))
        before = row, number, kind
    return dict(chosen)


def draw_lanes(axis: "Axes", timeline: Timeline, rows: Sequence[Lane], bars: Bars, unit: TimeUnit) -> None:
    """Draws the bars, the names of the rows and the end of the timeline.

    Parameters
    ----------
    unit : unit of the axis of time
    """
    for (row, kind), intervals in bars.items():
        scaled = [(unit.number(start), unit.number(seconds)) for start, seconds in intervals]
        axis.broken_barh(scaled, (row - 0.4, 0.8), facecolors=_colour(kind), edgecolors="white", linewidth=0.2)
    axis.set_yticks(range(len(rows)), [_row_name(timeline, lane) for lane in rows], fontsize=7)
    axis.set_ylim(max(1, len(rows)) - 0.5, -0.5)
    axis.axvline(unit.number(timeline.makespan), color="black", linewidth=0.8, linestyle=":")


def draw_legend(figure: "Figure", spans: Sequence[Span], *, columns: int) -> None:
    """Draws the colours of the kinds of these spans below the figure."""
    if patches := kind_patches(spans):
        legend_below(figure, handles=patches, columns=columns)


def kind_patches(spans: Sequence[Span]) -> list[Any]:
    """A patch of colour with its name for each kind of these spans."""
    from matplotlib.patches import Patch

    kinds = dict.fromkeys(span.kind for span in spans)
    if any(span.waiting_seconds > 0 for span in spans):
        kinds[WAITING] = None
    return [Patch(color=_colour(kind), label=hyphenated(kind)) for kind in kinds]


def _span_bars(span: Span, origin: float) -> Iterator[tuple[str, float, float]]:
    """The bars of a span, as kind, start [s] and duration [s]: its waiting, then its work."""
    if span.waiting_seconds > 0:
        yield WAITING, span.start - origin, span.waiting_seconds
    if span.seconds > 0:
        yield span.kind, span.end - span.seconds - origin, span.seconds


def _row_name(timeline: Timeline, lane: Lane) -> str:
    rank, name = lane
    copies = (timeline.copies or {}).get(rank, 1)
    alike = f" (as {copies} ranks)" if copies > 1 else ""
    return f"rank {rank} {name}{alike}"


def _colour(kind: str) -> str:
    return COLOURS.get(kind, OTHER_COLOUR)
