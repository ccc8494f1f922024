"""The figure of a ranking: time over memory of the simulated entries, and the Pareto front; and its CSV."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quadrille.algorithms.figure_style import MUTED_COLOUR, PALETTE, legend_below, new_figure, scale_axis, styled
from quadrille.algorithms.tabular import comma_separated
from quadrille.experiments.output.pareto import pareto_front

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from quadrille.experiments.rank.ranking import Ranking
    from quadrille.experiments.rank.ranking_page import Columns

QUESTION = "Which configuration is the fastest, and which needs less memory?"
MOST_NAMED = 6
"""Most points of the Pareto front that have a name."""
NUMBER_OFFSET = (5, 4)
"""Distance of the number of a point from its mark [points]."""


@styled
def ranking_figure(answer: "Ranking[Any]") -> "Figure":
    """The figure of the simulated entries of a ranking; lower and further left is better.

    The number beside a mark is the place in the printed table. The legend has the names of the Pareto front.
    """
    entries = answer.simulated
    columns = _columns(answer)
    names = columns.entry_names(entries)
    amounts = [(entry.memory_bytes, entry.seconds) for entry in entries]
    front = sorted(pareto_front(amounts), key=lambda place: amounts[place])
    setting = f"{answer.model} on {answer.gpus:,} GPUs of {answer.machine}, predicted; {len(entries)} simulated entries"
    common = columns.common(entries)
    figure = new_figure(8, 5.4, question=QUESTION, setting=f"{setting}, all {common}" if common else setting)
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
    for place, amount in enumerate(amounts):
        axes.annotate(str(place + 1), amount, xytext=NUMBER_OFFSET, textcoords="offset points", fontsize=8)
    axes.margins(0.1)
    scale_axis(axes.xaxis, [memory for memory, _ in amounts], "B", from_zero=False, logarithmic=False)
    scale_axis(axes.yaxis, [seconds for _, seconds in amounts], "s", from_zero=False)
    axes.set(xlabel="memory of the fullest rank", ylabel="time of a step")
    named = {place + 1: names[place] for place in sorted(front[-MOST_NAMED:])}
    legend_below(figure, handles=_numbered(named), with_axes=True)
    return figure


def _columns(answer: "Ranking[Any]") -> "Columns[Any]":
    """The columns of the printed table of a ranking."""
    from quadrille.experiments.rank import grids_report, schemes_report

    is_of_schemes = isinstance(answer, schemes_report.SchemesAnswer)
    return schemes_report.COLUMNS if is_of_schemes else grids_report.COLUMNS


def _numbered(names: Mapping[int, str]) -> "list[Line2D]":
    """The entries of a legend that name points of the Pareto front by their numbers."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=PALETTE[0], linestyle="none", marker="D", label=f"{number}: {name}")
        for number, name in names.items()
    ]


def ranking_csv(answer: "Ranking[Any]") -> str:
    """The CSV of a ranking: a line for each simulated entry, the fastest first, with its place."""
    rows = answer.rows()
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ([place, *(row.get(column) for column in columns)] for place, row in enumerate(rows, 1))
    return comma_separated(["place", *columns], lines)
