"""The bias of a product: added to what the product gives, its gradient a sum over rows; nothing where it has none."""

from dataclasses import dataclass

from quadrille.algorithms.schedule.ops import Kernel
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.layers import Parameter
from quadrille.algorithms.training.scheme import Layout, Linear, Scheme


@dataclass(frozen=True, slots=True)
class Bias:
    """A bias, or none.

    Parameters
    ----------
    add : ops that add it to the product
    gradient : ops from the product's gradient to the stored one of the bias
    """

    tensors: tuple[Tensor, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    add: Program = ()
    gradient: Program = ()


def bias_of(linear: Linear, scheme: Scheme, after: Layout) -> Bias:
    """The bias of a product whose output lies as `after` says."""
    if not linear.biased:
        return Bias()
    name = linear.name
    bias = scheme.vector(f"{name} b", linear.outputs, after, "zeros", linear.copies)
    add = Kernel(name=f"{name} add b", function="add_bias", updates=(linear.into,), sources=(bias.local,))
    sums = Kernel(
        name=f"{name} sum db", function="column_sums", into=(bias.local_gradient,), sources=(linear.into_gradient,)
    )
    return Bias(bias.tensors, (bias.parameter,), (*bias.fetch, add), (sums, *bias.reduce_gradient))
