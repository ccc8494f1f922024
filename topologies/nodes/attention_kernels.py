"""Kernels of fused attention by name and generation of GPU, relative to the kernel of the table of measured kernels.

The tables hold the best kernel of the inference frameworks: FlashAttention 2 on A100, FlashAttention 3 on Hopper, and
the kernels of TensorRT-LLM on Blackwell, which are taken for cuDNN's.  Another kernel takes `slower` times as long, and
its backward pass `backward` times as long as its own forward pass.  A backward pass multiplies five times, a forward
pass twice, so `backward` = 2.5 times the rate forward / the rate backward.

Source: Shah et al., "FlashAttention-3", arXiv 2407.08608, 2024, figures 5 and 6: H100, 128 columns a head, 4,096
tokens; forward with a causal mask 319, 518 and 579 x 10^12 flop/s (FlashAttention 2, cuDNN, FlashAttention 3); without
a mask forward 368, 609 and 638, backward 310, 499 and 542.  Dao, "FlashAttention-2", arXiv 2307.08691, 2023, sections 1
and 4.1: A100, forward up to 73 % of the peak and backward up to 63 %; FlashAttention 30 to 50 % and 25 to 35 %, of
which the middle is taken.
"""

from dataclasses import dataclass

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.kernel_signatures import FusedAttention


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """Times of a kernel of fused attention.

    Parameters
    ----------
    slower : its forward pass / the forward pass of the table
    backward : its backward pass / its forward pass
    """

    slower: float
    backward: float


BACKWARD_PRODUCTS = 2.5
"""Products of a backward pass / those of a forward pass."""
FIRST = AttentionKernel(0.73 / 0.40, BACKWARD_PRODUCTS * 0.40 / 0.30)
SECOND = AttentionKernel(1.0, BACKWARD_PRODUCTS * 0.73 / 0.63)
AMPERE: dict[FusedAttention, AttentionKernel] = {"flash2": SECOND, "flash1": FIRST}
"""By name, the kernel of the table first."""
HOPPER: dict[FusedAttention, AttentionKernel] = {
    "flash3": AttentionKernel(1.0, BACKWARD_PRODUCTS * 638 / 542),
    "cudnn": AttentionKernel(579 / 518, BACKWARD_PRODUCTS * 609 / 499),
    "flash2": AttentionKernel(579 / 319, BACKWARD_PRODUCTS * 368 / 310),
    "flash1": AttentionKernel(579 / 319 * FIRST.slower, FIRST.backward),
}
"""FlashAttention 1 is as much slower than FlashAttention 2 as on A100: an assumption."""
BLACKWELL: dict[FusedAttention, AttentionKernel] = {"cudnn": AttentionKernel(1.0, BACKWARD_PRODUCTS * 638 / 542)}
"""The backward pass has the factor of FlashAttention 3 on H100: an assumption; SimuMax has 2.9 to 3.0 on B200."""
BY_TABLE: dict[str, dict[FusedAttention, AttentionKernel]] = {
    "a100-sxm": AMPERE,
    "h100-sxm": HOPPER,
    "h200-sxm": HOPPER,
    "b200-sxm": BLACKWELL,
    "b300-sxm": BLACKWELL,
    "gb200": BLACKWELL,
    "gb300": BLACKWELL,
}


def attention_kernel(table: str, name: FusedAttention | None) -> AttentionKernel:
    """The times of a kernel on the GPU of a table; without a name those of the table's own kernel.

    >>> round(attention_kernel("h100-sxm", "flash2").slower, 2), round(attention_kernel("h100-sxm", None).backward, 2)
    (1.82, 2.94)

    Raises
    ------
    InputError : a kernel of which no rate on this GPU is known
    """
    kernels = BY_TABLE[table]
    if name is None:
        return next(iter(kernels.values()))
    if name not in kernels:
        raise InputError(f"--attention {name}: on {table}, accepted are fused, unfused, {', '.join(kernels)}")
    return kernels[name]
