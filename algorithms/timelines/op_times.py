"""Times of every op of a run, over its instances, repeats and ranks."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.timelines.exposure import exposed_seconds
from quadrille.algorithms.timelines.spans import Span


class SpansOfRanks(Protocol):
    """What is read of a timeline (`timeline.py`, which asks for times itself)."""

    @property
    def spans(self) -> tuple[Span, ...]: ...

    @property
    def ranks(self) -> int: ...

    @property
    def copies(self) -> Mapping[int, int] | None: ...

    def weighted_spans(self) -> dict[int, list[tuple[Span, int]]]:
        """The spans of each rank by start, and how many each counts for."""
        ...


@dataclass(frozen=True, slots=True)
class OpTimes:
    """One op over all its instances: sums over instances, medians over repeats, means over all ranks [s]."""

    name: str
    kind: str
    lane: str
    axis: Axis | None
    count: int
    seconds: float
    waiting_seconds: float
    exposed_seconds: float


def op_times(*timelines: SpansOfRanks) -> dict[str, OpTimes]:
    """Times of every op over one or more repeats of a run, by name, in the order of first start.

    Of each rank the instances are summed, then the median taken over the
    repeats, then the mean over all ranks; a rank that does not do the op counts
    as 0, so that times of ops add up.

    Raises
    ------
    InputError : no timeline, or repeats on different numbers of ranks
    """
    if len({timeline.ranks for timeline in timelines}) != 1:
        ranks = ", ".join(str(timeline.ranks) for timeline in timelines) or "none"
        raise InputError(f"timelines on {ranks} ranks: repeats of one run on the same ranks are needed")
    samples: dict[str, dict[int, list[_Sums]]] = {}
    model: dict[str, Span] = {}
    for timeline in timelines:
        for span in sorted(timeline.spans, key=lambda span: span.start):
            model.setdefault(span.op, span)
        for op, sums in _sums(timeline).items():
            for rank, total in sums.items():
                samples.setdefault(op, {}).setdefault(rank, []).append(total)
    weights = timelines[0].copies or {}
    return {
        op: _mean(span, samples[op], weights, ranks=timelines[0].ranks, repeats=len(timelines))
        for op, span in model.items()
    }


@dataclass(slots=True)
class _Sums:
    """One op on one rank, over its instances."""

    count: int = 0
    seconds: float = 0.0
    waiting: float = 0.0
    exposed: float = 0.0


def _sums(timeline: SpansOfRanks) -> dict[str, dict[int, _Sums]]:
    """By op and rank."""
    found: dict[str, dict[int, _Sums]] = defaultdict(lambda: defaultdict(_Sums))
    for rank, told in timeline.weighted_spans().items():
        for (span, count), exposed in zip(told, exposed_seconds([span for span, _ in told]), strict=True):
            total = found[span.op][rank]
            total.count += count
            total.seconds += count * span.seconds
            total.waiting += count * span.waiting_seconds
            total.exposed += count * exposed
    return found


def _mean(
    span: Span, samples: Mapping[int, list[_Sums]], weights: Mapping[int, int], *, ranks: int, repeats: int
) -> OpTimes:
    def mean(quantity: Callable[[_Sums], float]) -> float:
        medians = (
            weights.get(rank, 1) * median([*map(quantity, sums), *[0.0] * (repeats - len(sums))])
            for rank, sums in samples.items()
        )
        return sum(medians) / ranks

    return OpTimes(
        span.op,
        span.kind,
        span.lane,
        span.axis,
        count=max(total.count for sums in samples.values() for total in sums),
        seconds=mean(lambda total: total.seconds),
        waiting_seconds=mean(lambda total: total.waiting),
        exposed_seconds=mean(lambda total: total.exposed),
    )
