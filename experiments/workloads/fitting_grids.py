"""The grids that fit a number of ranks, and the check that a launch has as many ranks as its grid."""

from math import log2, prod
from typing import Protocol

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import Algorithm
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.experiments.workloads.grids import grids

GRIDS_SHOWN = 6


class Gridded(Protocol):
    """An experiment that runs on a grid of ranks."""

    @property
    def grid(self) -> Grid: ...

    def grids_that_fit(self, ranks: int) -> str:
        """The grids that fit the number of ranks, as text for an error message."""


def check_ranks(experiment: Gridded, ranks: int) -> None:
    """Checks that a number of ranks is that of the grid.

    Raises
    ------
    InputError : another number; the message lists the grids that fit
    """
    if ranks == experiment.grid.size:
        return
    size = experiment.grid.size
    raise InputError(
        f"ranks={ranks}, but the grid {experiment.grid} has {size}: start {size} ranks (quadrille launch -n {size} …) "
        f"or give {experiment.grids_that_fit(ranks)}"
    )


def grids_that_fit(algorithm: Algorithm, ranks: int) -> str:
    """The grids of a number of ranks on which an algorithm runs, as text; the most even grids first.

    >>> from quadrille.algorithms.matmuls.catalogue import find_algorithm
    >>> grids_that_fit(find_algorithm("3d"), 4)
    'a --grid of 4 for 3d: y=2,x=2; z=2,x=2; z=2,y=2; x=4; y=4; z=4'
    >>> grids_that_fit(find_algorithm("cannon"), 6)
    'another number of ranks: cannon has no grid of 6, it takes z=q,x=q'
    """
    grids = fitting_grids(algorithm, ranks)
    if not grids:
        return f"another number of ranks: {no_grid_of(algorithm.name, ranks)}"
    shown = "; ".join(map(str, grids[:GRIDS_SHOWN])) + ("; …" if len(grids) > GRIDS_SHOWN else "")
    return f"a --grid of {ranks} for {algorithm.name}: {shown}"


def no_grid_of(name: str, ranks: int) -> str:
    """The error message about an algorithm that has no grid of a number of ranks.

    >>> no_grid_of("cannon", 6)
    'cannon has no grid of 6, it takes z=q,x=q'
    """
    return f"{name} has no grid of {ranks}, it takes z=q,x=q"


def fitting_grids(algorithm: Algorithm, ranks: int) -> list[Grid]:
    """All grids of a number of ranks on which an algorithm runs, the most even grids first."""
    return sorted(grids(ranks, algorithm), key=_unevenness)


def _unevenness(grid: Grid) -> tuple[float, str]:
    """A sort key of a grid, which is smaller for grids whose longer axes are more equal."""
    lengths = [length for axis in AXES if (length := grid.length(axis)) > 1]
    assert prod(lengths) == grid.size
    return sum(log2(length) ** 2 for length in lengths), str(grid)
