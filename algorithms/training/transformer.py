"""One layer of a transformer, the body that stands for all of them: attention and MLP, each after a normalisation.

    N1 = norm(X)      QKV = N1 W + b     A = attention(QKV)     X2 = X + A W + b
    N2 = norm(X2)     U = N2 W + b       G = gelu(U)            X of the next layer = X2 + G W + b

One gradient of the stream, dX, goes through all layers: what a branch gives is added to it.
Source: Vaswani et al., "Attention Is All You Need", 2017; Radford et al.,
"Language Models are Unsupervised Multitask Learners", 2019 (normalisation first).
"""

from dataclasses import dataclass, replace

from algorithms.kernels import Function
from algorithms.matmuls.matmul import Gathered
from algorithms.ops import Kernel, Pointwise
from algorithms.parts import Part
from algorithms.tensors import Copies, Tensor
from algorithms.training.layers import Layer
from algorithms.training.norm import Norm, layer_norm
from algorithms.training.recompute import Recompute, recomputed
from algorithms.training.scheme import Linear, Orientation, Scheme

LAYER = "layer"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a layer must know of its model."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    gathered: Gathered = "again"
    recompute: Recompute = "selective"

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def copies(self) -> Copies:
        """Of what every layer has its own."""
        return ((LAYER, self.layers),)


def transformer_layer(shape: Shape, rows: Part, scheme: Scheme) -> Layer:
    """The ops of a layer, from `X` to the `X` of the next, and the gradient `dX` back."""
    layer = _layer(shape, rows, scheme)
    return recomputed(layer, output="X") if shape.recompute == "full" else layer


def _layer(shape: Shape, rows: Part, scheme: Scheme) -> Layer:
    """The layer that keeps what its backward pass reads."""
    norm1 = layer_norm(_norm(shape, rows, "norm1", "X", "N1"), scheme)
    norm2 = layer_norm(_norm(shape, rows, "norm2", "X2", "N2"), scheme)
    three_heads, heads = Part("heads", each=3 * shape.head), Part("heads", each=shape.head)
    hidden, inner = Part("hidden"), Part("inner")
    qkv = scheme.linear(_linear(shape, rows, "QKV", (hidden, three_heads), ("N1", "QKV"), ("dN1", "dQKV")))
    project = scheme.linear(_linear(shape, rows, "project", (heads, hidden), ("A", "D"), ("dA", "dX"), "transposed"))
    up = scheme.linear(_linear(shape, rows, "up", (hidden, inner), ("N2", "U"), ("dN2", "dU")))
    down = scheme.linear(_linear(shape, rows, "down", (inner, hidden), ("G", "E"), ("dG", "dX"), "transposed"))
    pieces = (norm1, qkv, project, norm2, up, down)
    attention = _attention(shape)
    return Layer(
        (*(tensor for piece in pieces for tensor in _kept(shape, piece)), *_activations(shape, rows, scheme)),
        tuple(parameter for piece in pieces for parameter in piece.parameters),
        (
            *norm1.forward,
            *qkv.forward,
            attention.forward,
            *project.forward,
            Pointwise(name="add attention", function="add", into="X2", sources=("X", "D")),
            *norm2.forward,
            *up.forward,
            Kernel(name="gelu", function="gelu", into=("G",), sources=("U",)),
            *down.forward,
            Pointwise(name="add mlp", function="add", into="X", sources=("X2", "E"), ahead=1),
        ),
        (
            *down.backward,
            Kernel(name="gelu gradient", function="gelu_gradient", into=("dU",), sources=("U", "dG")),
            *up.backward,
            *norm2.backward,
            Kernel(name="add mlp gradient", function="add_to", updates=("dX",), sources=("dbranch",)),
            *project.backward,
            attention.gradient,
            *qkv.backward,
            *norm1.backward,
            Kernel(name="add attention gradient", function="add_to", updates=("dX",), sources=("dbranch",)),
        ),
    )


def _norm(shape: Shape, rows: Part, name: str, source: str, into: str) -> Norm:
    hidden, copies = Part("hidden"), shape.copies
    return Norm(name, rows, hidden, shape.hidden, source, into, f"d{into}", "dbranch", copies, copies)


def _linear(
    shape: Shape,
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
    )


def _kept(shape: Shape, piece: Layer) -> list[Tensor]:
    """The tensors of a piece; those that the backward pass reads, one for each layer."""
    kept = {"QKV", "U"}
    return [replace(one, copies=shape.copies) if one.name in kept else one for one in piece.tensors]


def _activations(shape: Shape, rows: Part, scheme: Scheme) -> list[Tensor]:
    """What stands between the pieces, and the gradients of all activations."""
    stream, inner, copies = scheme.stream, scheme.inner, shape.copies
    hidden, wide = Part("hidden"), Part("inner")
    heads, three_heads = Part("heads", each=shape.head), Part("heads", each=3 * shape.head)
    attention = _attention(shape)
    return [
        inner.tensor("A", rows, heads, copies),
        inner.tensor(attention.kept, rows, Part("heads", each=attention.kept_columns), copies),
        stream.tensor("X2", rows, hidden, copies),
        inner.tensor("G", rows, wide, copies),
        stream.tensor("dN1", rows, hidden),
        inner.tensor("dQKV", rows, three_heads),
        inner.tensor("dA", rows, heads),
        stream.tensor("dN2", rows, hidden),
        inner.tensor("dU", rows, wide),
        inner.tensor("dG", rows, wide),
        stream.tensor("dbranch", rows, hidden),
    ]


@dataclass(frozen=True, slots=True)
class _Attention:
    """Attention's two kernels, and what the first keeps for the second: so many columns of every head."""

    forward: Kernel
    gradient: Kernel
    kept: str
    kept_columns: int


def _attention(shape: Shape) -> _Attention:
    forward: Function
    gradient: Function
    sources: tuple[str, ...]
    if shape.recompute == "none":
        kept, columns, sources = "attention weights", shape.sequence, ("QKV", "attention weights", "dA")
        forward, gradient = "attention_keeping", "attention_keeping_gradient"
    else:
        kept, columns, sources = "logarithms", 1, ("QKV", "A", "logarithms", "dA")
        forward, gradient = "attention", "attention_gradient"
    scalars = _scalars(shape)
    return _Attention(
        Kernel(name="attention", function=forward, into=("A", kept), sources=("QKV",), scalars=scalars),
        Kernel(name="attention gradient", function=gradient, into=("dQKV",), sources=sources, scalars=scalars),
        kept,
        columns,
    )


def _scalars(shape: Shape) -> tuple[tuple[str, float], ...]:
    return (("sequence", float(shape.sequence)), ("head", float(shape.head)))
