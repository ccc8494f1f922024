"""Seconds of attention in one kernel that never stores its scores, as its first implementations ran.

The causal half of each product counts, five products backward, as in the source
and in a schedule's own count.  Shares of the peak are those of FlashAttention on
an A100, midway between the ends that its author states; other generations run
the kernels that were written for A100, and reach less of their peak by as much
as FlashAttention-2, written for A100 too, does.

Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work
Partitioning", arXiv 2307.08691, section 1 (FlashAttention on A100: 30 to 50 % of
the peak forward, 25 to 35 % backward) and section 4.1 (FlashAttention-2: up to
230e12 flop/s on an A100, 335e12 on an H100).
"""

from quadrille.algorithms.analysis.volumes import AttentionProducts
from quadrille.topologies.nodes.gpus import Generation

FORWARD_SHARE, BACKWARD_SHARE = 0.40, 0.30
OF_A100: dict[Generation, float] = {"ampere": 1.0, "hopper": (335e12 / 989.4e12) / (230e12 / 312e12)}
"""The share of its peak that a generation reaches, of that of A100."""


def fused_seconds(work: AttentionProducts, generation: Generation, peak: float) -> float:
    """Seconds of a pass of fused attention on a GPU of a generation, with its peak in flop/s.

    >>> work = AttentionProducts(1, 1000, 100, 2, "attention")
    >>> fused_seconds(work, "ampere", 1e9)
    0.5
    """
    share = BACKWARD_SHARE if work.backward else FORWARD_SHARE
    return work.flops / (share * OF_A100[generation] * peak)
