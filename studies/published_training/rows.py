"""Published training runs, as a file has them: one printed number a row."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

from quadrille.algorithms.errors import InputError
from quadrille.studies.published_rows import printed_value, published_rows

NEEDED = (
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
METRICS: Mapping[tuple[str, str], tuple[Metric, float]] = {
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
"""What is predicted, by the words and units of the file, and how large a unit is."""
RUN = (
    *("source", "table_or_figure", "machine", "gpu_type", "num_gpus", "algorithm", "tp", "pp", "dp", "zero_stage"),
    *("vpp", "model", "layers", "hidden", "heads", "global_batch", "micro_batch", "recompute", "precision"),
)
"""Columns that tell runs apart."""
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
"""The columns whose names are not those of the fields."""
WORDS = -1
"""For a column that has words where a number is looked for, such as the kind of sharding."""
FSDP = "fsdp"
"""Before the number of ranks over which weights, gradients and optimizer are sharded: ZeRO 3, where these are all."""
NOT_PRINTED = ("n/a", "-", "none", "?")
"""What a file may have for a number that the source does not print, beside nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """One printed number; whole numbers that the source does not print are 0, and -1 where words stand for them.

    Parameters
    ----------
    gpus : those of the groups, where the source prints the groups only
    words : the columns as they stand
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
    words: Mapping[str, str]

    @property
    def metric(self) -> tuple[Metric, float] | None:
        """What it says, and its unit; None where that is nothing we predict."""
        return METRICS.get((self.words["metric"], self.words["unit"]))

    @property
    def printed(self) -> float | None:
        """The value in SI units."""
        return None if self.metric is None else self.value * self.metric[1]

    def printed_in(self, field: str) -> str:
        """What stands in the column of a field."""
        return self.words.get(COLUMNS.get(field, field), "")

    @property
    def run(self) -> tuple[str, ...]:
        """What tells runs apart: a table's rows that share it are of one run, in other words."""
        return tuple(self.words.get(name, "") for name in RUN)


def read_rows(path: str | Path) -> list[TrainingRow]:
    """The rows of kind training of a CSV file.

    Raises
    ------
    InputError : a file that cannot be read, or a faulty row, named by line and column
    """
    return [_row(words, where) for words, where in published_rows(path, NEEDED, ("training",))]


def _row(row: Mapping[str, str], where: str) -> TrainingRow:
    def whole(column: str) -> int:
        written = row.get(column, "").strip()
        written = "" if written.lower() in NOT_PRINTED else written
        if written and not (written.isascii() and written.isdigit()):
            if column == "num_gpus":
                raise InputError(f"{where}: column {column}: {written!r} is not a whole number")
            return WORDS
        return int(written or 0)

    def sharded(over: int) -> int:
        words = row.get("zero_stage", "").lower().split()
        return 3 if words in ([FSDP], [FSDP, str(over)]) else whole("zero_stage")

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
        zero=sharded(groups[2]),
        layers=whole("layers"),
        hidden=whole("hidden"),
        heads=whole("heads"),
        sequence=whole("seq_len"),
        vocabulary=whole("vocab"),
        batch=whole("global_batch"),
        micro=whole("micro_batch"),
        words=row,
    )
