"""The largest error found in a part of a product, and how errors are taken."""

from dataclasses import dataclass
from math import inf

import numpy as np

from quadrille.runtime.verifying.products import Array


@dataclass(frozen=True, slots=True)
class ErrorFinding:
    """The largest error found, where it is, and the tolerance that one entry's change could hide in."""

    error: float = 0.0
    place: str = ""
    tolerance: float = 0.0


def relative_errors(differences: Array, magnitudes: Array) -> Array:
    """Each difference by its magnitude with 0/0 = 0; one that cannot be told, after an overflow, is infinite."""
    errors = np.zeros_like(differences)
    np.divide(differences, magnitudes, out=errors, where=differences != 0)
    errors[np.isnan(errors) | ~np.isfinite(magnitudes)] = inf
    return errors
