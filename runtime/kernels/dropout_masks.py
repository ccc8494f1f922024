"""Dropout masks: for each element a random number of its own, from a counter-based generator.

The number of an element is the first word of Philox 4x32 with ten rounds; the counter is

    (row in the batch, column, 4 · layer + place, step)

Ranks that hold an element compute the same number for it, on every grid, and so does the backward pass.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3 (Philox); its
library Random123, `philox.h` (the constants).
"""

from typing import Any

from quadrille.runtime.arrays.array_library import Array

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
KEY = 0x51554144, 0x52494C4C
"""The key of all masks: they do not depend on the seed of a run."""
LOW = 0xFFFFFFFF
PLACES_OF_A_LAYER = 4


def philox(xp: Any, counter: tuple[Array, Array, Array, Array], key: tuple[int, int] = KEY) -> Array:
    """The first 32-bit word of Philox 4x32-10, for arrays of counters that broadcast against each other.

    Parameters
    ----------
    xp : array module, numpy or cupy
    counter : four words below 2³², as arrays or numbers of type uint64
    key : two words
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        low, high = c0 * xp.uint64(MULTIPLIERS[0]), c2 * xp.uint64(MULTIPLIERS[1])
        c0, c1, c2, c3 = (
            (high >> xp.uint64(32)) ^ c1 ^ xp.uint64(k0),
            high & xp.uint64(LOW),
            (low >> xp.uint64(32)) ^ c3 ^ xp.uint64(k1),
            low & xp.uint64(LOW),
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW, (k1 + KEY_STEPS[1]) & LOW
    return c0


def kept_elements(
    xp: Any, rows: Array, columns: Array, *, share: float, place: int, layer: int = 0, step: int = 0
) -> Array:
    """Whether dropout keeps each element.

    Parameters
    ----------
    xp : array module, numpy or cupy
    rows, columns : row of each element in the batch, and its column; integer arrays that broadcast against each other
    share : share of the elements that are dropped
    place : number of the place of dropout in a layer, from 0
    layer, step : indices of the layer and of the step, from 0
    """
    counter = rows.astype(xp.uint64), columns.astype(xp.uint64), xp.uint64(PLACES_OF_A_LAYER * layer + place)
    number = philox(xp, (*counter, xp.uint64(step)))
    return number >= xp.uint64(int(share * 2.0**32))
