"""The error plot of a study: predicted / published time of each row, with lines of no error, of 10 % and of 30 %."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import MUTED_COLOUR, legend_below, line_marks, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis
    from matplotlib.figure import Figure

SHARES = {0.1: "--", 0.3: ":"}
"""Errors that have a line above and below no error, with the style of the line."""
TICKS = (-0.6, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5)
"""Errors that the axis names."""
FEW_TICKS = (-0.95, -0.9, -0.8, -0.6, -0.3, 0.0, 0.5, 1.0, 3.0, 9.0)
"""Errors that an axis names that is longer than a factor of `LONG`."""
LONG = 4.0
LEAST_SPAN = 1.4
"""Least ratio of the ends of the axis of errors to no error, so that the lines of all `SHARES` are on it."""
SIDE_BY_SIDE = 0.7
"""Width in which dots with the same place stand side by side [octaves]."""


@dataclass(frozen=True, slots=True)
class ErrorDot:
    """A row of an error plot.

    Parameters
    ----------
    group : name of the row's source, which has a colour and a mark
    place : place on the horizontal axis, above 0
    ratio : predicted / published time, or memory
    """

    group: str
    place: float
    ratio: float


@styled
def error_figure(
    dots: Sequence[ErrorDot],
    *,
    question: str,
    setting: str,
    label: str,
    scale: "Callable[[XAxis, Sequence[float]], None]",
    amount: str = "time",
) -> "Figure":
    """The figure of the errors, with a dot for each row.

    Parameters
    ----------
    question, setting : title
    label : label of the horizontal axis
    scale : function that scales the horizontal axis for the places of the dots
    amount : name of the amounts that are predicted and published
    """
    figure = new_figure(10, 5.8, question=question, setting=setting)
    axes = figure.subplots()
    for number, group in enumerate(dict.fromkeys(dot.group for dot in dots)):
        members = [dot for dot in dots if dot.group == group]
        name = f"{group}, {len(members)} row{'s' if len(members) > 1 else ''}"
        marks = line_marks(number, joined=False) | {"markersize": 4.5, "alpha": 0.75}
        axes.plot([dot.place for dot in members], [dot.ratio for dot in members], label=name, **marks)
    draw_error_axis(axes, [dot.ratio for dot in dots], f"predicted / published {amount} - 1")
    scale(axes.xaxis, [dot.place for dot in dots])
    axes.set_xlabel(label)
    legend_below(figure)
    return figure


def draw_error_axis(axes: "Axes", ratios: Sequence[float], label: str) -> None:
    """Draws the lines of no error and of `SHARES`, and scales the vertical axis: logarithmic, with errors as percents.

    Parameters
    ----------
    ratios : predicted / published amounts that the axis shows
    label : label of the axis; empty for none
    """
    from matplotlib.ticker import NullLocator

    axes.axhline(1, color="black", linewidth=0.9, label="no error")
    for share, style in SHARES.items():
        axes.axhline(1 + share, color=MUTED_COLOUR, linewidth=1, linestyle=style, label=f"{100 * share:.0f} % off")
        axes.axhline(1 - share, color=MUTED_COLOUR, linewidth=1, linestyle=style)
    low, high = min([1 / LEAST_SPAN, *ratios]) / 1.05, max([LEAST_SPAN, *ratios]) * 1.05
    axes.set_yscale("log", base=2)
    axes.set_ylim(low, high)
    shown = [share for share in (FEW_TICKS if high > LONG * low else TICKS) if low <= 1 + share <= high]
    axes.set_yticks([1 + share for share in shown], [f"{100 * share:+.0f} %" if share else "0" for share in shown])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel(label)


def side_by_side(dots: Sequence[ErrorDot]) -> list[ErrorDot]:
    """The dots with those of the same place spread around it, in their order, so that each is seen.

    >>> [round(dot.place, 2) for dot in side_by_side([ErrorDot("a", 8, 1), ErrorDot("a", 8, 1), ErrorDot("a", 16, 1)])]
    [6.28, 10.2, 16.0]
    """
    spread = []
    for place in dict.fromkeys(dot.place for dot in dots):
        members = [dot for dot in dots if dot.place == place]
        for number, dot in enumerate(members):
            shift = SIDE_BY_SIDE * (number / (len(members) - 1) - 0.5) if len(members) > 1 else 0.0
            spread.append(ErrorDot(dot.group, place * 2**shift, dot.ratio))
    return spread


def time_ratio(relative_error: float, metric: str, times: Sequence[str]) -> float:
    """Predicted / published time from the error of a time, or of a rate, whose ratio is the reciprocal.

    >>> time_ratio(-0.2, "time", ("time",)), time_ratio(-0.2, "busbw", ("time",))
    (0.8, 1.25)

    Parameters
    ----------
    relative_error : predicted / published value - 1
    metric : metric of the value
    times : metrics that are times, or grow with it
    """
    return 1 + relative_error if metric in times else 1 / (1 + relative_error)
