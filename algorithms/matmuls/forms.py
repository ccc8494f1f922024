"""The three forms of a product, C = A B, A B^T and A^T B: how each matrix is stored, and of what each is made.

Of three matrices the first times the second has the shape of the third:

    transposed   first   second   third
    none         A mk    B kn     C mn
    b            C mn    B nk     A mk
    a            A km    C mn     B kn

Whichever is made, it is made of the two others:

    third = first second      NN
    first = third second^T    NT
    second = first^T third    TN

With dC in the place of C these are the gradients too: those of each form are
products of the two other forms.

Source: Bian et al., arXiv 2105.14450, algorithms 1 to 6; Xu et al. (Optimus), arXiv 2104.05343.
"""

from dataclasses import dataclass
from typing import Literal

from quadrille.algorithms.schedule.ops import GemmLayout

Transposed = Literal["none", "a", "b"]
Dimension = Literal["m", "k", "n"]
Letter = Literal["A", "B", "C"]
Operand = Literal["A", "B", "dC"]
Product = Literal["C", "dA", "dB"]

ABOUT: dict[str, Letter] = {"A": "A", "B": "B", "C": "C", "dA": "A", "dB": "B", "dC": "C"}
"""The matrix that another one is, or is the gradient of: both are stored alike."""


@dataclass(frozen=True, slots=True)
class Factors:
    """The two operands of a product, and which of them is transposed."""

    product: Product
    left: Operand
    right: Operand
    layout: GemmLayout
    contracted: Dimension


@dataclass(frozen=True, slots=True)
class Form:
    """Three matrices of which the first times the second has the shape of the third.

    >>> FORMS["b"].shape("dB"), FORMS["b"].factors("C").layout
    (('n', 'k'), 'NT')

    Parameters
    ----------
    rows, inner, columns : dimensions of the first (rows × inner) and of the second (inner × columns)
    """

    first: Letter
    second: Letter
    third: Letter
    rows: Dimension
    inner: Dimension
    columns: Dimension

    def shape(self, name: str) -> tuple[Dimension, Dimension]:
        """Dimensions of the rows and of the columns of a matrix as it is stored, or of a gradient."""
        about = ABOUT[name]
        if about == self.first:
            return self.rows, self.inner
        return (self.inner if about == self.second else self.rows), self.columns

    def factors(self, product: Product) -> Factors:
        """Of what a product is made, and how."""
        about = ABOUT[product]
        if about == self.third:
            return Factors(product, self._operand(self.first), self._operand(self.second), "NN", self.inner)
        if about == self.first:
            return Factors(product, self._operand(self.third), self._operand(self.second), "NT", self.columns)
        return Factors(product, self._operand(self.first), self._operand(self.third), "TN", self.rows)

    def _operand(self, letter: Letter) -> Operand:
        """What goes into a product in a matrix's place: C itself never does."""
        return "dC" if letter == "C" else letter


FORMS: dict[Transposed, Form] = {
    "none": Form("A", "B", "C", "m", "k", "n"),
    "b": Form("C", "B", "A", "m", "n", "k"),
    "a": Form("A", "C", "B", "k", "m", "n"),
}
