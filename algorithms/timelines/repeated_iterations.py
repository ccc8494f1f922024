"""Turns of a loop that only repeat, said once: the last one stands for those before it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from quadrille.algorithms.timelines.spans import Span


@dataclass(frozen=True, slots=True)
class RepeatedIterations:
    """Turns of a loop that are said once: the spans that begin in the `seconds` from `start` on stand for `times` more.

    Each of those is `seconds` before the next one, and has indices that are
    `per_iteration` lower, by op.

    >>> from quadrille.algorithms.timelines.timeline import Timeline
    >>> last = Span(0, "multiply", "gemm", "compute", ready=6, start=6, arrival=6, end=8, index=3)
    >>> timeline = Timeline((last,), "predicted", ranks=1, turns=(RepeatedIterations(6.0, 2.0, 3, {"multiply": 1}),))
    >>> [(span.index, span.start, span.end) for span in timeline.unrolled().spans]
    [(0, 0.0, 2.0), (1, 2.0, 4.0), (2, 4.0, 6.0), (3, 6, 8)]
    """

    start: float
    seconds: float
    times: int
    per_iteration: Mapping[str, int]

    def includes(self, span: Span) -> bool:
        """Whether a span is of the last turn."""
        return self.start <= span.start < self.start + self.seconds and span.op in self.per_iteration

    def earlier(self, span: Span, before: int) -> Span:
        """The span of the last turn as it was so many turns before."""
        return span.moved(-before * self.seconds, -before * self.per_iteration[span.op])

    def earlier_spans(self, spans: Iterable[Span]) -> Iterator[Span]:
        """The spans of all turns but the last, which is among `spans`."""
        return (span for span, _ in self._told(self._last(spans), dict.fromkeys(range(self.times, 0, -1), 1)))

    def weighted_spans(self, spans: Iterable[Span]) -> Iterator[tuple[Span, int]]:
        """The spans of a few of these turns, and how many turns each counts for: one in the midst for many.

        Some count for none, and are there because others reach over them.
        """
        told = self._last(spans)
        reach = 1 + ceil(max((span.end - span.start for span in told), default=0.0) / self.seconds)
        if self.times <= 4 * reach + 1:
            return self._told(told, dict.fromkeys(range(self.times, 0, -1), 1))
        first = self.times - reach
        counts = {before: int(before > first) for before in range(self.times, first - reach - 1, -1)}
        counts |= {before: int(before <= reach) for before in range(2 * reach, 0, -1)}
        counts[first] = self.times - 2 * reach
        return self._told(told, counts)

    def _last(self, spans: Iterable[Span]) -> list[Span]:
        """The spans of the last turn."""
        return [span for span in spans if self.includes(span)]

    def _told(self, last: Iterable[Span], counts: Mapping[int, int]) -> Iterator[tuple[Span, int]]:
        """The spans of the turns that are so many turns before the last, each with its count."""
        for span in last:
            for before, count in counts.items():
                yield self.earlier(span, before), count
