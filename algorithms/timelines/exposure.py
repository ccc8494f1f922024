"""Communication that is not hidden: the seconds of a rank's spans while its compute lane is idle."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from quadrille.algorithms.timelines.spans import COMPUTE, Span


def exposed_seconds(spans: Sequence[Span]) -> list[float]:
    """For each span of one rank, its seconds while the compute lane is idle; spans of that lane have none.

    Where several run at once, the instant is charged to the one that arrived
    first.  Waiting is counted apart and is not charged here.
    """
    idle = _idle_clock([span for span in spans if span.lane == COMPUTE])
    found = [0.0] * len(spans)
    covered = float("-inf")
    moving = [place for place, span in enumerate(spans) if span.lane != COMPUTE and span.seconds > 0]
    for place in sorted(moving, key=lambda place: (_arrived(spans[place]), place)):
        span = spans[place]
        begin = max(_arrived(span), covered)
        if span.end > begin:
            found[place] = max(0.0, idle(span.end) - idle(begin))
            covered = span.end
    return found


def _arrived(span: Span) -> float:
    return max(span.arrival, span.start)


def _idle_clock(computing: Sequence[Span]) -> Callable[[float], float]:
    """A clock that stands still while the compute lane is busy: the time given less all busy time before it."""
    merged: list[list[float]] = []
    for span in sorted(computing, key=lambda span: span.start):
        if merged and span.start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], span.end)
        else:
            merged.append([span.start, span.end])
    starts = [start for start, _ in merged]
    busy = [0.0, *accumulate(end - start for start, end in merged)]

    def idle(time: float) -> float:
        block = bisect_right(starts, time)
        overshoot = max(0.0, merged[block - 1][1] - time) if block else 0.0
        return time - (busy[block] - overshoot)

    return idle
