"""What follows the kernel of attention: sinks in its softmax, and a gate of its output.

A sink is a learnt logit of a head: it takes part in the softmax over the tokens, and adds no value.  With the row sum L
of the exponentials of the scores and the sink b, the output without a sink is multiplied by L / (L + exp(b)), and the
stored logarithm becomes log(L + exp(b)).  With these two, the gradient of attention is that of the usual kernel.

    sinks     A = A · L / (L + exp(sink))
    gate      G = N1 W      A gated = A · sigmoid(G)

Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv 2309.17453; OpenAI, "gpt-oss-120b
and gpt-oss-20b Model Card", arXiv 2508.10925 (learnt sinks); Qiu et al., "Gated Attention for Large Language Models",
arXiv 2505.06708 (the gate, after attention and by element).
"""

from dataclasses import replace

from quadrille.algorithms.schedule.ops import Kernel, SmallPrecision
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.tensors import Copies
from quadrille.algorithms.training.layers import Layer
from quadrille.algorithms.training.scheme import Linear, Scheme
from quadrille.algorithms.training.small_numbers import small_linear

SINKS = "sinks"
GATE, GATED = "gate", "A gated"


def attention_sinks(group: int, value: int, copies: Copies, scheme: Scheme) -> Layer:
    """The layer that updates `A` and its logarithms, and that computes the gradient of the sinks.

    Parameters
    ----------
    group : query heads that share a key
    value : columns of a value
    copies : a copy for each layer
    scheme : scheme of the step
    """
    sinks = scheme.vector(SINKS, Part("heads", unit=group), scheme.inner, "zeros", copies)
    scalars = (("columns", float(value)),)
    forward = Kernel(
        name="apply sinks", function="apply_sinks", updates=("A", "logarithms"), sources=(sinks.local,), scalars=scalars
    )
    gradient = Kernel(
        name="sum dsinks",
        function="sink_gradient",
        into=(sinks.local_gradient,),
        sources=("A", "logarithms", sinks.local, "dA"),
        scalars=scalars,
    )
    return Layer(
        sinks.tensors,
        (sinks.parameter,),
        (*sinks.fetch, forward),
        (*sinks.refetch, gradient, *sinks.reduce_gradient),
    )


def output_gate(linear: Linear, scheme: Scheme, products: SmallPrecision | None) -> Layer:
    """The layer from `A` to `A gated`.

    Parameters
    ----------
    linear : product of the gate, from the input of attention to `gate`
    products : small precision of the product, whose input QKV has cast; None for the dtype
    """
    product = scheme.linear(linear) if products is None else small_linear(linear, scheme, products, casts_input=False)
    gated = scheme.inner.tensor(GATED, linear.rows, linear.outputs, linear.copies)
    stored = (replace(each, copies=linear.copies) if each.name == GATE else each for each in product.tensors)
    gradients = (replace(gated, name=f"d{name}", copies=()) for name in (GATE, GATED))
    source_gradient = scheme.stream.tensor(linear.source_gradient, linear.rows, linear.inputs)
    forward = Kernel(name="gate A", function="sigmoid_gate", into=(GATED,), sources=("A", GATE))
    gradient = Kernel(
        name="gate A gradient",
        function="sigmoid_gate_gradient",
        into=("dA", f"d{GATE}"),
        sources=("A", GATE, f"d{GATED}"),
    )
    return Layer(
        (*stored, gated, *gradients, source_gradient),
        product.parameters,
        (*product.forward, forward),
        (gradient, *product.backward),
    )
