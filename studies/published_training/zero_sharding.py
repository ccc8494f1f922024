"""The time of a microbatch with ZeRO 2 and 3 (PyTorch FSDP): weights are all-gathered, gradients reduce-scattered.

While a layer computes, the weights of the next layer are gathered and the gradients of the previous layer are
scattered; the layer takes the longer of computation and communication (`|` below).  The GPU adds the received
gradients, which delays its computation.  Nothing hides the gathers of the first layer and of the parameters outside
the layers, nor their scatters at the end.

    ZeRO 2   forward: computation | gather     backward: computation | scatter
    ZeRO 3   forward: computation | gather     backward: computation | gather again, scatter

Both gather in every microbatch, as PyTorch's FSDP does under the names SHARD_GRAD_OP and FULL_SHARD.

Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
Parallel", VLDB 2023, sections 3.3.1 to 3.3.3 (overlap and prefetching) and 3.2.1
(sharding strategies); Rajbhandari et al., "ZeRO", 2020, section 7 (volumes).
"""

from dataclasses import dataclass

from quadrille.studies.published_training.layer_times import PassSeconds


@dataclass(frozen=True, slots=True)
class ShardingSeconds:
    """Times of the collectives of a microbatch [s].

    Parameters
    ----------
    gather, scatter : all-gather of a layer's weights, and reduce-scatter of its gradients
    outer_gather, outer_scatter : the same for the parameters outside the layers
    adding : time in which the GPU adds a layer's gradients, part of `scatter`
    """

    gather: float
    scatter: float
    outer_gather: float
    outer_scatter: float
    adding: float = 0.0


def zero_layer_seconds(layers: int, work: PassSeconds, collectives: ShardingSeconds, zero: int) -> PassSeconds:
    """The time of all layers of a microbatch, with the communication that computation does not hide.

    Parameters
    ----------
    layers : number of layers
    work : computation of one layer
    collectives : times of the gathers and scatters
    zero : ZeRO stage, 2 or 3

    Two layers of 1 s and 2 s, gathers of 0.25 s and scatters of 0.5 s; all are hidden except the first and the last:

    >>> zero_layer_seconds(2, PassSeconds(1.0, 2.0), ShardingSeconds(0.25, 0.5, 0.0, 0.0), zero=3)
    PassSeconds(forward=2.25, backward=4.5)
    """
    second_gather = collectives.gather if zero == 3 else 0.0
    forward = work.forward + (layers - 1) * max(work.forward, collectives.gather)
    first_layer = max(work.backward, second_gather)
    overlapped = max(work.backward + collectives.adding, second_gather + collectives.scatter)
    return PassSeconds(
        collectives.outer_gather + collectives.gather + forward,
        first_layer + (layers - 1) * overlapped + collectives.adding + collectives.scatter + collectives.outer_scatter,
    )
