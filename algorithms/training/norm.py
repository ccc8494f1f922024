"""Layer normalisation whose rows are cut over an axis: two small sums make the moments whole.

    y = γ (x - mean) / √(variance + ε) + β

The variance is the mean of the squares less the square of the mean, so that one
sum over the axis is enough.  What rounding does to it grows with how far rows lie
from zero: the relative error of the variance is some eps (1 + mean² / variance)
of the dtype of statistics, float32 under 16-bit activations.  Rows that lie a
hundred deviations from zero lose four digits, where a second pass over them, with
a second sum over the axis, would lose two.

Source: Ba, Kiros, Hinton, "Layer Normalization", 2016; sums of the elements
and of their squares travel together, as in the later ColossalAI code; Chan, Golub, LeVeque, "Algorithms for computing
the sample variance", The American Statistician 37(3), 1983 (the errors).
"""

from dataclasses import dataclass

from algorithms.ops import AllReduce, Kernel
from algorithms.parts import Part
from algorithms.schedule import Program
from algorithms.tensors import Copies, Tensor
from algorithms.training.layers import Layer
from algorithms.training.scheme import TWO, Scheme

EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class Norm:
    """One normalisation as the step names it.

    Parameters
    ----------
    name : in front of the names of its ops
    rows, columns : of the activation, not yet cut: it lies as the stream does
    length : of the whole rows
    source, into : the activations before and after
    towards_into, towards_source : their gradients; what goes to the source is the normalisation's share alone
    copies : of the parameters; `kept` of the activations that the backward pass needs
    """

    name: str
    rows: Part
    columns: Part
    length: int
    source: str
    into: str
    towards_into: str
    towards_source: str
    copies: Copies = ()
    kept: Copies = ()

    @property
    def scalars(self) -> tuple[tuple[str, float], ...]:
        return (("columns", float(self.length)), ("epsilon", EPSILON))


def layer_norm(norm: Norm, scheme: Scheme) -> Layer:
    """The ops of a normalisation; the gradients of γ and β are sums over rows."""
    name, stream = norm.name, scheme.stream
    gamma = scheme.vector(f"{name} γ", norm.columns, stream, "ones", norm.copies)
    beta = scheme.vector(f"{name} β", norm.columns, stream, "zeros", norm.copies)
    rows, moments, sums = stream.cut_rows(norm.rows), f"{name} moments", f"{name} sums"
    tensors = (
        Tensor(moments, rows, TWO, copies=norm.kept),
        Tensor(sums, rows, TWO),
        stream.tensor(norm.into, norm.rows, norm.columns, norm.kept),
        *gamma.tensors,
        *beta.tensors,
    )
    forward: Program = (
        Kernel(name=f"{name} moments", function="row_moments", into=(moments,), sources=(norm.source,)),
        AllReduce(name=f"{name} sum moments", axis=stream.columns, buffer=moments),
        *gamma.fetch,
        *beta.fetch,
        Kernel(
            name=f"{name} normalise",
            function="normalise",
            into=(norm.into,),
            sources=(norm.source, moments, gamma.local, beta.local),
            scalars=norm.scalars,
        ),
    )
    backward: Program = (
        *gamma.fetch_again,
        Kernel(
            name=f"{name} gradient sums",
            function="normalise_sums",
            into=(sums,),
            sources=(norm.source, moments, gamma.local, norm.towards_into),
            scalars=norm.scalars,
        ),
        AllReduce(name=f"{name} sum gradient sums", axis=stream.columns, buffer=sums),
        Kernel(
            name=f"{name} gradient",
            function="normalise_gradient",
            into=(norm.towards_source,),
            sources=(norm.source, moments, sums, gamma.local, norm.towards_into),
            scalars=norm.scalars,
        ),
        Kernel(
            name=f"{name} sum dγ dβ",
            function="normalise_parameter_sums",
            into=(gamma.towards_local, beta.towards_local),
            sources=(norm.source, moments, norm.towards_into),
            scalars=norm.scalars,
        ),
        *gamma.give_back,
        *beta.give_back,
    )
    return Layer(tensors, (gamma.parameter, beta.parameter), forward, backward)
