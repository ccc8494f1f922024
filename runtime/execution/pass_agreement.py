"""The decision which pass is next, in the tensor that the ranks of a pipeline stage exchange."""

from collections.abc import Collection

import numpy as np

from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import PassKind
from quadrille.runtime.execution.buffers import Buffers

NUMBER_OF: dict[PassKind, int] = {"F": 1, "B": 2}
"""Number of each kind of pass in the tensor; 0 where another rank decides."""


class PassAgreement:
    """What one rank tells the ranks that must run the same pass.

    Parameters
    ----------
    buffers : blocks of all tensors on the rank
    coordinates : grid coordinates of the rank
    """

    def __init__(self, buffers: Buffers, coordinates: Coordinates) -> None:
        self._buffers, self._coordinates = buffers, coordinates

    def decides(self, axes: Collection[Axis]) -> bool:
        """Whether this rank decides for the ranks along these axes: the first of them does."""
        return all(self._coordinates.along[axis] == 0 for axis in axes)

    def announce(self, tensor: str, kind: PassKind | None) -> None:
        """Write the decision into the tensor, or 0 where another rank decides."""
        number = 0 if kind is None else NUMBER_OF[kind]
        self._buffers.load(tensor, self._coordinates, np.array([number], dtype=np.int32))

    def decision(self, tensor: str) -> PassKind:
        """The decision in the tensor."""
        number = int(np.asarray(self._buffers.result(tensor, self._coordinates)).reshape(-1)[0])
        return next(kind for kind, value in NUMBER_OF.items() if value == number)
