"""The figure of the study: predicted time / published time by message size, one panel for each machine."""

from collections import defaultdict
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import PALETTE, factor_lines, legend_below, new_figure, scale_axis, styled
from quadrille.experiments.output.pictures import write_figure

if TYPE_CHECKING:
    from quadrille.studies.published_collectives.report import JudgedCollective

COLUMNS = 3
COLOURS = {"judged": PALETTE[0], "calibration": PALETTE[3]}
FACTORS = (2.0,)
QUESTION = "How close are the predicted times of collectives to the published times?"


@styled
def draw(rows: "Sequence[JudgedCollective]", path: str) -> None:
    """Write the figure.

    Parameters
    ----------
    rows : rows of the study; those with the roles `judged` and `calibration` are drawn
    path : file of the figure
    """
    parts: dict[str, list[JudgedCollective]] = defaultdict(list)
    for row in rows:
        if row.role in COLOURS and row.relative_error is not None:
            parts[row.machine].append(row)
    lines = max(1, ceil(len(parts) / COLUMNS))
    figure = new_figure(4.2 * COLUMNS, 0.8 + 3.2 * lines, question=QUESTION, setting="a panel for each machine")
    for index, (machine, part) in enumerate(sorted(parts.items())):
        axes = figure.add_subplot(lines, COLUMNS, index + 1)
        for role, colour in COLOURS.items():
            role_rows = [row for row in part if row.role == role]
            sizes = [row.message_bytes or 1 << 33 for row in role_rows]
            axes.plot(sizes, [_ratio(row) for row in role_rows], ".", color=colour, label=role)
        factor_lines(axes, FACTORS)
        scale_axis(axes.xaxis, [row.message_bytes or 1 << 33 for row in part], "B")
        axes.set_yscale("log", base=2)
        axes.set_ylim(1 / 8, 8)
        axes.set_yticks([1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8], ["1/8", "1/4", "1/2", "1", "2", "4", "8"])
        axes.set(title=machine, xlabel="message", ylabel="predicted time / published")
    legend_below(figure)
    write_figure(figure, path)


def _ratio(row: "JudgedCollective") -> float:
    """Predicted time / published time, also for a bandwidth."""
    assert row.relative_error is not None, row.id
    ratio = 1 + row.relative_error
    return ratio if row.metric in ("time", "latency") else 1 / ratio
