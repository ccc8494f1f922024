"""Interface of a parallel scheme: the layouts of activations, weights and vectors, and the ops that follow from them.

Between two products an activation has one of two layouts: `stream` before a normal and after a transposed product,
`inner` the other way around.  A scheme's products convert one to the other, so layers follow each other without
redistribution.
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
    """Layout of an activation.

    Parameters
    ----------
    rows : axes that cut its rows, in whole units
    columns : axis that cuts its columns
    finer : axes that cut its rows further, through units
    """

    rows: tuple[Axis, ...]
    columns: Axis
    finer: tuple[Axis, ...] = ()

    def tensor(self, name: str, rows: Part, columns: Part, copies: Copies = ()) -> Tensor:
        """An activation in this layout.

        Parameters
        ----------
        name : name of the tensor
        rows, columns : its dimensions, uncut
        copies : copies for each layer or microbatch
        """
        return Tensor(name, self.cut_rows(rows), self.cut_columns(columns), copies=copies)

    def cut_rows(self, rows: Part) -> Part:
        """The rows of an activation, cut as in this layout."""
        return replace(rows, axes=self.rows, finer=self.finer)

    def cut_columns(self, columns: Part) -> Part:
        """The columns of an activation, cut as in this layout."""
        return replace(columns, axes=(self.columns,))

    @property
    def row_axes(self) -> tuple[Axis, ...]:
        """All axes that cut rows, innermost first; a sum over rows is partial over these."""
        return tuple(reversed(self.rows + self.finer))


@dataclass(frozen=True, slots=True)
class Linear:
    """One product O = I W + b.

    Parameters
    ----------
    name : prefix of the names of its ops
    rows, inputs, outputs : the three uncut dimensions
    source, into : activations I and O
    source_gradient, into_gradient : their gradients
    orientation : `normal` from the stream layout to the inner layout, `transposed` back
    copies : copies of the weights, where one program serves several layers
    gathered : whether gathered weights are kept for the backward pass or gathered again
    first : whether the product belongs to the first layer, so that the gradient of I is not needed
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
    """A one-row parameter, as the ranks that hold its columns use it.

    Parameters
    ----------
    local, local_gradient : the tensor that kernels read, and the one in which they leave its gradient
    fetch : ops from the stored tensor to `local`
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
    """A distribution of the layers of a model over a grid of ranks; every scheme implements this interface."""

    @property
    def name(self) -> str:
        """Name of the scheme, as `--scheme` takes it."""

    @property
    def stream(self) -> Layout:
        """Layout of activations before a normal and after a transposed product."""

    @property
    def inner(self) -> Layout:
        """Layout of activations after a normal and before a transposed product."""

    @property
    def context(self) -> int:
        """Ranks along context, which cut every sequence; 1 unless `on_context` has said another number."""

    def on_context(self, ranks: int) -> "Scheme":
        """The scheme with sequences cut over so many ranks along context."""

    def check(self, grid: Grid) -> None:
        """Checks that every grid axis longer than 1 is an axis of the scheme; raises InputError otherwise."""

    def linear(self, linear: Linear) -> Layer:
        """Forward and backward pass of a product."""

    def latent(self, linear: Linear) -> Layer:
        """A product whose output has few columns and the stream layout, like its input; it has no bias."""

    def shared(self, linear: Linear) -> Layer:
        """A product whose output has whole columns, which all heads read, and the rows of the inner layout.

        The gradient of the output is a partial sum over the axis that cuts the columns of the inner layout.  The
        product has no bias.
        """

    def vector(self, name: str, columns: Part, layout: Layout, start: Start, copies: Copies) -> Vector:
        """A vector parameter (bias, γ, β) that belongs to the columns of an activation.

        Parameters
        ----------
        name : name of the parameter
        columns : columns of the activation, uncut
        layout : layout of the activation
        start : initial values
        copies : copies of the parameter, one for each layer
        """

    def embedding(self, rows: Part, into: str, into_gradient: str, architecture: Architecture = PLAIN) -> Layer:
        """The embedding of tokens (`vocabulary.embedding`); the loss initialises the gradient of a shared table."""

    @property
    def token_rows(self) -> tuple[Axis, ...]:
        """Axes that cut the tokens for the embedding; targets have the rows of the inner layout."""

    def vocabulary_loss(
        self, rows: Part, source: str, source_gradient: str, tokens: int, architecture: Architecture = PLAIN
    ) -> Layer:
        """Mean cross entropy over the vocabulary, with the embedding table or another; `source` is in stream layout."""


def check_axes(name: str, axes: tuple[Axis, ...], grid: Grid) -> None:
    """Raises InputError for a grid with another long axis than these and pipeline.

    Raises
    ------
    InputError : names the axis and those accepted
    """
    for axis in AXES:
        if axis not in (*axes, "pipeline") and grid.length(axis) > 1:
            raise InputError(
                f"scheme {name} has no axis {axis}, which grid {grid} makes {grid.length(axis)} long: "
                f"accepted are {', '.join(axes)} and pipeline"
            )


def order_of_rows(context: int, sequence: int) -> tuple[tuple[str, float], ...]:
    """The scalars of a kernel that needs the positions of its rows; none where sequences are whole.

    >>> order_of_rows(1, 8), order_of_rows(2, 8)
    ((), (('sequence', 8.0), ('context', 2.0)))
    """
    return (("sequence", float(sequence)), ("context", float(context))) if context > 1 else ()


def sides(scheme: Scheme, orientation: Orientation) -> tuple[Layout, Layout]:
    """Layouts before and after a product."""
    return (scheme.stream, scheme.inner) if orientation == "normal" else (scheme.inner, scheme.stream)
