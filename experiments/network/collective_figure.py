"""The figure of a collective: its time and its bus bandwidth by size, on the machine and groups that were asked for."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import (
    MUTED_COLOUR,
    amount_text,
    legend_below,
    line_marks,
    new_figure,
    scale_axis,
    styled,
)
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.network.collective import CollectivePrediction, predict_collective
from quadrille.experiments.output.pictures import write_figure
from quadrille.experiments.output.progress import StepCount, progress_line
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUESTION = "How long does the collective take, by size?"
STEP = 4
"""Ratio of neighbouring sizes."""
SMALLER, LARGER = 6, 3
"""Numbers of sizes below and above the size that was asked for."""


def draw_sizes(asked: CollectivePrediction, machine: Machine, net: Network, path: str) -> None:
    """Predicts the collective of smaller and larger sizes, and writes the figure.

    Parameters
    ----------
    asked : prediction of the size that was asked for, which the figure marks
    """
    question, item = asked.question, asked.question.item_bytes
    sizes = [max(item, round(question.bytes * STEP**power / item) * item) for power in range(-SMALLER, LARGER + 1)]
    step_count = StepCount("predicted", "sizes", len(set(sizes) - {question.bytes}))
    predictions = [asked]
    with progress_line(step_count.words, share=step_count.share):
        for size in dict.fromkeys(sizes):
            if size != question.bytes:
                predictions.append(predict_collective(replace(question, bytes=size), machine, net=net))
                step_count.done += 1
    predictions.sort(key=lambda prediction: prediction.question.bytes)
    write_figure(sizes_figure(predictions, asked), path)


@styled
def sizes_figure(predictions: Sequence[CollectivePrediction], asked: CollectivePrediction) -> "Figure":
    """The figure of predictions of one collective, by size; marks tell the algorithms apart.

    Parameters
    ----------
    predictions : predictions by size
    asked : prediction that the figure marks
    """
    figure = new_figure(10, 4.6, question=QUESTION, setting=_setting(asked))
    panels = figure.subplots(1, 2)
    sizes = [prediction.question.bytes for prediction in predictions]
    rates = [prediction.bus_bandwidth or 0.0 for prediction in predictions]
    amounts = ([prediction.seconds for prediction in predictions], rates)
    names = [prediction.algorithm for prediction in predictions]
    for axes, values, unit, label in zip(panels, amounts, ("s", "B/s"), ("time", "bus bandwidth"), strict=True):
        axes.plot(sizes, values, color=MUTED_COLOUR, linewidth=1)
        for number, name in enumerate(dict.fromkeys(names)):
            points = [point for point, of in zip(zip(sizes, values, strict=True), names, strict=True) if of == name]
            axes.plot(*zip(*points, strict=True), **line_marks(number, joined=False), label=name)
        place = predictions.index(asked)
        axes.plot(
            sizes[place],
            values[place],
            "o",
            markersize=13,
            markerfacecolor="none",
            markeredgecolor="black",
            label=f"asked for: {format_bytes(asked.question.bytes)}, {amount_text(asked.seconds, 's')}",
        )
        scale_axis(axes.xaxis, sizes, "B")
        scale_axis(axes.yaxis, values, unit)
        axes.set(xlabel="size of the whole buffer", ylabel=f"{label}, predicted")
    legend_below(figure)
    return figure


def _setting(prediction: CollectivePrediction) -> str:
    question = prediction.question
    groups = question.gpus // question.group if question.concurrent == "all" else 1
    several = f"{groups:,} groups of {question.group:,}" if groups > 1 else f"a group of {question.group:,}"
    return (
        f"{question.kind.replace('_', '-')} by {several} among {question.gpus:,} GPUs of {prediction.machine}, "
        f"routing {prediction.routing}"
    )
