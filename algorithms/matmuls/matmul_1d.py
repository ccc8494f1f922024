"""Megatron's 1-D products: the 4D grid with one axis.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language
Models Using Model Parallelism", arXiv 1909.08053, section 3.
"""

from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.matmuls.matmul_4d import matmul_4d
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.schedule import Schedule


def column(problem: Matmul, grid: Grid) -> Schedule:
    """A repeated, B and C cut over n: no communication forward, dA summed over x backward."""
    return matmul_4d(problem, grid, "1d-column")


def row(problem: Matmul, grid: Grid) -> Schedule:
    """A and B cut over k, C summed over y: no communication backward."""
    return matmul_4d(problem, grid, "1d-row")
