"""Published measurements of collectives, as a file has them."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.studies.published_rows import printed_value, published_rows

KINDS = ("collective", "p2p")
NEEDED = (
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
TOO_ROUNDED = 0.02
"""A value whose last printed digit may be further off than this, relative, says too little to be judged by."""
LARGE_BYTES = 1 << 33
"""Where a source says only that messages are large."""

Metric = Literal["time", "busbw", "algbw"]
SCALES: Mapping[tuple[str, str], tuple[Metric, float]] = {
    ("time", "us"): ("time", 1e-6),
    ("time", "ms"): ("time", 1e-3),
    ("time", "s"): ("time", 1.0),
    ("busbw", "GB/s"): ("busbw", 1e9),
    ("algbw", "GB/s"): ("algbw", 1e9),
}
WORDS: tuple[tuple[str, CollectiveKind], ...] = (
    (r"all[-_ ]?reduce", "all_reduce"),
    (r"all[-_ ]?gather", "all_gather"),
    (r"reduce[-_ ]?scatter", "reduce_scatter"),
    (r"all[-_ ]?to[-_ ]?all", "all_to_all"),
    (r"broadcast|bcast", "broadcast"),
    (r"reduce", "reduce"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """One published number.

    Parameters
    ----------
    decimals : printed at most by the table that the row is of; trailing zeros may have been lost
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
    def carrier(self) -> str:
        """Who carried it out: NCCL, RCCL, or what stands first."""
        return self.algorithm.split(" ")[0]

    @property
    def collective(self) -> CollectiveKind | None:
        """The kind of collective that its words name."""
        return next((kind for pattern, kind in WORDS if re.search(pattern, self.algorithm, re.IGNORECASE)), None)

    @property
    def held(self) -> str:
        """The algorithm that its words hold NCCL to, as `--collectives` names it; empty where it chose."""
        if re.search(r"\bNVLS off\b|\bRing\b", self.algorithm):
            return "ring"
        return "nvls" if "NVLS" in self.algorithm else "tree" if re.search(r"\bTree\b", self.algorithm) else ""

    @property
    def version(self) -> tuple[int, int] | None:
        """Major and minor version of the library; None if the row does not name a version."""
        release = re.match(r"\w+ (\d+)\.(\d+)", self.algorithm)
        return (int(release[1]), int(release[2])) if release else None

    @property
    def as_root(self) -> bool:
        """Whether the time is the root's alone, as nccl-tests printed rank 0's until 2021.

        Source: NVIDIA/nccl-tests issue 82, 3 May 2021.
        """
        return self.collective == "broadcast" and "nccl-tests" in self.algorithm and self.old

    @property
    def old(self) -> bool:
        """Whether the library is of the time of NCCL 2.8."""
        return self.version is not None and (2, 5) <= self.version < (2, 11)

    @property
    def size(self) -> int:
        return LARGE_BYTES if self.bytes is None else self.bytes

    @property
    def rounding(self) -> float:
        """How far off the value may be by its last digit, relative."""
        return 0.5 * 10.0**-self.decimals / self.value if self.value > 0 else math.inf

    @property
    def measurement(self) -> tuple[str, ...]:
        """What tells measurements apart: rows that share it are the same one in other words."""
        return (self.machine, self.source, self.table, self.algorithm, str(self.gpus), str(self.bytes))


def read_rows(path: str | Path) -> list[CollectiveRow]:
    """The rows of kind collective and p2p of a CSV file.

    Raises
    ------
    InputError : a file that cannot be read, or a faulty row, named by line and column
    """
    rows = [_row(words, where) for words, where in published_rows(path, NEEDED, KINDS)]
    decimals: dict[tuple[str, ...], int] = {}
    for row in rows:
        key = (row.source, row.table, row.metric)
        decimals[key] = max(decimals.get(key, 0), row.decimals)
    return [replace(row, decimals=decimals[row.source, row.table, row.metric]) for row in rows]


def _row(words: Mapping[str, str], where: str) -> CollectiveRow:
    text = words["value"].strip()
    return CollectiveRow(
        id=words["id"],
        kind=words["kind"],
        source=words["source"],
        table=words.get("table_or_figure", ""),
        machine=words["machine"],
        gpu_type=words["gpu_type"],
        gpus=_whole(words, "num_gpus", where),
        algorithm=words["algorithm"],
        bytes=_whole(words, "message_bytes", where) if words["message_bytes"].strip() else None,
        metric=words["metric"],
        value=printed_value(words, where, zero=True),
        unit=words["unit"],
        decimals=len(text.partition(".")[2]) if "e" not in text.lower() else 0,
        note=words.get("note", ""),
    )


def _whole(words: Mapping[str, str], column: str, where: str) -> int:
    text = words[column].strip()
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise InputError(f"{where}: column {column}: {text!r} is not a whole number from 1")
    return int(text)
