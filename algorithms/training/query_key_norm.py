"""Normalisation of queries and keys: RMSNorm between QKV and attention; values pass unchanged.

    head    each head of a query or key by itself; one γ of a head's columns for all queries, one for all keys
    row     all queries of a token together, and all keys of a token together; γ has a column for each of theirs

Heads are not cut, so the first form needs no communication in the forward pass.  Its γ is replicated on all ranks, and
every rank that has other heads or other rows adds to its gradient.  The second form sums squares of rows over the axis
that cuts heads, in both passes.

Source: Henry et al., "Query-Key Normalization for Transformers", 2020; Yang et al., "Qwen3 Technical Report", arXiv
2505.09388, section 2, and Gemma Team, "Gemma 3 Technical Report", arXiv 2503.19786, section 2 (of heads); OLMo Team, "2
OLMo 2 Furious", arXiv 2501.00656, section 3.1 (of rows).
"""

from quadrille.algorithms.schedule.ops import AllReduce, Kernel
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.architecture import QkNorm
from quadrille.algorithms.training.layers import Layer, Parameter
from quadrille.algorithms.training.normalisation import EPSILON
from quadrille.algorithms.training.scheme import ONE, TWO, Scheme

NORMALISED = "QKV normalised"
HEAD = "head"
"""Dimension of the columns of one head."""
Scalars = tuple[tuple[str, float], ...]


def query_key_norm(
    kind: QkNorm, heads: tuple[int, int], head: int, rows: Part, copies: Copies, scheme: Scheme
) -> Layer:
    """The layer from `QKV` to `QKV normalised`, and of their gradients; empty if the kind is `none`.

    Parameters
    ----------
    kind : kind of the normalisation
    heads : number of query heads, and of key heads
    head : columns of a head
    rows : rows of QKV, uncut
    copies : copies of parameters and stored activations, one for each layer
    scheme : scheme of the step
    """
    if kind == "none":
        return Layer((), (), (), ())
    group = heads[0] // heads[1]
    columns = Part("heads", unit=(group + 2) * head)
    tensors = (
        scheme.inner.tensor(NORMALISED, rows, columns, copies),
        scheme.inner.tensor(f"d{NORMALISED}", rows, columns),
    )
    scalars = (("head", float(head)), ("group", float(group)), ("epsilon", EPSILON))
    lengths = (("query_columns", float(heads[0] * head)), ("key_columns", float(heads[1] * head)))
    parts = (
        _of_heads(scalars, copies, scheme) if kind == "head" else _of_rows((*scalars, *lengths), rows, copies, scheme)
    )
    return Layer((*tensors, *parts.tensors), parts.parameters, parts.forward, parts.backward)


def _of_heads(scalars: Scalars, copies: Copies, scheme: Scheme) -> Layer:
    names = ("query norm γ", "key norm γ")
    gammas = tuple(Tensor(name, ONE, Part(HEAD), copies=copies) for name in names)
    summed_over = (scheme.inner.columns, *scheme.inner.row_axes)
    forward = Kernel(
        name="normalise heads", function="head_norm", into=(NORMALISED,), sources=("QKV", *names), scalars=scalars
    )
    gradient = Kernel(
        name="normalise heads gradient",
        function="head_norm_gradient",
        into=("dQKV", *(f"d{name}" for name in names)),
        sources=("QKV", *names, f"d{NORMALISED}"),
        scalars=scalars,
    )
    parameters = tuple(Parameter(gamma, summed_over, "ones") for gamma in gammas)
    return Layer((), parameters, (forward,), (gradient,))


def _of_rows(scalars: Scalars, rows: Part, copies: Copies, scheme: Scheme) -> Layer:
    layout, numbers = scheme.inner, dict(scalars)
    columns = Part("heads", unit=int((numbers["group"] + 1) * numbers["head"]))
    gamma = scheme.vector("QK norm γ", columns, layout, "ones", copies)
    moments, sums = "QK norm moments", "QK norm sums"
    own_rows = layout.cut_rows(rows)
    tensors = (Tensor(moments, own_rows, TWO, copies=copies), Tensor(sums, own_rows, TWO), *gamma.tensors)
    forward: Program = (
        Kernel(name=moments, function="qk_squares", into=(moments,), sources=("QKV",), scalars=scalars),
        AllReduce(name="QK norm sum moments", axis=layout.columns, buffer=moments),
        *gamma.fetch,
        Kernel(
            name="QK norm normalise",
            function="qk_normalise",
            into=(NORMALISED,),
            sources=("QKV", moments, gamma.local),
            scalars=scalars,
        ),
    )
    gradient = f"d{NORMALISED}"
    backward: Program = (
        *gamma.refetch,
        Kernel(
            name="QK norm gradient sums",
            function="qk_sums",
            into=(sums,),
            sources=("QKV", moments, gamma.local, gradient),
            scalars=scalars,
        ),
        AllReduce(name="QK norm sum gradient sums", axis=layout.columns, buffer=sums),
        Kernel(
            name="QK norm gradient",
            function="qk_gradient",
            into=("dQKV",),
            sources=("QKV", moments, sums, gamma.local, gradient),
            scalars=scalars,
        ),
        Kernel(
            name="QK norm sum dγ",
            function="qk_parameter_sums",
            into=(gamma.local_gradient,),
            sources=("QKV", moments, gradient),
            scalars=scalars,
        ),
        *gamma.reduce_gradient,
    )
    return Layer(tensors, (gamma.parameter,), forward, backward)
