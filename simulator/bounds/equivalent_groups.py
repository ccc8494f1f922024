"""Groups that do the same: the same costs, and members that begin as far apart from each other.

On a regular machine hundreds of groups of an op differ in little: of 504 rings of 64 GPUs
of Frontier, 10 have costs of their own.  Of groups that cost the same and begin alike one is
walked, and the others end as much later or earlier as they begin.  Groups are found by
hashes, and compared before they count as one.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.labels import Ints
from quadrille.topologies.network import Floats

SAME = 2.0**-43
"""Part of the latest time by which members may begin apart and count as alike."""
FACTOR = 1_000_003


def first_alike(columns: Sequence[NDArray[np.int64]]) -> Ints:
    """For each row of these columns the first that has the same numbers.

    >>> first_alike([np.array([[1, 2], [3, 4], [1, 2]])]).tolist()
    [0, 1, 0]
    """
    rows = np.concatenate(columns, axis=1)
    marks = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        marks = marks * FACTOR + column
    _, found, which = np.unique(marks, return_index=True, return_inverse=True)
    first = found[which]
    return np.where((rows == rows[first]).all(axis=1), first, np.arange(len(rows)))


def twins(times: Floats, costs: Ints) -> Ints:
    """For each group the first that costs the same and whose members begin alike [rows, groups].

    Parameters
    ----------
    times : when members begin [rows, members of all groups]
    costs : for each group the first that costs the same [rows, groups]
    """
    rows, groups = costs.shape
    grouped = times.reshape(rows, groups, -1)
    unit = SAME * max(float(times.max()), np.finfo(float).tiny)
    apart = np.rint((grouped - grouped[:, :, :1]) / unit).astype(np.int64)
    return np.stack([first_alike([costs[row][:, None], apart[row]]) for row in range(rows)])
