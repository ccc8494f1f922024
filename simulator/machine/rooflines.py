"""Roofline model of a device known by its data sheet: the longer of arithmetic and memory traffic, with tile
quantization.

A GEMM is cut into tiles, and one tile runs on each multiprocessor at a time.  So the time is a whole number of rounds
of whole tiles: *tile quantization* rounds the matrix up to whole tiles, *wave quantization* rounds the tiles up to
whole rounds (waves) over all multiprocessors.  A tile with inner dimension k costs as much as k + `ramp`, because of
its start and end:

    t = rounds · multiprocessors · tile · 2 (k + ramp) / (share · peak)

Fused attention keeps its scores in registers and multiplies the causal half only; its dropout takes no time.  Unfused
attention is two batches of square products, with the scores written and read between them: the softmax, the dropout
with its mask if there is dropout, and, for rotary positions, a pass over queries and keys.  Backward takes twice as
long.  A sliding window leaves out products in fused attention; unfused attention computes all scores and masks them.  A
soft cap costs a pass over the scores in unfused attention, and nothing in fused attention.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009; NVIDIA, "Matrix Multiplication Background",
DU-09799-001, 2023; Dao et al., "FlashAttention", 2022; Korthikanti et al., arXiv 2205.05198, section 4 (what unfused
attention keeps); Narayanan et al., SC21, section 4.2 (the fused softmax).
"""

from math import ceil

from quadrille.algorithms.analysis.volumes import AttentionProducts
from quadrille.algorithms.formats.measured_rows import Achieved
from quadrille.algorithms.schedule.kernel_signatures import Function

SOFTMAX_PASSES = 2
"""Passes of the scores over memory between the two products, for the softmax: read and written."""
DROPOUT_PASSES = 2
"""Passes of the scores over memory for dropout: read and written."""
ROTARY_PASSES = 2
"""Passes of queries and keys over memory for rotary positions: read and written."""
LEAST_TILE = 16
"""Side of the smallest tile, the product of a tensor core."""
CAP_PASSES = 2
"""Passes of the scores over memory for a soft cap: read and written."""
MASK_BYTES = 1
"""Bytes of the dropout mask for each score."""
IN_EPILOGUE: frozenset[Function] = frozenset({"add_bias", "row_moments", "row_squares", "dropout", "dropout_gradient"})
"""Functions that cost nothing if fused: a product's epilogue or the next pass reads the same data.

The sums of a bias's gradient and of a norm's gradient are passes of their own in fused software, too: Megatron-LM sums
the output's gradient over its rows after the product, and the kernels of a norm's gradient read their inputs twice.
Dropout is fused with the bias and the residual addition; its mask of a byte an element is left out.

Source: NVIDIA/Megatron-LM, megatron/core/fusions/fused_bias_dropout.py.
"""


EAGER_LOGIT_BYTES: dict[Function, dict[int, int]] = {
    "row_maxima": {2: 6, 4: 0},
    "exponential_sums": {2: 8, 4: 8},
    "cross_entropy": {2: 22, 4: 16},
}
"""Bytes that PyTorch's cross entropy touches for a logit, kernel by kernel, by the bytes of a logit.

It casts logits of 16 bits to fp32 (6), and reads them and writes their log-softmax in fp32 (8).  Its gradient is filled
with zeros before the targets are written (4), becomes that of the logits from the log-softmax (12), and is cast back
(6): 36 bytes, where a fused loss touches 8.

Source: PyTorch, torch/amp/autocast_mode documentation (cross_entropy runs in float32), aten/src/ATen/native/
LossNLL.cpp (zeroed gradient) and SoftMax.cpp (log-softmax and its gradient from the output).
"""
LOGIT_TOUCHES: dict[Function, int] = {"row_maxima": 1, "exponential_sums": 1, "cross_entropy": 2}
"""Times that the functions of the loss touch a logit."""


def product_seconds(
    count: int, m: int, k: int, n: int, peak: float, achieved: Achieved, tile: tuple[int, int] | None = None
) -> float:
    """Seconds of the arithmetic of `count` simultaneous products m x k by k x n, on whole tiles.

    Parameters
    ----------
    peak : peak rate of the dtype [flop/s]
    achieved : shares of the peaks that the device reaches
    tile : rows and columns of a tile, by default the device's

    >>> device = Achieved(
    ...     product_share=0.5, ramp=0, tile_rows=256, tile_columns=128, multiprocessors=2, memory_share=1
    ... )
    >>> product_seconds(1, 512, 64, 128, 2.0**23, device), product_seconds(1, 513, 64, 128, 2.0**23, device)
    (2.0, 4.0)
    """
    rows, columns = tile or (achieved.tile_rows, achieved.tile_columns)
    rounds = ceil(count * ceil(m / rows) * ceil(n / columns) / achieved.multiprocessors)
    size = rounds * achieved.multiprocessors * rows * columns
    return 2.0 * size * (k + achieved.ramp) / (achieved.product_share * peak)


def best_product_seconds(count: int, m: int, k: int, n: int, peak: float, achieved: Achieved) -> float:
    """Seconds of the arithmetic with the best tile: either orientation, and smaller tiles for small products.

    A tile of a x b uses each value that it reads a b / (a + b) times, and is assumed slower in proportion.
    """
    rows, columns = achieved.tile_rows, achieved.tile_columns
    if count * m * n >= achieved.multiprocessors * rows * columns:
        return min(
            product_seconds(count, m, k, n, peak, achieved),
            product_seconds(count, n, k, m, peak, achieved),
        )
    reuse = rows * columns / (rows + columns)
    sides = [side for power in range(rows.bit_length()) if (side := rows >> power) >= LEAST_TILE] or [rows]
    return min(
        product_seconds(count, m, k, n, peak, achieved, (a, b)) * max(1.0, reuse * (a + b) / (a * b))
        for a in sides
        for b in sides
        if a * b <= rows * columns
    )


def is_fused(work: AttentionProducts, achieved: Achieved | None) -> bool:
    """Whether a device computes attention as one kernel that keeps its scores on chip."""
    return not work.stores_weights and (achieved is None or achieved.attention == "fused")


def attention_seconds(work: AttentionProducts, touched: int, peak: float, rate: float, achieved: Achieved) -> float:
    """Seconds of an attention function.

    Parameters
    ----------
    work : sizes of the products
    touched : bytes of queries, keys, values and output [B]
    peak, rate : arithmetic [flop/s] and memory bandwidth [B/s]
    """
    rate *= achieved.memory_share
    s, h = work.sequence, work.head
    if is_fused(work, achieved):
        return max(work.flops / (peak * achieved.product_share), touched / rate)
    scores = work.count * s * s * work.item_bytes
    first = best_product_seconds(work.count, s, h, s, peak, achieved)
    second = best_product_seconds(work.count, s, s, h, peak, achieved)
    both = max(first, scores / rate) + max(second, scores / rate)
    dropout_bytes = DROPOUT_PASSES * work.item_bytes + MASK_BYTES if work.drops else 0
    cap_bytes = CAP_PASSES * work.item_bytes if work.capped else 0
    between = work.count * s * s * (SOFTMAX_PASSES * work.item_bytes + dropout_bytes + cap_bytes) / rate
    rotary = ROTARY_PASSES * work.rotated_bytes / rate
    return (2 if work.backward else 1) * (both + between + rotary)


def pass_seconds(function: Function, touched: int, rate: float, achieved: Achieved, item_bytes: int = 0) -> float:
    """Seconds of one pass over memory; 0 if the function is fused into a neighbouring pass.

    Parameters
    ----------
    touched : bytes read and written [B]
    rate : memory bandwidth [B/s]
    item_bytes : bytes of an element, of which unfused cross entropy makes its own traffic
    """
    if achieved.pointwise == "fused" and function in IN_EPILOGUE:
        return 0.0
    if achieved.pointwise == "unfused" and function in EAGER_LOGIT_BYTES and item_bytes in (2, 4):
        touched = touched * EAGER_LOGIT_BYTES[function][item_bytes] // (LOGIT_TOUCHES[function] * item_bytes)
    return touched / (rate * achieved.memory_share)
