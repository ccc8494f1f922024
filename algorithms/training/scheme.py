"""What a parallel scheme decides: how activations, weights and vectors lie, and the ops that follow from it.

Between two products an activation lies in one of two layouts: `stream` before
a normal product and after a transposed one, `inner` the other way around.  A
scheme's products go from one to the other, so layers follow each other and
nothing is redistributed.
"""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.grid import AXES, Axis, Grid
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.architecture import PLAIN, Architecture
from quadrille.algorithms.training.layers import Layer, Parameter, Start

Orientation = Literal["normal", "transposed"]
ONE, TWO = Part("one"), Part("two")


@dataclass(frozen=True, slots=True)
class Layout:
    """How an activation lies.

    Parameters
    ----------
    rows : axes that cut its rows, in whole units
    columns : the axis that cuts its columns
    finer : axes that cut its rows on, through units too
    """

    rows: tuple[Axis, ...]
    columns: Axis
    finer: tuple[Axis, ...] = ()

    def tensor(self, name: str, rows: Part, columns: Part, copies: Copies = ()) -> Tensor:
        """An activation of these dimensions."""
        return Tensor(name, self.cut_rows(rows), self.cut_columns(columns), copies=copies)

    def cut_rows(self, rows: Part) -> Part:
        return replace(rows, axes=self.rows, finer=self.finer)

    def cut_columns(self, columns: Part) -> Part:
        return replace(columns, axes=(self.columns,))

    @property
    def row_axes(self) -> tuple[Axis, ...]:
        """All axes that cut rows, the finest first: over these a sum over rows is partial."""
        return tuple(reversed(self.rows + self.finer))


@dataclass(frozen=True, slots=True)
class Linear:
    """One product O = I W + b as the step names it.

    Parameters
    ----------
    name : in front of the names of its ops
    rows, inputs, outputs : the three dimensions, not yet cut
    source, into : the activations I and O
    source_gradient, into_gradient : their gradients
    orientation : normal from the stream's layout to the inner one, transposed back
    copies : of the weights, where one program stands for several layers
    first : whether nobody wants the gradient of I
    biased : whether there is a bias
    """

    name: str
    rows: Part
    inputs: Part
    outputs: Part
    source: str
    into: str
    source_gradient: str
    into_gradient: str
    orientation: Orientation = "normal"
    gathered: Gathered = "again"
    copies: Copies = ()
    first: bool = False
    biased: bool = True


@dataclass(frozen=True, slots=True)
class Vector:
    """A parameter of one row, as those ranks need it that hold the columns it belongs to.

    Parameters
    ----------
    local, local_gradient : the tensor that kernels read, and the one in which they leave its gradient
    fetch : ops from where it is stored to `local`
    refetch : the same, for the backward pass
    reduce_gradient : ops from `local_gradient` to the stored gradient
    """

    parameter: Parameter
    tensors: tuple[Tensor, ...]
    local: str
    local_gradient: str
    fetch: Program = ()
    refetch: Program = ()
    reduce_gradient: Program = ()


class Scheme(Protocol):
    """A way to spread the layers of a model over the ranks of a grid."""

    @property
    def name(self) -> str: ...

    @property
    def stream(self) -> Layout: ...

    @property
    def inner(self) -> Layout: ...

    def check(self, grid: Grid) -> None:
        """Refuse a grid with a long axis that the scheme does not have (InputError)."""

    def linear(self, linear: Linear) -> Layer:
        """A product, forward and backward."""

    def vector(self, name: str, columns: Part, layout: Layout, start: Start, copies: Copies) -> Vector:
        """A vector that belongs to the columns of an activation in that layout."""

    def embedding(self, rows: Part, into: str, towards_into: str, architecture: Architecture = PLAIN) -> Layer:
        """Rows of the table of the vocabulary; if it is shared, its gradient is one that the loss has begun."""

    @property
    def token_rows(self) -> tuple[Axis, ...]:
        """Axes that cut the tokens as the embedding takes them; the targets lie as the rows of the inner layout."""

    def vocabulary_loss(
        self, rows: Part, source: str, towards_source: str, tokens: int, architecture: Architecture = PLAIN
    ) -> Layer:
        """Mean cross entropy over the vocabulary, by the embedding's table or another; `source` lies as the stream."""


def check_axes(name: str, axes: tuple[Axis, ...], grid: Grid) -> None:
    """Refuse a grid with another long axis than these and the pipeline's.

    Raises
    ------
    InputError : naming the axis and those that are accepted
    """
    for axis in AXES:
        if axis not in (*axes, "pipeline") and grid.length(axis) > 1:
            raise InputError(
                f"scheme {name} has no axis {axis}, which grid {grid} makes {grid.length(axis)} long: "
                f"accepted are {', '.join(axes)} and pipeline"
            )


def sides(scheme: Scheme, orientation: Orientation) -> tuple[Layout, Layout]:
    """The layouts before and after a product."""
    return (scheme.stream, scheme.inner) if orientation == "normal" else (scheme.inner, scheme.stream)
