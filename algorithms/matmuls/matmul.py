"""The matmul problem C = A B, A B^T or A^T B and its gradients, and how each matrix is stored.

In each form the first matrix times the second has the shape of the third:

    transposed   first   second   third
    none         A mk    B kn     C mn
    b            C mn    B nk     A mk
    a            A km    C mn     B kn

Each matrix is a product of the two others:

    third = first second      NN
    first = third second^T    NT
    second = first^T third    TN

With dC for C these are the gradients: the gradients of each form are products of the two other forms.

Source: Bian et al., arXiv 2105.14450, algorithms 1 to 6; Xu et al. (Optimus), arXiv 2104.05343.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import GemmLayout
from quadrille.algorithms.schedule.program import Program, in_sequence
from quadrille.algorithms.schedule.schedule import Role, Schedule
from quadrille.algorithms.schedule.tensors import DType, Tensor
from quadrille.algorithms.tabular import ShortRepr
from quadrille.algorithms.units import parse_integer

Transposed = Literal["none", "a", "b"]
Dimension = Literal["m", "k", "n"]
Letter = Literal["A", "B", "C"]
Operand = Literal["A", "B", "dC"]
Product = Literal["C", "dA", "dB"]

MATRIX_OF: dict[str, Letter] = {"A": "A", "B": "B", "C": "C", "dA": "A", "dB": "B", "dC": "C"}
"""Matrix that a name refers to; a gradient is stored like its matrix."""


@dataclass(frozen=True, slots=True)
class Factors:
    """A product of two stored matrices.

    Parameters
    ----------
    product : matrix that the product gives
    left, right : operands
    layout : transposed operand: NN, NT or TN
    contracted : dimension that the product sums over
    """

    product: Product
    left: Operand
    right: Operand
    layout: GemmLayout
    contracted: Dimension


@dataclass(frozen=True, slots=True)
class Form:
    """Three matrices; the first times the second has the shape of the third.

    >>> FORMS["b"].shape("dB"), FORMS["b"].factors("C").layout
    (('n', 'k'), 'NT')

    Parameters
    ----------
    rows, inner, columns : dimensions of the first (rows × inner) and second (inner × columns) matrix
    """

    first: Letter
    second: Letter
    third: Letter
    rows: Dimension
    inner: Dimension
    columns: Dimension

    def shape(self, name: str) -> tuple[Dimension, Dimension]:
        """Row and column dimensions of a stored matrix or gradient."""
        matrix = MATRIX_OF[name]
        if matrix == self.first:
            return self.rows, self.inner
        return (self.inner if matrix == self.second else self.rows), self.columns

    def factors(self, product: Product) -> Factors:
        """Operands and layout of a product."""
        matrix = MATRIX_OF[product]
        if matrix == self.third:
            return Factors(product, self._operand(self.first), self._operand(self.second), "NN", self.inner)
        if matrix == self.first:
            return Factors(product, self._operand(self.third), self._operand(self.second), "NT", self.columns)
        return Factors(product, self._operand(self.first), self._operand(self.third), "TN", self.rows)

    def _operand(self, letter: Letter) -> Operand:
        """Operand in a matrix's place; C itself never is one."""
        return "dC" if letter == "C" else letter


FORMS: dict[Transposed, Form] = {
    "none": Form("A", "B", "C", "m", "k", "n"),
    "b": Form("C", "B", "A", "m", "n", "k"),
    "a": Form("A", "C", "B", "k", "m", "n"),
}


Passes = Literal["forward", "training"]
Gathered = Literal["keep", "again"]
DEFAULT_PANEL = 256


@dataclass(frozen=True, slots=True, repr=False)
class Matmul(ShortRepr):
    """C_mn = A_mk B_kn and, in training, dA = dC B^T and dB = A^T dC; A or B may be stored transposed.

    Parameters
    ----------
    m, k, n : lengths of the dimensions: C is m × n, k is contracted
    dtype : element type of all matrices
    passes : `forward` (C) or `training` (C, dA, dB)
    gathered : whether gathered operands are kept for the gradients or gathered again
    panel : width of a SUMMA panel in elements of the contracted dimension
    transposed : operand that is stored transposed: A as k x m, C = A^T B; or B as n x k, C = A B^T

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
    transposed: Transposed = "none"

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
        if self.transposed not in get_args(Transposed):
            raise InputError(f"transposed {self.transposed!r}: accepted are {', '.join(get_args(Transposed))}")

    @property
    def form(self) -> Form:
        """Storage and products of the matrices."""
        return FORMS[self.transposed]

    @property
    def sizes(self) -> dict[str, int]:
        """Length of each dimension, by letter."""
        return {"m": self.m, "k": self.k, "n": self.n}

    def shape(self, matrix: str) -> tuple[int, int]:
        """Rows and columns of a stored matrix or gradient."""
        rows, columns = self.form.shape(matrix)
        return self.sizes[rows], self.sizes[columns]

    @property
    def training(self) -> bool:
        """Whether the gradients are computed too."""
        return self.passes == "training"

    @property
    def flops(self) -> int:
        """Flop of all products; a multiplication and an addition count one each."""
        return 2 * self.m * self.k * self.n * (3 if self.training else 1)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the given matrices."""
        return ("A", "B", "dC") if self.training else ("A", "B")

    @property
    def outputs(self) -> tuple[Product, ...]:
        """Names of the computed matrices."""
        return ("C", "dA", "dB") if self.training else ("C",)


MOST_DIGITS = 12


def parse_sizes(text: str) -> tuple[int, int, int]:
    """Returns the three integers of `M,K,N`.

    Raises
    ------
    InputError : not three positive integers of at most `MOST_DIGITS` digits
    """
    words = [word.strip() for word in text.split(",")]
    if any(len(word) > MOST_DIGITS and word.isdigit() for word in words):
        raise InputError(f"matmul {text[:40]!r}…: sizes of at most {MOST_DIGITS} digits are accepted")
    if len(words) != 3 or not all(parse_integer(word) for word in words):
        raise InputError(f"matmul {text!r}: accepted is M,K,N, three whole numbers from 1, such as 4096,4096,4096")
    m, k, n = (int(word) for word in words)
    return m, k, n


def make_schedule(problem: Matmul, grid: Grid, name: str, tensors: dict[str, Tensor], program: Program) -> Schedule:
    """Returns the schedule of a matmul, without overlap.

    Parameters
    ----------
    problem : the multiplication
    grid : grid of ranks
    name : name of the algorithm
    tensors : tensors by name
    program : program of all ranks
    """
    roles = (Role(in_sequence(program)),)
    return Schedule(name, problem.sizes, grid, problem.dtype, tensors, problem.inputs, problem.outputs, roles)
