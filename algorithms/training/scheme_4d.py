"""AxoNN's 4D scheme of a training step; Megatron's sequence parallelism and Bian's 3-D scheme are its variants.

Rows of activations are cut over data and z, columns over y or x; weights are cut over y and x and sharded over z:

    W         inputs/y × outputs/x             sharded over z, gathered for use
    b         1 × outputs/x                    replicated

with replicated activations:
    I         rows/data/z × inputs/y           replicated over x
    O         rows/data/z × outputs/x          all-reduced over y

with scattered activations, which are gathered for use too:
    I         rows/data/z/x × inputs/y         gathered over x
    O         rows/data/z/y × outputs/x        reduce-scattered over y

In a transposed product x and y are exchanged, so the output of one is the input of the next.  With x the only long axis
(and data), replicated activations are Megatron-LM's column and row parallel pairs, and scattered ones its sequence
parallelism; scattered ones on a cube are Bian's balanced 3-D products.  The gradient of b is a sum over rows, reduced
over all axes that cut rows.

Source: Singh et al., "A 4D Hybrid Algorithm to Scale Parallel Training to Thousands of GPUs", arXiv 2305.13525, section
3; Shoeybi et al., "Megatron-LM", arXiv 1909.08053; Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models", arXiv 2205.05198; Bian et al., arXiv 2105.14450.
"""

from dataclasses import dataclass, replace
from typing import Literal

from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import AllGather, AllReduce, Gemm, OverlapName, ReduceScatter
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.architecture import PLAIN, Architecture
from quadrille.algorithms.training.layers import Layer, Parameter, Start
from quadrille.algorithms.training.scheme import Layout, Linear, Vector, check_axes, sides
from quadrille.algorithms.training.uncut_products import UncutProduct
from quadrille.algorithms.training.vector_parameters import bias_of, diagonal_vector, replicated_vector
from quadrille.algorithms.training.vocabulary import WHOLE_ROWS, VocabularyLayout, embedding, vocabulary_loss

Activations = Literal["repeated", "sequences scattered", "rows scattered"]
Vectors = Literal["repeated", "diagonal"]


@dataclass(frozen=True, slots=True)
class Scheme4D:
    """The 4D scheme, or one of its variants.

    Parameters
    ----------
    activations : replicated over the axis that cuts neither rows nor columns, or scattered over it, in whole sequences
        (Bian) or in rows (sequence parallelism)
    vectors : on every rank that uses them, or on a diagonal (Bian)
    axes : axes that may be longer than one, beside pipeline
    context : ranks along context, which cut the rows of every sequence (`context.py`)
    """

    name: str = "4d"
    activations: Activations = "repeated"
    vectors: Vectors = "repeated"
    axes: tuple[Axis, ...] = ("data", "context", "z", "y", "x")
    context: int = 1

    @property
    def stream(self) -> Layout:
        return self._layout("y", "x")

    @property
    def inner(self) -> Layout:
        return self._layout("x", "y")

    def _layout(self, columns: Axis, third: Axis) -> Layout:
        within = self._within_sequences
        match self.activations:
            case "repeated":
                return Layout(("data", "z"), columns, within)
            case "sequences scattered":
                return Layout(("data", "z", third), columns)
            case "rows scattered":
                return Layout(("data", "z"), columns, (*within, third))

    @property
    def _within_sequences(self) -> tuple[Axis, ...]:
        """Axes that cut rows within sequences, whether activations are scattered or not."""
        return ("context",) if self.context > 1 else ()

    @property
    def weight_sums(self) -> tuple[Axis, ...]:
        """Axes over which the gradient of a weight is a partial sum after the backward pass."""
        return (*self._within_sequences, "data")

    def whole_rows(self, rows: Part) -> Part:
        """The rows of activations that are not scattered."""
        return replace(rows, axes=WHOLE_ROWS, finer=self._within_sequences)

    def on_context(self, ranks: int) -> "Scheme4D":
        return replace(self, context=ranks)

    @property
    def scattered(self) -> bool:
        """Whether activations are scattered between products."""
        return self.activations != "repeated"

    def check(self, grid: Grid) -> None:
        check_axes(self.name, self.axes, grid)

    def linear(self, linear: Linear) -> Layer:
        return _Product(self, linear).layer()

    def latent(self, linear: Linear) -> Layer:
        return self._uncut(linear).latent()

    def shared(self, linear: Linear) -> Layer:
        return self._uncut(linear).shared()

    def _uncut(self, linear: Linear) -> UncutProduct:
        return UncutProduct(linear, self.stream, self.inner, self.axes, self.scattered)

    def vector(self, name: str, columns: Part, layout: Layout, start: Start, copies: Copies) -> Vector:
        match self.vectors:
            case "repeated":
                return replicated_vector(name, columns, layout, start, copies)
            case "diagonal":
                third: Axis = "x" if layout.columns == "y" else "y"
                return diagonal_vector(name, columns, layout, start, copies, third)

    @property
    def token_rows(self) -> tuple[Axis, ...]:
        return WHOLE_ROWS

    def embedding(self, rows: Part, into: str, into_gradient: str, architecture: Architecture = PLAIN) -> Layer:
        return embedding(self._ends, rows, into, into_gradient, architecture)

    def vocabulary_loss(
        self, rows: Part, source: str, source_gradient: str, tokens: int, architecture: Architecture = PLAIN
    ) -> Layer:
        return vocabulary_loss(self._ends, rows, source, source_gradient, tokens, architecture)

    @property
    def _ends(self) -> VocabularyLayout:
        positions_over: tuple[Axis, ...] = ("z", "x") if self.vectors == "diagonal" else ()
        whole = Layout(WHOLE_ROWS, "x", self._within_sequences)
        return VocabularyLayout(
            self.stream, self.inner, self.scattered, positions_over, whole, self.weight_sums, self.context
        )


@dataclass(frozen=True, slots=True)
class Operand:
    """An activation as a product uses it: gathered over `axis` if it is scattered.

    >>> [op.name for op in Operand("up gather I", "N2", "up I whole", "x").gather()]
    ['up gather I']
    """

    label: str
    stored: str
    used: str
    axis: Axis

    def gather(self, suffix: str = "", overlap: OverlapName | None = None) -> Program:
        if self.used == self.stored:
            return ()
        name = self.label + suffix
        return (AllGather(name=name, axis=self.axis, source=self.stored, into=self.used, overlap=overlap),)


class _Product:
    """Ops of one product."""

    def __init__(self, scheme: Scheme4D, linear: Linear) -> None:
        self._scheme, self._linear = scheme, linear
        self._before, self._after = sides(scheme, linear.orientation)
        self._bias = bias_of(linear, scheme, self._after)
        self._input = self._operand("I", linear.source, self._after.columns)
        self._output_gradient = self._operand("dO", linear.into_gradient, self._before.columns)

    def _operand(self, letter: str, stored: str, axis: Axis) -> Operand:
        name = self._linear.name
        used = f"{name} {letter} whole" if self._scheme.scattered else stored
        return Operand(f"{name} gather {letter}", stored, used, axis)

    def layer(self) -> Layer:
        linear = self._linear
        inner, columns = self._before.cut_columns(linear.inputs), self._after.cut_columns(linear.outputs)
        weight = Tensor(f"{linear.name} W", inner, columns, sharded_over="z", copies=linear.copies)
        whole = Tensor(f"{linear.name} W whole", inner, columns, copies=linear.copies if self._keeps else ())
        tensors = [whole, replace(whole, name=f"d{whole.name}", copies=())]
        tensors.append(self._after.tensor(linear.into, linear.rows, linear.outputs))
        if self._scheme.scattered:
            rows = self._scheme.whole_rows(linear.rows)
            tensors += [
                Tensor(self._input.used, rows, inner, copies=linear.copies if self._keeps else ()),
                *([Tensor(self._product, rows, columns)] if self._scatters else []),
                Tensor(self._output_gradient.used, rows, columns),
                Tensor(f"{linear.name} dI whole", rows, inner),
            ]
        parameters = (Parameter(weight, self._scheme.weight_sums), *self._bias.parameters)
        return Layer((*tensors, *self._bias.tensors), parameters, self._forward(), self._backward())

    @property
    def _keeps(self) -> bool:
        return self._linear.gathered == "keep"

    def _gather_weight(self, suffix: str = "") -> AllGather:
        name = self._linear.name
        return AllGather(
            name=f"{name} gather W{suffix}", axis="z", source=f"{name} W", into=f"{name} W whole", overlap="oag"
        )

    def _forward(self) -> Program:
        linear, name, axis = self._linear, self._linear.name, self._before.columns
        summed: Program = ()
        if self._scatters:
            summed = (ReduceScatter(name=f"{name} scatter O", axis=axis, source=self._product, into=linear.into),)
        elif not self._scheme.scattered:
            summed = (AllReduce(name=f"{name} sum O", axis=axis, buffer=linear.into),)
        return (
            *self._input.gather(),
            self._gather_weight(),
            Gemm(name=f"{name} multiply", a=self._input.used, b=f"{name} W whole", c=self._product),
            *summed,
            *self._bias.add,
        )

    @property
    def _scatters(self) -> bool:
        """Whether the output is a partial sum that is scattered; without the axis it is written where it is stored."""
        return self._scheme.scattered and self._before.columns in self._scheme.axes

    @property
    def _product(self) -> str:
        """The tensor that the product writes."""
        return f"{self._linear.name} O whole" if self._scatters else self._linear.into

    def _backward(self) -> Program:
        linear, name = self._linear, self._linear.name
        gradient, again = self._output_gradient, not self._keeps
        return (
            *self._bias.gradient,
            *gradient.gather(),
            *(() if linear.first else self._input_gradient(gradient.used, again)),
            *(self._input.gather(" again", "oag") if again else ()),
            Gemm(name=f"{name} multiply dW", a=self._input.used, b=gradient.used, c=f"d{name} W whole", layout="TN"),
            ReduceScatter(
                name=f"{name} scatter dW", axis="z", source=f"d{name} W whole", into=f"d{name} W", overlap="ors"
            ),
        )

    def _input_gradient(self, gradient: str, again: bool) -> Program:
        linear, name = self._linear, self._linear.name
        partial = f"{name} dI whole" if self._scheme.scattered else linear.source_gradient
        axis = self._after.columns
        summed: AllReduce | ReduceScatter
        if self._scheme.scattered:
            summed = ReduceScatter(
                name=f"{name} scatter dI", axis=axis, source=partial, into=linear.source_gradient, overlap="oar"
            )
        else:
            summed = AllReduce(name=f"{name} sum dI", axis=axis, buffer=partial, overlap="oar")
        return (
            *((self._gather_weight(" again"),) if again else ()),
            Gemm(name=f"{name} multiply dI", a=gradient, b=f"{name} W whole", c=partial, layout="NT"),
            summed,
        )
