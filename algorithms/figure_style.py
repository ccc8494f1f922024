"""The style of all figures: colours, type sizes, titles, legends, and axes whose numbers can be read.

A figure has the question as its title, and the units and the machine below it.  Its legend stands below the axes, so
that it hides no data.  matplotlib is imported only when a figure is drawn, and only its figure class, which needs no
window system and shares no state between figures.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from math import ceil, floor, log2, log10
from textwrap import fill
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from quadrille.algorithms.figure_settings import SETTINGS
from quadrille.algorithms.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

    from quadrille.algorithms.shown_figure import ShownFigure

Arguments = ParamSpec("Arguments")
Drawn = TypeVar("Drawn")

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#999999", "#000000")
"""Colours that colour-blind readers tell apart; the style sheet of reports has the first six, too.

Source: Okabe, Ito, "Color universal design", 2008, in another order, grey in place of yellow.
"""
PREDICTED_COLOUR, MEASURED_COLOUR = PALETTE[0], PALETTE[1]
MUTED_COLOUR = "#999999"
"""Colour of lines that data are compared with, such as ideal scaling."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINE_STYLES = ("-", "--", ":", "-.")
MARKER_SIZES = (8, 6.5, 5, 4)
"""Sizes of the markers of the first lines; the last size is that of all others.  Lines on each other stay visible."""
CAUSES = {
    "compute": 1,
    "bandwidth": 2,
    "transfer": 2,
    "latency": 6,
    "contention": 4,
    "waiting": 5,
    "other": 7,
    "before the first op": 3,
    "between ops": 4,
    "after the last op": 8,
}
"""Number of the colour of each cause of time, from 1, in figures and in reports."""
CAUSE_COLOURS = {cause: PALETTE[number - 1] for cause, number in CAUSES.items()}
"""Colour of each cause of time."""
LETTERS_PER_INCH = 12
"""Letters of a title that fit into an inch."""
LOGARITHMIC_FROM = 8.0
"""Ratio of the largest to the smallest number from which an axis is logarithmic."""
MOST_TICKS = 12
"""Most values of an axis that are all printed."""
FEWEST_TICKS = 3
TICK_STEPS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))
"""Sets of leading digits of the ticks of a logarithmic axis, the coarsest first."""
BYTE_EXPONENT_STEPS = (1, 2, 4, 5, 10, 20)
"""Distances of the exponents of the ticks of a logarithmic axis of bytes."""
MOST_BYTE_TICKS = 7
PREFIXES = {-9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}


def styled(draw: Callable[Arguments, Drawn]) -> Callable[Arguments, Drawn]:
    """A function that draws, or writes a figure, under the settings of the style."""

    @wraps(draw)
    def draw_in_style(*arguments: Arguments.args, **named: Arguments.kwargs) -> Drawn:
        from matplotlib import rc_context

        with rc_context(SETTINGS):
            return draw(*arguments, **named)

    return draw_in_style


def new_figure(width: float, height: float, *, question: str = "", setting: str = "") -> "ShownFigure":
    """An empty figure with its title, which a notebook shows.

    Parameters
    ----------
    width, height : size [inches]
    question : question that the figure answers; the first line of the title
    setting : workload, machine and units; the further lines of the title
    """
    from quadrille.algorithms.shown_figure import ShownFigure

    figure = ShownFigure(figsize=(width, height), layout="constrained")
    lines = [fill(text, int(width * LETTERS_PER_INCH), break_on_hyphens=False) for text in (question, setting) if text]
    if lines:
        figure.suptitle("\n".join(lines))
    return figure


def line_marks(number: int, *, joined: bool = True) -> dict[str, Any]:
    """The colour, style and marker of a line of a figure.

    Parameters
    ----------
    number : index of the line
    joined : whether its points are joined
    """
    return {
        "color": PALETTE[number % len(PALETTE)],
        "linestyle": LINE_STYLES[number // len(PALETTE) % len(LINE_STYLES)] if joined else "none",
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": MARKER_SIZES[min(number, len(MARKER_SIZES) - 1)],
    }


def legend_below(
    figure: "Figure",
    *,
    title: str = "",
    columns: int | None = None,
    handles: Sequence[Any] = (),
    with_axes: bool = False,
) -> None:
    """Draws one legend below the axes with each label of a figure once; nothing if no mark has a label.

    Parameters
    ----------
    columns : most columns; None for as many as the width allows
    handles : marks of the legend; by default all marks of the axes that have a label
    with_axes : whether the legend has the marks of the axes beside `handles`
    """
    marks = {handle.get_label(): handle for handle in handles}
    if with_axes or not handles:
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                marks.setdefault(label, handle)
    if not marks:
        return
    letters = max(map(len, marks)) + 6
    fitting = max(1, int(figure.get_figwidth() * LETTERS_PER_INCH / letters))
    figure.legend(
        marks.values(),
        marks.keys(),
        loc="outside lower center",
        ncols=min(len(marks), fitting, columns or fitting),
        title=title or None,
        title_fontsize=8,
    )


def factor_lines(axes: "Axes", factors: Sequence[float]) -> None:
    """Draws the lines of no error, and of a time that is wrong by each factor, on axes of predicted / measured.

    >>> figure = new_figure(4, 3)
    >>> factor_lines(figure.subplots(), [2.0])
    >>> [line.get_ydata()[0] for line in figure.axes[0].lines]
    [1, 2.0, 0.5]
    """
    axes.axhline(1, color=MUTED_COLOUR, linewidth=1, label="no error")
    for factor in factors:
        axes.axhline(factor, color=MUTED_COLOUR, linewidth=1, linestyle=":", label=f"a factor of {factor:g}")
        axes.axhline(1 / factor, color=MUTED_COLOUR, linewidth=1, linestyle=":")


def scale_axis(
    axis: "XAxis | YAxis",
    values: Sequence[float],
    unit: str = "",
    *,
    from_zero: bool = True,
    logarithmic: bool | None = None,
) -> None:
    """Scales an axis for these values: logarithmic if they span a factor of `LOGARITHMIC_FROM`, with readable ticks.

    Parameters
    ----------
    axis : x or y axis of some axes
    values : values that the axis shows
    unit : SI unit, whose prefixes the ticks have; `B` for bytes; empty for numbers
    from_zero : whether a linear axis begins at 0
    logarithmic : whether the axis is logarithmic; None to decide by the values
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, MultipleLocator, NullLocator

    if is_logarithmic(values) if logarithmic is None else logarithmic:
        low, high = min(values) / 1.2, max(values) * 1.2
        _set_log_scale(axis)
        axis.axes.set(**{f"{axis.axis_name}lim": (low, high)})
        axis.set_major_locator(FixedLocator(byte_ticks(low, high) if unit == "B" else log_ticks(low, high)))
        axis.set_minor_locator(NullLocator())
    elif values and from_zero and min(values) >= 0:
        axis.axes.set(**{f"{axis.axis_name}lim": (0, 1.08 * max(*values, 1e-300))})
    if axis.axis_name == "x" and axis.get_scale() != "log":
        axis.set_major_locator(MaxNLocator(FEWEST_TICKS + 3))
    if unit == "B" and values and axis.get_scale() != "log":
        axis.set_major_locator(MultipleLocator(byte_step(axis.get_view_interval())))
    axis.set_major_formatter(FuncFormatter(lambda value, _: amount_text(value, unit)))


def number_axis(axis: "XAxis | YAxis", numbers: Sequence[float], labels: Sequence[str] = ()) -> None:
    """Scales an axis of a few chosen numbers, such as counts of GPUs: its ticks are these numbers.

    The axis is logarithmic to base 2 if the numbers span a factor of `LOGARITHMIC_FROM`.

    Parameters
    ----------
    labels : text of each number; by default the number with commas
    """
    from matplotlib.ticker import NullLocator

    texts = labels or [f"{number:,.12g}" for number in numbers]
    text_of = dict(sorted(zip(numbers, texts, strict=True)))
    if is_logarithmic(numbers):
        _set_log_scale(axis, base=2)
    shown = list(text_of)[:: ceil(len(text_of) / MOST_TICKS)] if text_of else []
    axis.set_ticks(shown, labels=[text_of[number] for number in shown])
    axis.set_minor_locator(NullLocator())


def is_logarithmic(values: Sequence[float]) -> bool:
    """Whether an axis of these values is logarithmic.

    >>> is_logarithmic([1, 8]), is_logarithmic([1, 7]), is_logarithmic([0, 8])
    (True, False, False)
    """
    return bool(values) and min(values) > 0 and max(values) >= LOGARITHMIC_FROM * min(values)


def log_ticks(low: float, high: float) -> list[float]:
    """The ticks of a logarithmic axis: the coarsest set with at least `FEWEST_TICKS` ticks between its ends.

    >>> log_ticks(0.9, 150), log_ticks(0.8, 8), log_ticks(2.1, 8)
    ([1.0, 10.0, 100.0], [1.0, 2.0, 5.0], [3.0, 4.0, 5.0, 7.0])

    Parameters
    ----------
    low, high : ends of the axis, above 0
    """
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    ticks: list[float] = []
    for digits in TICK_STEPS:
        ticks = [
            tick for decade in decades for digit in digits if low <= (tick := float(f"{digit:g}e{decade}")) <= high
        ]
        if len(ticks) >= FEWEST_TICKS:
            break
    return ticks[:: ceil(len(ticks) / MOST_TICKS)] if ticks else []


def byte_ticks(low: float, high: float) -> list[float]:
    """The ticks of a logarithmic axis of bytes: powers of 2 whose exponents are a multiple of a step.

    >>> byte_ticks(1000, 2**21), byte_ticks(3, 20)
    ([1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0], [4.0, 8.0, 16.0])

    Parameters
    ----------
    low, high : ends of the axis, above 0 [B]
    """
    ticks: list[float] = []
    for step in BYTE_EXPONENT_STEPS:
        exponents = range(step * ceil(log2(low) / step), floor(log2(high)) + 1, step)
        ticks = [2.0**exponent for exponent in exponents]
        if len(ticks) <= MOST_BYTE_TICKS:
            break
    return ticks


def byte_step(ends: Sequence[float]) -> float:
    """The distance of ticks on an axis of bytes: 1, 2 or 5 times a power of ten of a binary unit, at most 8 steps.

    >>> byte_step((0, 4 * 2**30)) / 2**30, byte_step((0, 700 * 2**20)) / 2**20
    (0.5, 100.0)

    Parameters
    ----------
    ends : ends of the axis [B]
    """
    length = max(abs(ends[1] - ends[0]), 8.0)
    unit = 1024.0 ** floor(log10(max(map(abs, ends))) / log10(1024))
    power = 10.0 ** floor(log10(length / unit / 8))
    return next(step for factor in (1, 2, 5, 10) if (step := factor * power * unit) >= length / 8)


def amount_text(value: float, unit: str = "") -> str:
    """An amount as text, with a prefix for its unit.

    >>> amount_text(0.0025, "s"), amount_text(1 << 20, "B"), amount_text(1500), amount_text(3e9, "B/s")
    ('2.5 ms', '1 MiB', '1,500', '3 GB/s')

    Parameters
    ----------
    unit : SI unit; `B` for bytes; empty for numbers
    """
    if unit == "B":
        return format_bytes(round(value))
    if not unit or unit == "%":
        return f"{value:,.4g}" + (f" {unit}" if unit else "") if abs(value) < 1e4 else f"{value:,.0f}"
    power = 3 * floor(log10(abs(value)) / 3 + 1e-9) if value else 0
    power = min(max(power, min(PREFIXES)), max(PREFIXES))
    return f"{value / 10.0**power:.4g} {PREFIXES[power]}{unit}" if value else f"0 {unit}"


def _set_log_scale(axis: "XAxis | YAxis", base: float = 10) -> None:
    axes: Axes = axis.axes
    if axis.axis_name == "x":
        axes.set_xscale("log", base=base)
    else:
        axes.set_yscale("log", base=base)
