"""Recorded peaks of memory: rows of Megatron-LM's golden files and of SimuMax, each with its training step.

A row is refused, by name, if

    its arguments ask for what an experiment has not (experts, another model than GPT, …): "not yet"
    its number of GPUs is unknown, or it prints no peak
    it differs by more than 10 % from the median of the recordings of the same step on the same kind of GPU: the
    arguments cannot be those of all of them

Halves are by the hash of the test's name, so variants of a test stay together: whatever is chosen is chosen with
the learnt half.
"""

import csv
import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import Literal

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.training.megatron_step import MegatronStep
from quadrille.experiments.import_.megatron_arguments import read_arguments
from quadrille.experiments.import_.megatron_job import megatron_job

Half = Literal["learnt", "judged"]
GOLDEN = ("megatron_golden.csv", "megatron_golden_small.csv", "megatron_golden_history.csv")
HISTORY_ARGUMENTS = "megatron_golden_history_args.jsonl.gz"
SIMUMAX = "simumax_b200_steps.csv"
OTHER_MODELS = "hybrid (Mamba)", "bert", "t5", "mimo", "multimodal-llava"
WIDEST_SPREAD = 0.1
LONGEST_FIELD = 2**24
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded step.

    Parameters
    ----------
    id : name of the test, kind of GPU and date, or name of the case
    group : name of the test without its variants
    source : file of the row
    gpu : kind of GPU
    step : training step; None if there is none
    peak_bytes : recorded peak of PyTorch's allocated memory
    seconds : recorded time of a step; 0 if there is none
    all_stages : whether the peak is that of the fullest stage instead of the last one
    refused : reason why the row is not judged; empty if it is judged
    """

    id: str
    group: str
    source: str
    gpu: str
    step: MegatronStep | None
    peak_bytes: float
    seconds: float = 0.0
    all_stages: bool = False
    refused: str = ""

    @property
    def half(self) -> Half:
        """Half of the row, by the parity of the hash of its group."""
        return "learnt" if hashlib.sha256(self.group.encode()).digest()[0] % 2 else "judged"


def golden_recordings(folder: Path) -> list[Recording]:
    """The recordings of Megatron-LM's own tests.

    Raises
    ------
    InputError : a file that is missing
    """
    csv.field_size_limit(LONGEST_FIELD)
    arguments = _history_arguments(folder)
    rows = [_golden(row, name, arguments) for name in GOLDEN for row in _rows(folder / name)]
    return without_contradictions(rows)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.is_file():
        raise InputError(f"file {path}: is missing; a folder with {path.name} is accepted")
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _history_arguments(folder: Path) -> dict[str, str]:
    """The arguments of old recordings as JSON, by their identifier."""
    path = folder / HISTORY_ARGUMENTS
    if not path.is_file():
        raise InputError(f"file {path}: is missing; it lies beside megatron_golden.csv")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return {row["args_id"]: json.dumps(row["args"]) for row in map(json.loads, file)}


def _golden(row: Mapping[str, str], source: str, arguments: Mapping[str, str]) -> Recording:
    peak = float(row["mem_max_allocated_bytes"] or 0)
    name = f"{row['group']}, {row['gpu_kind']}, {row['recorded_date']}, {row['environment']}"
    recording = Recording(
        name, row["group"], source, row["gpu_kind"], None, peak, float(row["iteration_time_median_s"] or 0)
    )
    if row["family"] in OTHER_MODELS:
        return replace(recording, refused=f"not yet: {row['family']}")
    if not row["num_gpus"]:
        return replace(recording, refused="unknown number of GPUs")
    if not peak:
        return replace(recording, refused="no peak is recorded")
    text = row["args"] if "args" in row else arguments[row["args_id"]]
    try:
        job = megatron_job(read_arguments(text), int(float(row["num_gpus"])))
    except InputError as error:
        return replace(recording, refused=f"not yet: {str(error).partition(':')[2].strip()}")
    if job.uncounted:
        return replace(recording, refused=f"not yet: memory with {job.uncounted}")
    return replace(recording, step=job.step)


def without_contradictions(rows: list[Recording]) -> list[Recording]:
    """The rows, with those refused that are far from the median of their step on their kind of GPU."""
    peaks: dict[tuple[MegatronStep, str], list[float]] = defaultdict(list)
    for row in rows:
        if row.step is not None:
            peaks[row.step, row.gpu].append(row.peak_bytes)
    return [row if row.step is None else _checked(row, peaks[row.step, row.gpu]) for row in rows]


def _checked(row: Recording, peaks: list[float]) -> Recording:
    """The row, refused if it is far from the median of the recordings of its step."""
    ratio = row.peak_bytes / median(peaks)
    if abs(ratio - 1) <= WIDEST_SPREAD:
        return row
    return replace(row, refused=f"{ratio:.2f} times the median of {len(peaks)} recordings of the same step")


def simumax_recordings(folder: Path) -> list[Recording]:
    """SimuMax's steps on B200; their scripts are those of `simu_tools/megatron_scripts` in its repository."""
    recordings = []
    for row in _rows(folder / SIMUMAX):
        peak, seconds = float(row["peak_allocated_gib"]) * GIB, float(row["step_time_s"])
        group = f"{row['model']} {row['case'].split('_mbc')[0]}"
        recording = Recording(row["case"], group, SIMUMAX, row["gpu_kind"], None, peak, seconds, all_stages=True)
        if row["num_experts"]:
            recordings.append(replace(recording, refused="not yet: experts"))
        else:
            recordings.append(replace(recording, step=_simumax_step(row)))
    return recordings


def _simumax_step(row: Mapping[str, str]) -> MegatronStep:
    hidden, heads, tensor = int(row["hidden"]), int(row["heads"]), int(row["tp"])
    multiple = 128 * tensor
    return MegatronStep(
        gpus=int(row["num_gpus"]),
        layers=int(row["num_layers"]),
        sequence=int(row["seq_length"]),
        vocabulary=ceil(int(row["vocab"]) / multiple) * multiple,
        inner=int(row["ffn_hidden"]),
        hidden=hidden,
        heads=heads,
        head_columns=hidden // heads,
        micro_batch=int(row["micro_batch"]),
        global_batch=int(row["global_batch"]),
        key_heads=int(row["query_groups"] or row["heads"]),
        tensor=tensor,
        pipeline=int(row["pp"]),
        context=int(row["cp"]),
        gated=True,
        rms_norm=True,
        biases=False,
        untied=True,
        distributed_optimizer=row["distributed_optimizer"] == "1",
        sequence_parallel=row["sequence_parallel"] == "1" and tensor > 1,
        attention="flash",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        loss="te" if row["cross_entropy_fusion"] == "1" else "unfused",
        mask_from_loader=False,
    )
