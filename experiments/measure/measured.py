"""What comes of a run: timelines, counted bytes, reference kernels, losses, and the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import TYPE_CHECKING

from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.runtime.carriers.message_options import WHOLE_MESSAGES, MessageOptions

if TYPE_CHECKING:
    from quadrille.runtime.verifying.verify import Verification

KernelSeconds = tuple[float, float, float]
"""Seconds of the reference kernels: gemm, copy, add."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a run, at rank 0.

    Parameters
    ----------
    timelines : one a repeat
    bytes_sent : counted, of every rank
    reference : seconds of the reference kernels (gemm, copy, add) beside each repeat, means over ranks that time them
    at_once : how many do, where hosts share cores; 0: all
    losses : loss of every training step
    beside : how much of each op that may run beside local work did, of 1
    """

    timelines: Sequence[Timeline]
    bytes_sent: Mapping[int, int]
    reference: Sequence[KernelSeconds]
    at_once: int
    verification: "Verification | None"
    warmups: int
    threads: int
    backend: str
    losses: tuple[float, ...] | None = None
    message_options: MessageOptions = WHOLE_MESSAGES
    beside: Mapping[str, float] = field(default_factory=dict)


def typical(timelines: Sequence[Timeline]) -> Timeline:
    """The timeline whose makespan is nearest to the median of all."""
    middle = median(timeline.makespan for timeline in timelines)
    return min(timelines, key=lambda timeline: abs(timeline.makespan - middle))


def mean_over_ranks(by_rank: Sequence[Sequence[KernelSeconds]]) -> list[KernelSeconds]:
    """Seconds of the reference kernels beside each repeat, from those of every rank that timed any.

    >>> mean_over_ranks([[(1.0, 2.0, 3.0)], [(3.0, 2.0, 1.0)], []])
    [(2.0, 2.0, 2.0)]
    """
    timed = [of_rank for of_rank in by_rank if of_rank]
    return [
        (mean(gemm), mean(copy), mean(add))
        for gemm, copy, add in (zip(*of_ranks, strict=True) for of_ranks in zip(*timed, strict=True))
    ]
