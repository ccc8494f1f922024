"""The figure of a checked log: measured beside expected bus bandwidth by size, and their ratio with its limits."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import MUTED_COLOUR, PALETTE, legend_below, new_figure, scale_axis, styled
from quadrille.algorithms.schedule.short_names import hyphenated
from quadrille.experiments.check.checked_log import CheckedLog, CheckedRow
from quadrille.experiments.network.bus_bandwidth import bus_factor
from quadrille.experiments.output.pictures import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUESTION = "Are the measured collectives as fast as the machine should be?"
LEAST_SPAN = 2.0
"""The ratio's axis reaches at least from 1 / this number to this number."""


def draw_check(answer: CheckedLog, path: str) -> None:
    """Writes the figure of a checked log."""
    write_figure(check_figure(answer), path)


@styled
def check_figure(answer: CheckedLog) -> "Figure":
    """The figure of a checked log: lines are expected, marks are measured, one colour for each collective."""
    where = f"{answer.ranks:,} ranks on {answer.nodes:,} {'node' if answer.nodes == 1 else 'nodes'}"
    setting = f"{answer.program}, {where}, beside {answer.machine}"
    figure = new_figure(10, 4.6, question=QUESTION, setting=setting)
    rates, ratios = figure.subplots(1, 2)
    rows = answer.rows
    kinds = list(dict.fromkeys(row.kind for row in rows))
    for number, kind in enumerate(kinds):
        _draw_kind(
            rates, ratios, [row for row in rows if row.kind == kind], answer.ranks, PALETTE[number % len(PALETTE)]
        )
    _draw_limits(ratios, rows)
    sizes = [max(1, row.bytes) for row in rows]
    for axes in (rates, ratios):
        scale_axis(axes.xaxis, sizes, "B")
        axes.set_xlabel("size of the whole buffer")
    scale_axis(rates.yaxis, [amount for row in rows for amount in _amounts(row, answer.ranks)], "B/s")
    rates.set_ylabel("bus bandwidth")
    ratios.set_ylabel("measured / expected time; above 1 is slower")
    legend_below(figure)
    return figure


def _amounts(row: CheckedRow, ranks: int) -> tuple[float, float]:
    """The expected and the measured bus bandwidth [B/s]."""
    moved = bus_factor(row.kind, ranks) * row.bytes
    return moved / row.expected_seconds, moved / row.measured_seconds


def _draw_kind(rates: "Axes", ratios: "Axes", rows: Sequence[CheckedRow], ranks: int, colour: str) -> None:
    """Draws the rows of a collective on both axes."""
    name = hyphenated(rows[0].kind)
    sizes = [max(1, row.bytes) for row in rows]
    expected, measured = zip(*(_amounts(row, ranks) for row in rows), strict=True)
    rates.plot(sizes, expected, color=colour, linestyle="--", label=f"{name}, expected")
    rates.plot(sizes, measured, "o", color=colour, label=f"{name}, measured")
    ratios.plot(sizes, [row.ratio for row in rows], "o", color=colour)


def _draw_limits(axes: "Axes", rows: Sequence[CheckedRow]) -> None:
    """Draws the ratio 1 and the band within which a time is as expected."""
    within = dict(sorted((max(1, row.bytes), row.within) for row in rows))
    factors = list(within.values())
    low, high = [1 / factor for factor in factors], factors
    axes.fill_between(list(within), low, high, color="#dddddd", zorder=0, step="post", label="as expected")
    axes.axhline(1, color=MUTED_COLOUR, linewidth=1)
    most = max(LEAST_SPAN, *(max(row.ratio, 1 / row.ratio) for row in rows), *factors) * 1.1
    scale_axis(axes.yaxis, [1 / most, most], logarithmic=True)
