"""The time of fused attention (FlashAttention, version 1): one kernel that does not store the attention scores.

The time is flop / (share * peak).  Only the causal half of each matrix product counts, and five products in the
backward pass, as in the source and in a schedule's own count.  The shares are those of FlashAttention on an A100, the
middle of the range that its author states.  Other generations run the same kernels; their share is lower by the same
factor as that of FlashAttention-2, which was written for A100 too.

Source: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work
Partitioning", arXiv 2307.08691, section 1 (FlashAttention on A100: 30 to 50 % of
the peak forward, 25 to 35 % backward) and section 4.1 (FlashAttention-2: up to
230e12 flop/s on an A100, 335e12 on an H100).
"""

from quadrille.algorithms.analysis.volumes import AttentionProducts
from quadrille.topologies.nodes.gpus import Generation

FORWARD_SHARE, BACKWARD_SHARE = 0.40, 0.30
RELATIVE_TO_A100: dict[Generation, float] = {"ampere": 1.0, "hopper": (335e12 / 989.4e12) / (230e12 / 312e12)}
"""Share of the peak that a generation reaches, divided by the share that A100 reaches."""


def fused_seconds(work: AttentionProducts, generation: Generation, peak: float) -> float:
    """The time of a forward or backward pass of fused attention [s].

    Parameters
    ----------
    work : matrix products of the pass
    generation : generation of the GPU
    peak : peak of the GPU [flop/s]

    >>> work = AttentionProducts(1, 1000, 100, 2, "attention")
    >>> fused_seconds(work, "ampere", 1e9)
    0.5
    """
    share = BACKWARD_SHARE if work.backward else FORWARD_SHARE
    return work.flops / (share * RELATIVE_TO_A100[generation] * peak)
