"""The picture of a sweep: time over the first numeric key, a line for each combination of the others."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quadrille.experiments.output.pictures import write_figure
from quadrille.experiments.sweep.outcomes import Sweep, SweepRow
from quadrille.experiments.sweep.report import short_keys
from quadrille.experiments.sweep.varied import Varied

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000", "#999999")
"""Source: Okabe, Ito, "Color universal design", 2008, in another order, yellow left out."""
STYLES = ("-", "--", ":", "-.")
MOST_NAMED = 24
"""Lines that the legend names."""
LONG = 30
"""Letters of a label from which on two stand side by side, else four."""
WIDE = 8.0
"""Numbers whose largest is so many times their smallest stand on a logarithmic scale."""

Line = tuple[str, list[float], list[float]]
"""Label, then x and seconds of the points that have an answer."""


def draw(sweep: Sweep, varied: Sequence[Varied], path: str) -> None:
    """Writes the figure of seconds over the first numeric key; words stand in their order where none is numeric."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    axis = figure.subplots()
    across = next((key for key in varied if key.numbers is not None), varied[0])
    lines = [line for line in lines_of(sweep.points, across) if line[1]]
    for place, (label, places, seconds) in enumerate(lines):
        style = STYLES[place // len(COLOURS) % len(STYLES)]
        named = label if label and place < MOST_NAMED else None
        axis.plot(places, seconds, color=COLOURS[place % len(COLOURS)], linestyle=style, marker="o", label=named)
    _scale(axis, across, short_keys(sweep.varied)[across.key], [value for _, _, seconds in lines for value in seconds])
    if any(label for label, _, _ in lines):
        beside = min(len(lines), 2 if max(len(label) for label, _, _ in lines) > LONG else 4)
        title = _more(len(lines))
        figure.legend(
            loc="outside lower center", ncols=beside, fontsize=7, frameon=False, title=title, title_fontsize=7
        )
    axis.set_title(f"{len(sweep.points)} points, predicted", fontsize=9)
    axis.grid(alpha=0.3)
    write_figure(figure, path)


def lines_of(rows: Sequence[SweepRow], across: Varied) -> list[Line]:
    """For each combination of the other keys, the points that have an answer, in the order of the key drawn across.

    >>> from quadrille.experiments.sweep.outcomes import SweepAnswer
    >>> points = [{"gpus": n, "dtype": "float32"} for n in ("4", "2")]
    >>> rows = [SweepRow(point=one, answer=SweepAnswer(seconds=1 / int(one["gpus"]))) for one in points]
    >>> lines_of(rows, Varied("gpus", ("4", "2")))
    [('dtype=float32', [2.0, 4.0], [0.5, 0.25])]
    """
    numbers = across.numbers or tuple(map(float, range(len(across.values))))
    place_of = dict(zip(across.values, numbers, strict=True))
    lines: dict[str, list[tuple[float, float]]] = {}
    short = short_keys(rows[0].point)
    for row in rows:
        label = ", ".join(f"{short[key]}={value}" for key, value in row.point.items() if key != across.key)
        line = lines.setdefault(label, [])
        if row.answer.seconds is not None:
            line.append((place_of[row.point[across.key]], row.answer.seconds))
    return [(label, [x for x, _ in sorted(line)], [y for _, y in sorted(line)]) for label, line in lines.items()]


def _scale(axis: "Axes", across: Varied, name: str, seconds: Sequence[float]) -> None:
    numbers = across.numbers
    if numbers is None:
        axis.set_xticks(range(len(across.values)), across.values)
    elif min(numbers) > 0 and max(numbers) >= WIDE * min(numbers):
        axis.set_xscale("log", base=2)
        axis.set_xticks(numbers, across.values)
        axis.minorticks_off()
    if seconds and min(seconds) > 0 and max(seconds) >= WIDE * min(seconds):
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    axis.set_xlabel(name)
    axis.set_ylabel("time [s]")


def _more(lines: int) -> str | None:
    return f"{lines - MOST_NAMED} more lines are not named: --csv FILE has all" if lines > MOST_NAMED else None
