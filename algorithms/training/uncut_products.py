"""Products of the 4D scheme whose weights are too narrow to be cut over the axis of the output columns.

    latent    O in stream layout       low-rank activations, which the next product projects up
    shared    O with whole columns     what all heads read, in the rows of the inner layout

The weight is cut over the axis of the input's columns and sharded over z.  Every rank along the third axis holds it and
multiplies its own rows, as Megatron does with its down projections; where rows are scattered over that axis, the
gradient of the weight is a sum over it.

    latent    O whole, a partial sum over y, is reduce-scattered by rows, and an all-to-all cuts its columns instead
    shared    O is all-reduced over y; scattered rows are gathered over x first and reduce-scattered over y

An output of `shared` is read by all heads, so its gradient is a partial sum over the axis that cuts heads.

Source: NVIDIA, Megatron-LM, megatron/core/transformer/multi_latent_attention.py (down projections are duplicated);
DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.1.
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import AllGather, AllReduce, AllToAll, Gemm, ReduceScatter
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.layers import Layer, Parameter
from quadrille.algorithms.training.scheme import Layout, Linear


@dataclass(frozen=True, slots=True)
class UncutProduct:
    """A product whose weight no axis cuts by columns.

    Parameters
    ----------
    linear : the product; it has no bias
    stream, inner : layouts of the scheme
    axes : axes that may be longer than one
    scattered : whether activations are scattered between products
    """

    linear: Linear
    stream: Layout
    inner: Layout
    axes: tuple[Axis, ...]
    scattered: bool

    def latent(self) -> Layer:
        """The layer whose output has the stream layout."""
        linear, name, down = self.linear, self.linear.name, self.stream.columns
        if down not in self.axes:
            into = self.stream.tensor(linear.into, linear.rows, linear.outputs)
            return self._layer((into,), linear.into, (), (), linear.into_gradient)
        whole, rows = self._uncut(self._rows), self._uncut(self._rows_cut_over(down))
        gradients = f"{name} dO whole", f"{name} dO rows"
        tensors = (
            self.stream.tensor(linear.into, linear.rows, linear.outputs),
            *(replace(whole, name=each) for each in (f"{name} O whole", gradients[0])),
            *(replace(rows, name=each) for each in (f"{name} O rows", gradients[1])),
        )
        forward: Program = (
            ReduceScatter(name=f"{name} scatter O", axis=down, source=f"{name} O whole", into=f"{name} O rows"),
            AllToAll(name=f"{name} cut O", axis=down, source=f"{name} O rows", into=linear.into),
        )
        backward: Program = (
            AllToAll(name=f"{name} join dO", axis=down, source=linear.into_gradient, into=gradients[1]),
            AllGather(name=f"{name} gather dO", axis=down, source=gradients[1], into=gradients[0]),
        )
        return self._layer(tensors, f"{name} O whole", forward, backward, gradients[0])

    def shared(self) -> Layer:
        """The layer whose output has whole columns; its gradient is a partial sum over the axis that cuts heads."""
        linear, name, down, heads = self.linear, self.linear.name, self.stream.columns, self.inner.columns
        into = self._uncut(self.inner.cut_rows(linear.rows), linear.into)
        gradient = linear.into_gradient
        if not self.scattered:
            reduce: Program = (AllReduce(name=f"{name} sum O", axis=down, buffer=linear.into),)
            reduce_gradient: Program = (AllReduce(name=f"{name} sum dO", axis=heads, buffer=gradient),)
            return self._layer((into,), linear.into, reduce, reduce_gradient, gradient)
        own, whole = self._uncut(self._rows), self._uncut(replace(linear.rows, axes=("data", "z")))
        names = f"{name} O part", f"{name} O whole", f"{name} dO whole", f"{name} dO part"
        tensors = (into, *(replace(each, name=of) for each, of in zip((own, whole, whole, own), names, strict=True)))
        forward: Program = (
            AllGather(name=f"{name} gather O", axis=heads, source=names[0], into=names[1]),
            ReduceScatter(name=f"{name} scatter O", axis=down, source=names[1], into=linear.into),
        )
        backward: Program = (
            AllGather(name=f"{name} gather dO", axis=down, source=gradient, into=names[2]),
            ReduceScatter(name=f"{name} scatter dO", axis=heads, source=names[2], into=names[3]),
        )
        return self._layer(tensors, names[0], forward, backward, names[3])

    @property
    def _rows(self) -> Part:
        return self.stream.cut_rows(self.linear.rows)

    def _rows_cut_over(self, axis: Axis) -> Part:
        rows = self._rows
        return replace(rows, finer=(*rows.finer, axis))

    def _uncut(self, rows: Part, name: str = "") -> Tensor:
        return Tensor(name, rows, self.linear.outputs)

    def _layer(
        self, tensors: tuple[Tensor, ...], product: str, after: Program, before: Program, gradient: str
    ) -> Layer:
        """The layer of the product.

        Parameters
        ----------
        product : tensor that the product writes
        after, before : ops from the product to the output, and from the output's gradient to the product's
        gradient : gradient of what the product writes
        """
        linear, name = self.linear, self.linear.name
        keeps = linear.gathered == "keep"
        inputs = self.stream.cut_columns(linear.inputs)
        weight = Tensor(f"{name} W", inputs, linear.outputs, sharded_over="z", copies=linear.copies)
        whole = Tensor(f"{name} W whole", inputs, linear.outputs, copies=linear.copies if keeps else ())
        summed_over = tuple(axis for axis in self.stream.row_axes if axis != "z")
        forward: Program = (
            self._gather_weight(),
            Gemm(name=f"{name} multiply", a=linear.source, b=whole.name, c=product),
            *after,
        )
        backward: Program = (
            *before,
            *(() if keeps else (self._gather_weight(" again"),)),
            Gemm(name=f"{name} multiply dI", a=gradient, b=whole.name, c=linear.source_gradient, layout="NT"),
            Gemm(name=f"{name} multiply dW", a=linear.source, b=gradient, c=f"d{whole.name}", layout="TN"),
            ReduceScatter(
                name=f"{name} scatter dW", axis="z", source=f"d{whole.name}", into=f"d{name} W", overlap="ors"
            ),
        )
        gathered = (whole, replace(whole, name=f"d{whole.name}", copies=()))
        return Layer((*gathered, *tensors), (Parameter(weight, summed_over),), forward, backward)

    def _gather_weight(self, suffix: str = "") -> AllGather:
        name = self.linear.name
        return AllGather(
            name=f"{name} gather W{suffix}", axis="z", source=f"{name} W", into=f"{name} W whole", overlap="oag"
        )
