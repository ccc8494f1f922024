"""What predictions and executions show: one line, rows, HTML and a figure."""

import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from quadrille import Grid, InProcess, InputError, Matmul, execute, find_machine, matmul_schedule, simulate
from quadrille.algorithms.tabular import LINE_LENGTH
from quadrille.algorithms.timelines import run_summary, timeline_figure
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.runtime.execution.execution_results import Execution

VOID = {"br", "meta"}
SCHEDULE = matmul_schedule(Matmul(64, 32, 16), "4d", Grid(z=2, x=2))
A, B = np.ones((64, 32), np.float32), np.ones((32, 16), np.float32)


@pytest.fixture(scope="module")
def prediction():
    return simulate(SCHEDULE, find_machine("perlmutter", gpus=4))


@pytest.fixture(scope="module")
def execution():
    return execute(SCHEDULE, {"A": A, "B": B}, InProcess(4), repeats=3)


class Tags(HTMLParser):
    """The names of all elements; an end tag must close the element that was opened last."""

    def __init__(self, text):
        super().__init__()
        self.open, self.names = [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        assert not any(name.startswith("on") for name, _ in attributes)
        self.open += [tag] if tag not in VOID else []

    def handle_startendtag(self, tag, attributes):
        self.names.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def execution_of(*timelines):
    return Execution({0: {}}, list(timelines), {}, {}, {})


def test_the_line_has_the_facts(prediction, execution):
    for result in (prediction, execution, prediction.timeline, SCHEDULE, find_machine("perlmutter")):
        assert len(repr(result)) <= LINE_LENGTH
        assert "\n" not in repr(result)
    assert "22.5 us (90 % interval: 20.9 us to 28.3 us), bound by products" in repr(prediction)
    assert "measured on 4 ranks" in repr(execution)
    assert "percentile of 3 repeats" in repr(execution)
    assert repr(SCHEDULE) == "<Schedule: 4d on z=2,x=2: m=64, k=32, n=16, float32; 3 ops, 4 tensors>"


def test_both_have_the_same_attributes_and_rows(prediction, execution):
    for result, kind in ((prediction, "predicted"), (execution, "measured")):
        assert result.timeline.kind == kind
        assert [row["name"] for row in result.rows()] == ["gather B", "multiply C", "sum C"]
        assert result.interval[0] <= result.seconds <= result.interval[1]
    assert [list(row) for row in prediction.rows()] == [list(row) for row in execution.rows()]


def test_an_execution_takes_the_median_repeat():
    repeats = [
        Timeline((Span(0, "multiply", "gemm", "compute", 0, 0, 0, end),), "measured", 1) for end in (5.0, 1.0, 2.0)
    ]
    execution = execution_of(*repeats)
    assert (execution.seconds, execution.timeline) == (2.0, repeats[2])
    assert execution.rows()[0]["seconds"] == 2.0


def test_a_process_without_timelines_says_so():
    execution = execution_of()
    assert "rank 0" in repr(execution)
    assert execution._repr_html_() is None
    with pytest.raises(InputError, match="rank 0"):
        execution.rows()


def test_the_page_is_well_formed_and_has_a_picture(prediction, execution):
    for result in (prediction, execution):
        page = result._repr_html_()
        names = Tags(page).names
        assert names.count("table") == names.count("svg") == 1
        assert not {"script", "style", "metadata"} & set(names)
        assert len(page.encode()) <= run_summary.MOST_BYTES


def test_names_are_escaped_and_only_ten_ops_are_in_the_table():
    spans = tuple(Span(0, f"<b>{n}", "gemm", "<i>", n, n, n, n + 1 + n / 100) for n in range(12))
    page = execution_of(Timeline(spans, "measured", 1))._repr_html_()
    names = Tags(page).names
    assert "b" not in names
    assert "i" not in names
    assert page.count("&lt;b&gt;") == run_summary.OPS_SHOWN
    assert "and 2 more" in page


def test_without_matplotlib_there_is_only_the_table(prediction, monkeypatch):
    monkeypatch.setattr(run_summary, "find_spec", lambda name: None)
    assert "<svg" not in prediction._repr_html_()


def test_many_spans_stay_a_small_page():
    spans = tuple(Span(0, "multiply", "gemm", "compute", 2 * n, 2 * n, 2 * n, 2 * n + 1.5) for n in range(5000))
    page = execution_of(Timeline(spans, "measured", 1))._repr_html_()
    assert "<svg" in page
    assert len(page.encode()) <= run_summary.MOST_BYTES


def test_joined_bars_never_overlap_and_keep_the_kind_that_fills_most():
    bars = {(0, "gemm"): [(n, 0.75) for n in range(100)], (0, "kernel"): [(n + 0.75, 0.25) for n in range(100)]}
    fewer = timeline_figure.joined(bars, 100.0, 20)
    assert list(fewer) == [(0, "gemm")]
    assert sum(seconds for _, seconds in fewer[0, "gemm"]) == pytest.approx(100.0, rel=0.02)


def test_joined_bars_keep_the_time_of_a_lane_that_is_mostly_idle():
    bars = {(0, "all_reduce"): [(n, 0.2) for n in range(100)]}
    fewer = timeline_figure.joined(bars, 100.0, 30)
    assert sum(seconds for _, seconds in fewer[0, "all_reduce"]) == pytest.approx(20.0, abs=4.0)


def test_a_figure_shows_every_lane_with_work(prediction):
    axis = prediction.plot().axes[0]
    rows = [label.get_text() for label in axis.get_yticklabels()]
    assert rows == ["rank 0 compute", "rank 0 z"]  # of ranks with equal times, the first
    assert axis.get_xlabel() == "time [us]"


def test_a_notebook_shows_the_figure_of_a_plot(prediction):
    picture = prediction.plot()._repr_svg_()
    assert "rank 0 compute" in picture
    assert picture == prediction.plot()._repr_svg_()


def test_results_are_made_without_matplotlib():
    program = (
        "import sys, quadrille.simulator.prediction, quadrille.experiments.predict.predict\n"
        "import quadrille.runtime.execution.execute; sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
