"""Numbers that look random and are the same in every run: how rules draw paths."""

import numpy as np
from numpy.typing import NDArray

from quadrille.topologies.network import Ints


def hashed(sources: Ints, targets: Ints, seed: int) -> NDArray[np.uint64]:
    """A number for each (source, target, seed) that looks random (the finaliser of SplitMix64).

    Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
    Generators", OOPSLA 2014, section 5.
    """
    mixed = np.full(len(sources), seed % 2**64, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for part in (sources, targets):
            mixed = mixed + part.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed
