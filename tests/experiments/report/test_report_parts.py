"""Parts of a report about comparisons, rankings, sweeps and collectives, and the flag `--report`."""

import html
import json
import re
import shlex
from itertools import product
from pathlib import Path

import altair
import click
import pytest
from msgspec.structs import replace

from quadrille.algorithms.formats.record import save_record
from quadrille.cli.app import app
from quadrille.cli.main import main
from quadrille.experiments.compare.compare_records import compare_records
from quadrille.experiments.output.pareto import pareto_front
from quadrille.experiments.report.comparison_sections import comparison_part
from quadrille.experiments.report.palette import AXES, CAUSES, MEMORY, WORK, colours_of
from quadrille.experiments.report.pareto_chart import BEHIND, FRONT, TOO_LARGE, Point, filters, pareto_section
from quadrille.experiments.report.repeat import COMMANDS, REPEATABLE, SWITCHES
from quadrille.experiments.report.report import parts_of_files
from quadrille.experiments.report.study_sections import findings_part
from quadrille.experiments.report.timeline_chart import MOST_RECTANGLES, Rectangle, merged
from quadrille.experiments.sweep.sweep_result import SweepAnswer, SweepRow
from quadrille.experiments.sweep.training_study import Findings
from tests.support.compared_records import MEASURED, PREDICTED
from tests.support.quadrille import ROOT, called

COLLECTIVE = "collective all-reduce --bytes 1MiB --gpus 8 --machine perlmutter"
SWEEP = "sweep --matmul 256,256,256 --machine perlmutter --grid x=* --vary gpus=2,4 --vary dtype=float32,float64"

SIMULATE = "simulate --matmul 64,64,64 --grid z=2 --machine perlmutter"
COMPARE = "compare predicted"
RANK = "rank --gpt layers=2,hidden=64,heads=4,sequence=32,vocabulary=64 --batch 4 --gpus 2 --top 2 --machine perlmutter"
LOGGED = {262144: "20.9 12.5 21.9 0", 67108864: "634 105.8 185.2 0"}
"""Times in an output of nccl-tests, by size; the second is twice that of eight H100."""


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


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """A folder with records to compare and to explain, a traffic file, and a log of collectives."""
    monkeypatch.chdir(tmp_path)
    for folder, record in (("predicted", PREDICTED), ("measured", MEASURED)):
        (tmp_path / folder).mkdir()
        for name in ("one.json", "two.json"):
            save_record(record, tmp_path / folder / name)
    (tmp_path / "traffic.csv").write_text("source,destination,bytes,start_s\n0,4,1000000,0\n1,4,2000000,0.00001\n")
    ranks = [f"#  Rank {rank} Group 0 Pid 7 on a device {rank} [0x07] NVIDIA H100 80GB HBM3" for rank in range(8)]
    rows = [f"{size} {size // 4} float sum -1 {times} {times}" for size, times in LOGGED.items()]
    (tmp_path / "all_reduce.log").write_text("\n".join([*ranks, *rows]) + "\n")


@pytest.mark.parametrize(
    ("words", "verdict", "shown"),
    [
        (SIMULATE, "The matmul on 2 ranks of perlmutter is predicted to take", ["Timeline", "Machine"]),
        ("run --matmul 16,16,16 --repeats 1", "The matmul on 1 rank took", ["Timeline", "Experiment"]),
        (f"{COMPARE}/one.json measured/one.json", "Predicted 95.0 ms, measured 100 ms: -5.0 %.", ["Why they differ"]),
        (f"{COMPARE} measured", "Over 2 pairs the median error is 5.0 %", ["Predicted and measured"]),
        ("explain predicted/one.json", "The predicted time is 95.0 ms, 74 % of it compute.", ["Time by cause"]),
        (
            RANK,
            "The fastest of 22 is pipeline=2, schedule zb-h1, micro-batch 4: ",
            ["Simulated: time and memory", "Question"],
        ),
        (f"{RANK} --form exact", "The fastest of 4 is x=2: ", ["Simulated: time and memory", "Question"]),
        (SWEEP, "The fastest point", ["Time over gpus", "Time, memory and GPUs", "All points", "Flags of all points"]),
        (COLLECTIVE, "The all-reduce of 1 MiB on 8 GPUs of perlmutter is predicted to", ["Busiest links", "Values"]),
        (
            "flows traffic.csv --machine perlmutter --gpus 8",
            "The last of 2 flows on perlmutter",
            ["Flows that end last"],
        ),
        ("check all_reduce.log --machine h100-node", "The collectives are slower from", ["Measured and expected"]),
    ],
)
def test_every_verb_with_the_flag_writes_a_report_with_a_verdict_and_the_command(answers, words, verdict, shown):
    given = [*words.split(), "--report", "answer.html"]
    assert main(given) == 0
    page = Path("answer.html").read_text()
    assert html.unescape(re.search('<p class="verdict">(.*?)</p>', page)[1]).startswith(verdict)
    assert set(headings(page)) >= {*shown, "How to repeat it"}
    assert len(re.findall("<li>", page)) <= 4
    command = html.unescape(re.search("<h4>Command line</h4><pre[^>]*>(.*?)</pre>", page)[1])
    assert shlex.split(command)[1:] == given


def test_simulated_entries_of_a_ranking_on_one_grid_have_different_names(tmp_path, capsys):
    answer = tmp_path / "ranking.json"
    assert called(capsys, *RANK.split(), "--json", answer).status == 0
    (part,) = parts_of_files([str(answer)])
    simulated = json.loads(answer.read_text())["simulated"]
    assert simulated[0]["grid"] == simulated[1]["grid"]
    (commands,) = [section.code for section in part.sections if section.title.startswith("Commands")]
    names = [title.split(". ", 1)[1].rpartition(", ")[0] for title, _ in commands]
    assert len(set(names)) == len(simulated)
    assert names[0] in part.verdict
    assert names[1] in part.lines[0]


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


def test_points_that_do_not_fit_in_memory_are_not_on_the_front():
    points = [Point("small", 3.0, 1.0, 8), Point("large", 1.0, 9.0, 8, fits=False), Point("slow", 4.0, 2.0, 8)]
    chart = pareto_section(points, "Front").charts[0]
    places = {value["point"]: value["place"] for value in chart.spec["data"]["values"]}
    assert places == {"small": FRONT, "large": TOO_LARGE, "slow": BEHIND}
    assert [row[0] for row in chart.table.rows] == ["small"]


@pytest.mark.parametrize(("seconds", "unit", "number"), [(3.0, "s", 3.0), (3e-3, "ms", 3.0), (2e-6, "us", 2.0)])
def test_the_front_has_the_unit_of_its_times(seconds, unit, number):
    (chart,) = pareto_section([Point("a", seconds, 1.0, 8), Point("b", seconds / 40, 2.0, 8)], "Front").charts
    assert chart.spec["encoding"]["y"]["title"] == f"time [{unit}]"
    assert max(value["time"] for value in chart.spec["data"]["values"]) == number


@pytest.mark.parametrize(
    ("size", "unit", "number"), [(3 * 2**30, "GiB", 3.0), (5 * 2**20, "MiB", 5.0), (2**10, "KiB", 1.0)]
)
def test_the_front_has_the_unit_of_its_memory(size, unit, number):
    (chart,) = pareto_section([Point("a", 1.0, size, 8), Point("b", 2.0, size / 4, 8)], "Front").charts
    assert chart.spec["encoding"]["x"]["title"] == f"memory of a rank [{unit}]"
    assert [value["memory"] for value in chart.spec["data"]["values"]] == [number, number / 4]


@pytest.mark.parametrize("names", [CAUSES, MEMORY, WORK, [f"communication over {axis}" for axis in AXES]])
def test_a_name_has_one_colour_whatever_stands_beside_it(names):
    alone = {name: colours_of([name]) for name in names}
    beside = dict(zip(names, colours_of(["a name of none", *names])[1:], strict=True))
    assert {name: [colour] for name, colour in beside.items()} == alone


def test_names_that_stand_in_one_timeline_have_different_colours():
    names = [*WORK, *(f"communication over {axis}" for axis in AXES if axis != "pipeline")]
    assert len(set(colours_of(names))) == len(names)


def test_a_report_of_findings_has_the_answer_of_the_study_and_a_row_for_each_point():
    path = str(ROOT / "studies/better_network/results/2026-11-22.json")
    findings = json.loads(Path(path).read_text())
    (part,) = parts_of_files([path])
    assert part.title == "Study: better-network"
    assert " ".join([part.verdict, *part.lines]) == findings["answer"]
    (table,) = next(section for section in part.sections if section.title == "All points").tables
    assert len(table.rows) == len(findings["rows"])
    charts_of(part)


def test_a_report_of_findings_says_how_many_points_have_no_answer():
    answers = (SweepAnswer(seconds=1.0), SweepAnswer(reason="not reached"), SweepAnswer(reason="too large"))
    rows = tuple(SweepRow(point={"fault": f"fault {n}"}, answer=answer) for n, answer in enumerate(answers))
    part = findings_part(Findings(study="fault-cost", flags={}, rows=rows, answer="A NIC costs 2 %."), "fault.json")
    assert (part.verdict, *part.lines) == ("A NIC costs 2 %.", "2 points have no answer; the table says why.")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_flags_without_a_value_are_those_of_the_commands(name):
    command = app.get_command(click.Context(app), name)
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    switches = {word for option in options if option.is_flag for word in option.opts if word.startswith("--")}
    repeated = {word for option in options if option.multiple for word in option.opts if word.startswith("--")}
    assert switches <= {f"--{word}" for word in SWITCHES}
    assert repeated <= {f"--{word}" for word in REPEATABLE}


def test_points_of_a_comparison_are_sentences_and_time_outside_ops_is_named():
    outside = {"before the first op": 1e-3, "between ops": 2e-3, "after the last op": 3e-3}
    measured = replace(MEASURED, outside_ops_seconds=outside)
    part = comparison_part(compare_records(PREDICTED, measured), "two records", measured)
    assert all(point[0].isupper() and point.endswith(".") for point in part.lines)
    (causes,) = [section for section in part.sections if section.title == "Why they differ"]
    (line,) = causes.lines
    assert "1.00 ms before the first op, 2.00 ms between ops, 3.00 ms after the last op" in line
