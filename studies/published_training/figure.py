"""The figures of the study: the error of each judged row, and the weak scaling with one panel a machine."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import PALETTE, legend_below, new_figure, number_axis, styled
from quadrille.studies.error_figure import ErrorDot, error_figure, side_by_side, time_ratio
from quadrille.studies.judged_rows import judged_only
from quadrille.studies.published_training.report import JudgedTraining, TrainingAnswer
from quadrille.studies.published_training.scaling_point import ScalingPoint

if TYPE_CHECKING:
    from matplotlib.axis import XAxis
    from matplotlib.figure import Figure

CURVES = {
    "untapered": (":", "equal GPUs, cables between groups never fill"),
    "equal": ("-", "equal GPUs"),
    "differing": ("--", "GPUs that differ in speed"),
    "measured": ("-.", "differing GPUs, network at its measured rate"),
}
"""Predictions that are drawn, with their line styles and names."""
HOW_FAR_OFF = "How far off are predicted training steps from published ones?"
TIMES_AND_MEMORY = ("iteration_time", "peak_memory")
"""Metrics that are times or sizes; all others are rates."""
QUESTION = "Does a predicted share of peak fall with the number of GPUs as the published share does?"


def answer_figure(answer: TrainingAnswer) -> "Figure":
    """The figure of an answer: the weak scaling if it has one, otherwise the errors of its rows."""
    return scaling_figure(answer.weak_scaling) if answer.weak_scaling else rows_figure(answer.rows)


def rows_figure(rows: Sequence[JudgedTraining]) -> "Figure":
    """The error plot of the judged rows by number of GPUs, a colour for each source.

    Parameters
    ----------
    rows : rows of the study; rows that are not judged are left out
    """
    dots = [
        ErrorDot(
            row.paper + (": memory" if row.metric == "peak_memory" else ""),
            row.gpus,
            time_ratio(row.relative_error, row.metric, TIMES_AND_MEMORY),
        )
        for row in judged_only(rows)
        if row.relative_error is not None
    ]
    calibrating = sum(row.role == "calibration" for row in rows)
    return error_figure(
        side_by_side(dots),
        question=HOW_FAR_OFF,
        setting=f"time of a step, or memory of a GPU, of {len(dots)} runs; {calibrating} further runs set the machines",
        label="GPUs (runs with the same number stand side by side)",
        amount="time or memory",
        scale=_scale_counts,
    )


def _scale_counts(axis: "XAxis", places: Sequence[float]) -> None:
    """An axis of numbers of GPUs whose ticks are powers of two."""
    powers = [2**power for power in range(24) if min(places) / 1.2 <= 2**power <= max(places) * 1.2]
    number_axis(axis, powers or [1])


@styled
def scaling_figure(points: Sequence[ScalingPoint]) -> "Figure":
    """The figure of the weak scaling.

    Parameters
    ----------
    points : points of the weak scaling
    """
    machines = list(dict.fromkeys(point.machine for point in points))
    figure = new_figure(
        4.2 * len(machines),
        4.2,
        question=QUESTION,
        setting="weak scaling of AxoNN, predicted; a panel for each machine",
    )
    panels = figure.subplots(1, len(machines), sharey=True, squeeze=False)[0]
    for axes, machine in zip(panels, machines, strict=True):
        part = [point for point in points if point.machine == machine]
        for number, (name, (style, words)) in enumerate(CURVES.items()):
            shown = [(point.gpus, getattr(point, name)) for point in part if getattr(point, name) is not None]
            if shown:
                axes.plot(*zip(*shown, strict=True), style, color=PALETTE[number], label=words)
        published = [(point.gpus, point.published) for point in part if point.published is not None]
        axes.plot(*zip(*published, strict=True), "ko", label="published")
        number_axis(axes.xaxis, sorted({point.gpus for point in part}))
        axes.set(ylim=(0, 100), title=machine, xlabel="GPUs")
    panels[0].set_ylabel("share of peak [%]")
    legend_below(figure)
    return figure
