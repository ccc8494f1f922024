"""LayerNorm and RMSNorm of rows that a grid axis cuts: small all-reduces complete the moments of each row.

    LayerNorm   y = γ (x - mean) / √(variance + ε) + β      two sums of every row, of x and of x²
    RMSNorm     y = γ x / √(mean of x² + ε)                 one sum

LayerNorm's variance is the mean of the squares minus the square of the mean, so one reduction over the axis is enough.
The relative rounding error of the variance is about eps (1 + mean² / variance) in the dtype of statistics, float32 for
16-bit activations. Rows a hundred standard deviations from zero lose four digits; a second pass with a second reduction
would lose two.

Source: Ba, Kiros, Hinton, "Layer Normalization", 2016; Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019;
sums of elements and of squares in one message, as in the later ColossalAI code; Chan, Golub, LeVeque, "Algorithms for
computing the sample variance", The American Statistician 37(3), 1983 (the errors).
"""

from dataclasses import dataclass

from quadrille.algorithms.schedule.kernel_signatures import Function
from quadrille.algorithms.schedule.ops import AllReduce, Kernel
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.architecture import NormKind
from quadrille.algorithms.training.layers import Layer
from quadrille.algorithms.training.scheme import ONE, TWO, Scheme

EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class _Functions:
    """Kernels and parameters of a kind of normalisation.

    Parameters
    ----------
    sums : columns of the moments, and of the sums that the gradient needs
    vectors : parameters and their initial values, by name
    """

    sums: Part
    vectors: tuple[tuple[str, str], ...]
    moments: Function
    normalise: Function
    gradient_sums: Function
    gradient: Function
    parameter_sums: Function


FUNCTIONS: dict[NormKind, _Functions] = {
    "layer": _Functions(
        TWO,
        (("γ", "ones"), ("β", "zeros")),
        "row_moments",
        "normalise",
        "normalise_sums",
        "normalise_gradient",
        "normalise_parameter_sums",
    ),
    "rms": _Functions(
        ONE,
        (("γ", "ones"),),
        "row_squares",
        "rms_normalise",
        "rms_sums",
        "rms_gradient",
        "rms_parameter_sums",
    ),
}


NORM_VECTORS = frozenset(vector for functions in FUNCTIONS.values() for vector, _ in functions.vectors)
"""Last words of the names of a normalisation's parameters."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation (LayerNorm or RMSNorm) of an activation.

    Parameters
    ----------
    name : prefix of the names of its ops
    rows, columns : dimensions of the activation, uncut; it has the stream's layout
    length : length of the whole rows
    source, into : activations before and after
    into_gradient, source_gradient : their gradients; what goes to the source is the normalisation's share alone
    copies : copies of the parameters
    activation_copies : copies of the activations that the backward pass needs
    kind : LayerNorm or RMSNorm
    into_copies : copies of the activation after; None for `activation_copies`
    """

    name: str
    rows: Part
    columns: Part
    length: int
    source: str
    into: str
    into_gradient: str
    source_gradient: str
    copies: Copies = ()
    activation_copies: Copies = ()
    kind: NormKind = "layer"
    into_copies: Copies | None = None

    @property
    def scalars(self) -> tuple[tuple[str, float], ...]:
        return (("columns", float(self.length)), ("epsilon", EPSILON))


def normalisation(norm: Norm, scheme: Scheme) -> Layer:
    """The layer of a normalisation; the gradients of γ and β are sums over rows."""
    name, stream, functions = norm.name, scheme.stream, FUNCTIONS[norm.kind]
    vectors = [
        scheme.vector(f"{name} {vector}", norm.columns, stream, start, norm.copies)
        for vector, start in functions.vectors
    ]
    gamma = vectors[0]
    rows, moments, sums = stream.cut_rows(norm.rows), f"{name} moments", f"{name} sums"
    tensors = (
        Tensor(moments, rows, functions.sums, copies=norm.activation_copies),
        Tensor(sums, rows, functions.sums),
        stream.tensor(
            norm.into,
            norm.rows,
            norm.columns,
            norm.activation_copies if norm.into_copies is None else norm.into_copies,
        ),
        *(tensor for vector in vectors for tensor in vector.tensors),
    )
    forward: Program = (
        Kernel(name=f"{name} moments", function=functions.moments, into=(moments,), sources=(norm.source,)),
        AllReduce(name=f"{name} sum moments", axis=stream.columns, buffer=moments),
        *(op for vector in vectors for op in vector.fetch),
        Kernel(
            name=f"{name} normalise",
            function=functions.normalise,
            into=(norm.into,),
            sources=(norm.source, moments, *(vector.local for vector in vectors)),
            scalars=norm.scalars,
        ),
    )
    backward: Program = (
        *gamma.refetch,
        Kernel(
            name=f"{name} gradient sums",
            function=functions.gradient_sums,
            into=(sums,),
            sources=(norm.source, moments, gamma.local, norm.into_gradient),
            scalars=norm.scalars,
        ),
        AllReduce(name=f"{name} sum gradient sums", axis=stream.columns, buffer=sums),
        Kernel(
            name=f"{name} gradient",
            function=functions.gradient,
            into=(norm.source_gradient,),
            sources=(norm.source, moments, sums, gamma.local, norm.into_gradient),
            scalars=norm.scalars,
        ),
        Kernel(
            name=f"{name} sum {' '.join(f'd{vector}' for vector, _ in functions.vectors)}",
            function=functions.parameter_sums,
            into=tuple(vector.local_gradient for vector in vectors),
            sources=(norm.source, moments, norm.into_gradient),
            scalars=norm.scalars,
        ),
        *(op for vector in vectors for op in vector.reduce_gradient),
    )
    return Layer(tensors, tuple(vector.parameter for vector in vectors), forward, backward)
