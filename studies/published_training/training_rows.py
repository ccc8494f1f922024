"""Published measurements of training runs: the rows of a CSV file, one printed number each, checked and typed."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

from quadrille.algorithms.errors import InputError
from quadrille.studies.published_rows import checked_rows, printed_value

REQUIRED_COLUMNS = (
    "id",
    "kind",
    "source",
    "machine",
    "gpu_type",
    "num_gpus",
    "algorithm",
    "tp",
    "pp",
    "dp",
    "layers",
    "hidden",
    "heads",
    "seq_len",
    "vocab",
    "global_batch",
    "micro_batch",
    "recompute",
    "precision",
    "metric",
    "value",
    "unit",
)
Metric = Literal[
    "seconds",
    "sequences",
    "tokens",
    "tokens_per_gpu",
    "flops",
    "total_flops",
    "share",
    "model_share",
    "memory",
]
METRICS_BY_COLUMN: Mapping[tuple[str, str], tuple[Metric, float]] = {
    ("iteration_time", "s"): ("seconds", 1.0),
    ("iteration_time", "ms"): ("seconds", 1e-3),
    ("model_flops_per_gpu", "TFLOP/s"): ("flops", 1e12),
    ("pct_of_peak", "%"): ("share", 1e-2),
    ("aggregate_flops", "PFLOP/s"): ("total_flops", 1e15),
    ("throughput", "samples/s"): ("sequences", 1.0),
    ("throughput", "tokens/s"): ("tokens", 1.0),
    ("throughput_per_gpu", "tokens/s/GPU"): ("tokens_per_gpu", 1.0),
    ("mfu", "%"): ("model_share", 1e-2),
    ("peak_memory", "GB/GPU"): ("memory", 1e9),
}
"""The predicted metrics by the metric and unit in the file, each with the size of the unit in SI."""
RUN = (
    *("source", "table_or_figure", "machine", "gpu_type", "num_gpus", "algorithm", "tp", "pp", "dp", "zero_stage"),
    *("vpp", "model", "layers", "hidden", "heads", "global_batch", "micro_batch", "recompute", "precision"),
)
"""Columns that identify a run."""
COLUMNS = {
    "gpus": "num_gpus",
    "tensor": "tp",
    "pipeline": "pp",
    "data": "dp",
    "context": "cp",
    "interleave": "vpp",
    "zero": "zero_stage",
    "sequence": "seq_len",
    "vocabulary": "vocab",
    "batch": "global_batch",
    "micro": "micro_batch",
}
"""Column of each field of `TrainingRow` that has another name than its column."""
TEXT_INSTEAD = -1
"""Value of a field whose column contains text instead of a number, such as the kind of sharding."""
FSDP = "fsdp"
"""Name of PyTorch's fully sharded data parallelism in the column `zero_stage`; a number of ranks may follow.
It is ZeRO 3 if that number is the length of the data-parallel group."""
NOT_PRINTED = ("n/a", "-", "none", "?")
"""Texts in a column, other than the empty text, for a number that the source does not print."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """One printed number of a training run.

    A whole number is 0 if the source does not print it, and `TEXT_INSTEAD` if its column contains text.

    Parameters
    ----------
    id : identifier of the row
    value : printed value, in the unit of the file
    gpus : number of GPUs; if the source prints only the parallel groups, the product of their lengths
    tensor, pipeline, data, context : lengths of the parallel groups
    interleave : number of layer chunks of a pipeline stage
    zero : ZeRO stage
    layers, hidden, heads, sequence, vocabulary : shape of the model
    batch, micro : number of sequences of the global batch and of a microbatch
    columns : text of each column
    """

    id: str
    value: float
    gpus: int
    tensor: int
    pipeline: int
    data: int
    context: int
    interleave: int
    zero: int
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    batch: int
    micro: int
    columns: Mapping[str, str]

    @property
    def metric(self) -> tuple[Metric, float] | None:
        """The metric and the size of its unit in SI; None if the metric is not predicted."""
        return METRICS_BY_COLUMN.get((self.columns["metric"], self.columns["unit"]))

    @property
    def printed(self) -> float | None:
        """The printed value in SI units; None if the metric is not predicted."""
        return None if self.metric is None else self.value * self.metric[1]

    def printed_in(self, field: str) -> str:
        """The text in the column of a field of this class."""
        return self.columns.get(COLUMNS.get(field, field), "")

    @property
    def run(self) -> tuple[str, ...]:
        """The key of the run: rows of the same table with the same key are metrics of one run."""
        return tuple(self.columns.get(name, "") for name in RUN)


def read_rows(path: str | Path) -> list[TrainingRow]:
    """The rows of kind `training` of a CSV file.

    Parameters
    ----------
    path : CSV file with at least the columns `REQUIRED_COLUMNS`

    Raises
    ------
    InputError : a file that cannot be read, or a faulty row, named by line and column
    """
    return [_row(columns, where) for columns, where in checked_rows(path, REQUIRED_COLUMNS, ("training",))]


def _row(row: Mapping[str, str], where: str) -> TrainingRow:
    """The typed row; `where` is the file and line that messages about faults name."""

    def whole(column: str) -> int:
        """The whole number in a column; 0 if the source does not print it, `TEXT_INSTEAD` for text."""
        written = row.get(column, "").strip()
        written = "" if written.lower() in NOT_PRINTED else written
        if written and not (written.isascii() and written.isdigit()):
            if column == "num_gpus":
                raise InputError(f"{where}: column {column}: {written!r} is not a whole number")
            return TEXT_INSTEAD
        return int(written or 0)

    def zero_stage(data: int) -> int:
        """The ZeRO stage of a run with a data-parallel group of this length."""
        words = row.get("zero_stage", "").lower().split()
        return 3 if words in ([FSDP], [FSDP, str(data)]) else whole("zero_stage")

    groups = [whole(column) for column in ("tp", "pp", "dp")]
    return TrainingRow(
        id=row["id"],
        value=printed_value(row, where, zero=False),
        gpus=whole("num_gpus") or (prod(groups) if min(groups) > 0 else 0),
        tensor=whole("tp"),
        pipeline=whole("pp"),
        data=whole("dp"),
        context=whole("cp"),
        interleave=whole("vpp"),
        zero=zero_stage(groups[2]),
        layers=whole("layers"),
        hidden=whole("hidden"),
        heads=whole("heads"),
        sequence=whole("seq_len"),
        vocabulary=whole("vocab"),
        batch=whole("global_batch"),
        micro=whole("micro_batch"),
        columns=row,
    )
