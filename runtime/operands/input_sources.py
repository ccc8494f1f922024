"""Sources of the input tensors of a schedule: the interface `InputSource`, and whole host matrices as a source."""

from collections.abc import Mapping
from typing import Any, Protocol

from quadrille.algorithms.schedule.tensors import Block


class InputSource(Protocol):
    """A source of input tensors: it returns any block of any tensor as a host array."""

    def stored(self, matrix: Any, block: Block) -> Any:
        """The elements of a rank's block, as a host array in the shape in which the block is stored."""


class WholeMatrices:
    """An input source of whole host matrices by name, from which each rank takes its own blocks."""

    def __init__(self, matrices: Mapping[str, Any]) -> None:
        self._matrices = matrices

    def stored(self, matrix: str, block: Block) -> Any:
        rectangle = self._matrices[matrix][slice(*block.rows), slice(*block.columns)]
        return rectangle if block.flat_range is None else rectangle.reshape(-1)[slice(*block.flat_range)]
