"""The error plot of the study: predicted / published time by message size, a panel for each machine of many sizes."""

from collections import defaultdict
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import PALETTE, legend_below, new_figure, scale_axis, styled
from quadrille.studies.error_figure import draw_error_axis, time_ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from quadrille.studies.published_collectives.report import JudgedCollective

COLUMNS = 3
MARKS = {"judged": (".", PALETTE[0]), "calibration": ("D", PALETTE[3])}
"""Mark and colour of each role."""
LABELS = {"judged": "judged", "calibration": "sets the machine, not judged"}
FEW_SIZES = 3
"""Number of message sizes up to which a machine shares its panel with others."""
QUESTION = "How close are the predicted times of collectives to the published times?"
SETTING = "NCCL and RCCL, a dot for each measurement"
NO_SIZE = 1 << 33
"""Size of a message that its source calls large [B]."""


@styled
def rows_figure(rows: "Sequence[JudgedCollective]") -> "Figure":
    """The figure; the machines with few sizes are rows of the last panel.

    Parameters
    ----------
    rows : rows of the study; those with the roles `judged` and `calibration` are drawn
    """
    by_machine: dict[str, list[JudgedCollective]] = defaultdict(list)
    for row in rows:
        if row.role in MARKS and row.relative_error is not None:
            by_machine[row.machine].append(row)
    large = {
        name: own for name, own in sorted(by_machine.items()) if len({row.message_bytes for row in own}) > FEW_SIZES
    }
    small = {name: own for name, own in sorted(by_machine.items()) if name not in large}
    panels = len(large) + bool(small)
    lines = max(1, ceil(panels / COLUMNS))
    figure = new_figure(4.4 * min(COLUMNS, max(1, panels)), 1.0 + 3.4 * lines, question=QUESTION, setting=SETTING)
    every = [_ratio(row) for own in by_machine.values() for row in own]
    for index, (machine, own) in enumerate(large.items()):
        axes = figure.add_subplot(lines, COLUMNS, index + 1)
        sizes = [row.message_bytes or NO_SIZE for row in own]
        _draw(axes, own, sizes)
        draw_error_axis(axes, every, "" if index % COLUMNS else "predicted / published time - 1")
        scale_axis(axes.xaxis, sizes, "B")
        axes.set(title=machine, xlabel="message")
    if small:
        axes = figure.add_subplot(lines, COLUMNS, panels)
        _draw(axes, *zip(*((row, place) for place, own in enumerate(small.values()) for row in own), strict=True))
        draw_error_axis(axes, every, "")
        names = [f"{name} ({len(own)})" for name, own in small.items()]
        axes.set_xticks(range(len(small)), names, rotation=40, ha="right", fontsize=7)
        axes.set(title="machines with few sizes, and rows of each", xlim=(-0.6, len(small) - 0.4))
    legend_below(figure)
    return figure


def _draw(axes: "Axes", rows: "Sequence[JudgedCollective]", places: Sequence[float]) -> None:
    """Draws the rows of each role at their places."""
    for role, (mark, colour) in MARKS.items():
        points = [(place, _ratio(row)) for row, place in zip(rows, places, strict=True) if row.role == role]
        if points:
            axes.plot(*zip(*points, strict=True), mark, color=colour, markersize=5, alpha=0.8, label=LABELS[role])


def _ratio(row: "JudgedCollective") -> float:
    """Predicted / published time, also for a bandwidth."""
    assert row.relative_error is not None, row.id
    return time_ratio(row.relative_error, row.metric, ("time", "latency"))
