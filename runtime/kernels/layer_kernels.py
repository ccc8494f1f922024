"""The table `KERNELS` of all layer functions on NumPy or CuPy arrays, and the elementwise functions themselves.

`algorithms/schedule/kernel_signatures.py` lists the functions with the shapes of their arguments. Each function takes
the blocks that the rank holds: as matrices, or in the stored shape where it works element by element. `x` is an input,
`y` an output, `g` a gradient. Norms, attention and the ends of a model have their own modules.

The functions use only what both modules have, and nothing that makes the host wait for the device: no boolean index
(the result's length depends on the data), no number read from an array. All functions are bitwise reproducible, except
`embed_gradient` on a GPU.
"""

from collections.abc import Callable
from dataclasses import replace
from math import pi, sqrt
from typing import Any

import numpy as np

from quadrille.algorithms.analysis.shard_ranges import shared_rectangle
from quadrille.algorithms.schedule.kernel_signatures import Function
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.kernels import (
    attention_kernels,
    context_kernels,
    dropout_kernels,
    norm_kernels,
    pruning_kernels,
    query_key_kernels,
    routing_kernels,
    vocabulary_kernels,
)
from quadrille.runtime.kernels.host_pieces import cut_arguments
from quadrille.runtime.kernels.kernel_arguments import KernelArguments as KernelArguments
from quadrille.runtime.kernels.short_floats import narrowed, widened

GELU_SLOPE = sqrt(2 / pi)
GELU_CUBE = 0.044715
BY_INDEX: tuple[Function, ...] = ("compress", "compress_add", "expand", "expand_bucket", "mask", "square_sum_kept")
"""Functions of an index, which convert 16-bit elements themselves."""


def carry_out(function: Function, args: KernelArguments) -> None:
    """Run the function on these arrays; on the host, many functions run piece by piece."""
    for piece in cut_arguments(function, args) if args.xp is np else (args,):
        _carry_out_in_float32(function, piece)


def _carry_out_in_float32(function: Function, args: KernelArguments) -> None:
    """Run the function, in float32 where elements have 16 bits: their sums and exponentials would lose accuracy."""
    short = [array for array in (*args.into, *args.updates, *args.sources) if array.dtype.itemsize == 2]
    if not short or function in BY_INDEX:
        KERNELS[function](args)
        return
    xp = args.xp
    into = tuple(xp.empty(array.shape, xp.float32) if array.dtype.itemsize == 2 else array for array in args.into)
    updates = tuple(widened(xp, array) for array in args.updates)
    sources = tuple(widened(xp, array) for array in args.sources)
    KERNELS[function](replace(args, into=into, updates=updates, sources=sources))
    for kept, result in zip((*args.into, *args.updates), (*into, *updates), strict=True):
        if kept is not result:
            kept[...] = narrowed(xp, result, kept.dtype)


GATE_LIMIT, SIGMOID_SLOPE = 7.0, 1.702
"""Limits of the clamped gate.  Source: transformers 4.57, GptOssExperts; `swiglu_limit` of the published files."""


def _add_to(args: KernelArguments) -> None:
    args.updates[0][...] += args.sources[0]


def _add_region(args: KernelArguments) -> None:
    """Adds the region that a block shares with another block of the same matrix; on zeros, it cuts the region out."""
    (source,), (update,) = args.sources, args.updates
    shared = shared_rectangle(*args.blocks)
    here, there = (
        tuple(
            slice(first - start, stop - start)
            for (first, stop), (start, _) in ((shared.rows, b.rows), (shared.columns, b.columns))
        )
        for b in (args.blocks[1], args.blocks[0])
    )
    update[here] += source[there]


def _cast(args: KernelArguments) -> None:
    """Copies the numbers into an array of another dtype."""
    args.into[0][...] = args.sources[0]


def _transpose(args: KernelArguments) -> None:
    args.into[0][...] = args.sources[0].T


def _column_sums(args: KernelArguments) -> None:
    args.xp.sum(args.sources[0], axis=0, out=args.into[0][0])


def _inner(xp: Any, x: Array) -> Array:
    return xp.tanh(GELU_SLOPE * (x + GELU_CUBE * x * x * x))


def _gelu(args: KernelArguments) -> None:
    """Y = x (1 + tanh(c (x + 0.044715 x³))) / 2."""
    (x,) = args.sources
    args.into[0][...] = 0.5 * x * (1 + _inner(args.xp, x))


def _gelu_gradient(args: KernelArguments) -> None:
    x, g = args.sources
    t = _inner(args.xp, x)
    slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GELU_SLOPE * (1 + 3 * GELU_CUBE * x * x)
    args.into[0][...] = g * slope


def _silu(xp: Any, x: Array) -> tuple[Array, Array]:
    """The product x σ(x), and σ(x) = (1 + tanh(x / 2)) / 2, which does not overflow."""
    share = 0.5 * (1 + xp.tanh(0.5 * x))
    return x * share, share


def _swiglu(args: KernelArguments) -> None:
    """Y = silu(gate) · up; gate and up are neighbouring columns."""
    (x,) = args.sources
    args.into[0][...] = _silu(args.xp, x[:, 0::2])[0] * x[:, 1::2]


def _swiglu_gradient(args: KernelArguments) -> None:
    """Gradients of gate, g · up σ (1 + gate (1 - σ)), and of up, g · silu(gate)."""
    x, g = args.sources
    gate, up = x[:, 0::2], x[:, 1::2]
    silu, share = _silu(args.xp, gate)
    args.into[0][:, 0::2] = g * up * (share + silu * (1 - share))
    args.into[0][:, 1::2] = g * silu


def _geglu(args: KernelArguments) -> None:
    """Y = gelu(gate) · up; gate and up are neighbouring columns."""
    (x,) = args.sources
    gate = x[:, 0::2]
    args.into[0][...] = 0.5 * gate * (1 + _inner(args.xp, gate)) * x[:, 1::2]


def _geglu_gradient(args: KernelArguments) -> None:
    """Gradients of gate, g · up · gelu'(gate), and of up, g · gelu(gate)."""
    x, g = args.sources
    gate, up = x[:, 0::2], x[:, 1::2]
    t = _inner(args.xp, gate)
    slope = 0.5 * (1 + t) + 0.5 * gate * (1 - t * t) * GELU_SLOPE * (1 + 3 * GELU_CUBE * gate * gate)
    args.into[0][:, 0::2] = g * up * slope
    args.into[0][:, 1::2] = g * 0.5 * gate * (1 + t)


def _scale(args: KernelArguments) -> None:
    """Multiplies by a factor."""
    args.updates[0][...] *= args.scalars["factor"]


def _soft_cap(args: KernelArguments) -> None:
    """X becomes cap · tanh(x / cap)."""
    (x,) = args.updates
    cap = args.scalars["cap"]
    x[...] = cap * args.xp.tanh(x / cap)


def _soft_cap_gradient(args: KernelArguments) -> None:
    """G becomes g (1 - (y / cap)²), where y is the capped value."""
    (y,) = args.sources
    share = y / args.scalars["cap"]
    args.updates[0][...] *= 1 - share * share


def _square_error(args: KernelArguments) -> None:
    """Gradient and sum of weight (y - t)² / 2."""
    y, t = args.sources
    weight = args.scalars["weight"]
    difference = y - t
    args.into[0][...] = difference * weight
    args.into[1][...] = 0.5 * weight * (difference * difference).sum()


def _square_sum(args: KernelArguments) -> None:
    (g,) = args.sources
    args.into[0][...] = (g * g).sum()


def _clip(args: KernelArguments) -> None:
    """Scales a gradient so that the norm of all gradients, whose square is an input, is at most the limit."""
    norm = args.xp.sqrt(args.sources[0])
    args.updates[0][...] *= args.xp.minimum(1.0, args.scalars["limit"] / (norm + 1e-6))[0, 0]


def _adam(args: KernelArguments) -> None:
    """Adam with decoupled weight decay; `count` is the step, from 0."""
    w, first, second = args.updates
    (g,) = args.sources
    rate, epsilon, decay = (args.scalars[name] for name in ("rate", "epsilon", "decay"))
    beta1, beta2 = args.scalars["beta1"], args.scalars["beta2"]
    first[...] = beta1 * first + (1 - beta1) * g
    second[...] = beta2 * second + (1 - beta2) * g * g
    mean = first / (1 - beta1 ** (args.iteration + 1))
    spread = second / (1 - beta2 ** (args.iteration + 1))
    w[...] -= rate * (mean / (args.xp.sqrt(spread) + epsilon) + decay * w)


def _add_bias(args: KernelArguments) -> None:
    args.updates[0][...] += args.sources[0]


def _clamped(args: KernelArguments) -> tuple[Array, Array, Array]:
    """Gate and up within the limit, and the sigmoid of the scaled gate."""
    xp, x = args.xp, args.sources[0]
    gate, up = xp.minimum(x[:, 0::2], GATE_LIMIT), xp.clip(x[:, 1::2], -GATE_LIMIT, GATE_LIMIT)
    return gate, up, 1 / (1 + xp.exp(-SIGMOID_SLOPE * gate))


def _clamped_swiglu(args: KernelArguments) -> None:
    """(up + 1) · gate · sigmoid(1.702 gate), of a gate up to 7 and an up between -7 and 7."""
    gate, up, share = _clamped(args)
    args.into[0][...] = (up + 1) * gate * share


def _clamped_swiglu_gradient(args: KernelArguments) -> None:
    x, g = args.sources
    gate, up, share = _clamped(args)
    slope = share * (1 + SIGMOID_SLOPE * gate * (1 - share))
    args.into[0][:, 0::2] = g * (up + 1) * slope * (x[:, 0::2] <= GATE_LIMIT)
    args.into[0][:, 1::2] = g * gate * share * (abs(x[:, 1::2]) <= GATE_LIMIT)


def _sigmoid_gate(args: KernelArguments) -> None:
    x, gate = args.sources
    args.into[0][...] = x / (1 + args.xp.exp(-gate))


def _sigmoid_gate_gradient(args: KernelArguments) -> None:
    x, gate, g = args.sources
    share = 1 / (1 + args.xp.exp(-gate))
    args.into[0][...] = g * share
    args.into[1][...] = g * x * share * (1 - share)


def _add_gated(args: KernelArguments) -> None:
    """Adds rows, each times the sigmoid of its gate."""
    x, gate = args.sources
    args.updates[0][...] += x / (1 + args.xp.exp(-gate))


def _add_gated_gradient(args: KernelArguments) -> None:
    x, gate, g = args.sources
    share = 1 / (1 + args.xp.exp(-gate))
    args.into[0][...] = g * share
    args.into[1][...] = (g * x).sum(axis=1, keepdims=True) * share * (1 - share)


KERNELS: dict[Function, Callable[[KernelArguments], None]] = {
    "add_to": _add_to,
    "transpose": _transpose,
    "add_region": _add_region,
    "cast": _cast,
    "add_bias": _add_bias,
    "column_sums": _column_sums,
    "gelu": _gelu,
    "gelu_gradient": _gelu_gradient,
    "swiglu": _swiglu,
    "swiglu_gradient": _swiglu_gradient,
    "geglu": _geglu,
    "geglu_gradient": _geglu_gradient,
    "scale": _scale,
    "soft_cap": _soft_cap,
    "soft_cap_gradient": _soft_cap_gradient,
    "head_norm": query_key_kernels.head_norm,
    "head_norm_gradient": query_key_kernels.head_norm_gradient,
    "qk_squares": query_key_kernels.qk_squares,
    "qk_normalise": query_key_kernels.qk_normalise,
    "qk_sums": query_key_kernels.qk_sums,
    "qk_gradient": query_key_kernels.qk_gradient,
    "qk_parameter_sums": query_key_kernels.qk_parameter_sums,
    "row_moments": norm_kernels.row_moments,
    "normalise": norm_kernels.normalise,
    "normalise_sums": norm_kernels.normalise_sums,
    "normalise_gradient": norm_kernels.normalise_gradient,
    "normalise_parameter_sums": norm_kernels.normalise_parameter_sums,
    "row_squares": norm_kernels.row_squares,
    "rms_normalise": norm_kernels.rms_normalise,
    "rms_sums": norm_kernels.rms_sums,
    "rms_gradient": norm_kernels.rms_gradient,
    "rms_parameter_sums": norm_kernels.rms_parameter_sums,
    "clamped_swiglu": _clamped_swiglu,
    "clamped_swiglu_gradient": _clamped_swiglu_gradient,
    "apply_sinks": attention_kernels.apply_sinks,
    "sink_gradient": attention_kernels.sink_gradient,
    "sigmoid_gate": _sigmoid_gate,
    "sigmoid_gate_gradient": _sigmoid_gate_gradient,
    "join_heads": attention_kernels.join_heads,
    "split_heads": attention_kernels.split_heads,
    "attention": context_kernels.in_batch_order(attention_kernels.attention),
    "attention_gradient": context_kernels.in_batch_order(attention_kernels.attention_gradient),
    "attention_apart": context_kernels.attention_apart,
    "attention_apart_gradient": context_kernels.attention_apart_gradient,
    "attention_merge": context_kernels.attention_merge,
    "attention_merge_gradient": context_kernels.attention_merge_gradient,
    "take_keys_values": context_kernels.take_keys_values,
    "put_keys_values": context_kernels.put_keys_values,
    "attention_keeping": attention_kernels.attention_keeping,
    "attention_keeping_gradient": attention_kernels.attention_keeping_gradient,
    "attention_dropping": attention_kernels.attention_dropping,
    "attention_dropping_gradient": attention_kernels.attention_dropping_gradient,
    "dropout": dropout_kernels.dropout,
    "dropout_gradient": dropout_kernels.dropout_gradient,
    "embed": vocabulary_kernels.embed,
    "embed_gradient": vocabulary_kernels.embed_gradient,
    "add_positions": vocabulary_kernels.add_positions,
    "position_sums": vocabulary_kernels.position_sums,
    "row_maxima": vocabulary_kernels.row_maxima,
    "exponential_sums": vocabulary_kernels.exponential_sums,
    "cross_entropy": vocabulary_kernels.cross_entropy,
    "square_error": _square_error,
    "square_sum": _square_sum,
    "clip": _clip,
    "adam": _adam,
    "compress": pruning_kernels.compress,
    "compress_add": pruning_kernels.compress_add,
    "expand": pruning_kernels.expand,
    "expand_bucket": pruning_kernels.expand_bucket,
    "mask": pruning_kernels.mask,
    "square_sum_kept": pruning_kernels.square_sum_kept,
    "route": routing_kernels.route,
    "route_gradient": routing_kernels.route_gradient,
    "sequence_loads": routing_kernels.sequence_loads,
    "route_gradient_by_loads": routing_kernels.route_gradient,
    "permute": routing_kernels.permute,
    "permute_gradient": routing_kernels.permute_gradient,
    "combine": routing_kernels.combine,
    "combine_gradient": routing_kernels.combine_gradient,
    "add_expert_bias": routing_kernels.add_expert_bias,
    "expert_column_sums": routing_kernels.expert_column_sums,
    "add_gated": _add_gated,
    "add_gated_gradient": _add_gated_gradient,
}
