"""Figures of comparisons: two timelines one above the other, bars by op, or many pairs of records.

matplotlib is imported only when a figure is drawn, and only its figure class, which needs
no window system and shares no state between figures.
"""

from collections.abc import Sequence
from pathlib import Path

from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.timelines.timeline_figure import (
    MOST_RANKS,
    draw_lanes,
    draw_legend,
    empty_figure,
    lane_bars,
    lanes,
)
from quadrille.experiments.compare.comparison import Comparison
from quadrille.experiments.output.pictures import write_figure

PREDICTED_COLOUR, MEASURED_COLOUR = "#0072b2", "#e69f00"


def draw_timelines(predicted: Timeline, measured: Timeline, path: str | Path, *, title: str = "") -> None:
    """Writes the figure of both timelines, predicted above measured, on one axis of time."""
    ranks = range(MOST_RANKS)
    panels = [(timeline, lanes(timeline, ranks)) for timeline in (predicted, measured)]
    rows = [max(1, len(of_panel)) for _, of_panel in panels]
    figure = empty_figure(10, 1.6 + 0.28 * sum(rows))
    axes = figure.subplots(2, 1, sharex=True, height_ratios=rows)
    for (timeline, of_panel), axis in zip(panels, axes, strict=True):
        draw_lanes(axis, timeline, of_panel, lane_bars(timeline, of_panel))
        left_out = f", ranks 0 to {MOST_RANKS - 1} of {timeline.ranks}" if timeline.ranks > MOST_RANKS else ""
        axis.set_ylabel(f"{timeline.kind}{left_out}")
    axes[0].set_title(title, fontsize=9)
    axes[1].set_xlabel("time [ms]")
    axes[1].set_xlim(0, 1000 * max(predicted.makespan, measured.makespan, 1e-9) * 1.01)
    spans = [span for timeline in (predicted, measured) for span in timeline.spans if span.rank in ranks]
    draw_legend(figure, spans, columns=7)
    write_figure(figure, path)


def draw_ops(comparison: Comparison, path: str | Path, *, title: str = "") -> None:
    """Writes the figure of predicted and measured seconds of each op, as bars."""
    figure = empty_figure(8, 1.8 + 0.5 * max(1, len(comparison.ops)))
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
    figure = empty_figure(6, 6)
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
