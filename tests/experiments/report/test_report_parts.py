"""Parts of a report about comparisons, rankings, sweeps and collectives, and the flag `--report`."""

import json
import re
from itertools import product

import altair
import pytest

from quadrille.algorithms.formats.record import save_record
from quadrille.cli.main import main
from quadrille.experiments.compare.compare_records import compare_records
from quadrille.experiments.report.comparison_sections import comparison_part
from quadrille.experiments.report.pareto import pareto_front
from quadrille.experiments.report.pareto_chart import Point, filters
from quadrille.experiments.report.report import parts_of_files
from quadrille.experiments.report.timeline_chart import MOST_RECTANGLES, Rectangle, merged
from tests.support.compared_records import MEASURED, PREDICTED
from tests.support.quadrille import called

COLLECTIVE = "collective all-reduce --bytes 1MiB --gpus 8 --machine perlmutter"
SWEEP = "sweep --matmul 256,256,256 --machine perlmutter --grid x=* --vary gpus=2,4 --vary dtype=float32,float64"


def charts_of(part):
    """The charts of a part, all of which are valid Vega-Lite."""
    charts = [chart for section in part.sections for chart in section.charts]
    for chart in charts:
        altair.Chart.from_dict(chart.spec, validate=True)
        assert chart.label and chart.table.rows
    return charts


def headings(page):
    return re.findall("<h3>(.*?)</h3>", page)


def test_a_comparison_shows_both_times_of_every_op_with_the_interval_of_the_repeats():
    part = comparison_part(compare_records(PREDICTED, MEASURED), "two records", MEASURED)
    points = charts_of(part)[0].spec["data"]["values"]
    both = {(point["op"], point["side"]): point for point in points}
    assert both["multiply", "predicted"]["v"] == pytest.approx(70)
    assert both["multiply", "measured"]["v"] == pytest.approx(75)
    assert both["multiply", "measured"]["low"] == pytest.approx(74.1)
    assert both["multiply", "measured"]["high"] == pytest.approx(78.6)
    assert part.verdict == "Predicted 95.0 ms, measured 100 ms: -5.0 %."


def test_a_predicted_and_a_measured_record_of_one_problem_are_compared(tmp_path):
    paths = [str(tmp_path / name) for name in ("measured.json", "predicted.json")]
    for record, path in zip((MEASURED, PREDICTED), paths, strict=True):
        save_record(record, path)
    parts = parts_of_files(paths)
    assert [part.title.partition(":")[0] for part in parts] == ["Comparison", "Measured", "Predicted"]


def test_the_pareto_front_is_what_no_point_beats():
    points = [(a % 7, (a * 5) % 11, (a * 3) % 4) for a in range(60)]

    def beats(one, two):
        return one != two and all(a <= b for a, b in zip(one, two, strict=True))

    expected = [n for n, point in enumerate(points) if not any(beats(rival, point) for rival in points)]
    assert pareto_front(points) == expected


def test_filters_offer_the_options_by_which_points_differ():
    points = [
        Point("", 1.0, 1.0, 8, {"zero": zero, "scheme": "4d", "batch": size}) for zero, size in product("13", "842")
    ]
    assert filters(points) == {"zero": ["1", "3"], "batch": ["2", "4", "8"]}


def test_merged_rectangles_are_few_and_keep_the_time_of_each_category():
    names = ("products", "waiting")
    many = [Rectangle("rank 0, compute", names[n % 2], n * 1e-4, n * 1e-4 + 0.8e-4, f"op {n}") for n in range(20_000)]
    few = merged(many, 2.0)
    assert len(few) <= MOST_RECTANGLES
    for name in names:
        assert sum(part.end - part.begin for part in few if part.category == name) == pytest.approx(0.8)
    assert sum(part.spans for part in few) == len(many)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (COLLECTIVE, ["Time by cause", "Busiest links", "How to repeat it", "Values"]),
        (SWEEP, ["Time over gpus", "Time, memory and GPUs", "All points", "How to repeat it", "Flags of all points"]),
    ],
)
def test_a_verb_with_the_flag_writes_the_report_of_its_answer(tmp_path, words, shown):
    assert main([*words.split(), "--report", str(tmp_path / "answer.html")]) == 0
    page = (tmp_path / "answer.html").read_text()
    assert headings(page) == shown
    command = re.search("<h4>Command line</h4><pre[^>]*>(.*?)</pre>", page)[1]
    assert command.startswith(f"quadrille {words}".replace("*", "")[:20])


def test_json_on_stdout_stays_as_it_is_beside_a_report(tmp_path, capsys):
    words = ["simulate", "--matmul", "64,64,64", "--grid", "z=2", "--machine", "perlmutter", "--json", "-"]
    alone, beside = called(capsys, *words), called(capsys, *words, "--report", tmp_path / "answer.html")
    without_origin = [{**json.loads(ended.out), "provenance": None} for ended in (alone, beside)]
    assert without_origin[0] == without_origin[1]
    assert "Timeline" in headings((tmp_path / "answer.html").read_text())


def test_a_report_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys):
    record = tmp_path / "same.json"
    words = ["simulate", "--matmul", "64,64,64", "--grid", "z=2", "--machine", "perlmutter", "--json"]
    ended = called(capsys, *words, record, "--report", record)
    assert (ended.status, ended.line.count("both name")) == (2, 1)
    ended = called(capsys, *words, record, "--report", tmp_path / "missing" / "a.html")
    assert (ended.status, "--report" in ended.line) == (2, True)
    assert not record.exists()
