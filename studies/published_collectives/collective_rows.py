"""Published measurements of collectives and of messages between GPUs: the rows of a CSV file, checked and typed."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.studies.published_rows import checked_rows, printed_value

KINDS = ("collective", "p2p")
REQUIRED_COLUMNS = (
    "id",
    "kind",
    "source",
    "machine",
    "gpu_type",
    "num_gpus",
    "algorithm",
    "message_bytes",
    "metric",
    "value",
    "unit",
)
LARGEST_ROUNDING = 0.02
"""Largest relative rounding error of a printed value with which a prediction is judged."""
LARGE_BYTES = 1 << 33
"""Message size of a row whose source says only that the message is large [bytes]."""

Metric = Literal["time", "busbw", "algbw"]
SCALES: Mapping[tuple[str, str], tuple[Metric, float]] = {
    ("time", "us"): ("time", 1e-6),
    ("time", "ms"): ("time", 1e-3),
    ("time", "s"): ("time", 1.0),
    ("busbw", "GB/s"): ("busbw", 1e9),
    ("algbw", "GB/s"): ("algbw", 1e9),
}
KIND_PATTERNS: tuple[tuple[str, CollectiveKind], ...] = (
    (r"all[-_ ]?reduce", "all_reduce"),
    (r"all[-_ ]?gather", "all_gather"),
    (r"reduce[-_ ]?scatter", "reduce_scatter"),
    (r"all[-_ ]?to[-_ ]?all", "all_to_all"),
    (r"broadcast|bcast", "broadcast"),
    (r"reduce", "reduce"),
)
"""Regular expressions that find the kind of collective in the column `algorithm`; the first match counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """One published number: the time or the bandwidth of a collective, or of messages between pairs of GPUs.

    Parameters
    ----------
    id : identifier of the row
    kind : `collective` or `p2p` (messages between pairs of GPUs)
    source : publication or web page
    table : table or figure of the source
    machine : machine as the source names it
    gpu_type : GPU as the source names it
    gpus : number of GPUs
    algorithm : library, version, collective and algorithm, as the source names them
    bytes : size of the message [bytes]; None if the source says only that it is large
    metric : metric, such as `time` or `busbw`
    value : printed number, in `unit`
    unit : unit of the value
    decimals : number of printed decimals, the largest in the row's table, because trailing zeros may have been lost
    note : remark in the file
    """

    id: str
    kind: str
    source: str
    table: str
    machine: str
    gpu_type: str
    gpus: int
    algorithm: str
    bytes: int | None
    metric: str
    value: float
    unit: str
    decimals: int
    note: str

    @property
    def library(self) -> str:
        """The communication library: the first word of `algorithm`, such as NCCL, RCCL or MPI."""
        return self.algorithm.split(" ")[0]

    @property
    def collective(self) -> CollectiveKind | None:
        """The kind of collective that `algorithm` names; None if it names none."""
        return next(
            (kind for pattern, kind in KIND_PATTERNS if re.search(pattern, self.algorithm, re.IGNORECASE)), None
        )

    @property
    def forced_algorithm(self) -> str:
        """The algorithm that NCCL was forced to use, as `--collectives` names it; empty if NCCL chose it."""
        if re.search(r"\bNVLS off\b|\bRing\b", self.algorithm):
            return "ring"
        return "nvls" if "NVLS" in self.algorithm else "tree" if re.search(r"\bTree\b", self.algorithm) else ""

    @property
    def version(self) -> tuple[int, int] | None:
        """The major and the minor version of the library; None if the row does not name a version."""
        release = re.match(r"\w+ (\d+)\.(\d+)", self.algorithm)
        return (int(release[1]), int(release[2])) if release else None

    @property
    def is_root_time(self) -> bool:
        """Whether the time is that of the root only: until 2021 nccl-tests printed the time of rank 0.

        Source: NVIDIA/nccl-tests issue 82, 3 May 2021.
        """
        return self.collective == "broadcast" and "nccl-tests" in self.algorithm and self.is_nccl_2_8_era

    @property
    def is_nccl_2_8_era(self) -> bool:
        """Whether the library's version is 2.5 to 2.10, which the model of NCCL 2.8 predicts best."""
        return self.version is not None and (2, 5) <= self.version < (2, 11)

    @property
    def size(self) -> int:
        """The size of the message [bytes]; `LARGE_BYTES` if the source prints none."""
        return LARGE_BYTES if self.bytes is None else self.bytes

    @property
    def rounding(self) -> float:
        """The largest relative rounding error of the value: half of its last printed digit."""
        return 0.5 * 10.0**-self.decimals / self.value if self.value > 0 else math.inf

    @property
    def measurement_key(self) -> tuple[str, ...]:
        """The key of the measurement: rows with the same key state the same measurement, perhaps in other metrics."""
        return (self.machine, self.source, self.table, self.algorithm, str(self.gpus), str(self.bytes))


def read_rows(path: str | Path) -> list[CollectiveRow]:
    """The rows of kind `collective` and `p2p` of a CSV file.

    Parameters
    ----------
    path : CSV file with at least the columns `REQUIRED_COLUMNS`

    Raises
    ------
    InputError : a file that cannot be read, or a faulty row, named by line and column
    """
    rows = [_row(columns, where) for columns, where in checked_rows(path, REQUIRED_COLUMNS, KINDS)]
    decimals: dict[tuple[str, ...], int] = {}
    for row in rows:
        key = (row.source, row.table, row.metric)
        decimals[key] = max(decimals.get(key, 0), row.decimals)
    return [replace(row, decimals=decimals[row.source, row.table, row.metric]) for row in rows]


def _row(columns: Mapping[str, str], where: str) -> CollectiveRow:
    """The typed row; `where` is the file and line that messages about faults name."""
    text = columns["value"].strip()
    return CollectiveRow(
        id=columns["id"],
        kind=columns["kind"],
        source=columns["source"],
        table=columns.get("table_or_figure", ""),
        machine=columns["machine"],
        gpu_type=columns["gpu_type"],
        gpus=_whole(columns, "num_gpus", where),
        algorithm=columns["algorithm"],
        bytes=_whole(columns, "message_bytes", where) if columns["message_bytes"].strip() else None,
        metric=columns["metric"],
        value=printed_value(columns, where, zero=True),
        unit=columns["unit"],
        decimals=len(text.partition(".")[2]) if "e" not in text.lower() else 0,
        note=columns.get("note", ""),
    )


def _whole(columns: Mapping[str, str], column: str, where: str) -> int:
    """The whole number in a column; InputError if it is not a whole number from 1."""
    text = columns[column].strip()
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise InputError(f"{where}: column {column}: {text!r} is not a whole number from 1")
    return int(text)
