"""Mesh schemes: Optimus (2D) on a z × x mesh of ranks, and Tesseract (2.5D) on y such meshes; each product is SUMMA.

    I, O      rows/data/y/z × columns/x
    W         inputs/z × outputs/x          replicated over data and y
    b         1/z × outputs/x               on the first row of the mesh, broadcast along its columns

    O  = I W        NN: panels of I are broadcast along x, those of W along z
    dI = dO W^T     NT: panels of W are broadcast along z, those of dI are reduced along x
    dW = I^T dO     TN: panels of I are broadcast along x, those of dW are reduced along z

Panels run over the inputs and end where blocks of I or W end, so O and dO never move.  Layouts before and after a
product are equal.  The y meshes of Tesseract process different rows and reduce their gradients; with one mesh it is
Optimus.  Attention needs no communication, as x cuts heads and the other axes cut whole sequences.

Source: Xu et al., "An Efficient 2D Method for Training Super-Large Deep Learning Models" (Optimus), arXiv 2104.05343;
Wang et al., "Tesseract: Parallelize the Tensor Parallelism Efficiently", arXiv 2105.14500.
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.matmuls.summa import MovedPanels, product_nn, product_nt, product_tn
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import AllGather, AllToAll, ReduceScatter
from quadrille.algorithms.schedule.parts import Panel, Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.architecture import PLAIN, Architecture
from quadrille.algorithms.training.layers import Layer, Parameter, Start
from quadrille.algorithms.training.scheme import Layout, Linear, Vector, check_axes
from quadrille.algorithms.training.vector_parameters import bias_of, first_row_vector
from quadrille.algorithms.training.vocabulary_mesh import mesh_embedding, mesh_vocabulary_loss

WIDEST = 1 << 62
"""Wider than any block: panels end only where blocks end."""
BLOCKS = Layout(("data", "y", "z"), "x")


@dataclass(frozen=True, slots=True)
class SchemeMesh:
    """SUMMA on one or several meshes.

    Parameters
    ----------
    axes : axes that may be longer than one, beside pipeline
    panel : largest width of a panel, in units of the inputs
    """

    name: str
    axes: tuple[Axis, ...]
    panel: int = WIDEST

    @property
    def stream(self) -> Layout:
        return BLOCKS

    @property
    def inner(self) -> Layout:
        return BLOCKS

    @property
    def context(self) -> int:
        return 1

    def on_context(self, ranks: int) -> "SchemeMesh":
        assert ranks == 1, "the check of the grid accepts no axis context"
        return self

    def check(self, grid: Grid) -> None:
        check_axes(self.name, self.axes, grid)

    def linear(self, linear: Linear) -> Layer:
        return _Product(self, linear).layer()

    def latent(self, linear: Linear) -> Layer:
        return _Product(self, linear).layer()

    def shared(self, linear: Linear) -> Layer:
        return _gathered_columns(self, linear)

    def vector(self, name: str, columns: Part, layout: Layout, start: Start, copies: Copies) -> Vector:
        """A vector on the first row of the mesh."""
        return first_row_vector(name, columns, layout, start, copies, "z")

    @property
    def token_rows(self) -> tuple[Axis, ...]:
        return BLOCKS.rows

    def embedding(self, rows: Part, into: str, into_gradient: str, architecture: Architecture = PLAIN) -> Layer:
        return mesh_embedding(BLOCKS, self._vocabulary, rows, into, into_gradient, architecture)

    def vocabulary_loss(
        self, rows: Part, source: str, source_gradient: str, tokens: int, architecture: Architecture = PLAIN
    ) -> Layer:
        return mesh_vocabulary_loss(BLOCKS, self._vocabulary, rows, source, source_gradient, tokens, architecture)

    @property
    def _vocabulary(self) -> Panel:
        return self.panels(Part("vocabulary"), "vocabulary panel")

    def panels(self, dimension: Part, loop: str) -> Panel:
        """Panels of a dimension that x cuts as columns and z as rows."""
        return Panel(dimension.dimension, self.panel, ("x", "z"), loop, unit=dimension.unit)


def _gathered_columns(scheme: SchemeMesh, linear: Linear) -> Layer:
    """A product whose output's columns are exchanged for rows over x, and whose rows are gathered then."""
    name, axis = linear.name, BLOCKS.columns
    into, gradient = f"{name} O", f"{name} dO"
    product = _Product(scheme, replace(linear, into=into, into_gradient=gradient)).layer()
    rows = BLOCKS.cut_rows(linear.rows)
    pieces = replace(rows, finer=(axis,))
    tensors = (
        Tensor(linear.into, rows, linear.outputs),
        *(Tensor(f"{name} {letter} rows", pieces, linear.outputs) for letter in ("O", "dO")),
        BLOCKS.tensor(gradient, linear.rows, linear.outputs),
    )
    forward: Program = (
        *product.forward,
        AllToAll(name=f"{name} join O", axis=axis, source=into, into=f"{name} O rows"),
        AllGather(name=f"{name} gather O", axis=axis, source=f"{name} O rows", into=linear.into),
    )
    backward: Program = (
        ReduceScatter(name=f"{name} scatter dO", axis=axis, source=linear.into_gradient, into=f"{name} dO rows"),
        AllToAll(name=f"{name} cut dO", axis=axis, source=f"{name} dO rows", into=gradient),
        *product.backward,
    )
    return Layer((*product.tensors, *tensors), product.parameters, forward, backward)


class _Product:
    """Ops of one product."""

    def __init__(self, scheme: SchemeMesh, linear: Linear) -> None:
        self._linear = linear
        self._panel = scheme.panels(linear.inputs, f"{linear.name} panel")
        self._bias = bias_of(linear, scheme, BLOCKS)

    def layer(self) -> Layer:
        linear, name = self._linear, self._linear.name
        rows, window = BLOCKS.cut_rows(linear.rows), Part(linear.inputs.dimension, panel=self._panel)
        outputs = BLOCKS.cut_columns(linear.outputs)
        weight = Tensor(f"{name} W", replace(linear.inputs, axes=("z",)), outputs, copies=linear.copies)
        tensors = [
            BLOCKS.tensor(linear.into, linear.rows, linear.outputs),
            Tensor(f"{name} I panel", rows, window),
            Tensor(f"{name} W panel", window, outputs),
            Tensor(f"{name} dW panel", window, outputs),
        ]
        if not linear.first:
            tensors.append(Tensor(f"{name} dI panel", rows, window))
        parameters = (Parameter(weight, ("y", "data")), *self._bias.parameters)
        return Layer((*tensors, *self._bias.tensors), parameters, self._forward(), self._backward())

    def _input(self, suffix: str = "") -> MovedPanels:
        name = self._linear.name
        return MovedPanels(f"{name} send I panel{suffix}", self._linear.source, f"{name} I panel", "oag")

    def _weight(self, suffix: str = "") -> MovedPanels:
        name = self._linear.name
        return MovedPanels(f"{name} send W panel{suffix}", f"{name} W", f"{name} W panel", "oag")

    def _forward(self) -> Program:
        linear, name = self._linear, self._linear.name
        return (
            *product_nn(self._panel, f"{name} zero O", f"{name} multiply", self._input(), self._weight(), linear.into),
            *self._bias.add,
        )

    def _backward(self) -> Program:
        linear, name, gradient = self._linear, self._linear.name, self._linear.into_gradient
        input_gradient = MovedPanels(f"{name} sum dI panel", linear.source_gradient, f"{name} dI panel", "oar")
        weight_gradient = MovedPanels(f"{name} sum dW panel", f"d{name} W", f"{name} dW panel", "ors")
        return (
            *self._bias.gradient,
            *(
                ()
                if linear.first
                else product_nt(self._panel, f"{name} multiply dI", gradient, self._weight(" again"), input_gradient)
            ),
            *product_tn(self._panel, f"{name} multiply dW", self._input(" again"), gradient, weight_gradient),
        )
