"""What goes into the execution of a schedule, and what comes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Protocol

from quadrille.algorithms.schedule.tensors import Block
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.runtime.arrays.array_library import Array


class Source(Protocol):
    """Where the inputs come from."""

    def stored(self, matrix: Any, block: Block) -> Any:
        """A host array with the elements of a rank's block."""


class WholeMatrices:
    """Inputs given as whole host matrices, of which each rank takes its blocks."""

    def __init__(self, matrices: Mapping[str, Any]) -> None:
        self._matrices = matrices

    def stored(self, matrix: str, block: Block) -> Any:
        rectangle = self._matrices[matrix][slice(*block.rows), slice(*block.columns)]
        return rectangle if block.piece is None else rectangle.reshape(-1)[slice(*block.piece)]


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank has at the end: its output blocks, one list of spans a repeat, and bytes sent in one repeat.

    Parameters
    ----------
    beside : of each op that may run beside local work, how much of it did, of 1; means over all instances
    """

    outputs: dict[str, Array]
    spans: list[list[Span]]
    bytes_sent: int
    allocated_bytes: int
    beside: dict[str, float]


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of a schedule.

    Parameters
    ----------
    outputs : blocks of the ranks that live here, by rank and tensor
    timelines : measured, one a repeat; empty except at rank 0
    bytes_sent : counted, of every rank; empty except at rank 0
    allocated_bytes : counted, of every rank; empty except at rank 0
    beside : how much of each op that may run beside local work did, of 1, mean over ranks; empty except at rank 0
    """

    outputs: dict[int, dict[str, Array]]
    timelines: list[Timeline]
    bytes_sent: dict[int, int]
    allocated_bytes: dict[int, int]
    beside: dict[str, float]


def means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of what is found under each name.

    >>> means([{"sum": 1.0}, {"sum": 0.5, "gather": 0.0}])
    {'sum': 0.75, 'gather': 0.0}
    """
    by_name: dict[str, list[float]] = {}
    for one in found:
        for name, value in one.items():
            by_name.setdefault(name, []).append(value)
    return {name: mean(values) for name, values in by_name.items()}
