"""The figure of a sweep: time over the first numeric key, with a line for each combination of the other keys."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quadrille.experiments.output.pictures import write_figure
from quadrille.experiments.sweep.sweep_report import short_keys
from quadrille.experiments.sweep.sweep_result import Sweep, SweepRow
from quadrille.experiments.sweep.varied_key import VariedKey

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000", "#999999")
"""Colours of the lines.  Source: Okabe, Ito, "Color universal design", 2008, in another order, without yellow."""
STYLES = ("-", "--", ":", "-.")
MOST_NAMED = 24
"""Largest number of lines that the legend names."""
LONG_LABEL = 30
"""Number of letters of a label above which the legend has two columns instead of four."""
LOGARITHMIC_FROM = 8.0
"""Ratio of the largest to the smallest number from which an axis is logarithmic."""

Line = tuple[str, list[float], list[float]]
"""Label, then x and seconds of the points that have an answer."""


def draw_sweep(sweep: Sweep, varied: Sequence[VariedKey], path: str) -> None:
    """Writes the figure of a sweep.

    Parameters
    ----------
    varied : varied keys; the first numeric key is the x axis, else the first key with its values in their order
    path : path of the figure
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axis = figure.subplots()
    x_key = next((key for key in varied if key.numbers is not None), varied[0])
    lines = [line for line in lines_of(sweep.points, x_key) if line[1]]
    for line_number, (label, x_values, seconds) in enumerate(lines):
        style = STYLES[line_number // len(COLOURS) % len(STYLES)]
        named = label if label and line_number < MOST_NAMED else None
        axis.plot(
            x_values, seconds, color=COLOURS[line_number % len(COLOURS)], linestyle=style, marker="o", label=named
        )
    _set_scales(
        axis, x_key, short_keys(sweep.varied)[x_key.key], [value for _, _, seconds in lines for value in seconds]
    )
    if any(label for label, _, _ in lines):
        legend_columns = min(len(lines), 2 if max(len(label) for label, _, _ in lines) > LONG_LABEL else 4)
        title = _unnamed_lines_text(len(lines))
        figure.legend(
            loc="outside lower center", ncols=legend_columns, fontsize=7, frameon=False, title=title, title_fontsize=7
        )
    axis.set_title(f"{len(sweep.points)} points, predicted", fontsize=9)
    axis.grid(alpha=0.3)
    write_figure(figure, path)


def lines_of(rows: Sequence[SweepRow], x_key: VariedKey) -> list[Line]:
    """A line for each combination of the other keys: its label, and x and time of its points that have an answer.

    >>> from quadrille.experiments.sweep.sweep_result import SweepAnswer
    >>> points = [{"gpus": n, "dtype": "float32"} for n in ("4", "2")]
    >>> rows = [SweepRow(point=one, answer=SweepAnswer(seconds=1 / int(one["gpus"]))) for one in points]
    >>> lines_of(rows, VariedKey("gpus", ("4", "2")))
    [('dtype=float32', [2.0, 4.0], [0.5, 0.25])]
    """
    numbers = x_key.numbers or tuple(map(float, range(len(x_key.values))))
    x_of_value = dict(zip(x_key.values, numbers, strict=True))
    lines: dict[str, list[tuple[float, float]]] = {}
    short = short_keys(rows[0].point)
    for row in rows:
        label = ", ".join(f"{short[key]}={value}" for key, value in row.point.items() if key != x_key.key)
        line = lines.setdefault(label, [])
        if row.answer.seconds is not None:
            line.append((x_of_value[row.point[x_key.key]], row.answer.seconds))
    return [(label, [x for x, _ in sorted(line)], [y for _, y in sorted(line)]) for label, line in lines.items()]


def _set_scales(axis: "Axes", x_key: VariedKey, name: str, seconds: Sequence[float]) -> None:
    numbers = x_key.numbers
    if numbers is None:
        axis.set_xticks(range(len(x_key.values)), x_key.values)
    elif min(numbers) > 0 and max(numbers) >= LOGARITHMIC_FROM * min(numbers):
        axis.set_xscale("log", base=2)
        axis.set_xticks(numbers, x_key.values)
        axis.minorticks_off()
    if seconds and min(seconds) > 0 and max(seconds) >= LOGARITHMIC_FROM * min(seconds):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.set_xlabel(name)
    axis.set_ylabel("time [s]")


def _unnamed_lines_text(lines: int) -> str | None:
    return f"{lines - MOST_NAMED} more lines are not named: --csv FILE has all" if lines > MOST_NAMED else None
