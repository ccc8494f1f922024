"""The measurements of a run: timelines, counted bytes, reference kernels, losses and verification."""

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
    """The measurements of a run, complete at rank 0.

    Parameters
    ----------
    timelines : timeline of each repeat
    bytes_sent : counted bytes that each rank sent, by rank
    reference : times of the reference kernels after each repeat, means over the ranks that time them [s]
    concurrent_ranks : number of ranks that time the reference kernels if hosts share cores; 0 for all ranks
    verification : result of the check of the outputs; None if they were not checked
    losses : loss of every training step; None for a matmul
    message_options : message options of the run
    overlap_fractions : fraction of an op's messages that were sent during local work, from 0 to 1, by the op's name
    """

    timelines: Sequence[Timeline]
    bytes_sent: Mapping[int, int]
    reference: Sequence[KernelSeconds]
    concurrent_ranks: int
    verification: "Verification | None"
    warmups: int
    threads: int
    backend: str
    losses: tuple[float, ...] | None = None
    message_options: MessageOptions = WHOLE_MESSAGES
    overlap_fractions: Mapping[str, float] = field(default_factory=dict)


def typical(timelines: Sequence[Timeline]) -> Timeline:
    """The timeline whose makespan is nearest to the median makespan."""
    middle = median(timeline.makespan for timeline in timelines)
    return min(timelines, key=lambda timeline: abs(timeline.makespan - middle))


def mean_over_ranks(by_rank: Sequence[Sequence[KernelSeconds]]) -> list[KernelSeconds]:
    """Times of the reference kernels in each repeat, means over the ranks that timed them [s].

    >>> mean_over_ranks([[(1.0, 2.0, 3.0)], [(3.0, 2.0, 1.0)], []])
    [(2.0, 2.0, 2.0)]
    """
    timed = [of_rank for of_rank in by_rank if of_rank]
    return [
        (mean(gemm), mean(copy), mean(add))
        for gemm, copy, add in (zip(*of_ranks, strict=True) for of_ranks in zip(*timed, strict=True))
    ]
