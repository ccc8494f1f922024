"""The figure of the weak scaling: share of peak by number of GPUs, published and predicted, one panel a machine."""

from collections.abc import Sequence

from quadrille.algorithms.figure_style import PALETTE, legend_below, new_figure, number_axis, styled
from quadrille.experiments.output.pictures import write_figure
from quadrille.studies.published_training.scaling_point import ScalingPoint

CURVES = {"untapered": ":", "equal": "-", "differing": "--", "measured": "-."}
"""Predictions that are drawn, with their line styles."""
QUESTION = "Does a predicted share of peak fall with the number of GPUs as the published share does?"


@styled
def draw(points: Sequence[ScalingPoint], path: str) -> None:
    """Write the figure.

    Parameters
    ----------
    points : points of the weak scaling
    path : file of the figure
    """
    machines = list(dict.fromkeys(point.machine for point in points))
    figure = new_figure(4.2 * len(machines), 4.2, question=QUESTION, setting="weak scaling, a panel for each machine")
    panels = figure.subplots(1, len(machines), sharey=True, squeeze=False)[0]
    for axes, machine in zip(panels, machines, strict=True):
        part = [point for point in points if point.machine == machine]
        for number, (name, style) in enumerate(CURVES.items()):
            shown = [(point.gpus, getattr(point, name)) for point in part if getattr(point, name) is not None]
            if shown:
                axes.plot(*zip(*shown, strict=True), style, color=PALETTE[number], label=name)
        published = [(point.gpus, point.published) for point in part if point.published is not None]
        axes.plot(*zip(*published, strict=True), "ko", label="published")
        number_axis(axes.xaxis, sorted({point.gpus for point in part}))
        axes.set(ylim=(0, 100), title=machine, xlabel="GPUs")
    panels[0].set_ylabel("share of peak [%]")
    legend_below(figure)
    write_figure(figure, path)
