"""Figures of comparisons: two timelines one above the other, bars by op, or many pairs of records."""

from collections.abc import Sequence
from pathlib import Path

from quadrille.algorithms.figure_style import (
    MEASURED_COLOUR,
    PREDICTED_COLOUR,
    legend_below,
    new_figure,
    scale_axis,
    styled,
)
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.algorithms.timelines.timeline_figure import MOST_RANKS, draw_lanes, draw_legend, lane_bars, lanes
from quadrille.algorithms.units import time_unit
from quadrille.experiments.compare.comparison import Comparison
from quadrille.experiments.output.pictures import write_figure

WHEN = "When does each op run, predicted and measured?"
WHICH_OPS = "How long does each op take, predicted and measured?"
HOW_CLOSE = "How close are the predicted times to the measured times?"


@styled
def draw_timelines(predicted: Timeline, measured: Timeline, path: str | Path, *, title: str = "") -> None:
    """Writes the figure of both timelines, predicted above measured, on one axis of time."""
    ranks = range(MOST_RANKS)
    panels = [(timeline, lanes(timeline, ranks)) for timeline in (predicted, measured)]
    rows = [max(1, len(of_panel)) for _, of_panel in panels]
    figure = new_figure(10, 2.0 + 0.28 * sum(rows), question=WHEN, setting=title)
    axes = figure.subplots(2, 1, sharex=True, height_ratios=rows)
    unit = time_unit([predicted.makespan, measured.makespan])
    for (timeline, of_panel), axis in zip(panels, axes, strict=True):
        draw_lanes(axis, timeline, of_panel, lane_bars(timeline, of_panel), unit)
        left_out = f", ranks 0 to {MOST_RANKS - 1} of {timeline.ranks}" if timeline.ranks > MOST_RANKS else ""
        axis.set_ylabel(f"{timeline.kind}{left_out}")
        axis.grid(visible=False, axis="y")
    axes[1].set_xlabel(f"time [{unit.name}]")
    axes[1].set_xlim(0, 1.01 * unit.number(max(predicted.makespan, measured.makespan, 1e-9)))
    spans = [span for timeline in (predicted, measured) for span in timeline.spans if span.rank in ranks]
    draw_legend(figure, spans, columns=7)
    write_figure(figure, path)


@styled
def draw_ops(comparison: Comparison, path: str | Path, *, title: str = "") -> None:
    """Writes the figure of predicted and measured seconds of each op, as bars."""
    figure = new_figure(8, 2.2 + 0.5 * max(1, len(comparison.ops)), question=WHICH_OPS, setting=title)
    axis = figure.subplots()
    positions = range(len(comparison.ops))
    for side, colour, shift in (("predicted", PREDICTED_COLOUR, -0.2), ("measured", MEASURED_COLOUR, 0.2)):
        seconds = [getattr(op.seconds, side) for op in comparison.ops]
        axis.barh([place + shift for place in positions], seconds, height=0.4, color=colour, label=side)
    axis.set_yticks(list(positions), [f"{op.name} ({op.kind})" for op in comparison.ops])
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    scale_axis(axis.xaxis, [], "s")
    axis.set_xlabel("time of the mean rank")
    legend_below(figure)
    write_figure(figure, path)


@styled
def draw_cases(comparisons: Sequence[Comparison], path: str | Path, *, title: str = "") -> None:
    """Writes the figure of many cases: predicted against measured time, with the line of no error and a 10 % band."""
    figure = new_figure(6, 6.4, question=HOW_CLOSE, setting=title)
    axis = figure.subplots()
    measured = [case.seconds.measured for case in comparisons]
    predicted = [case.seconds.predicted for case in comparisons]
    axis.plot(measured, predicted, "o", color=PREDICTED_COLOUR, markersize=4, label="cases")
    every = [seconds for seconds in (*measured, *predicted) if seconds > 0] or [1.0]
    ends = (min(every) / 2, max(every) * 2)
    axis.plot(ends, ends, color="black", linewidth=0.8, label="no error")
    axis.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color="#eeeeee", label="10 %")
    for side, name in ((axis.xaxis, "measured"), (axis.yaxis, "predicted")):
        scale_axis(side, ends, "s", logarithmic=True)
        side.set_label_text(f"{name} time")
    axis.set_aspect("equal")
    legend_below(figure)
    write_figure(figure, path)
