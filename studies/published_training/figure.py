"""The figure of the weak scaling: share of peak by number of GPUs, published and predicted, one panel a machine."""

from collections.abc import Sequence

from quadrille.experiments.output.pictures import write_figure
from quadrille.studies.published_training.scaling_point import ScalingPoint

CURVES = {"untapered": ":", "equal": "-", "differing": "--", "measured": "-."}
"""Predictions that are drawn, with their line styles."""


def draw(points: Sequence[ScalingPoint], path: str) -> None:
    """Write the figure.

    Parameters
    ----------
    points : points of the weak scaling
    path : file of the figure
    """
    from matplotlib.figure import Figure

    machines = list(dict.fromkeys(point.machine for point in points))
    figure = Figure(figsize=(4.2 * len(machines), 3.6), layout="constrained")
    panels = figure.subplots(1, len(machines), sharey=True, squeeze=False)[0]
    for axes, machine in zip(panels, machines, strict=True):
        part = [point for point in points if point.machine == machine]
        for name, style in CURVES.items():
            shown = [(point.gpus, getattr(point, name)) for point in part if getattr(point, name) is not None]
            if shown:
                axes.plot(*zip(*shown, strict=True), style, label=name)
        published = [(point.gpus, point.published) for point in part if point.published is not None]
        axes.plot(*zip(*published, strict=True), "ko", label="published")
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 100)
        axes.set_title(machine, fontsize="small")
        axes.set_xlabel("GPUs", fontsize="small")
    panels[0].set_ylabel("share of peak [%]", fontsize="small")
    panels[0].legend(fontsize="x-small")
    write_figure(figure, path)
