"""`PassCosts`: seconds of the passes over arrays of which some kernels of a host consist, from measured passes.

The passes of each operation are fitted with

    t = c0 calls + c1 rows + c2 elements (+ c3 multiplications + c4 narrow elements, for batched products)

by least squares of relative errors, where no coefficient is negative.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from quadrille.algorithms.analysis.host_passes import HostPass, product_pass
from quadrille.algorithms.formats.measured_rows import PassRow
from quadrille.algorithms.schedule.tensors import DType


class PassCosts:
    """Costs of passes, fitted to measured rows.

    Parameters
    ----------
    rows : measured passes of one dtype and one number of busy ranks
    """

    def __init__(self, rows: Sequence[PassRow]) -> None:
        operations = {row.operation for row in rows}
        self._costs = {
            operation: fit_costs([row for row in rows if row.operation == operation]) for operation in operations
        }

    @classmethod
    def nearest(cls, rows: Sequence[PassRow], dtype: DType, busy_ranks: int) -> "PassCosts":
        """The costs of a dtype, from the rows with the nearest number of busy ranks."""
        of_dtype = [row for row in rows if row.dtype == dtype]
        distance = min((abs(row.busy_ranks - busy_ranks) for row in of_dtype), default=0)
        return cls([row for row in of_dtype if abs(row.busy_ranks - busy_ranks) == distance])

    def seconds(self, passes: Sequence[HostPass]) -> float | None:
        """The seconds of these passes; None if there are none, or if one of them was not measured."""
        if not passes or any(host_pass.operation not in self._costs for host_pass in passes):
            return None
        return sum(
            cost * term
            for host_pass in passes
            for cost, term in zip(self._costs[host_pass.operation], host_pass.terms, strict=True)
        )


def measured_pass(row: PassRow) -> HostPass:
    """The pass of a row, with its numbers of calls, rows and elements."""
    if row.operation.startswith("product"):
        return product_pass(row.operation, 1, row.matrices, row.rows, row.columns)
    return HostPass(row.operation, 1, row.rows, row.rows * row.columns)


def fit_costs(rows: Sequence[PassRow]) -> tuple[float, ...]:
    """The costs per call, row, element and (products) multiplication and narrow element of one operation.

    >>> sizes = ((10, 100), (1000, 10), (10, 1000), (1000, 100))
    >>> rows = [
    ...     PassRow(operation="select", dtype="float32", rows=m, columns=n, seconds=1e-6 + 1e-9 * m * n)
    ...     for m, n in sizes
    ... ]
    >>> [round(cost * 1e9, 3) for cost in fit_costs(rows)]
    [1000.0, 0.0, 1.0]
    """
    seconds = np.array([row.seconds for row in rows])
    terms = np.array([measured_pass(row).terms for row in rows], float) / seconds[:, None]
    scale = terms.max(axis=0)
    best, least = np.zeros(len(scale)), np.inf
    for count in range(1, len(scale) + 1):
        for chosen in combinations(range(len(scale)), count):
            columns = list(chosen)
            solution, *_ = np.linalg.lstsq((terms / scale)[:, columns], np.ones(len(rows)), rcond=None)
            error = float(np.square((terms / scale)[:, columns] @ solution - 1).sum())
            if solution.min() >= 0 and error < least:
                best, least = np.zeros(len(scale)), error
                best[columns] = solution
    return tuple(float(cost) for cost in best / scale)
