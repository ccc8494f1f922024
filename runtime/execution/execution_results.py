"""The results of executing a schedule: output blocks, measured timelines and counted bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean

from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.runtime.arrays.array_library import Array


@dataclass(frozen=True, slots=True)
class RankResult:
    """The results of one rank.

    Parameters
    ----------
    outputs : output blocks of the last repeat, by tensor name
    spans : start and end times of all ops, one list for each repeat
    bytes_sent : bytes that the rank sent in one repeat, warm-ups included in the mean [B]
    allocated_bytes : bytes of all arrays that the rank allocated on its device [B]
    allocated_host_bytes : bytes of its arrays in host memory beside the device [B]
    overlap_fractions : fraction (0 to 1) of each communication op that ran during local work, by the name of the op;
        only for ops that may overlap, mean over instances
    """

    outputs: dict[str, Array]
    spans: list[list[Span]]
    bytes_sent: int
    allocated_bytes: int
    allocated_host_bytes: int
    overlap_fractions: dict[str, float]


@dataclass(frozen=True, slots=True)
class Execution:
    """The results of one execution on all ranks.

    Every field except `outputs` is empty on all processes but that of rank 0.

    Parameters
    ----------
    outputs : output blocks of the ranks in this process, by rank and tensor name
    timelines : one measured timeline for each repeat
    bytes_sent : bytes that each rank sent in one repeat, by rank [B]
    allocated_bytes : bytes of the arrays that each rank allocated on its device, by rank [B]
    overlap_fractions : fraction (0 to 1) of each communication op that ran during local work, by the name of the op;
        only for ops that may overlap, mean over ranks
    allocated_host_bytes : bytes of the arrays of each rank in host memory beside its device, by rank [B]
    """

    outputs: dict[int, dict[str, Array]]
    timelines: list[Timeline]
    bytes_sent: dict[int, int]
    allocated_bytes: dict[int, int]
    overlap_fractions: dict[str, float]
    allocated_host_bytes: dict[int, int] = field(default_factory=dict)


def mean_by_name(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean value under each name, over the rows that have the name.

    >>> mean_by_name([{"sum": 1.0}, {"sum": 0.5, "gather": 0.0}])
    {'sum': 0.75, 'gather': 0.0}
    """
    by_name: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            by_name.setdefault(name, []).append(value)
    return {name: mean(values) for name, values in by_name.items()}
