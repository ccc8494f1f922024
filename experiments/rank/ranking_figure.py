"""The figure of a ranking: time over memory of the simulated entries, and the Pareto front; and its CSV."""

from typing import TYPE_CHECKING, Any

from quadrille.algorithms.figure_style import MUTED_COLOUR, PALETTE, legend_below, new_figure, scale_axis, styled
from quadrille.algorithms.schedule.grid import lengths_text
from quadrille.algorithms.tabular import comma_separated
from quadrille.experiments.output.pareto import pareto_front

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from quadrille.experiments.rank.ranking import Ranking, SimulatedEntry

QUESTION = "Which configuration is the fastest, and which needs less memory?"
MOST_NAMED = 6
"""Most points of the Pareto front that have a name."""


@styled
def ranking_figure(answer: "Ranking[Any]") -> "Figure":
    """The figure of the simulated entries of a ranking; lower and further left is better."""
    entries = answer.simulated
    amounts = [(entry.memory_bytes, entry.seconds) for entry in entries]
    front = sorted(pareto_front(amounts), key=lambda place: amounts[place])
    setting = f"{answer.model} on {answer.gpus:,} GPUs of {answer.machine}, predicted; {len(entries)} simulated entries"
    figure = new_figure(8, 5.4, question=QUESTION, setting=setting)
    axes = figure.subplots()
    others = [amounts[place] for place in range(len(entries)) if place not in front]
    if others:
        axes.plot(*zip(*others, strict=True), "o", color=MUTED_COLOUR, label="another is faster and needs less memory")
    axes.plot(
        *zip(*(amounts[place] for place in front), strict=True),
        marker="D",
        color=PALETTE[0],
        linestyle="--",
        drawstyle="steps-post",
        label="Pareto front",
    )
    for place in front[-MOST_NAMED:]:
        axes.annotate(entry_name(entries[place]), amounts[place], xytext=(5, 5), textcoords="offset points", fontsize=7)
    axes.margins(0.2)
    scale_axis(axes.xaxis, [memory for memory, _ in amounts], "B", from_zero=False, logarithmic=False)
    scale_axis(axes.yaxis, [seconds for _, seconds in amounts], "s", from_zero=False)
    axes.set(xlabel="memory of the fullest rank", ylabel="time of a step")
    legend_below(figure)
    return figure


def entry_name(entry: "SimulatedEntry") -> str:
    """The grid of an entry, and the options that are not usual, as text."""
    options = [
        f"{name.replace('_', ' ')} {value}"
        for name in ("scheme", "micro_batch", "zero", "recompute")
        if (value := getattr(entry, name, None)) not in (None, "4d")
    ]
    return ", ".join([lengths_text(entry.grid), *options])


def ranking_csv(answer: "Ranking[Any]") -> str:
    """The CSV of a ranking: a line for each simulated entry, the fastest first, with its place."""
    rows = answer.rows()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ([place, *(row.get(column) for column in columns)] for place, row in enumerate(rows, 1))
    return comma_separated(["place", *columns], lines)
