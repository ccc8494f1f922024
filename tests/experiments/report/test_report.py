"""The report of records: what stands on the page, that it is self-contained, and that text of a record stays text."""

import json
import re

import altair
import click
import msgspec
import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import load_record, save_record
from quadrille.cli.app import app
from quadrille.cli.main import main
from quadrille.experiments.explain.explanation import explain_record
from quadrille.experiments.report.page import json_text, script_text
from quadrille.experiments.report.record_sections import exposed_by_axis, record_part
from quadrille.experiments.report.repeat import COMMANDS, SWITCHES, experiment_file
from quadrille.experiments.report.report import report

SIMULATE = "simulate --matmul 512,512,512 --grid z=2,y=2,x=2 --machine perlmutter"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a predicted record and its timeline."""
    made_in = tmp_path_factory.mktemp("records")
    files = ["--json", str(made_in / "one.json"), "--timeline", str(made_in / "one.timeline.json")]
    assert main([*SIMULATE.split(), *files, "--quiet"]) == 0
    return made_in


@pytest.fixture(scope="module")
def page(folder):
    """The page of the record."""
    report([str(folder / "one.json")], str(folder / "one.html"), ["quadrille", "report", "one.json"])
    return (folder / "one.html").read_text()


def specs(page):
    """The Vega-Lite specifications of a page."""
    text = re.search(r'<script type="application/json" id="specs">(.*?)</script>', page, re.DOTALL)[1]
    return [entry["spec"] for entry in json.loads(text)]


def headings(page):
    return re.findall("<h3>(.*?)</h3>", page)


def test_a_page_has_a_section_for_each_question(page):
    assert headings(page) == [
        "Time by cause",
        "Memory by kind",
        "Timeline",
        "Exposed communication",
        "Network by axis",
        "Critical path",
        "Busiest links",
        "Ops",
        "How to repeat it",
        "Experiment",
        "Machine",
    ]


def test_charts_are_valid_vega_lite_and_have_text_and_a_table_beside_them(page):
    charts = specs(page)
    assert len(charts) == 7
    for spec in charts:
        altair.Chart.from_dict(spec, validate=True)
    assert page.count("<figcaption>") == page.count('role="img" aria-label=') == page.count("<details>") == len(charts)


def test_a_page_loads_nothing_from_elsewhere(page):
    outside_scripts = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(src|href)=(?!["']?#)|@import|url\(""", outside_scripts)
    assert "default-src 'none'" in outside_scripts


def test_segments_of_the_time_by_cause_are_the_explanation_of_the_record(folder, page):
    explanation = explain_record(load_record(folder / "one.json"))
    segments = specs(page)[0]["layer"][0]["data"]["values"]
    total = max(segment["b"] for segment in segments if segment["bar"] == "critical path")
    shares = {segment["part"]: segment["v"] / total for segment in segments if segment["bar"] == "critical path"}
    expected = {part: seconds / explanation.seconds for part, seconds in explanation.path_seconds_by_part.items()}
    assert shares == pytest.approx({part: share for part, share in expected.items() if share > 0}, rel=1e-4)


def test_exposed_communication_by_axis_adds_up_to_that_of_the_ops(folder):
    record = load_record(folder / "one.json")
    by_axis = exposed_by_axis(record)
    assert set(by_axis) == {"z", "y"}
    assert sum(by_axis.values()) == pytest.approx(sum(op.exposed_seconds for op in record.ops))


def test_the_verdict_says_that_a_step_does_not_fit_and_the_first_point_what_would_help(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "simulate --gpt gpt3-1.3b --batch 64 --grid x=1 --machine perlmutter --quiet --json job.json"
    assert main(words.split()) == 0
    part = record_part(load_record("job.json"), "job.json", None)
    assert re.search(
        r"tokens/s, MFU [\d.]+ %\), DOES NOT FIT in memory \(.* GiB, and a device has 39.5 GiB\)", part.verdict
    )
    assert "would help" in part.lines[0]
    assert len(part.lines) <= 4


def test_a_record_without_a_timeline_says_how_to_get_it(folder):
    part = record_part(load_record(folder / "one.json"), "one.json", None)
    timeline = next(section for section in part.sections if section.title == "Timeline")
    assert not timeline.charts
    assert "--timeline NAME.timeline.json" in timeline.lines[0]


def test_markup_in_a_record_stays_text(folder, tmp_path):
    record = load_record(folder / "one.json")
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    origin = msgspec.structs.replace(record.provenance, command=f"quadrille simulate --x '{hostile}'", host=hostile)
    ops = (msgspec.structs.replace(record.ops[0], name=hostile), *record.ops[1:])
    path = (msgspec.structs.replace(record.critical_path[0], op=hostile), *record.critical_path[1:])
    changed = msgspec.structs.replace(record, provenance=origin, ops=ops, critical_path=path)
    save_record(changed, tmp_path / "hostile.json")
    report([str(tmp_path / "hostile.json")], str(tmp_path / "hostile.html"))
    text = (tmp_path / "hostile.html").read_text()
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert any(hostile in json.dumps(spec) for spec in specs(text))


@pytest.mark.parametrize("text", ["</script>", "<!--", "a & b", "\u2028", '"quoted"'])
def test_json_in_a_script_tag_is_the_same_value_without_markup(text):
    encoded = json_text({"name": text})
    assert json.loads(encoded) == {"name": text}
    assert not set("<>&\u2028") & set(encoded)


def test_a_script_cannot_end_its_tag():
    assert script_text("a = '</script>'") == "a = '<\\/script>'"


def test_the_experiment_file_repeats_the_record(folder, tmp_path):
    record = load_record(folder / "one.json")
    command, text = experiment_file(record.provenance.command)
    (tmp_path / "again.toml").write_text(text)
    assert main([command, str(tmp_path / "again.toml"), "--json", str(tmp_path / "again.json"), "--quiet"]) == 0
    again = load_record(tmp_path / "again.json")
    assert msgspec.structs.replace(again, provenance=record.provenance) == record


@pytest.mark.parametrize(
    "command",
    [
        *("", "python mine.py", "quadrille collective all-reduce", "quadrille simulate job.toml"),
        "quadrille simulate --no-fold job.toml",
    ],
)
def test_a_command_without_an_experiment_of_flags_has_no_experiment_file(command):
    assert experiment_file(command) is None


def test_switches_are_those_of_the_commands_that_take_an_experiment_file():
    commands = [app.get_command(click.Context(app), command) for command in COMMANDS]
    flags = [parameter for command in commands for parameter in command.params if isinstance(parameter, click.Option)]
    assert {each.opts[0].removeprefix("--") for each in flags if each.is_flag} == set(SWITCHES)


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ([], "needs at least one RECORD"),
        (["missing.json"], "does not exist"),
        (["broken.json"], "broken.json"),
        (["empty.json"], "is empty"),
        (["model.json"], "is accepted"),
        (["newer.json"], "has the schema .quadrille/sweep/9.: this Quadrille reads quadrille/sweep/1"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_line(tmp_path, monkeypatch, paths, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text('{"schema": "quadrille/record/2", "kind": ')
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "newer.json").write_text('{"schema": "quadrille/sweep/9"}')
    (tmp_path / "model.json").write_text('{"schema": "quadrille/machine/2"}')
    with pytest.raises(InputError, match=words) as refused:
        report(paths, "out.html")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out.html").exists()


def test_a_report_never_overwrites_its_record(folder):
    before = (folder / "one.json").read_bytes()
    with pytest.raises(InputError, match="both name"):
        report([str(folder / "one.json")], str(folder / "one.json"))
    assert (folder / "one.json").read_bytes() == before
