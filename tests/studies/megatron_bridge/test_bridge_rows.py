"""Rows of Megatron Bridge's tables: the experiments that they describe, and refusals by name."""

import csv

import pytest

from quadrille.algorithms.errors import InputError, Interruption
from quadrille.algorithms.schedule.grid import Grid
from quadrille.studies.megatron_bridge import study as module
from quadrille.studies.megatron_bridge.bridge_rows import NEEDED, read_bridge
from quadrille.studies.megatron_bridge.study import JudgedStep, error_rows, judge, megatron_bridge, refused_rows

ROW = dict.fromkeys(NEEDED, "") | {
    "model": "LLAMA3_70B",
    "release": "26.04",
    "task": "Pre-Training",
    "gpu_kind": "GB200",
    "num_gpus": "64",
    "precision": "MXFP8",
    "global_batch": "256",
    "micro_batch": "1",
    "seq_length": "8192",
    "fsdp": "0",
    "tp": "2",
    "pp": "4",
    "cp": "1",
    "vpp": "5",
    "iteration_time_s": "8.56",
    "source": "performance-summary.md:7",
}
EXPERTS = {"model": "Qwen3_235B_a22B", "num_gpus": "256", "tp": "1", "pp": "8", "vpp": "3", "ep": "32"}


def rows_of(tmp_path, *changes):
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*ROW])
        writer.writeheader()
        writer.writerows(ROW | change for change in changes)
    return path


def test_a_row_is_an_experiment(tmp_path):
    of_experts = EXPERTS | {"seq_length": "4096"}
    dense, experts, over_tensor_ranks, sharded = read_bridge(
        rows_of(tmp_path, {}, of_experts, of_experts | {"tp": "2"}, {"tp": "1", "pp": "1", "vpp": "", "fsdp": "64"})
    )
    problem = dense.step.experiment.problem
    assert dense.step.experiment.grid == Grid(pipeline=4, data=8, x=2)
    assert (problem.products, problem.interleave, problem.zero, problem.gradient_bytes) == ("mxfp8", 5, 1, 2)
    assert dense.step.experiment.sequence_parallel
    assert experts.step.experiment.grid == Grid(pipeline=8, data=32, expert=32)
    assert over_tensor_ranks.step.experiment.grid == Grid(pipeline=8, data=16, x=2, expert=32)
    assert experts.step.experiment.problem.stages == (3, *(4,) * 22, 3)
    assert (experts.kind, dense.kind) == ("experts", "dense")
    assert sharded.step.experiment.problem.zero == 3
    assert "packed:64" in experts.step.command


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "Nemotron_3_Nano"}, "model Nemotron_3_Nano: layers of Mamba"),
        ({"model": "BERT"}, "model BERT: is none of ours"),
        ({"task": "LoRA"}, "task LoRA"),
        ({"task": "SFT"}, "task SFT: packed sequences"),
        ({"variant": "tokendrop"}, "variant tokendrop: dropped tokens"),
        ({"precision": "INT8"}, "precision INT8"),
        ({"gpu_kind": "TPU"}, "GPU TPU"),
        ({"recipe_recompute": '{"recompute_num_layers":5}'}, "recomputation of 5 layers"),
        ({"num_gpus": "63"}, "GPUs 63: no multiple of 2 x 4 x 1"),
        (EXPERTS | {"tp": "2", "ep": "64"}, "grid expert=64"),
    ],
    ids=str,
)
def test_what_is_not_predicted_is_named(tmp_path, change, reason):
    (row,) = read_bridge(rows_of(tmp_path, change))
    assert row.step is None
    assert row.refused.startswith(reason)
    assert judge(row).error is None


def test_files_are_checked(tmp_path):
    with pytest.raises(InputError, match="is missing"):
        read_bridge(tmp_path / "none.csv")
    (tmp_path / "short.csv").write_text("model\nLLAMA3_8B\n")
    with pytest.raises(InputError, match="the column variant is missing"):
        read_bridge(tmp_path / "short.csv")
    with pytest.raises(InputError, match="line 2"):
        read_bridge(rows_of(tmp_path, {"tp": "two"}))


def test_errors_by_part_and_the_rows_that_are_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "predicted_seconds", lambda step: 9.0)
    path = rows_of(tmp_path, {"iteration_time_s": "10"}, {"iteration_time_s": "6"}, {"task": "LoRA"})
    megatron_bridge(str(path), results=tmp_path / "out.csv")
    with (tmp_path / "out.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [row["error %"] for row in written] == ["-10.0", "+50.0", ""]
    assert "task LoRA" in capsys.readouterr().out
    steps = [JudgedStep(row, 9.0) for row in read_bridge(path)[:2]]
    assert error_rows(steps, lambda row: row.kind) == [["dense", "2", "30.0 %", "30.0 %", "50.0 %", "20.0 %"]]
    assert refused_rows([JudgedStep(steps[0].row, refused="why")]) == [["why", "1"]]


def test_rows_that_a_store_has_are_not_predicted_again(tmp_path, monkeypatch, capsys):
    path, store = rows_of(tmp_path, {"iteration_time_s": "10"}, {"iteration_time_s": "6"}, {"tp": "1"}), tmp_path / "s"
    answers, written = iter((9.0, "too large")), []
    monkeypatch.setattr(module, "predicted_seconds", lambda step: next(answers))
    for said in ("0 of 2", "2 of 2"):
        megatron_bridge(str(path), results=tmp_path / "out.csv", store=str(store), quiet=True)
        assert f"quadrille: {said} answers were in {store}" in capsys.readouterr().err
        written.append((tmp_path / "out.csv").read_text())
    assert written[0] == written[1] and written[0].count("too large") == 1


def test_a_study_that_ends_early_keeps_the_results_that_were_there(tmp_path, monkeypatch):
    path, results = rows_of(tmp_path, {"iteration_time_s": "10"}), tmp_path / "out.csv"
    results.write_text("earlier rows\n")

    def interrupted(_step):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "predicted_seconds", interrupted)
    with pytest.raises(Interruption, match="nothing is kept"):
        megatron_bridge(str(path), results=results, quiet=True, command=["quadrille", "study", "megatron-bridge"])
    assert results.read_text() == "earlier rows\n" and {*tmp_path.iterdir()} == {path, results}
