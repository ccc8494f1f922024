import json
import re

import pytest
from msgspec import structs

from quadrille.algorithms.formats.record import save_record
from quadrille.experiments.report.report import parts_of_files
from quadrille.experiments.what_if.compare_predictions import predictions_figure, predictions_of
from tests.support.quadrille import called

MATMUL = "simulate --matmul 256,256,256 --machine perlmutter --quiet"


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The paths of predictions of one job on three grids."""
    from quadrille.cli.main import main

    folder = tmp_path_factory.mktemp("predictions")
    grids = {"base": "z=4", "other": "x=4", "third": "z=2,x=2"}
    for name, grid in grids.items():
        assert main([*MATMUL.split(), "--grid", grid, "--json", str(folder / f"{name}.json")]) == 0
    return [str(folder / f"{name}.json") for name in grids]


def test_causes_add_up_and_differences_are_those_of_the_totals(capsys, records, tmp_path):
    ended = called(capsys, "compare", *records, "--json", str(tmp_path / "all.json"))
    assert ended.status == 0
    first, *others = json.loads((tmp_path / "all.json").read_text())["predictions"]
    for prediction in (first, *others):
        assert sum(prediction["seconds_by_cause"].values()) == pytest.approx(prediction["seconds"])
        assert prediction["difference"] == pytest.approx(prediction["seconds"] / first["seconds"] - 1)
    assert ended.out.count("the largest change is") == len(others)


def test_a_prediction_does_not_differ_from_itself(capsys, records):
    ended = called(capsys, "compare", records[0], records[0])
    assert ended.status == 0
    assert f"{records[0]} takes the same time as {records[0]}" in ended.out
    assert "more time" not in ended.out


def test_the_figure_has_a_bar_for_each_prediction_as_long_as_its_time(records):
    from quadrille.algorithms.formats.record import load_record

    compared = predictions_of(records, [load_record(path) for path in records])
    axes = predictions_figure(compared).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["base", "other", "third"]
    ends = [sum(bars[place].get_width() for bars in axes.containers) for place in range(3)]
    assert ends == pytest.approx([prediction.seconds for prediction in compared.predictions])


def test_a_report_has_a_bar_for_each_prediction_and_times_in_seconds(capsys, records, tmp_path):
    answer = tmp_path / "all.json"
    assert called(capsys, "compare", *records, "--json", str(answer)).status == 0
    (part,) = parts_of_files([str(answer)])
    causes = part.sections[0]
    written = json.loads(answer.read_text())["predictions"]
    assert causes.tables[0].rows[0] == ("total", *(f"{1e6 * each['seconds']:.2f} us" for each in written))
    assert {row[0] for row in causes.charts[0].table.rows} == set(written[0]["seconds_by_cause"])
    assert all(re.fullmatch(r"[\d.]+ (s|ms|us|ns)", cell) for row in causes.charts[0].table.rows for cell in row[1:])
    assert "the largest change is" in part.verdict


def test_a_measurement_among_several_predictions_is_refused(capsys, records, tmp_path):
    from quadrille.algorithms.formats.record import load_record

    measured = structs.replace(load_record(records[0]), kind="measured")
    save_record(measured, tmp_path / "measured.json")
    ended = called(capsys, "compare", *records, str(tmp_path / "measured.json"))
    assert ended.status == 2
    assert "measured.json is measured" in ended.err


@pytest.mark.parametrize("flag", ["--trace", "--timelines"])
def test_flags_of_a_measurement_are_refused(capsys, records, flag):
    words = [flag, "one.json", *(["two.json"] if flag == "--timelines" else [])]
    ended = called(capsys, "compare", *records[:2], *words)
    assert ended.status == 2
    assert flag in ended.err


JOBS = {
    "product": "--matmul 256,256,256",
    "wider": "--matmul 256,512,256",
    "training": "--matmul 256,256,256 --passes training",
    "model": "--gpt layers=2,hidden=64,heads=4,sequence=64,vocabulary=128 --batch 8",
    "deeper": "--gpt layers=4,hidden=64,heads=4,sequence=64,vocabulary=128 --batch 8",
    "batch": "--gpt layers=2,hidden=64,heads=4,sequence=64,vocabulary=128 --batch 16",
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """The paths of predictions of several jobs."""
    from quadrille.cli.main import main

    folder = tmp_path_factory.mktemp("jobs")
    for name, flags in JOBS.items():
        words = ["simulate", *flags.split(), "--grid", "data=2", "--machine", "perlmutter", "--quiet"]
        assert main([*words, "--json", str(folder / f"{name}.json")]) == 0
    return {name: str(folder / f"{name}.json") for name in JOBS}


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ("product", "wider", "k 256 in {}, 512 in {}"),
        ("product", "training", "passes forward in {}, training in {}"),
        ("product", "model", "job matmul in {}, gpt in {}"),
        ("model", "deeper", "layers 2 in {}, 4 in {}"),
    ],
)
def test_predictions_of_different_jobs_are_refused_in_one_line_with_both_values(capsys, jobs, first, second, named):
    ended = called(capsys, "compare", jobs[first], jobs[second])
    assert (ended.status, ended.out) == (2, "")
    assert named.format(jobs[first], jobs[second]) in ended.err
    assert ended.err.count("\n") == 1


def test_batches_of_different_sizes_are_compared_by_their_tokens(capsys, jobs, tmp_path):
    ended = called(capsys, "compare", jobs["model"], jobs["batch"], "--json", str(tmp_path / "all.json"))
    assert ended.status == 0
    small, large = json.loads((tmp_path / "all.json").read_text())["predictions"]
    assert (small["amount"], large["amount"]) == (8 * 64, 16 * 64)
    change = large["amount"] / large["seconds"] / (small["amount"] / small["seconds"]) - 1
    assert f"{100 * change:+.1f} % tokens/s" in ended.out


def test_settings_that_differ_are_named_and_the_others_are_not(capsys, records, tmp_path):
    changes = {
        "fast": "--set device.overhead_seconds=x2 --set topology.bandwidth_bytes_per_second=x2",
        "broken": "--degrade gpu:0>gpu:1=0.5 --dtype bf16 --overlap oar,ors --passes forward",
    }
    paths = [records[0], *(str(tmp_path / f"{name}.json") for name in changes)]
    for path, words in zip(paths[1:], changes.values(), strict=True):
        assert called(capsys, "simulate", "--from", records[0], *words.split(), "--json", path).status == 0
    answer = tmp_path / "all.json"
    ended = called(capsys, "compare", *paths, "--json", str(answer))
    assert [prediction["settings"] for prediction in json.loads(answer.read_text())["predictions"]] == [
        {
            "dtype": dtype,
            "overlap": overlap,
            "degrade": degrade,
            "device.overhead_seconds": factor,
            "topology.bandwidth_bytes_per_second": factor,
        }
        for dtype, overlap, degrade, factor in [
            ("float32", "", "", "-"),
            ("float32", "", "", "x2"),
            ("bfloat16", "oar,ors", "gpu:0>gpu:1=0.5", "-"),
        ]
    ]
    (part,) = parts_of_files([str(answer)])
    rows = {row[0]: row[1:] for row in part.sections[0].tables[0].rows}
    assert rows["topology.bandwidth_bytes_per_second"] == ("-", "x2", "-")
    for name, cells in list(rows.items())[-5:]:
        assert re.search(rf"^ *{re.escape(name)} +" + " +".join(map(re.escape, cells)), ended.out, re.MULTILINE)


def test_predictions_of_one_problem_differ_in_no_setting(capsys, records, tmp_path):
    answer = tmp_path / "same.json"
    assert called(capsys, "compare", records[0], records[0], "--json", str(answer)).status == 0
    assert all(prediction.get("settings", {}) == {} for prediction in json.loads(answer.read_text())["predictions"])


def test_a_machine_file_whose_contents_changed_is_named_by_its_hash(capsys, tmp_path):
    machine, paths = tmp_path / "mine.toml", [str(tmp_path / name) for name in ("before.json", "after.json")]
    assert called(capsys, "machines", "perlmutter", "--gpus", "8", "--toml", machine).status == 0
    for path in paths:
        words = ["--matmul", "64,64,64", "--grid", "z=2", "--machine", machine, "--json", path]
        assert called(capsys, "simulate", *words).status == 0
        machine.write_text(machine.read_text().replace("overhead_seconds = 5e-06", "overhead_seconds = 7e-06"))
    answer = tmp_path / "both.json"
    assert called(capsys, "compare", *paths, "--json", str(answer)).status == 0
    before, after = (prediction["settings"] for prediction in json.loads(answer.read_text())["predictions"])
    assert set(before) == set(after) == {"machine's hash"}
    assert before != after
