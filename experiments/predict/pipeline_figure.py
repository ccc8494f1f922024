"""The figure of a pipeline: a row for each stage, a bar for each pass in time, and the bubbles between them."""

from typing import TYPE_CHECKING

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.figure_style import PALETTE, legend_below, new_figure, styled
from quadrille.algorithms.training.pipeline import Stages
from quadrille.experiments.output.pictures import write_figure
from quadrille.experiments.predict.pipeline_grid import grid_slots, idle_share, pipeline_title, slots_length
from quadrille.experiments.predict.pipeline_slots import Slot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUESTION = "When does each stage of the pipeline work, and when is it idle?"
PASSES = {"F": "forward (F)", "B": "backward (B)", "W": "gradients of weights (W)"}
COLOURS = dict(zip(PASSES, PALETTE, strict=False))
BUBBLE_COLOUR = "#dddddd"
WIDEST = 24.0
"""Largest width of the figure [inches]."""
SLOT_WIDTH = 0.22
"""Width of a slot in which the number of a microbatch can be read [inches]."""
MOST_PASSES = 20_000
"""Most passes of a figure."""
LIGHTER = 0.45
"""Opacity of the last chunk of a stage; the first is opaque."""


def draw_pipeline(stages: Stages, path: str, *, setting: str = "", smaller_last: bool = False) -> None:
    """Writes the figure of a pipeline.

    Raises
    ------
    InputError : more than `MOST_PASSES` passes, or a path that cannot be written
    """
    passes = stages.count * stages.chunks * stages.microbatches * (3 if stages.splits else 2)
    if passes > MOST_PASSES:
        words = f"at most {MOST_PASSES:,} are drawn, and a smaller --batch shows as much"
        raise InputError(f"--plot: the pipeline has {passes:,} passes; {words}")
    write_figure(pipeline_figure(stages, setting=setting, smaller_last=smaller_last), path)


@styled
def pipeline_figure(stages: Stages, *, setting: str = "", smaller_last: bool = False) -> "Figure":
    """The figure of a pipeline, stages down and time across; grey is a bubble.

    Parameters
    ----------
    stages : stages, chunks and microbatches; passes take as long as they have layers, and messages take no time
    setting : workload, the last line of the title
    smaller_last : whether the last microbatch is smaller than the others; its passes are drawn as long as the others
    """
    slots = grid_slots(stages)
    length = slots_length(slots)
    width = min(WIDEST, max(8.0, 1.2 + SLOT_WIDTH * length))
    title = f"{pipeline_title(stages, smaller_last=smaller_last)}; messages take no time"
    lines = "; ".join(text for text in (title, setting) if text)
    figure = new_figure(width, 1.9 + 0.34 * stages.count, question=QUESTION, setting=lines)
    axes = figure.subplots()
    idle = f"bubble, {100 * idle_share(stages, slots):.3g} % of the time"
    axes.barh(range(stages.count), [length] * stages.count, height=0.8, color=BUBBLE_COLOUR, label=idle, zorder=1)
    for kind, name in PASSES.items():
        _draw_passes(axes, stages, [slot for slot in slots if slot.kind == kind], name)
    if (width - 1.2) / length >= 0.7 * SLOT_WIDTH:
        _name_passes(axes, slots)
    axes.set(xlim=(0, length), xlabel="time [forward passes]", ylabel="stage")
    axes.set_yticks(range(stages.count))
    axes.invert_yaxis()
    axes.grid(visible=False)
    legend_below(figure)
    return figure


def _draw_passes(axes: "Axes", stages: Stages, slots: list[Slot], name: str) -> None:
    """Draws the passes of a kind; passes of later chunks of layers are lighter."""
    for chunk in range(stages.chunks):
        of_chunk = [slot for slot in slots if slot.chunk == chunk]
        if not of_chunk:
            continue
        opacity = 1 - (1 - LIGHTER) * chunk / max(1, stages.chunks - 1)
        axes.barh(
            [slot.stage for slot in of_chunk],
            [slot.end - slot.start for slot in of_chunk],
            left=[slot.start for slot in of_chunk],
            height=0.8,
            color=(*_rgb(COLOURS[of_chunk[0].kind]), opacity),
            edgecolor="white",
            linewidth=0.6,
            label=f"{name}, chunk {chunk}" if stages.chunks > 1 else name,
            zorder=2,
        )


def _rgb(colour: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)


def _name_passes(axes: "Axes", slots: list[Slot]) -> None:
    """Writes the number of its microbatch into each pass."""
    for slot in slots:
        dark = slot.kind != "B" and not slot.chunk
        axes.text(
            (slot.start + slot.end) / 2,
            slot.stage,
            str(slot.microbatch),
            ha="center",
            va="center",
            fontsize=7,
            color="white" if dark else "black",
            zorder=3,
        )
