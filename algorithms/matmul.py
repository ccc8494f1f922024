"""The problem C = A B, its gradients, and the table of algorithms that compute it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from algorithms.errors import InputError
from algorithms.grid import AXES, Axis, Grid
from algorithms.schedule import Program, Role, Schedule, in_sequence
from algorithms.tensors import DType, Tensor

Passes = Literal["forward", "training"]
Gathered = Literal["keep", "again"]
AlgorithmName = Literal["1d-column", "1d-row", "cannon", "summa", "2.5d", "3d", "4d"]
DEFAULT_PANEL = 256


@dataclass(frozen=True, slots=True)
class Matmul:
    """C_mn = A_mk B_kn and, in training, dA = dC B^T and dB = A^T dC.

    Parameters
    ----------
    m, k, n : lengths of the dimensions
    dtype : of all five matrices
    passes : `forward` (C) or `training` (C, dA, dB)
    gathered : whether what a forward pass gathered is kept for the gradients or gathered again
    panel : columns of A and rows of B that SUMMA broadcasts at once

    >>> Matmul(4, 3, 2).flops
    48
    """

    m: int
    k: int
    n: int
    dtype: DType = "float32"
    passes: Passes = "forward"
    gathered: Gathered = "again"
    panel: int = DEFAULT_PANEL

    def __post_init__(self) -> None:
        for letter, size in self.sizes.items():
            if size < 1:
                raise InputError(f"matmul {letter}={size}: a dimension is a whole number from 1")
        if self.dtype not in get_args(DType):
            raise InputError(f"dtype {self.dtype!r}: accepted are {', '.join(get_args(DType))}")
        if self.passes not in get_args(Passes):
            raise InputError(f"passes {self.passes!r}: accepted are {', '.join(get_args(Passes))}")
        if self.gathered not in get_args(Gathered):
            raise InputError(f"gathered {self.gathered!r}: accepted are {', '.join(get_args(Gathered))}")
        if self.panel < 1:
            raise InputError(f"panel {self.panel}: a panel is a whole number of columns from 1")

    @property
    def sizes(self) -> dict[str, int]:
        return {"m": self.m, "k": self.k, "n": self.n}

    @property
    def training(self) -> bool:
        return self.passes == "training"

    @property
    def flops(self) -> int:
        """Floating-point operations of all products, one for a multiplication and one for an addition."""
        return 2 * self.m * self.k * self.n * (3 if self.training else 1)

    @property
    def inputs(self) -> tuple[str, ...]:
        return ("A", "B", "dC") if self.training else ("A", "B")

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("C", "dA", "dB") if self.training else ("C",)


def parse_sizes(text: str) -> tuple[int, int, int]:
    """`M,K,N` as three whole numbers.

    Raises
    ------
    InputError : not three whole numbers from 1
    """
    words = [word.strip() for word in text.split(",")]
    if len(words) != 3 or not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise InputError(f"matmul {text!r}: accepted is M,K,N, three whole numbers from 1, such as 4096,4096,4096")
    m, k, n = (int(word) for word in words)
    return m, k, n


def make_schedule(problem: Matmul, grid: Grid, name: str, tensors: dict[str, Tensor], program: Program) -> Schedule:
    """The schedule of a matmul, one op after the other: overlap is a pass over it."""
    roles = (Role(in_sequence(program)),)
    return Schedule(name, problem.sizes, grid, problem.dtype, tensors, problem.inputs, problem.outputs, roles)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How an algorithm is chosen: its axes, whether they must be equal, and who builds it.

    `one_copy` says that it starts and ends with one evenly spread copy of each
    matrix, so that the lower bound on communication holds for it.
    """

    name: AlgorithmName
    axes: tuple[Axis, ...]
    build: Callable[[Matmul, Grid], Schedule]
    square: bool = False
    one_copy: bool = False

    def check(self, grid: Grid) -> None:
        """Refuse a grid that the algorithm cannot run on.

        Raises
        ------
        InputError : an axis it does not have, or z and x of different lengths
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


def matmul_schedule(problem: Matmul, algorithm: str, grid: Grid) -> Schedule:
    """The schedule of `problem` by the algorithm of that name on `grid`.

    Raises
    ------
    InputError : an unknown algorithm, or a grid that it cannot run on
    """
    chosen = find_algorithm(algorithm)
    chosen.check(grid)
    return chosen.build(problem, grid)


def find_algorithm(name: str) -> Algorithm:
    """The algorithm of that name.

    Raises
    ------
    InputError : there is none
    """
    for algorithm in algorithms():
        if algorithm.name == name:
            return algorithm
    raise InputError(f"algorithm {name!r}: accepted are {', '.join(get_args(AlgorithmName))}")


def algorithms() -> tuple[Algorithm, ...]:
    """The table of the design page."""
    from algorithms import cannon, matmul_1d, matmul_3d, matmul_4d, matmul_25d, summa

    return (
        Algorithm("1d-column", ("x",), matmul_1d.column),
        Algorithm("1d-row", ("y",), matmul_1d.row),
        Algorithm("cannon", ("z", "x"), cannon.cannon, square=True, one_copy=True),
        Algorithm("summa", ("z", "x"), summa.summa, one_copy=True),
        Algorithm("2.5d", ("z", "x", "y"), matmul_25d.matmul_25d, square=True),
        Algorithm("3d", ("z", "y", "x"), matmul_3d.matmul_3d, one_copy=True),
        Algorithm("4d", ("data", "z", "y", "x"), matmul_4d.matmul_4d),
    )
