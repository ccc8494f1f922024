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
MOST_EFFECTS = 1000
"""Most effects that are computed from equations of all of them: their memory grows with the square."""


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
        observed = np.asarray(values, dtype=np.float64)
        few = len(columns) < sum(self._lengths) > MOST_EFFECTS
        effects = (self._effects_of_few if few else self._effects)(columns, observed - observed.mean())
        return np.asarray(observed.mean() + effects[self._columns].sum(axis=1))

    def _effects(self, columns: NDArray[np.int64], residuals: Floats) -> Floats:
        """The effects of all values, from equations of all effects."""
        present = np.zeros((len(columns), sum(self._lengths)))
        np.put_along_axis(present, columns, 1.0, axis=1)
        normal = present.T @ present + RIDGE * np.eye(present.shape[1])
        return np.asarray(np.linalg.solve(normal, present.T @ residuals))

    def _effects_of_few(self, columns: NDArray[np.int64], residuals: Floats) -> Floats:
        """The same effects, from equations of the known points, of which there are fewer.

        With the matrix A of values at known points, (A'A + r)^-1 A' = A' (AA' + r)^-1.
        """
        shared = np.asarray((columns[:, None] == columns).sum(axis=2), dtype=np.float64)
        weights = np.linalg.solve(shared + RIDGE * np.eye(len(columns)), residuals)
        spread = np.repeat(weights, columns.shape[1])
        summed = np.bincount(columns.ravel(), weights=spread, minlength=sum(self._lengths))
        return np.asarray(summed, dtype=np.float64)
