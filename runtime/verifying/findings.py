"""The largest error in a part of a product, and relative errors."""

from dataclasses import dataclass
from math import inf

import numpy as np

from quadrille.runtime.verifying.products import Array


@dataclass(frozen=True, slots=True)
class ErrorFinding:
    """The largest error, its position, and the tolerance below which a change of one entry could stay unseen."""

    error: float = 0.0
    place: str = ""
    tolerance: float = 0.0


def relative_errors(differences: Array, magnitudes: Array) -> Array:
    """Each difference divided by its magnitude, with 0/0 = 0; infinite where an overflow makes it undefined."""
    errors = np.zeros_like(differences)
    np.divide(differences, magnitudes, out=errors, where=differences != 0)
    errors[np.isnan(errors) | ~np.isfinite(magnitudes)] = inf
    return errors
