"""Measured collectives inside a node, as the study reads them."""

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

from quadrille.algorithms.errors import InputError
from quadrille.topologies.nodes.collective_tables import MeasuredKind

FILE = "nccl.csv.gz"
KINDS: dict[str, MeasuredKind] = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
"""Kind of collective by the source's word."""


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """One measured collective.

    Parameters
    ----------
    system : name of the system in the source
    version : version of NCCL
    bytes : size of the whole buffer [B]
    seconds : median of the measured times [s]
    """

    system: str
    version: str
    kind: MeasuredKind
    dtype: str
    gpus: int
    bytes: int
    seconds: float


def measured_collectives(folder: str) -> list[MeasuredCollective]:
    """The rows of `nccl.csv.gz` (system, nccl, op, dtype, gpus, bytes, seconds) in a folder.

    Raises
    ------
    InputError : no folder, or no such file in it
    """
    path = Path(folder, FILE)
    if not folder or not path.is_file():
        raise InputError(f"folder {folder!r}: {FILE} is missing; a folder with {FILE} of aiconfigurator is accepted")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [
            MeasuredCollective(
                row["system"],
                row["nccl"],
                KINDS[row["op"]],
                row["dtype"],
                int(row["gpus"]),
                int(row["bytes"]),
                float(row["seconds"]),
            )
            for row in csv.DictReader(file)
        ]
