"""Making tables of measured collectives from synthetic measurements, and judging predictions by them."""

import gzip

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.studies.collective_tables import judge_nodes, judge_rows, make_tables
from quadrille.studies.collective_tables.measured_rows import MeasuredCollective, measured_collectives
from quadrille.topologies.nodes.collective_tables import collective_bound, collective_table
from quadrille.topologies.nodes.kernel_tables import table_of_ratios

RATE = 450e9
SIZES = [1 << power for power in range(18, 30)]


def row(size, dtype="half", gpus=8, factor=1.0, version="2.29.2"):
    seconds = factor * collective_bound("all_gather", gpus, size, RATE)
    return MeasuredCollective("h100_sxm", version, "all_gather", dtype, gpus, size, seconds)


def ratio_of(rows, gpus, size):
    axes, ratios = make_tables.ratios_of(rows, RATE)
    return table_of_ratios(axes, ratios, 0, (0, 0)).ratio(gpus, size)[0]


def test_a_point_is_the_median_over_versions_and_the_middle_of_the_element_types():
    rows = [row(size, factor=factor) for size in SIZES for factor in (1.0, 1.1, 9.0)]
    rows += [row(size, "int8", factor=1.21 * 1.1) for size in SIZES]
    assert ratio_of(rows, 8, SIZES[3]) == pytest.approx(1.1 * 1.1, rel=1e-3)


def test_a_point_with_one_element_type_is_corrected_to_the_middle():
    rows = [row(size) for size in SIZES] + [row(size, "int8", factor=1.21) for size in SIZES[:-1]]
    assert ratio_of(rows, 8, SIZES[-1]) == pytest.approx(1.1, rel=1e-3)


def test_errors_are_those_of_rows_that_were_left_out():
    rows = [row(size) for size in SIZES]
    wrong = [row(size, factor=1 / 1.25) for size in SIZES]
    assert make_tables.errors_of((rows, wrong), RATE) == pytest.approx([0.25] * 10, rel=0.01)
    kept, out = make_tables.sizes_left_out(rows)
    assert not {row.bytes for row in kept} & {row.bytes for row in out}
    assert len(kept) + len(out) == len(rows)


def test_measurements_equal_to_a_table_are_predicted_without_error():
    seconds, _ = collective_table("h100-sxm").seconds("all_gather", 4, 1 << 24, RATE)
    measured = MeasuredCollective("h100_sxm", "", "all_gather", "half", 4, 1 << 24, seconds)
    by_table, by_model = (judge_rows.judge([measured], NcclSettings(measured=use))[0] for use in (True, False))
    assert by_table.error == pytest.approx(0, abs=1e-9)
    assert abs(by_model.error) > 0.01
    assert by_table.size_class == "from 16 MiB"


def test_a_file_of_several_nodes_is_judged_by_its_groups(tmp_path, capsys):
    lines = ["cluster,nodes,ranks_per_node,collective,bytes,seconds"]
    for key in (("B", 2, 8, "all_gather"), ("B", 1, 4, "alltoall"), ("B", 2, 1, "sendrecv")):
        seconds = judge_nodes.predicted_seconds(key, 1 << 26) / 1.1
        lines.append(f"{key[0]},{key[1]},{key[2]},{key[3]},{1 << 26},{seconds}")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    judged = judge_nodes.judged_rows(tmp_path / "rows.csv")
    assert [row.error for row in judged] == pytest.approx([0.1] * 3)
    assert [row.group for row in judged] == ["B, 2 nodes, 8 GPUs a node", "B, one node", "learnt, not judged"]
    judge_nodes.main(str(tmp_path / "rows.csv"))
    assert "all of several nodes" in capsys.readouterr().out


def test_a_folder_is_read_and_missing_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"nccl.csv.gz is missing; a folder with nccl.csv.gz"):
        measured_collectives(str(tmp_path))
    with gzip.open(tmp_path / "nccl.csv.gz", "wt") as file:
        file.write("system,nccl,op,dtype,gpus,bytes,seconds\nh100_sxm,2.29.2,alltoall,half,8,1024,1e-05\n")
    assert [row.kind for row in measured_collectives(str(tmp_path))] == ["all_to_all"]
    for main, words in ((make_tables.main, ()), (judge_rows.main, ("", "table")), (judge_nodes.main, ("none.csv",))):
        with pytest.raises(InputError):
            main(*words)
