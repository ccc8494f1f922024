"""Experts whose products read small numbers (FP8, MXFP8, NVFP4): casts of rows before each product.

The rows of all experts of a rank are one tensor, so a cast is one pass over it:

    experts up I cast         rows that the experts received             -> up multiply, stored for the weight gradient
    experts down I cast       output of the activation                   -> down multiply, stored likewise
    experts down dO cast      gradient of the output                     -> both gradients of the second product
    experts up dO cast        gradient of the first product's output     -> both gradients of the first product

Rows travel in 16 bits, and the router keeps its precision, as Megatron-LM does by default.

Source: NVIDIA, Megatron Core, megatron.core.transformer.moe (`TEGroupedMLP`) and `--moe-router-dtype`; NVIDIA,
Transformer Engine, `GroupedLinear`.
"""

from collections.abc import Iterator
from dataclasses import replace

from quadrille.algorithms.schedule.ops import Gemm, Kernel, Op, SmallPrecision
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.layers import Layer
from quadrille.algorithms.training.small_numbers import RECIPES, SMALL, cast_ops, small, small_columns


def small_experts(layer: Layer, precision: SmallPrecision, copies: Copies) -> Layer:
    """The layer of experts whose grouped products read small numbers in all three passes.

    Parameters
    ----------
    layer : layer with grouped products of 16 bits
    copies : copies of what the backward pass reads
    """
    return _SmallExperts(layer, precision, copies).layer()


class _SmallExperts:
    """Rewrites the ops of a layer of experts: casts before grouped products, products of small operands."""

    def __init__(self, layer: Layer, precision: SmallPrecision, copies: Copies) -> None:
        self._layer, self._precision, self._recipe = layer, precision, RECIPES[precision]
        self._copies = copies
        self._tensors = {tensor.name: tensor for tensor in layer.tensors}
        self._made: dict[str, Tensor] = {}

    def layer(self) -> Layer:
        """The layer with small operands."""
        forward = tuple(self._changed(self._layer.forward, "I"))
        backward = tuple(self._changed(self._layer.backward, "dO"))
        read = {op.weights for op in self._layer.forward if isinstance(op, Gemm)}
        parameters = tuple(replace(each, small=each.name in read) for each in self._layer.parameters)
        return Layer((*self._layer.tensors, *self._made.values()), parameters, forward, backward)

    def _changed(self, program: Program, letter: str) -> Iterator[Op]:
        """The ops of a pass; an operand is cast before the first product that reads it."""
        for op in program:
            assert not isinstance(op, Repeat), op
            if not isinstance(op, Gemm):
                yield op
            elif op.layout == "TN":
                yield from self._weight_gradient(op)
            else:
                yield from self._cast(op, letter)
                yield replace(op, a=small(op.a), precision=self._precision)

    def _cast(self, op: Gemm, letter: str) -> Iterator[Op]:
        """The ops that make rows small; the copy that the gradient of weights reads is stored."""
        stored = self._copies if letter == "I" else ()
        into = self._declare(small(op.a), op.a, () if self._recipe.casts_columns else stored)
        columns = self._declare(small_columns(op.a), op.a, stored) if self._recipe.casts_columns else ""
        yield from cast_ops(f"{op.name.partition(' multiply')[0]} {letter}", op.a, into, columns, self._recipe)

    def _weight_gradient(self, op: Gemm) -> Iterator[Op]:
        """The product dW = Iᵀ dO, of operands along columns."""
        label = op.name.partition(" multiply")[0]
        if self._recipe.transposes:
            for name in sorted((op.a, op.b), key=lambda name: name.startswith("d")):
                letter = "dO" if name.startswith("d") else "I"
                into = self._declare(small_columns(name), name, ())
                yield Kernel(
                    name=f"{label} transpose {letter}", function="to_columns", into=(into,), sources=(small(name),)
                )
        side = small_columns if self._recipe.has_columns else small
        yield replace(op, a=side(op.a), b=side(op.b), precision=self._precision)

    def _declare(self, own: str, name: str, copies: Copies) -> str:
        """Declares a small copy of a tensor."""
        self._made[own] = replace(self._tensors[name], name=own, dtype=SMALL, copies=copies)
        return own
