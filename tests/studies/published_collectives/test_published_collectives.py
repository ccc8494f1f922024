"""The study of published collectives: what is read, judged, learnt from and skipped, and how near it comes."""

import csv
import json
from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.collectives.nccl.communicator import communicator
from quadrille.algorithms.errors import InputError
from quadrille.cli.main import main
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.studies.published_collectives.collective_rows import read_rows
from quadrille.studies.published_collectives.machine_calibration import (
    calibrate,
    calibration_rows,
    machine_of,
    published_seconds,
)
from quadrille.studies.published_collectives.nccl_2_8 import plan_2_8
from quadrille.studies.published_collectives.study import ROWS, published_collectives
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine_catalogue import MACHINES
from quadrille.topologies.nodes.cpu_vendors import CPU_VENDORS, cpu_vendor
from quadrille.topologies.nodes.node_kinds import NODE_KINDS

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
    used = [rows[row.id].measurement_key for row in answer.rows if row.role != "skipped"]
    assert len(used) == len(set(used))


def test_the_aims_are_met_from_one_mebibyte_up_and_below(answer):
    summary = answer.summary
    assert summary.from_1_mib.rows > 100
    assert summary.from_1_mib.median <= 0.15
    assert summary.small_factor <= 1.5


def test_no_machine_is_far_off_in_the_median(answer):
    medians = {name: spread.median for name, spread in answer.summary.from_1_mib_by_machine.items()}
    assert max(medians.values()) <= 0.25


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
    ({"kind": "p2p", "algorithm": "OpenMPI osu_bw 1 pair(s)", "metric": "bandwidth"}, "their GPU path"),
    (
        {"kind": "p2p", "algorithm": "NCCL sendrecv 9 pairs", "num_gpus": "18"},
        "9 pairs of GPUs on two nodes of 8: 8 fit",
    ),
    ({"kind": "p2p", "algorithm": "NCCL sendrecv", "metric": "rate"}, "metric rate in GB/s"),
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
    found = calibrate("abci-a100", scaled, seconds).settings
    assert seconds(scaled[0][1], found) == pytest.approx(rows[chosen[0][1].id], rel=5e-3)
    assert found.between == pytest.approx(0.5, rel=0.01)


def _with_seconds(row, seconds):
    changed = replace(row, metric="time", unit="s", value=seconds)
    assert published_seconds(changed) == seconds
    return changed


def test_every_machine_of_the_table_is_one_of_ours():
    from quadrille.studies.published_collectives.machine_calibration import MACHINES_BY_WORD, NAMES, NODE_OF_GPU

    assert {*NAMES.values(), *(name for *_, name in MACHINES_BY_WORD), *NODE_OF_GPU.values()} <= set(MACHINES)


def test_the_command_writes_what_the_issue_names(tmp_path, capsys):
    given = write(tmp_path / "rows.csv", ROW)
    out = tmp_path / "out.json"
    assert main(["study", "published-collectives", "--rows", given, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    named = "id machine metric unit published predicted relative_error role reason"
    assert set(named.split()) <= set(found["rows"][0])
    assert {"median", "mean", "worst", "by_source"} <= set(found["summary"])
    assert "error of judged rows" in capsys.readouterr().out


def message(**changes):
    given = {"kind": "p2p", "algorithm": "NCCL sendrecv 2 pairs", "num_gpus": "4", "metric": "latency", "unit": "us"}
    return ROW | given | changes


def test_a_message_of_nccl_takes_one_hop_and_what_it_counts_on_from_the_links(tmp_path):
    """8x H100 that nothing was learnt of: 3.4 us inside, then 18 NVLinks of 20.6 GB/s; 14 us and 50 GB/s between."""
    h100 = {"machine": "8x H100", "gpu_type": "H100", "value": "1000", "message_bytes": str(1 << 30)}
    rows = (message(**h100), message(**h100, id="2", algorithm="NCCL sendrecv 2 pairs, 2 nodes"))
    inside, apart = published_collectives(write(tmp_path / "rows.csv", *rows)).rows
    assert inside.predicted == pytest.approx(3.4 + (1 << 30) / (18 * 20.6e3))
    assert apart.predicted == pytest.approx(14 + (1 << 30) / 50e3)
    assert (inside.role, inside.gpu_path) == ("judged", "modelled")


def test_pairs_that_share_a_card_have_half_of_it_each_and_mpi_is_told_the_network_s_part(tmp_path):
    """ABCI: GPUs 0 and 1 leave by one card of 25 GB/s; one pair has it alone, and so have two pairs together."""
    abci = {"machine": "ABCI 2.0 Compute Node (A)", "gpu_type": "A100", "metric": "aggregate_bandwidth", "unit": "MB/s"}
    rows = [
        message(**abci, id=str(n), algorithm=f"OpenMPI osu_mbw_mr {n} pair(s), 2 nodes", value="15334.04")
        for n in (1, 2, 4)
    ]
    found = published_collectives(write(tmp_path / "rows.csv", *rows)).rows
    assert [row.predicted for row in found] == pytest.approx([25e3, 25e3, 50e3])
    assert {(row.role, row.gpu_path) for row in found} == {("skipped", "not modelled")}


def test_a_row_without_a_size_says_what_it_was_judged_at(answer):
    unsized = [row for row in answer.rows if row.message_bytes is None and row.role == "judged"]
    assert [row.reason for row in unsized] == ["the source says only that the message is large: predicted at 8 GiB"] * 2


def test_nccl_2_8_keeps_low_latency_for_broadcasts_as_long_as_its_sources_say():
    """128 GPUs on 16 nodes, 4 cards of 25 GB/s.

    LL takes 3.6 + 128 x 2.7 us and carries 20.4 GB/s, LL128 10 + 128 x 4.0 us and 4 x 18.8: they meet at
    172.8 us / (1 / 20.4 - 1 / 75.2) GB/s = 4.84e6 bytes.
    """
    group = communicator(128, 16, "ampere", nvlinks=12, cards=4, card_bandwidth=25e9)
    chosen = [plan_2_8("broadcast", size, group).protocol for size in (4.83e6, 4.85e6)]
    assert chosen == ["LL", "LL128"]
    alike = [plan_2_8("broadcast", size, group, same_channels_across_nodes=True).protocol for size in (1 << 10, 4.83e6)]
    assert alike == ["LL", "Simple"]


def test_a_root_alone_does_not_wait_for_its_broadcast_where_channels_pass_nodes_equally():
    """Of 64 KiB: one channel, so the root is gone at once; of 2 MiB: four, and it waits for the first slot's way."""
    machine = find_machine("abci-a100", (), gpus=32)

    def seconds(size, as_root):
        settings = NcclSettings(as_root=as_root, planned=partial(plan_2_8))
        question = CollectiveQuestion(
            kind="broadcast", bytes=size, gpus=32, group=32, choices=parse_choices("nccl"), nccl=settings
        )
        return predict_collective(question, machine).seconds

    assert seconds(1 << 16, True) < 0.5 * seconds(1 << 16, False)
    assert seconds(1 << 21, True) == seconds(1 << 21, False)


def test_the_processors_of_every_kind_of_node_are_known():
    assert set(CPU_VENDORS) == set(NODE_KINDS)
    assert {cpu_vendor(name) for name in NODE_KINDS} == {"intel", "amd", "other"}
    assert all(one.source for one in CPU_VENDORS.values())


@pytest.mark.parametrize(
    ("machine", "gpu", "name"),
    [
        ("IDRIS Jean Zay, 16 nodes", "A100-SXM4-80GB", "jean-zay-a100"),
        ("IDRIS Jean Zay, 16 nodes", "V100-SXM2-32GB", "jean-zay-v100"),
        ("a DGX H100 cluster", "H100", "h100-superpod"),
        ("8x A100 server", "A100-SXM4-80GB", "selene"),
        ("8x A100 server", "A100-PCIE-40GB", None),
    ],
)
def test_machines_are_recognised_by_words_and_by_their_gpus(tmp_path, machine, gpu, name):
    (row,) = read_rows(write(tmp_path / "rows.csv", ROW | {"machine": machine, "gpu_type": gpu}))
    assert machine_of(row) == name
