"""Figures of studies that are drawn again from kept answers, and their error plots."""

import json

import pytest

from quadrille.studies.error_figure import ErrorDot, error_figure
from quadrille.studies.kept_figures import kept_figure
from tests.support.quadrille import ROOT, called

KEPT = sorted(
    path
    for path in ROOT.glob("studies/*/results/*.json")
    if '"quadrille/findings/1"' in path.read_text()[:100] or path.name in ("rows.json", "weak_scaling.json")
)


def test_kept_answers_are_found():
    folders = {path.parent.parent.name for path in KEPT}
    assert {"better_network", "overlap_worth", "which_grid", "message_driven_worth", "published_training"} <= folders


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_each_kept_answer_has_its_figure_with_a_question(path):
    figure = kept_figure(str(path))
    question = figure.get_suptitle().split("\n")[0]
    assert question.endswith("?")
    assert "\n" in figure.get_suptitle()


def test_each_judged_row_of_published_training_is_a_dot_at_its_error():
    path = ROOT / "studies/published_training/results/rows.json"
    judged = [row for row in json.loads(path.read_text())["rows"] if row["role"] == "judged"]
    axes = kept_figure(str(path)).axes[0]
    drawn = sorted(float(y) for line in axes.lines if "row" in line.get_label() for y in line.get_ydata())
    times = ("iteration_time", "peak_memory")
    ratios = [row["predicted"] / row["published"] for row in judged]
    expected = [r if row["metric"] in times else 1 / r for r, row in zip(ratios, judged, strict=True)]
    assert drawn == pytest.approx(sorted(expected))


def test_each_predicted_row_of_megatron_bridge_is_a_dot():
    axes = kept_figure(str(ROOT / "studies/megatron_bridge/results/rows.csv")).axes[0]
    assert sum(len(line.get_ydata()) for line in axes.lines if "row" in line.get_label()) == 124


def test_lines_of_ten_and_thirty_percent_are_on_the_axis_of_small_errors():
    figure = error_figure([ErrorDot("a", 1, 1.01)], question="?", setting="", label="", scale=lambda axis, places: None)
    axes = figure.axes[0]
    low, high = axes.get_ylim()
    flat = {line.get_ydata()[0] for line in axes.lines if len(line.get_xdata()) == 2}
    assert flat == {1, 1.1, 0.9, 1.3, 0.7}
    assert low < 0.7 < 1.3 < high


def test_missing_gains_are_words_in_place_of_bars():
    figure = kept_figure(str(ROOT / "studies/overlap_worth/results/2026-11-22.json"))
    assert [text.get_text() for text in figure.axes[-1].texts if "impossible" in text.get_text()] == [
        "this grid\nis impossible"
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"schema": "quadrille/record/3"}', "quadrille/record/3"),
        ('{"schema": "quadrille/findings/1"}', "study"),
        ("not JSON", "findings file"),
    ],
)
def test_a_file_without_a_figure_is_one_line(content, words, tmp_path, capsys):
    path = tmp_path / "file.json"
    path.write_text(content)
    ended = called(capsys, "study", "draw", path, "--plot", tmp_path / "f.png")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert words in ended.err
    assert not (tmp_path / "f.png").exists()


def test_a_figure_needs_a_path(capsys):
    ended = called(capsys, "study", "draw", ROOT / "studies/which_grid/results/2026-11-22.json")
    assert (ended.status, ended.err) == (2, "quadrille: study draw: --plot FILE is needed, which names the figure\n")
