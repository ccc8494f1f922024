"""The figure of a sweep: time by the numbers of one key, with a line for each combination of the other keys.

The x axis is the key with the most numbers.  Numbers are joined by lines; categories are not.  If the x axis is the
number of GPUs of a job, a second panel has the efficiency.  Points that do not fit into memory have hollow marks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quadrille.algorithms.figure_style import (
    MUTED_COLOUR,
    legend_below,
    line_marks,
    new_figure,
    number_axis,
    scale_axis,
    styled,
)
from quadrille.experiments.output.pictures import write_figure
from quadrille.experiments.sweep.sweep_report import short_keys
from quadrille.experiments.sweep.sweep_result import Sweep, SweepRow, list_text
from quadrille.experiments.sweep.varied_key import GPUS_KEY, SIZE_KEY, VariedKey

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NAMED = 24
"""Largest number of lines that the legend names."""
MISSING_MEMORY = "does not fit into memory"
NAMED_FLAGS = ("collective", "bytes", "group", "gpt", "matmul", "mlp", "batch", "grid", "gpus", "scheme", "dtype")
"""Flags that the title names where all points share them."""


@dataclass(frozen=True, slots=True)
class SweptLine:
    """The points of a sweep that share the values of all keys but the x axis, those with an answer.

    Parameters
    ----------
    label : values of the other keys
    rows : x, and the answer
    """

    label: str
    rows: tuple[tuple[float, SweepRow], ...]

    @property
    def x(self) -> list[float]:
        return [x for x, _ in self.rows]

    @property
    def seconds(self) -> list[float]:
        return [row.answer.seconds or 0.0 for _, row in self.rows]

    @property
    def efficiencies(self) -> list[float] | None:
        """Rate of floating-point operations of a GPU over that of the first point [%]; None if a point has no rate."""
        rates = [row.answer.flops_per_second_per_gpu for _, row in self.rows]
        if not rates or not all(rates):
            return None
        return [100 * (rate or 0.0) / (rates[0] or 1.0) for rate in rates]


def draw_sweep(sweep: Sweep, varied: Sequence[VariedKey], path: str) -> None:
    """Writes the figure of a sweep."""
    write_figure(sweep_figure(sweep, varied), path)


@styled
def sweep_figure(sweep: Sweep, varied: Sequence[VariedKey]) -> "Figure":
    """The figure of a sweep.

    Parameters
    ----------
    varied : varied keys
    """
    x_key = x_axis_key(varied)
    lines = [line for line in lines_of(sweep.points, x_key) if line.rows]
    efficient = x_key.key == GPUS_KEY and all(line.efficiencies and len(line.rows) > 1 for line in lines)
    figure = new_figure(10 if efficient else 7, 5, question=_question(sweep, x_key), setting=_setting(sweep))
    panels = figure.subplots(1, 1 + efficient, squeeze=False)[0]
    joined = x_key.numbers is not None
    for number, line in enumerate(lines):
        marks = line_marks(number, joined=joined)
        label = line.label if line.label and number < MOST_NAMED else None
        panels[0].plot(line.x, line.seconds, label=label, **marks)
        if efficient:
            panels[1].plot(line.x, line.efficiencies or (), **marks)
    _mark_missing_memory(panels[0], lines)
    for axes in panels:
        _scale_x(axes, x_key, short_keys(sweep.varied)[x_key.key])
    scale_axis(panels[0].yaxis, [seconds for line in lines for seconds in line.seconds], "s")
    panels[0].set_ylabel("time, predicted")
    if efficient:
        panels[1].axhline(100, color=MUTED_COLOUR, linestyle=":")
        panels[1].set_ylabel("efficiency: FLOP/s of a GPU, % of the first point")
        panels[1].set_ylim(bottom=0)
    legend_below(figure, title=_unnamed_lines_text(len(lines)))
    return figure


def x_axis_key(varied: Sequence[VariedKey]) -> VariedKey:
    """The key of the x axis: of the numeric keys the one with the most values, else the key with the most values.

    >>> zero, gpus = VariedKey("zero", ("0", "1")), VariedKey("gpus", ("8", "16", "32"))
    >>> x_axis_key([VariedKey("dtype", ("a", "b", "c", "d")), zero, gpus]).key, x_axis_key([zero]).key
    ('gpus', 'zero')
    """
    return max(varied, key=lambda key: (key.numbers is not None and len(key.values) > 1, len(key.values)))


def lines_of(rows: Sequence[SweepRow], x_key: VariedKey) -> list[SweptLine]:
    """A line for each combination of the other keys, with its points by x.

    >>> from quadrille.experiments.sweep.sweep_result import SweepAnswer
    >>> points = [{"gpus": n, "dtype": "float32"} for n in ("4", "2")]
    >>> rows = [SweepRow(point=one, answer=SweepAnswer(seconds=1 / int(one["gpus"]))) for one in points]
    >>> [(line.label, line.x, line.seconds) for line in lines_of(rows, VariedKey("gpus", ("4", "2")))]
    [('dtype=float32', [2.0, 4.0], [0.5, 0.25])]
    """
    numbers = x_key.numbers or tuple(map(float, range(len(x_key.values))))
    x_of_value = dict(zip(x_key.values, numbers, strict=True))
    lines: dict[str, list[tuple[float, SweepRow]]] = {}
    short = short_keys(rows[0].point)
    for row in rows:
        others = [(key, value) for key, value in row.point.items() if key != x_key.key]
        line = lines.setdefault(", ".join(f"{short[key]}={value}" for key, value in others), [])
        if row.answer.seconds is not None:
            line.append((x_of_value[row.point[x_key.key]], row))
    return [SweptLine(label, tuple(sorted(line, key=lambda point: point[0]))) for label, line in lines.items()]


def _mark_missing_memory(axes: "Axes", lines: Sequence[SweptLine]) -> None:
    """Draws hollow marks over the points that do not fit into memory."""
    points = [(x, row.answer.seconds) for line in lines for x, row in line.rows if row.answer.fits is False]
    if points:
        axes.plot(
            *zip(*points, strict=True),
            linestyle="none",
            marker="o",
            markersize=7,
            markerfacecolor="white",
            markeredgecolor="black",
            label=MISSING_MEMORY,
        )


def _scale_x(axes: "Axes", x_key: VariedKey, name: str) -> None:
    if x_key.numbers is None:
        axes.set_xticks(range(len(x_key.values)), x_key.values)
        axes.margins(x=0.15)
    else:
        number_axis(axes.xaxis, x_key.numbers, x_key.values if x_key.key == SIZE_KEY else ())
    axes.set_xlabel("GPUs" if x_key.key == GPUS_KEY else name)


def _question(sweep: Sweep, x_key: VariedKey) -> str:
    """The question of the sweep."""
    subject = "the collective" if sweep.of_collectives else "a training step" if "gpt" in _named(sweep) else "the job"
    names = list(short_keys(sweep.varied).values())
    first = short_keys(sweep.varied)[x_key.key]
    names = [first, *(name for name in names if name != first)]
    return f"How long does {subject} take, by {list_text(names).replace(GPUS_KEY, 'GPUs')}?"


def _setting(sweep: Sweep) -> str:
    """The flags that all points share, the machine, and the number of points without an answer."""
    flags = _named(sweep)
    hidden = "grid" if sweep.best_grid else ""
    words = [
        f"{flag} {value}"
        for flag in NAMED_FLAGS
        if flag != hidden and isinstance(value := flags.get(flag), str) and value
    ]
    words += ["the best grid of each point"] if sweep.best_grid else []
    machine = f"on {flags['machine']}" if isinstance(flags.get("machine"), str) else ""
    impossible = sum(row.answer.seconds is None for row in sweep.points)
    excluded = f"{impossible} of {len(sweep.points)} points have no answer" if impossible else ""
    return "; ".join(text for text in (", ".join(words), machine, excluded) if text)


def _named(sweep: Sweep) -> Mapping[str, object]:
    """The values of the flags by name; of the varied flags all values."""
    return {**sweep.varied, **sweep.flags}


def _unnamed_lines_text(lines: int) -> str:
    return f"{lines - MOST_NAMED} more lines are not named: --csv FILE has all" if lines > MOST_NAMED else ""
