"""The sections of a report that no other file tests: what a section says is what the answer says."""

import html
import json
import re
import shlex

import altair
import pytest

from quadrille.algorithms.formats.record import HOST_MEMORY_KIND, LinkLoad, load_record, save_record
from quadrille.algorithms.tabular import duration
from quadrille.cli.main import main
from quadrille.experiments.compare.compare_records import compare_records
from quadrille.experiments.records.record_table import print_record
from quadrille.experiments.report.answer_sections import tables_part
from quadrille.experiments.report.comparison_sections import comparison_part
from quadrille.experiments.report.record_sections import memory_section, record_part
from quadrille.experiments.report.report import parts_of_files
from tests.support.compared_records import MEASURED, PREDICTED, replace

RANK = "rank --gpt layers=2,hidden=64,heads=4,sequence=32,vocabulary=64 --batch 4 --gpus 4 --top 3 --machine perlmutter"
COMMANDS = "Commands that simulate each entry"
LOGGED = {262144: "20.9 12.5 21.9 0", 67108864: "634 105.8 185.2 0"}
"""Times in an output of nccl-tests, by size; the second is twice that of eight H100."""
ANSWERS = {
    "simulate": "simulate --gpt layers=2,hidden=64,heads=4,sequence=32,vocabulary=64 --batch 4 --grid data=2,x=2 "
    "--machine perlmutter --timeline step.timeline.json",
    "rank": RANK,
    "grids": f"{RANK} --form exact",
    "sweep": "sweep --matmul 256,256,256 --machine perlmutter --grid x=* --vary gpus=2,4 --vary dtype=float32,float64",
    "collective": "collective all-reduce --bytes 1MiB --gpus 8 --machine perlmutter",
    "flows": "flows traffic.csv --machine perlmutter --gpus 8",
    "check": "check all_reduce.log --machine h100-node",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the answer of each command of `ANSWERS`, as JSON."""
    path = tmp_path_factory.mktemp("answers")
    (path / "traffic.csv").write_text("source,destination,bytes,start_s\n0,4,1000000,0\n1,4,2000000,0.00001\n")
    ranks = [f"#  Rank {rank} Group 0 Pid 7 on a device {rank} [0x07] NVIDIA H100 80GB HBM3" for rank in range(8)]
    rows = [f"{size} {size // 4} float sum -1 {times} {times}" for size, times in LOGGED.items()]
    (path / "all_reduce.log").write_text("\n".join([*ranks, *rows]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        for name, words in ANSWERS.items():
            assert main([*words.split(), "--json", f"{name}.json", "--report", f"{name}.html"]) == 0
    return path


def sections_of(path):
    (part,) = parts_of_files([str(path)])
    return {section.title: section for section in part.sections}


@pytest.mark.parametrize("name", ["rank", "grids"])
def test_each_simulated_layout_has_the_command_that_simulates_it(folder, name):
    entries = json.loads((folder / f"{name}.json").read_text())["simulated"]
    code = sections_of(folder / f"{name}.json")[COMMANDS].code
    assert [command for _, command in code] == [entry["command"] for entry in entries]
    assert [heading.partition(".")[0] for heading, _ in code] == [str(place) for place in range(1, len(entries) + 1)]
    assert len(entries) == 3


@pytest.mark.parametrize("name", ["rank", "grids"])
def test_the_command_of_a_layout_is_of_its_grid_and_answers_with_its_memory(folder, name, tmp_path):
    entries = json.loads((folder / f"{name}.json").read_text())["simulated"]
    for entry, (_, command) in zip(entries, sections_of(folder / f"{name}.json")[COMMANDS].code, strict=True):
        path = tmp_path / "record.json"
        assert main([*shlex.split(command)[1:], "--json", str(path), "--quiet"]) == 0
        record = load_record(path)
        assert {axis: length for axis, length in record.grid.items() if length > 1} == {
            axis: length for axis, length in entry["grid"].items() if length > 1
        }
        assert record.peak_bytes_per_rank_max == entry["memory_bytes"]
        assert record.seconds_per_iteration == pytest.approx(entry["seconds"], rel=0.1)


def test_a_ranking_without_commands_has_no_section_of_them(folder, tmp_path):
    answer = json.loads((folder / "rank.json").read_text())
    for entry in answer["simulated"]:
        entry["command"] = ""
    (tmp_path / "python.json").write_text(json.dumps(answer))
    assert COMMANDS not in sections_of(tmp_path / "python.json")


@pytest.mark.parametrize(("name", "kind"), [("rank", "whole step"), ("grids", "communication alone")])
def test_the_quick_model_shows_every_layout_that_it_ranked(folder, name, kind):
    ranked = json.loads((folder / f"{name}.json").read_text())["analytical"]
    (chart,) = sections_of(folder / f"{name}.json")[f"By the quick model, {kind}: time and memory"].charts
    assert len(chart.spec["data"]["values"]) == len(ranked) > 3
    assert f"of {len(ranked)} points" in chart.label
    fastest = min(ranked, key=lambda entry: entry["seconds"])
    assert chart.table.rows[0][1] == duration(fastest["seconds"])


@pytest.mark.parametrize("name", ANSWERS)
def test_each_chart_has_text_and_a_table_with_a_cell_for_each_heading(folder, name):
    charts = [chart for section in sections_of(folder / f"{name}.json").values() for chart in section.charts]
    assert charts
    for chart in charts:
        altair.Chart.from_dict(chart.spec, validate=True)
        assert re.search(r"\w.*\.$", chart.label)
        assert chart.table.rows
        assert {len(row) for row in chart.table.rows} == {len(chart.table.columns)}


@pytest.mark.parametrize("name", ANSWERS)
def test_each_chart_of_a_page_has_its_label_and_its_table(folder, name):
    page = (folder / f"{name}.html").read_text()
    figures = re.findall(r"<figure>(.*?)</figure>", page, re.DOTALL)
    assert len(figures) == page.count('class="chart"') > 0
    for figure in figures:
        label = re.search(r'role="img" aria-label="(.*?)"', figure, re.DOTALL)[1]
        caption = re.search(r"<figcaption>(.*?)</figcaption>", figure, re.DOTALL)[1]
        assert html.unescape(label) == html.unescape(caption) != ""
        assert "<td" in re.search(r"<details>.*?</details>", figure, re.DOTALL)[0]


@pytest.mark.parametrize("name", ANSWERS)
def test_all_times_of_a_table_have_one_unit(folder, name):
    for section in sections_of(folder / f"{name}.json").values():
        for table in [*section.tables, *(chart.table for chart in section.charts)]:
            shown = table.shown()
            timed = [place for place, column in enumerate(shown.columns) if column and place >= shown.names]
            cells = [row[place] for row in shown.rows for place in timed]
            units = {cell.rpartition(" ")[2] for cell in cells if re.fullmatch(r"-?[\d.]+ (s|ms|us|ns)", cell)}
            assert len(units) <= 1, (section.title, units)


def test_the_noise_of_a_comparison_is_that_of_the_repeats():
    compared = compare_records(PREDICTED, MEASURED)
    (table,) = next(
        section.tables
        for section in comparison_part(compared, "two records", MEASURED).sections
        if section.title == "Noise and drift"
    )
    rows = dict(table.shown().rows)
    assert rows["repeats"] == "3"
    assert rows["median"] == "100.0 ms"
    assert rows["5th to 95th percentile"] == (
        f"{1e3 * compared.noise.low_seconds:.2f} ms to {1e3 * compared.noise.high_seconds:.1f} ms"
    )
    assert rows["error within the noise"] == ("yes" if compared.noise.within_noise else "no")


def test_what_would_explain_slow_collectives_is_named_with_the_flag_that_shows_it(folder):
    causes = json.loads((folder / "check.json").read_text())["explanations"]
    (table,) = sections_of(folder / "check.json")["What would explain it"].tables
    assert [row[:2] for row in table.rows] == [(each["cause"], each["try_it"]) for each in causes]
    assert causes


def test_a_machine_without_links_shows_its_shared_resources():
    loads = (LinkLoad("memory of host:0", 1e9, 0.05, 0.5), LinkLoad("cores of host:0", 10.0, 0.09, 0.9))
    part = record_part(replace(PREDICTED, links=loads), "host.json", None)
    sections = {section.title: section for section in part.sections}
    assert "Busiest links" not in sections
    (table,) = sections["Shared resources"].tables
    assert [row[0] for row in table.rows] == ["memory of host:0", "cores of host:0"]


def test_the_memory_of_a_rank_adds_up_and_that_of_the_host_stands_apart():
    sizes = {"parameters": 3 * 2**30, "activations": 2**30, HOST_MEMORY_KIND: 7 * 2**30}
    (section,) = memory_section(sizes, 8 * 2**30)
    values = section.charts[0].spec["layer"][0]["data"]["values"]
    assert sum(value["v"] for value in values if "v" in value) == pytest.approx(4.0)
    assert "keeps 4 GiB of 8 GiB; most is parameters." in section.charts[0].label
    assert section.lines == ["Beside that, the host keeps 7 GiB of the optimizer."]


def test_the_ops_of_a_record_have_the_times_of_the_terminal(tmp_path, capsys):
    save_record(PREDICTED, tmp_path / "record.json")
    (table,) = sections_of(tmp_path / "record.json")["Ops"].tables
    shown = table.shown()
    cells = {row[0]: row[shown.columns.index("time")] for row in shown.rows}
    assert cells == {"multiply": "70.00 ms", "gather B": "20.00 ms"}
    print_record(PREDICTED)
    printed = capsys.readouterr().out.splitlines()
    for op, time in cells.items():
        assert re.search(rf"^{op} .* {time} ", next(line for line in printed if line.startswith(op)))


def test_times_of_rows_of_any_answer_have_one_unit():
    facts = {"rows": [{"case": "a", "wall_seconds": 2.0}, {"case": "b", "wall_seconds": 5e-4}], "seconds": 3e-3}
    (values, _) = tables_part(facts, "quadrille/fidelity/1", "a file").sections
    facts_table, rows = (table.shown().rows for table in values.tables)
    assert [list(row) for row in facts_table] == [["time", "3.00 ms"]]
    assert [list(row) for row in rows] == [["a", "2.000 s"], ["b", "0.0005000 s"]]
