"""Seconds of a microbatch whose layers' weights are gathered for use and their gradients scattered: ZeRO 2 and 3.

The next layer's weights are gathered while a layer computes, the gradients of the
layer before are scattered, and a layer takes the longer of the two.  What a scatter adds
up is added by the GPU, which works the less on the layer meanwhile, as it is
simulated.  Alone are the gathers of what stands outside the layers and of the first
layer, and at the end the scatters of both.

    ZeRO 2   forward: work | gather            backward: work | scatter
    ZeRO 3   forward: work | gather            backward: work | gather again, scatter

Both gather in every microbatch, as PyTorch's FSDP does, which calls them
SHARD_GRAD_OP and FULL_SHARD.

Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
Parallel", VLDB 2023, sections 3.3.1 to 3.3.3 (overlap and prefetching) and 3.2.1
(sharding strategies); Rajbhandari et al., "ZeRO", 2020, section 7 (volumes).
"""

from dataclasses import dataclass

from quadrille.studies.published_training.stage import Seconds


@dataclass(frozen=True, slots=True)
class Sharded:
    """Seconds to gather the weights of a layer, and of all outside the layers, and to scatter their gradients.

    Parameters
    ----------
    adding : time in which the GPU adds up a layer's gradients, part of `scatter`
    """

    gather: float
    scatter: float
    outer_gather: float
    outer_scatter: float
    adding: float = 0.0


def sharded_layers(layers: int, work: Seconds, moved: Sharded, zero: int) -> Seconds:
    """Seconds of all layers, with exposed communication.

    Parameters
    ----------
    work : seconds of a single layer
    moved : seconds of the gathers and scatters
    zero : ZeRO stage

    Two layers of 1 s and 2 s, gathers of 0.25 s and scatters of 0.5 s, all hidden but for the first and the last:

    >>> sharded_layers(2, Seconds(1.0, 2.0), Sharded(0.25, 0.5, 0.0, 0.0), zero=3)
    Seconds(forward=2.25, backward=4.5)
    """
    again = moved.gather if zero == 3 else 0.0
    forward = work.forward + (layers - 1) * max(work.forward, moved.gather)
    first = max(work.backward, again)
    others = (layers - 1) * max(work.backward + moved.adding, again + moved.scatter)
    return Seconds(
        moved.outer_gather + moved.gather + forward,
        first + others + moved.adding + moved.scatter + moved.outer_scatter,
    )
