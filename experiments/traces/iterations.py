"""The iterations of a trace, on the GPU's clock.

An iteration lasts from the first piece of work that its annotation launched to the first one of the next iteration; the
last lasts to the end of its work.  Without annotations, iterations are found by the kernels that run once in each:

    the names of kernels of the busiest stream that run k times, for the smallest k ≥ 3 for which the sequence of
    these names is one sequence of different names, k times, and which fills the trace

The border is then the first of those kernels, so the last iteration is left out: its end is not known.  Layers of one
iteration do not count, since they fill the forward or the backward pass only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quadrille.experiments.traces.device_trace import DeviceTrace, Floats, Integers, Marks

Places = NDArray[np.intp]

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
    number, belongs = _number_of_mark(marks, times)
    firsts, lasts = np.full(len(marks.names), np.inf), np.full(len(marks.names), -np.inf)
    np.minimum.at(firsts, number[belongs], trace.starts[belongs])
    np.maximum.at(lasts, number[belongs], trace.ends[belongs])
    rows = sorted(zip(firsts.tolist(), lasts.tolist(), marks.names, strict=True))[: int(np.isfinite(firsts).sum())]
    starts = [start for start, _, _ in rows]
    if not rows or len(set(starts)) < len(starts):
        return None
    return Iterations((*starts, max(rows[-1][1], starts[-1])), tuple(name for *_, name in rows), "annotations")


def _number_of_mark(marks: Marks, times: Floats) -> tuple[Places, NDArray[np.bool_]]:
    """The last annotation that starts before each time, and whether the time is within it; marks are in order."""
    number = np.maximum(np.searchsorted(np.array(marks.starts), times, side="right") - 1, 0)
    return number, (times >= np.array(marks.starts)[number]) & (times < np.array(marks.ends)[number])


def _repeated(trace: DeviceTrace) -> Iterations | None:
    """The iterations between kernels that run once in each; None if no sequence of kernels repeats."""
    lane = int(np.bincount(trace.lanes, weights=trace.seconds).argmax())
    places = np.flatnonzero((trace.lanes == lane) & ~trace.of_work("copies", "communication"))
    names = trace.names[places]
    runs = np.bincount(names, minlength=len(trace.kernels))
    for count in sorted({number for number in runs.tolist() if LEAST_REPEATS <= number <= MOST_REPEATS}):
        members = runs[names] == count
        starts = trace.starts[places[members][:: int((runs == count).sum())]]
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
