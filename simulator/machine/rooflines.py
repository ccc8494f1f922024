"""Seconds of work on a device known by its data sheet: the longer of arithmetic and memory traffic.

A product is cut into tiles.  As many tiles as there are multiprocessors run at once, so the time is that of whole
waves of whole tiles.  A tile with inner dimension k costs as much as k + `ramp`, for its start and end:

    t = waves · multiprocessors · tile · 2 (k + ramp) / (share · peak)

Fused attention keeps its scores in registers and multiplies the causal half only.  Unfused attention is two batches
of square products, with the scores written and read between them: the softmax, the dropout with its mask, and, for
rotary positions, a pass over queries and keys.  Backward takes twice as long.

Source: NVIDIA, "Matrix Multiplication Background", DU-09799-001, 2023; Dao et al., "FlashAttention", 2022;
Korthikanti et al., arXiv 2205.05198, section 4 (what unfused attention keeps); Narayanan et al., SC21, section 4.2
(the fused softmax).
"""

from math import ceil

from quadrille.algorithms.analysis.volumes import AttentionProducts
from quadrille.algorithms.formats.measured_rows import Achieved
from quadrille.algorithms.schedule.kernel_signatures import Function

SCORE_PASSES = 4
"""Passes of the scores over memory between the two products: softmax and dropout, read and written."""
ROTARY_PASSES = 2
"""Passes of queries and keys over memory for rotary positions: read and written."""
LEAST_TILE = 16
"""Side of the smallest tile, the product of a tensor core."""
MASK_BYTES = 1
"""Bytes of the dropout mask for each score."""
IN_EPILOGUE: frozenset[Function] = frozenset(
    {"add_bias", "row_moments", "row_squares", "normalise_sums", "rms_sums", "column_sums"}
)
"""Functions that cost nothing if fused: a product's epilogue or the next pass reads the same data."""


def product_seconds(
    count: int, m: int, k: int, n: int, peak: float, achieved: Achieved, tile: tuple[int, int] | None = None
) -> float:
    """Seconds of the arithmetic of `count` simultaneous products m x k by k x n, with this tile or the device's.

    >>> device = Achieved(
    ...     product_share=0.5, ramp=0, tile_rows=256, tile_columns=128, multiprocessors=2, memory_share=1
    ... )
    >>> product_seconds(1, 512, 64, 128, 2.0**23, device), product_seconds(1, 513, 64, 128, 2.0**23, device)
    (2.0, 4.0)
    """
    rows, columns = tile or (achieved.tile_rows, achieved.tile_columns)
    waves = ceil(count * ceil(m / rows) * ceil(n / columns) / achieved.multiprocessors)
    size = waves * achieved.multiprocessors * rows * columns
    return 2.0 * size * (k + achieved.ramp) / (achieved.product_share * peak)


def best_product_seconds(count: int, m: int, k: int, n: int, peak: float, achieved: Achieved) -> float:
    """The same with the best tile: either orientation, and smaller tiles for products of less than a wave.

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


def attention_seconds(work: AttentionProducts, touched: int, peak: float, rate: float, achieved: Achieved) -> float:
    """Seconds of attention whose queries, keys, values and output have so many bytes.

    Parameters
    ----------
    peak, rate : arithmetic [flop/s] and memory bandwidth [B/s]
    """
    rate *= achieved.memory_share
    s, h = work.sequence, work.head
    if achieved.attention == "fused" and not work.stores_weights:
        return max(work.flops / (peak * achieved.product_share), touched / rate)
    scores = work.count * s * s * work.item_bytes
    first = best_product_seconds(work.count, s, h, s, peak, achieved)
    second = best_product_seconds(work.count, s, s, h, peak, achieved)
    both = max(first, scores / rate) + max(second, scores / rate)
    between = work.count * s * s * (SCORE_PASSES * work.item_bytes + MASK_BYTES) / rate
    loop_count_axes = ROTARY_PASSES * work.rotated_bytes / rate
    return (2 if work.backward else 1) * (both + between + loop_count_axes)


def pass_seconds(function: Function, touched: int, rate: float, achieved: Achieved) -> float:
    """Seconds of one pass over memory that touches so many bytes; `rate` is the memory bandwidth [B/s]."""
    if achieved.pointwise == "fused" and function in IN_EPILOGUE:
        return 0.0
    return touched / (rate * achieved.memory_share)
