"""Rows of recordings: which are judged, and in which half."""

import gzip
import json

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.studies.megatron_recordings.recordings import GOLDEN, HISTORY_ARGUMENTS, SIMUMAX, golden_recordings
from quadrille.studies.megatron_recordings.study import accuracy_rows, cause_rows, judged, megatron_recordings

COLUMNS = (
    "group", "gpu_kind", "recorded_date", "environment", "family", "num_gpus", "mem_max_allocated_bytes",
    "iteration_time_median_s",
)  # fmt: skip
ARGUMENTS = {
    "--num-layers": 12, "--hidden-size": 512, "--num-attention-heads": 8, "--seq-length": 1024, "--bf16": True,
    "--micro-batch-size": 4, "--global-batch-size": 32, "--max-position-embeddings": 1024, "--deterministic-mode": True,
    "--use-distributed-optimizer": True, "--attention-backend": "unfused", "--no-gradient-accumulation-fusion": True,
}  # fmt: skip


def row(group, peak, family="dense", gpus="8", **changes):
    values = group, "A100", "2026-01-01", "dev", family, gpus, str(peak), "0.4"
    return dict(zip(COLUMNS, values, strict=True)) | {"args": json.dumps({**ARGUMENTS, **changes})}


def write(folder, rows):
    import csv

    for name in (*GOLDEN, SIMUMAX):
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, (*COLUMNS, "args"))
            writer.writeheader()
            writer.writerows(rows if name == GOLDEN[0] else [])
    with gzip.open(folder / HISTORY_ARGUMENTS, "wt") as file:
        file.write("")


def test_rows_without_a_step_or_with_another_peak_are_refused_by_name(tmp_path):
    recorded = 4673_100_000
    write(
        tmp_path,
        [
            *[row(name, recorded) for name in "abc"],
            row("d", recorded // 2),
            row("e", recorded, **{"--num-experts": 8}),
            row("f", recorded, family="t5"),
            row("g", recorded, gpus=""),
            row("h", ""),
        ],
    )
    rows = golden_recordings(tmp_path)
    assert [bool(each.refused) for each in rows] == [False] * 3 + [True] * 5
    reasons = [each.refused for each in rows[3:]]
    for words, reason in zip(("0.50 times", "experts", "t5", "unknown", "no peak"), reasons, strict=True):
        assert words in reason
    assert [abs(each.error) < 0.01 for each in judged(rows)] == [True] * 3
    assert {each.half for each in rows} == {"learnt", "judged"}
    assert sum(int(cells[2]) for cells in accuracy_rows(rows)) == 3
    assert all(cells[0] in ("all causes",) or cells[0].startswith("without ") for cells in cause_rows(rows))


def test_a_folder_without_files_is_refused(tmp_path):
    for folder in ("", str(tmp_path)):
        with pytest.raises(InputError, match=r"megatron_golden\.csv"):
            megatron_recordings(folder)
