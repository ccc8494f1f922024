"""Catalogue of matmul algorithms: their names, grid axes and requirements, and the schedule by an algorithm's name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.matmul import Matmul, Transposed
from quadrille.algorithms.schedule.grid import AXES, Axis, Grid
from quadrille.algorithms.schedule.schedule import Schedule

AlgorithmName = Literal["1d-column", "1d-row", "cannon", "summa", "2.5d", "3d", "4d"]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An entry of the catalogue.

    Parameters
    ----------
    name : name of the algorithm
    axes : grid axes that it uses
    build : function that builds the schedule
    square : whether z and x must be equal
    one_copy : whether it starts and ends with one evenly distributed copy of each matrix, so that the lower bound
        applies
    any_form : whether it accepts transposed operands
    gathers_twice : whether it gathers operands a second time for the gradients, if they are not kept
    paneled : whether it moves operands panel by panel
    """

    name: AlgorithmName
    axes: tuple[Axis, ...]
    build: Callable[[Matmul, Grid], Schedule]
    square: bool = False
    one_copy: bool = False
    any_form: bool = False
    gathers_twice: bool = False
    paneled: bool = False

    def check(self, grid: Grid) -> None:
        """Checks that the algorithm can run on a grid.

        Raises
        ------
        InputError : an axis that the algorithm lacks, or z and x of different lengths
        """
        strange = [axis for axis in AXES if axis not in self.axes and grid.length(axis) > 1]
        if strange:
            words = ", ".join(f"{axis}={grid.length(axis)}" for axis in strange)
            raise InputError(f"grid {words}: {self.name} takes the axes {', '.join(self.axes)} only")
        if self.square and grid.z != grid.x:
            raise InputError(
                f"grid z={grid.z}, x={grid.x} is not square: {self.name} takes z=q,x=q, that is 1, 4, 9, 16, … "
                "ranks a layer"
            )

    def check_form(self, transposed: Transposed) -> None:
        """Checks that the algorithm accepts the transposed operands.

        Raises
        ------
        InputError : a transposed operand
        """
        if transposed != "none" and not self.any_form:
            others = " and ".join(algorithm.name for algorithm in algorithms() if algorithm.any_form)
            raise InputError(f"transposed {transposed}: {self.name} takes none only; {others} take a and b")


def matmul_schedule(problem: Matmul, algorithm: str, grid: Grid) -> Schedule:
    """Returns the schedule of a matrix multiplication by the named algorithm.

    Parameters
    ----------
    problem : the multiplication
    algorithm : name of the algorithm
    grid : grid of ranks

    Raises
    ------
    InputError : an unknown algorithm, or a grid or a transposed operand that it cannot run on
    """
    chosen = find_algorithm(algorithm)
    chosen.check(grid)
    chosen.check_form(problem.transposed)
    return chosen.build(problem, grid)


def find_algorithm(name: str) -> Algorithm:
    """Returns the algorithm of that name.

    Raises
    ------
    InputError : an unknown name
    """
    for algorithm in algorithms():
        if algorithm.name == name:
            return algorithm
    raise InputError(f"algorithm {name!r}: accepted are {', '.join(get_args(AlgorithmName))}")


def _column(problem: Matmul, grid: Grid) -> Schedule:
    from quadrille.algorithms.matmuls.matmul_4d import column

    return column(problem, grid)


def _row(problem: Matmul, grid: Grid) -> Schedule:
    from quadrille.algorithms.matmuls.matmul_4d import row

    return row(problem, grid)


def _cannon(problem: Matmul, grid: Grid) -> Schedule:
    from quadrille.algorithms.matmuls.cannon import cannon

    return cannon(problem, grid)


def _summa(problem: Matmul, grid: Grid) -> Schedule:
    from quadrille.algorithms.matmuls.summa import summa

    return summa(problem, grid)


def _matmul_25d(problem: Matmul, grid: Grid) -> Schedule:
    from quadrille.algorithms.matmuls.summa import matmul_25d

    return matmul_25d(problem, grid)


def _matmul_3d(problem: Matmul, grid: Grid) -> Schedule:
    from quadrille.algorithms.matmuls.matmul_3d import matmul_3d

    return matmul_3d(problem, grid)


def _matmul_4d(problem: Matmul, grid: Grid) -> Schedule:
    from quadrille.algorithms.matmuls.matmul_4d import matmul_4d

    return matmul_4d(problem, grid)


ALGORITHMS = (
    Algorithm("1d-column", ("x",), _column),
    Algorithm("1d-row", ("y",), _row),
    Algorithm("cannon", ("z", "x"), _cannon, square=True, one_copy=True),
    Algorithm("summa", ("z", "x"), _summa, one_copy=True, any_form=True, paneled=True),
    Algorithm("2.5d", ("z", "x", "y"), _matmul_25d, square=True, paneled=True),
    Algorithm("3d", ("z", "y", "x"), _matmul_3d, one_copy=True, any_form=True, gathers_twice=True),
    Algorithm("4d", ("data", "z", "y", "x"), _matmul_4d, gathers_twice=True),
)


def algorithms() -> tuple[Algorithm, ...]:
    """All algorithms, each of which imports its builder when it builds."""
    return ALGORITHMS
