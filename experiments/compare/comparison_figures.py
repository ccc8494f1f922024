"""Figures of comparisons: two timelines one above the other, bars by op, or many pairs of records.

matplotlib is imported only when a figure is drawn, and only its figure class, which needs
no window system and shares no state between figures.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quadrille.algorithms.timelines.spans import COMPUTE, Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.experiments.compare.comparison import Comparison
from quadrille.experiments.output.pictures import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RANKS = 8
"""Number of ranks of a timeline that are shown, from rank 0."""
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
PREDICTED_COLOUR, MEASURED_COLOUR = "#0072b2", "#e69f00"
Lane = tuple[int, str]


def draw_timelines(predicted: Timeline, measured: Timeline, path: str | Path, *, title: str = "") -> None:
    """Writes the figure of both timelines, predicted above measured, on one axis of time."""
    panels = [(timeline, _lanes(timeline)) for timeline in (predicted, measured)]
    rows = [max(1, len(lanes)) for _, lanes in panels]
    figure = _figure(10, 1.6 + 0.28 * sum(rows))
    axes = figure.subplots(2, 1, sharex=True, height_ratios=rows)
    for (timeline, lanes), axis in zip(panels, axes, strict=True):
        _draw_lanes(axis, timeline, lanes)
    axes[0].set_title(title, fontsize=9)
    axes[1].set_xlabel("time [ms]")
    axes[1].set_xlim(0, 1000 * max(predicted.makespan, measured.makespan, 1e-9) * 1.01)
    _legend(figure, [predicted, measured])
    write_figure(figure, path)


def draw_ops(comparison: Comparison, path: str | Path, *, title: str = "") -> None:
    """Writes the figure of predicted and measured seconds of each op, as bars."""
    figure = _figure(8, 1.8 + 0.5 * max(1, len(comparison.ops)))
    axis = figure.subplots()
    positions = range(len(comparison.ops))
    for side, colour, shift in (("predicted", PREDICTED_COLOUR, -0.2), ("measured", MEASURED_COLOUR, 0.2)):
        seconds = [1000 * getattr(op.seconds, side) for op in comparison.ops]
        axis.barh([place + shift for place in positions], seconds, height=0.4, color=colour, label=side)
    axis.set_yticks(list(positions), [f"{op.name} ({op.kind})" for op in comparison.ops])
    axis.invert_yaxis()
    axis.set_xlabel("time of the mean rank [ms]")
    axis.set_title(title, fontsize=9)
    axis.legend(fontsize=8)
    write_figure(figure, path)


def draw_cases(comparisons: Sequence[Comparison], path: str | Path, *, title: str = "") -> None:
    """Writes the figure of many cases: predicted against measured time, with the line of no error and a 10 % band."""
    figure = _figure(6, 6)
    axis = figure.subplots()
    measured = [1000 * case.seconds.measured for case in comparisons]
    predicted = [1000 * case.seconds.predicted for case in comparisons]
    axis.plot(measured, predicted, "o", color=PREDICTED_COLOUR, markersize=4, label="cases")
    ends = (min(measured, default=1) / 2, max(measured, default=1) * 2)
    axis.plot(ends, ends, color="black", linewidth=0.8, label="no error")
    axis.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color="#eeeeee", label="10 %")
    axis.set(xscale="log", yscale="log", xlabel="measured [ms]", ylabel="predicted [ms]")
    axis.set_title(title, fontsize=9)
    axis.legend(fontsize=8)
    write_figure(figure, path)


def _figure(width: float, height: float) -> "Figure":
    """An empty figure of this width and height [inches]."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _lanes(timeline: Timeline) -> list[Lane]:
    """The rank and the lane of each row of a timeline; the compute lane first."""
    shown = {(span.rank, span.lane) for span in timeline.spans if span.rank < MOST_RANKS}
    return sorted(shown, key=lambda lane: (lane[0], lane[1] != COMPUTE, lane[1]))


def _draw_lanes(axis: "Axes", timeline: Timeline, lanes: Sequence[Lane]) -> None:
    rows = {lane: row for row, lane in enumerate(lanes)}
    bars: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for span in timeline.spans:
        if (span.rank, span.lane) in rows:
            for kind, start, seconds in _bars(span, timeline.start):
                bars[rows[span.rank, span.lane], kind].append((1000 * start, 1000 * seconds))
    for (row, kind), intervals in bars.items():
        axis.broken_barh(intervals, (row - 0.4, 0.8), facecolors=_colour(kind), edgecolors="white", linewidth=0.2)
    axis.set_yticks(range(len(lanes)), [_row_name(timeline, lane) for lane in lanes], fontsize=7)
    axis.set_ylim(max(1, len(lanes)) - 0.5, -0.5)
    left_out = f", ranks 0 to {MOST_RANKS - 1} of {timeline.ranks}" if timeline.ranks > MOST_RANKS else ""
    axis.set_ylabel(f"{timeline.kind}{left_out}")
    axis.axvline(1000 * timeline.makespan, color="black", linewidth=0.8, linestyle=":")


def _bars(span: Span, origin: float) -> Iterator[tuple[str, float, float]]:
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


def _legend(figure: "Figure", timelines: Sequence[Timeline]) -> None:
    from matplotlib.patches import Patch

    spans = [span for timeline in timelines for span in timeline.spans if span.rank < MOST_RANKS]
    kinds = dict.fromkeys(span.kind for span in spans)
    if any(span.waiting_seconds > 0 for span in spans):
        kinds[WAITING] = None
    patches = [Patch(color=_colour(kind), label=kind.replace("_", "-")) for kind in kinds]
    if patches:
        figure.legend(
            handles=patches, loc="outside lower center", ncols=min(7, len(patches)), fontsize=7, frameon=False
        )
