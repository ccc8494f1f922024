"""The iterations of a trace, on the GPU's clock.

An iteration lasts from the first piece of work that its annotation launched to the first one of the next iteration; the
last lasts to the end of its work.  Without annotations, iterations are found by the kernels that run once in each:

    the names of kernels of the busiest stream that run k times, for the smallest k ≥ 3 for which the sequence of
    these names is one sequence of different names, k times, and which fills the trace

The border is then the first of those kernels, so the last iteration is left out: its end is not known.  Layers of one
iteration do not count, since they fill the forward or the backward pass only.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from quadrille.experiments.traces.device_trace import DeviceTrace, Floats, Integers

Source = Literal["annotations", "repeated kernels", "whole trace"]
LEAST_MATCHED = 0.5
"""Share of the work whose launch must be known, or iterations are those of the starts."""
LEAST_REPEATS, MOST_REPEATS = 3, 10_000
LEAST_FILLED = 0.9
"""Share of the trace that repeated kernels fill, the last iteration included."""


@dataclass(frozen=True, slots=True)
class Iterations:
    """Iterations, one after another.

    Parameters
    ----------
    borders : begin of each iteration, and the end of the last [s]
    names : name of each iteration
    source : how they were found
    """

    borders: tuple[float, ...]
    names: tuple[str, ...]
    source: Source

    @property
    def count(self) -> int:
        """Number of iterations."""
        return len(self.names)

    @property
    def seconds(self) -> tuple[float, ...]:
        """Duration of each iteration [s]."""
        return tuple(end - start for start, end in pairwise(self.borders))


def iterations_of(trace: DeviceTrace) -> Iterations:
    """The iterations of a trace; the whole trace if it has none."""
    return _annotated(trace) or _repeated(trace) or _whole(trace)


def _whole(trace: DeviceTrace) -> Iterations:
    return Iterations((float(trace.starts[0]), float(trace.ends.max())), ("whole trace",), "whole trace")


def _annotated(trace: DeviceTrace) -> Iterations | None:
    """The iterations of the annotations that launched any work; None without annotations."""
    marks = trace.marks
    if not marks.names:
        return None
    have_launch = np.isfinite(trace.launches)
    use_launches = not marks.on_device and float(np.mean(have_launch)) >= LEAST_MATCHED
    times = trace.launches if use_launches else trace.starts
    rows = []
    for name, start, end in zip(marks.names, marks.starts, marks.ends, strict=True):
        members = (times >= start) & (times < end)
        if members.any():
            rows.append((float(trace.starts[members].min()), float(trace.ends[members].max()), name))
    rows.sort()
    starts = [start for start, _, _ in rows]
    if not rows or len(set(starts)) < len(starts):
        return None
    return Iterations((*starts, max(rows[-1][1], starts[-1])), tuple(name for *_, name in rows), "annotations")


def _repeated(trace: DeviceTrace) -> Iterations | None:
    """The iterations between kernels that run once in each; None if no sequence of kernels repeats."""
    lane = int(np.bincount(trace.lanes, weights=trace.seconds).argmax())
    places = np.flatnonzero((trace.lanes == lane) & ~trace.of_work("copies", "communication"))
    names = trace.names[places]
    by_count: dict[int, list[int]] = defaultdict(list)
    for name, count in Counter(names.tolist()).items():
        by_count[count].append(name)
    for count in sorted(number for number in by_count if LEAST_REPEATS <= number <= MOST_REPEATS):
        members = np.isin(names, by_count[count])
        starts = trace.starts[places[members][:: len(by_count[count])]]
        filled = (starts[-1] - starts[0]) * count / (count - 1)
        if _is_repeated(names[members], count) and filled >= LEAST_FILLED * trace.ends.max():
            return _between(starts)
    return None


def _is_repeated(names: Integers, count: int) -> bool:
    """Whether a sequence is its first part, `count` times, without a name twice in that part."""
    rows = names.reshape(count, -1)
    return bool((rows == rows[0]).all()) and len(set(rows[0].tolist())) == rows.shape[1]


def _between(starts: Floats) -> Iterations | None:
    borders: Sequence[float] = starts.tolist()
    if len(set(borders)) < len(borders):
        return None
    names = tuple(f"repeat {number}" for number in range(1, len(borders)))
    return Iterations(tuple(borders), names, "repeated kernels")
