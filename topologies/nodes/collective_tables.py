"""Measured collectives of NCCL inside a node: seconds by kind, number of GPUs and size, interpolated in tables.

A table holds the ratio of measured seconds to a bound that the data sheet gives,

    seconds = ratio · (bus factor · bytes / NVLink bandwidth of a GPU + `COLLECTIVE_SECONDS`)

at 2, 4 and 8 GPUs and at powers of two of bytes.  Between the points, the logarithm of the ratio is linear in the
logarithms of the sizes.  Above the largest size, each further byte takes as long as in the last octave, and the
estimate is marked as extrapolated.  A table says nothing of more GPUs than were measured.

`measured_collectives/README.md` names the source and the licence; `studies/collective_tables` makes the files, and
states how far they are from measurements that they were not made from.
"""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.topologies.nodes.gpus import TABLE_OF_GPU
from quadrille.topologies.nodes.kernel_tables import RatioTable

if TYPE_CHECKING:
    from quadrille.topologies.nodes.gpu_node import NodeKind

FOLDER = Path(__file__).resolve().parent / "measured_collectives"
Schema = Literal["quadrille/measured-collectives/1"]
SCHEMA: Schema = "quadrille/measured-collectives/1"
MeasuredKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
MEASURED: tuple[MeasuredKind, ...] = get_args(MeasuredKind)
COLLECTIVE_SECONDS = 1e-5
"""Seconds of the smallest collective, to the nearest power of ten."""
MOST_BEYOND = 4
"""Largest size that a table extrapolates to, as a multiple of its largest size."""
NO_TABLE = "none"
"""Name of no table: NCCL's model predicts."""


class CollectiveTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measured collectives of NCCL on GPUs that an NVSwitch joins.

    Parameters
    ----------
    schema : version of the file's form
    gpu : name of the GPU
    source : source of the measurements
    nvlink_bytes_per_second : data sheet's bandwidth of a GPU's NVLinks, each way [B/s]
    collectives : tables over the GPUs and the size of the buffer [B], by kind
    wide : tables of sums of elements of 2 bytes and more, which are faster than sums of single bytes; `collectives` has
        the middle of both
    """

    schema: Schema
    gpu: str
    source: str
    nvlink_bytes_per_second: float
    collectives: dict[MeasuredKind, RatioTable]
    wide: dict[MeasuredKind, RatioTable]

    def seconds(
        self, kind: CollectiveKind, gpus: int, size: float, rate: float, *, wide: bool = False
    ) -> tuple[float, bool] | None:
        """Seconds of a collective, and whether they are extrapolated; None if no such collective was measured.

        Parameters
        ----------
        gpus : number of GPUs
        size : size of the whole buffer, as nccl-tests counts it [B]
        rate : bandwidth of a GPU's NVLinks, each way [B/s]
        wide : whether the elements are known to have 2 bytes or more
        """
        if kind not in MEASURED or kind not in self.collectives:
            return None
        table = self.wide.get(kind, self.collectives[kind]) if wide else self.collectives[kind]
        counts, sizes = table.axes["gpus"], table.axes["bytes"]
        if not counts[0] <= gpus <= counts[-1] or size > MOST_BEYOND * sizes[-1]:
            return None

        def within(inner: float) -> float:
            return table.ratio(gpus, inner)[0] * collective_bound(kind, gpus, inner, rate)

        if size <= sizes[-1]:
            return within(size), size < sizes[0]
        largest, before = sizes[-1], sizes[-2]
        per_byte = (within(largest) - within(before)) / (largest - before)
        return within(largest) + (size - largest) * per_byte, True


def collective_bound(kind: CollectiveKind, gpus: int, size: float, rate: float) -> float:
    """The data sheet's bound of a collective on an NVSwitch, without in-switch sums [s].

    Parameters
    ----------
    size : size of the whole buffer [B]
    rate : bandwidth of a GPU's NVLinks, each way [B/s]

    >>> collective_bound("all_reduce", 4, 1e9, 3e9) == 0.5 + COLLECTIVE_SECONDS
    True
    """
    passes = 2 if kind == "all_reduce" else 1
    return passes * (gpus - 1) / gpus * size / rate + COLLECTIVE_SECONDS


def collective_table_names() -> tuple[str, ...]:
    """The names of the tables of measured collectives.

    >>> "h100-sxm" in collective_table_names()
    True
    """
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def collective_table_of(node: "NodeKind | None") -> str:
    """The name of the table of a kind of node; empty if its collectives were not measured."""
    if node is None or node.gpu is None or "nvswitch" not in node.parts:
        return ""
    return TABLE_OF_GPU.get(node.gpu.name, "")


@lru_cache(16)
def collective_table(name: str) -> CollectiveTable:
    """The measured collectives of a GPU.

    Raises
    ------
    InputError : a name without a table
    """
    if name not in collective_table_names():
        raise InputError(f"collectives of {name!r}: accepted are {', '.join(collective_table_names())}")
    return msgspec.json.decode(Path(FOLDER, f"{name}.json").read_bytes(), type=CollectiveTable)
