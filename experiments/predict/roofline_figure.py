"""The figure of a roofline: the rate of each product and function over its arithmetic intensity, below both roofs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import (
    MUTED_COLOUR,
    PALETTE,
    amount_text,
    legend_below,
    new_figure,
    scale_axis,
    styled,
)
from quadrille.experiments.output.pictures import write_figure
from quadrille.experiments.predict.roofline import Roofline, RooflineOp

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUESTION = "Is each op limited by arithmetic or by memory?"
KINDS = {"product": ("o", PALETTE[0]), "attention": ("s", PALETTE[3]), "function": ("^", PALETTE[2])}
"""Mark and colour of each kind of op."""
MOST_NAMED = 6
"""Ops that the figure names, those that take longest."""
LARGEST, SMALLEST = 220.0, 12.0
"""Areas of the marks of the op that takes longest, and of those that take least [points^2]."""
NEAR = 0.25
"""Relative distance of two ops below which the first has the numbers of both."""


def draw_roofline(roofline: Roofline, setting: str, path: str) -> None:
    """Writes the figure of a roofline."""
    write_figure(roofline_figure(roofline, setting), path)


@styled
def roofline_figure(roofline: Roofline, setting: str = "") -> "Figure":
    """The roofline of a device with the ops below it; a larger mark takes more time.

    Parameters
    ----------
    setting : workload and machine, the last line of the title
    """
    ops, peak, ridge = roofline.ops, roofline.peak, roofline.ridge
    figure = new_figure(8, 5.6, question=QUESTION, setting=setting)
    axes = figure.subplots()
    low, high = roofline.intensities
    corners = [low, ridge, high]
    axes.plot(corners, [roofline.roof(x) for x in corners], color="black", linewidth=1.5, label="roof")
    axes.plot([ridge, ridge], [min(op.rate for op in ops) / 3, peak], color=MUTED_COLOUR, linestyle=":", linewidth=1)
    for kind, (mark, colour) in KINDS.items():
        of_kind = [op for op in ops if op.kind == kind]
        areas = [max(SMALLEST, LARGEST * op.seconds / ops[0].seconds) for op in of_kind]
        if of_kind:
            points = [op.intensity for op in of_kind], [op.rate for op in of_kind]
            axes.scatter(*points, s=areas, marker=mark, color=colour, alpha=0.8, zorder=3, label=kind)
    rates = [peak, roofline.roof(low), *(op.rate for op in ops)]
    scale_axis(axes.xaxis, [low, high], logarithmic=True)
    scale_axis(axes.yaxis, [min(rates), max(rates) * 1.6], "FLOP/s", logarithmic=True)
    axes.text(high, peak, f"peak {amount_text(peak, 'FLOP/s')} ", ha="right", va="bottom", fontsize=8)
    middle, bandwidth = (low * ridge) ** 0.5, amount_text(roofline.memory_bandwidth, "B/s")
    axes.text(middle, roofline.roof(middle), f"memory {bandwidth} ", ha="right", va="bottom", fontsize=8)
    _name_ops(axes, ops)
    axes.set(xlabel="arithmetic intensity [FLOP/B], operands and results counted once", ylabel="rate of a rank")
    legend_below(figure, title="a larger mark takes more of the time")
    return figure


def _name_ops(axes: "Axes", ops: Sequence[RooflineOp]) -> None:
    """Numbers the longest ops, and lists their names, shares of the time and rates below the roof."""
    total = sum(op.seconds for op in ops)
    lines = []
    numbers: dict[RooflineOp, list[int]] = {}
    for number, op in enumerate(ops[:MOST_NAMED], 1):
        numbers.setdefault(next((longer for longer in numbers if _is_near(op, longer)), op), []).append(number)
        lines.append(f"{number}  {op.name}: {100 * op.seconds / total:.3g} %, {amount_text(op.rate, 'FLOP/s')}")
    for op, near in numbers.items():
        axes.annotate(ranges_text(near), (op.intensity, op.rate), ha="center", va="center", fontsize=6, zorder=4)
    axes.text(
        0.99,
        0.02,
        "\n".join(["longest ops, share of the computing, rate", *lines]),
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        multialignment="left",
        fontsize=7,
        bbox={"facecolor": "white", "edgecolor": "#cccccc", "alpha": 0.85},
        zorder=5,
    )


def ranges_text(numbers: Sequence[int]) -> str:
    """Rising numbers as ranges.

    >>> ranges_text([1, 2, 3, 5])
    '1-3,5'
    """
    firsts = [number for number in numbers if number - 1 not in numbers]
    lasts = [number for number in numbers if number + 1 not in numbers]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))


def _is_near(op: RooflineOp, longer: RooflineOp) -> bool:
    """Whether the numbers of two ops would lie on each other."""
    return max(abs(op.intensity / longer.intensity - 1), abs(op.rate / longer.rate - 1)) < NEAR
