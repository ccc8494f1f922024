"""The roofline in a report: the numbers of the figure, and no section where the figure would be refused."""

import json
from pathlib import Path

import altair
import pytest

from quadrille.algorithms.formats.record import load_record
from quadrille.cli.experiment_commands import recorded_experiment, recorded_roofline
from quadrille.cli.main import main
from quadrille.experiments.predict.roofline import Roofline, RooflineOp, recorded_ops
from quadrille.experiments.report.page import json_text
from quadrille.experiments.report.report import parts_of_files
from quadrille.experiments.report.roofline_section import LARGEST, MOST_DOTS, roofline_section

MODEL = "layers=2,hidden=256,heads=4,sequence=128,vocabulary=1024"
SIMULATE = f"simulate --gpt {MODEL} --batch 8 --dtype bfloat16 --grid z=2,x=2 --machine perlmutter --quiet"
BY_PASSES = f"simulate --gpt {MODEL} --batch 8 --micro-batch 1 --grid pipeline=2 --machine perlmutter --quiet"


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """The path of a predicted training step."""
    path = tmp_path_factory.mktemp("records") / "step.json"
    assert main([*SIMULATE.split(), "--json", str(path)]) == 0
    return str(path)


def section_of(path):
    """The roofline's section in the report of a file; None if there is none."""
    (part,) = parts_of_files([str(path)], rooflines=recorded_roofline)
    return next((section for section in part.sections if section.title == "Roofline"), None)


def data(section, layer):
    return section.charts[0].spec["layer"][layer]["data"]["values"]


def test_dots_are_the_ops_of_the_figure_and_the_line_is_the_roof(record):
    section, roofline = section_of(record), recorded_roofline(record)
    altair.Chart.from_dict(section.charts[0].spec, validate=True)
    ops = recorded_ops(recorded_experiment(record), load_record(record))
    places = {(float(f"{op.intensity:.5g}"), float(f"{op.rate / 1e12:.5g}")): op.name for op in reversed(ops)}
    shown = [(dot["x"], dot["y"]) for dot in data(section, -1)]
    assert len(shown) == MOST_DOTS < len(places)
    assert [places[place] for place in shown] == [dot["op"].partition(" and ")[0] for dot in data(section, -1)]
    assert {dot["kind"] for dot in data(section, -1)} == {"product", "attention", "function"}
    corners = data(section, 0)
    assert [corner["y"] for corner in corners[1:]] == [312, 312]
    assert corners[1]["x"] == pytest.approx(roofline.ridge, rel=1e-4)
    assert len(section.charts[0].table.rows) == len(data(section, -1))
    assert "312 TFLOP/s of products and 1.55 TB/s of memory" in section.charts[0].label


def test_the_explanation_of_a_record_has_the_same_roofline(record, tmp_path):
    assert main(["explain", record, "--json", str(tmp_path / "explained.json")]) == 0
    assert section_of(tmp_path / "explained.json") == section_of(record)


def test_simulate_writes_the_section_into_its_report(tmp_path):
    assert main([*SIMULATE.split(), "--report", str(tmp_path / "step.html")]) == 0
    assert "<h3>Roofline</h3>" in (tmp_path / "step.html").read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": None},
        {"machine": {"name": "perlmutter", "sha256": "0" * 64}},
        {"provenance": None},
    ],
    ids=["no machine", "another machine", "no command"],
)
def test_a_record_that_the_figure_refuses_has_no_section(record, tmp_path, changes):
    (tmp_path / "changed.json").write_text(json.dumps(json.loads(Path(record).read_text()) | changes))
    assert section_of(tmp_path / "changed.json") is None


def test_a_record_whose_command_is_unknown_has_no_section(record, tmp_path):
    facts = json.loads(Path(record).read_text())
    facts["provenance"]["command"] = "quadrille simulate --no-such-flag 7"
    (tmp_path / "changed.json").write_text(json.dumps(facts))
    assert section_of(tmp_path / "changed.json") is None


def test_a_record_by_passes_has_the_roofline_of_its_ops(tmp_path):
    paths = [str(tmp_path / f"{granularity}.json") for granularity in ("passes", "exact")]
    for path in paths:
        assert main([*BY_PASSES.split(), "--granularity", Path(path).stem, "--json", path]) == 0
    rates, exact = ({op.name: op.rate for op in recorded_roofline(path).ops} for path in paths)
    assert rates == pytest.approx(exact, rel=0.01)


def many_ops(count):
    """Ops with different intensities and rates, the longest first."""
    return tuple(RooflineOp(f"op {n}", "product", 1e9 * (n + 1), 1e7, (count - n) * 1e-3) for n in range(count))


def test_a_chart_shows_the_longest_ops_and_says_what_is_left_out():
    section = roofline_section(Roofline(many_ops(300), 1e14, 1e12))
    dots = data(section, -1)
    assert [dot["op"] for dot in dots] == [f"op {n}" for n in range(MOST_DOTS)]
    assert dots[0]["size"] == LARGEST
    left_out = sum(range(1, 301 - MOST_DOTS)) / sum(range(1, 301))
    assert section.lines == [f"The {MOST_DOTS} longest are shown; those left out take {100 * left_out:.1f} %."]


def test_the_section_of_any_job_is_small():
    """20 records of a page share 3 MB with the scripts of about 1 MB."""
    section = roofline_section(Roofline(many_ops(1000), 1e14, 1e12))
    (chart,) = section.charts
    assert len(json_text(chart.spec)) + sum(len(cell) + 30 for row in chart.table.rows for cell in row) < 30_000


def test_without_a_hidden_op_no_line_stands_above_the_chart():
    assert roofline_section(Roofline(many_ops(3), 1e14, 1e12)).lines == []
