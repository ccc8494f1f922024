"""One transformer layer, the loop body of all layers: attention and MLP, each after a normalisation.

    N1 = norm(X)      QKV = N1 W + b     A = attention(QKV)     X2 = X + A W + b
    N2 = norm(X2)     U = N2 W + b       G = gelu(U)            X of the next layer = X2 + G W + b

or, by architecture, G = swiglu(U), other norms, and no b; with dropout, elements of the attention weights and of the
two products that are added to X are set to zero.  Columns of QKV are groups of heads: queries, then their
shared key and value. One gradient dX passes through all layers; each branch adds to it.

Source: Vaswani et al., "Attention Is All You Need", 2017; Radford et al., "Language Models are Unsupervised Multitask
Learners", 2019 (normalisation first).
"""

from dataclasses import dataclass, replace
from typing import Literal

from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.kernel_signatures import Function
from quadrille.algorithms.schedule.ops import Kernel, Pointwise
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Copies, ElementType, Tensor
from quadrille.algorithms.training.adam import STEP
from quadrille.algorithms.training.architecture import PLAIN, Architecture
from quadrille.algorithms.training.dropout import MASK, NO_DROPOUT, Dropout
from quadrille.algorithms.training.layers import Layer
from quadrille.algorithms.training.normalisation import Norm, normalisation
from quadrille.algorithms.training.recompute import Attention, Recompute, with_recomputation
from quadrille.algorithms.training.scheme import Linear, Orientation, Scheme

LAYER = "layer"
DROPPED_GRADIENT = "dX before dropout"
MLP_FUNCTIONS: dict[bool, tuple[Function, Function]] = {
    False: ("gelu", "gelu_gradient"),
    True: ("swiglu", "swiglu_gradient"),
}
"""Kernels between the two products of a plain and of a gated MLP: forward and backward."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The sizes and options of a model that determine one of its layers.

    Parameters
    ----------
    layers, hidden, heads : number of layers, hidden size, query heads
    sequence : tokens of a sequence
    gathered : whether gathered weights are stored for the backward pass or gathered again
    attention : fused or unfused attention
    recompute : activation recomputation
    architecture : differences from the plain GPT
    dropout : dropout of the layer
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    gathered: Gathered = "again"
    attention: Attention = "fused"
    recompute: Recompute = "none"
    architecture: Architecture = PLAIN
    dropout: Dropout = NO_DROPOUT

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def copies(self) -> Copies:
        """Copies of tensors that every layer has."""
        return ((LAYER, self.layers),)

    @property
    def group(self) -> int:
        """Query heads that share a key and a value."""
        return self.architecture.group(self.heads)

    @property
    def branch_gradient(self) -> str:
        """Gradient of the output of attention and of the MLP: that of the stream, unless elements are dropped."""
        return DROPPED_GRADIENT if self.dropout.hidden else "dX"

    @property
    def qkv(self) -> Part:
        """Columns of queries, keys and values, group by group."""
        return self.of_queries(self.head, more=2)

    def of_queries(self, each: int, more: int = 0) -> Part:
        """`each` columns for every query head, and for `more` heads of its group."""
        return Part("heads", unit=(self.group + more) * each)

    @property
    def up(self) -> Part:
        """Columns of the first MLP product."""
        return Part("inner", unit=self.architecture.up_columns)


def transformer_layer(shape: LayerShape, rows: Part, scheme: Scheme) -> Layer:
    """Ops of a layer, from `X` to the `X` of the next, and of its gradient `dX`."""
    layer = _layer(shape, rows, scheme)
    return with_recomputation(layer, output="X") if shape.recompute == "full" else layer


def _layer(shape: LayerShape, rows: Part, scheme: Scheme) -> Layer:
    """The layer that stores what its backward pass reads."""
    norm1 = normalisation(_norm(shape, rows, "norm1", "X", "N1"), scheme)
    norm2 = normalisation(_norm(shape, rows, "norm2", "X2", "N2"), scheme)
    hidden, inner, heads = Part("hidden"), Part("inner"), shape.of_queries(shape.head)
    qkv = scheme.linear(_linear(shape, rows, "QKV", (hidden, shape.qkv), ("N1", "QKV"), ("dN1", "dQKV")))
    project = scheme.linear(
        _linear(shape, rows, "project", (heads, hidden), ("A", "D"), ("dA", shape.branch_gradient), "transposed")
    )
    up = scheme.linear(_linear(shape, rows, "up", (hidden, shape.up), ("N2", "U"), ("dN2", "dU")))
    down = scheme.linear(
        _linear(shape, rows, "down", (inner, hidden), ("G", "E"), ("dG", shape.branch_gradient), "transposed")
    )
    sublayers = (norm1, qkv, project, norm2, up, down)
    attention, (activation, activation_gradient) = _attention(shape), MLP_FUNCTIONS[shape.architecture.gated]
    drop_d, d_gradient = _hidden_dropout(shape.dropout, "attention", "D")
    drop_e, e_gradient = _hidden_dropout(shape.dropout, "mlp", "E")
    return Layer(
        (
            *(tensor for sublayer in sublayers for tensor in _with_copies(shape, sublayer)),
            *_activations(shape, rows, scheme),
        ),
        tuple(parameter for sublayer in sublayers for parameter in sublayer.parameters),
        (
            *norm1.forward,
            *qkv.forward,
            attention.forward,
            *project.forward,
            *drop_d,
            Pointwise(name="add attention", function="add", into="X2", sources=("X", "D")),
            *norm2.forward,
            *up.forward,
            Kernel(name=activation, function=activation, into=("G",), sources=("U",)),
            *down.forward,
            *drop_e,
            Pointwise(name="add mlp", function="add", into="X", sources=("X2", "E"), iteration_offset=1),
        ),
        (
            *e_gradient,
            *down.backward,
            Kernel(name=f"{activation} gradient", function=activation_gradient, into=("dU",), sources=("U", "dG")),
            *up.backward,
            *norm2.backward,
            Kernel(name="add mlp gradient", function="add_to", updates=("dX",), sources=("dbranch",)),
            *d_gradient,
            *project.backward,
            *attention.backward,
            *qkv.backward,
            *norm1.backward,
            Kernel(name="add attention gradient", function="add_to", updates=("dX",), sources=("dbranch",)),
        ),
    )


def _hidden_dropout(dropout: Dropout, place: Literal["attention", "mlp"], output: str) -> tuple[Program, Program]:
    """Ops that drop elements of an output that is added to the stream, and of its gradient; none without dropout."""
    if not dropout.hidden:
        return (), ()
    mask = f"{output} mask"
    return (dropout.drop(place, output, mask),), (dropout.drop_gradient(place, "dX", mask, DROPPED_GRADIENT),)


def _norm(shape: LayerShape, rows: Part, name: str, source: str, into: str) -> Norm:
    hidden, copies = Part("hidden"), shape.copies
    kind = shape.architecture.norm
    return Norm(name, rows, hidden, shape.hidden, source, into, f"d{into}", "dbranch", copies, copies, kind)


def _linear(
    shape: LayerShape,
    rows: Part,
    name: str,
    dimensions: tuple[Part, Part],
    activations: tuple[str, str],
    gradients: tuple[str, str],
    orientation: Orientation = "normal",
) -> Linear:
    return Linear(
        name,
        rows,
        *dimensions,
        *activations,
        *gradients,
        orientation,
        shape.gathered,
        shape.copies,
        biased=shape.architecture.biases,
    )


def _with_copies(shape: LayerShape, sublayer: Layer) -> list[Tensor]:
    """Tensors of a sublayer; those that the backward pass reads have a copy for each layer."""
    stored = {"QKV", "U"}
    return [replace(tensor, copies=shape.copies) if tensor.name in stored else tensor for tensor in sublayer.tensors]


def _activations(shape: LayerShape, rows: Part, scheme: Scheme) -> list[Tensor]:
    """Activations between the sublayers, and the gradients of all activations."""
    stream, inner, copies = scheme.stream, scheme.inner, shape.copies
    hidden, wide, heads = Part("hidden"), Part("inner"), shape.of_queries(shape.head)
    attention = _attention(shape)
    of_queries = [
        replace(inner.tensor(name, rows, shape.of_queries(attention.columns), attention.copies), dtype=dtype)
        for name, dtype in attention.tensors.items()
    ]
    masks = ("D mask", "E mask") if shape.dropout.hidden else ()
    return [
        inner.tensor("A", rows, heads, copies),
        *of_queries,
        *(replace(stream.tensor(mask, rows, hidden, copies), dtype=MASK) for mask in masks),
        *([stream.tensor(DROPPED_GRADIENT, rows, hidden)] if masks else []),
        stream.tensor("X2", rows, hidden, copies),
        inner.tensor("G", rows, wide, copies),
        stream.tensor("dN1", rows, hidden),
        inner.tensor("dQKV", rows, shape.qkv),
        inner.tensor("dA", rows, heads),
        stream.tensor("dN2", rows, hidden),
        inner.tensor("dU", rows, shape.up),
        inner.tensor("dG", rows, wide),
        stream.tensor("dbranch", rows, hidden),
    ]


@dataclass(frozen=True, slots=True)
class _Attention:
    """Kernels of attention, and the tensors that the forward kernel writes for the gradient kernel.

    Parameters
    ----------
    tensors : names of the tensors, with their dtypes if they differ from the schedule's
    columns : columns of the tensors for every query head
    copies : a copy for each layer if the tensors are stored
    """

    forward: Kernel
    backward: tuple[Kernel, ...]
    tensors: dict[str, ElementType | None]
    columns: int
    copies: Copies


def _attention(shape: LayerShape) -> _Attention:
    return _fused_attention(shape) if shape.attention == "fused" else _unfused_attention(shape)


def _fused_attention(shape: LayerShape) -> _Attention:
    scalars, counter, written = _scalars(shape), _counter(shape), ("A", "logarithms")
    return _Attention(
        Kernel(
            name="attention", function="attention", into=written, sources=("QKV",), scalars=scalars, counter=counter
        ),
        (
            Kernel(
                name="attention gradient",
                function="attention_gradient",
                into=("dQKV",),
                sources=("QKV", *written, "dA"),
                scalars=scalars,
                counter=counter,
            ),
        ),
        {"logarithms": None},
        1,
        shape.copies,
    )


def _unfused_attention(shape: LayerShape) -> _Attention:
    """Unfused attention; with selective recomputation the forward kernel runs again before the gradient kernel."""
    drops, scalars = shape.dropout.attention > 0, _scalars(shape)
    kernels: tuple[Function, Function] = ("attention_keeping", "attention_keeping_gradient")
    tensors: dict[str, ElementType | None] = {"attention weights": None}
    if drops:
        kernels = ("attention_dropping", "attention_dropping_gradient")
        tensors |= {"attention weights mask": MASK, "attention weights after dropout": None}
    forward = Kernel(
        name="attention",
        function=kernels[0],
        into=("A", *tensors),
        sources=("QKV",),
        scalars=scalars,
        counter=_counter(shape),
    )
    gradient = Kernel(
        name="attention gradient",
        function=kernels[1],
        into=("dQKV",),
        sources=("QKV", *tensors, "dA"),
        scalars=scalars,
    )
    if shape.recompute != "selective":
        return _Attention(forward, (gradient,), tensors, shape.sequence, shape.copies)
    again = replace(forward, name=f"again {forward.name}")
    return _Attention(forward, (again, gradient), tensors, shape.sequence, ())


def _counter(shape: LayerShape) -> str | None:
    """The loop that attention counts: the steps, if elements are dropped."""
    return STEP if shape.dropout.attention else None


def _scalars(shape: LayerShape) -> tuple[tuple[str, float], ...]:
    scalars = [("sequence", float(shape.sequence)), ("head", float(shape.head))]
    if shape.group > 1:
        scalars.append(("group", float(shape.group)))
    if shape.architecture.positions == "rotary":
        scalars.append(("rotary_base", shape.architecture.rotary_base))
    return (*scalars, *shape.dropout.scalars("attention weights"))
