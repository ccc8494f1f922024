"""`MainEffects`: the expected quantity at every point of a full product, from the points that are known.

A value of a key has an effect, which is the same whatever the other keys are. The sum of the effects of its values is a
point's logarithm of a time or of bytes. Effects are fitted by ridge regression, so that a value without a known point
has no effect.

Source: Hoerl, Kennard, "Ridge regression: biased estimation for nonorthogonal problems", Technometrics 12(1), 1970.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RIDGE = 0.3
"""Weight of the squared effects, in squared errors of known points."""


class MainEffects:
    """The points of a full product, the last key fastest.

    >>> table = MainEffects((2, 3))
    >>> expected = table.expected([0, 1, 2, 3], [0.0, 1.0, 2.0, 10.0])
    >>> table.places[np.argmax(expected)]
    np.int64(5)

    Parameters
    ----------
    lengths : number of values of each key
    places : points of the table, by their place in the full product; all if None
    """

    def __init__(self, lengths: Sequence[int], places: Sequence[int] | None = None) -> None:
        self._lengths = tuple(lengths)
        count = int(np.prod(self._lengths, dtype=np.int64))
        self.places = np.arange(count) if places is None else np.asarray(places)
        self._columns = self._columns_of(self.places)

    def _columns_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the effect of each key at each place [points, keys]."""
        firsts = np.cumsum([0, *self._lengths[:-1]])
        return np.asarray(np.stack(np.unravel_index(places, self._lengths), axis=1) + firsts)

    def expected(self, places: Sequence[int], values: Sequence[float]) -> Floats:
        """The expected value at each point of the table [points].

        Parameters
        ----------
        places, values : known points and their values
        """
        columns = self._columns_of(np.asarray(places))
        present = np.zeros((len(columns), sum(self._lengths)))
        np.put_along_axis(present, columns, 1.0, axis=1)
        observed = np.asarray(values, dtype=np.float64)
        normal = present.T @ present + RIDGE * np.eye(present.shape[1])
        effects = np.linalg.solve(normal, present.T @ (observed - observed.mean()))
        return np.asarray(observed.mean() + effects[self._columns].sum(axis=1))
