import re
from pathlib import Path

import pytest

from quadrille.algorithms.figure_style import (
    FEWEST_TICKS,
    MOST_TICKS,
    PALETTE,
    amount_text,
    legend_below,
    line_marks,
    log_ticks,
    new_figure,
    number_axis,
    scale_axis,
    styled,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def axes():
    return styled(lambda: new_figure(6, 4).subplots())()


def shown_labels(axes, name):
    """The labels of the ticks that lie within an axis."""
    axes.figure.draw_without_rendering()
    axis, (low, high) = getattr(axes, f"{name}axis"), getattr(axes, f"get_{name}lim")()
    ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_text() for place, label in ticks if low <= place <= high and label.get_text()]


@pytest.mark.parametrize("ratio", [1.0, 1.3, 2, 7.9, 8, 9.5, 11, 95, 1e3, 1e9])
@pytest.mark.parametrize("low", [3e-7, 0.97, 1.0, 64.0])
def test_an_axis_of_any_span_has_at_least_three_numbers(axes, ratio, low):
    scale_axis(axes.yaxis, [low, ratio * low], "s")
    labels = shown_labels(axes, "y")
    assert FEWEST_TICKS <= len(labels) <= MOST_TICKS
    assert len(set(labels)) == len(labels)
    assert axes.get_yscale() == ("log" if ratio >= 8 else "linear")


@pytest.mark.parametrize("ratio", [8, 30, 1e4, 1e12])
def test_ticks_of_a_logarithmic_axis_lie_within_it(ratio):
    ticks = log_ticks(0.7, 0.7 * ratio)
    assert ticks == sorted(ticks)
    assert 0.7 <= ticks[0] <= ticks[-1] <= 0.7 * ratio
    assert FEWEST_TICKS <= len(ticks) <= MOST_TICKS


def test_a_linear_axis_begins_at_zero_and_holds_all_values(axes):
    scale_axis(axes.yaxis, [2.0, 3.0], "s")
    low, high = axes.get_ylim()
    assert low == 0
    assert high > 3


@pytest.mark.parametrize(
    ("numbers", "scale", "labels"),
    [
        ((0, 1, 2), "linear", ["0", "1", "2"]),
        ((64, 1024), "log", ["64", "1,024"]),
        ((2, 4, 3), "linear", ["2", "3", "4"]),
    ],
)
def test_the_ticks_of_chosen_numbers_are_these_numbers(axes, numbers, scale, labels):
    axes.plot(numbers, numbers)
    number_axis(axes.xaxis, numbers)
    assert shown_labels(axes, "x") == labels
    assert axes.get_xscale() == scale
    assert len(axes.xaxis.get_minorticklocs()) == 0


def test_the_legend_names_each_label_once_and_hides_no_axes():
    figure = new_figure(6, 4, question="Which?", setting="on a machine")
    for axes in figure.subplots(1, 2):
        axes.plot([1, 2], [1, 2], label="same", **line_marks(0))
    legend_below(figure)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["same"]
    bottom = min(axes.get_tightbbox().y0 for axes in figure.axes)
    assert legend.get_window_extent().y1 <= bottom
    assert figure.get_suptitle() == "Which?\non a machine"


def test_lines_on_each_other_differ_by_colour_and_marker():
    marks = [line_marks(number) for number in range(16)]
    assert len({(mark["color"], mark["linestyle"]) for mark in marks}) == 16
    assert len({mark["marker"] for mark in marks[:8]}) == 8


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0, "s", "0 s"), (1e-6, "s", "1 µs"), (0.999, "s", "999 ms"), (25, "%", "25 %"), (1 << 30, "B", "1 GiB")],
)
def test_amounts_have_prefixes(value, unit, text):
    assert amount_text(value, unit) == text


def test_names_with_dollar_signs_are_text_and_no_formula():
    draw = styled(lambda: new_figure(4, 3, question="How long?", setting=r"a$\q$b.json"))
    assert r"a$\q$b.json" in draw()._repr_svg_()


def test_figures_and_reports_have_the_same_first_colours():
    sheet = (ROOT / "experiments" / "report" / "palette.css").read_text()
    light = re.findall(r"--c(\d+): (#\w+);", sheet.partition("@media")[0])
    assert [colour for number, colour in light if int(number) <= 6] == list(PALETTE[:6])
