"""`TraceSummary`: where the time of a traced GPU goes in an iteration: computation, communication, idle time, kernels.

All times are of one iteration, the mean over the iterations of the trace.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from quadrille.algorithms.field_units import BytesPerSecond, Seconds, Share, WholeBytes
from quadrille.algorithms.provenance import Provenance
from quadrille.experiments.traces.busy_times import busy_of, exposed_within, split_time
from quadrille.experiments.traces.collective_calls import CallKind
from quadrille.experiments.traces.device_trace import COMPUTING, NO_CALL, WORKS, DeviceTrace, Floats, Work
from quadrille.experiments.traces.iterations import Iterations, Source, iterations_of

SCHEMA = "quadrille/trace/1"
MOST_KERNELS, MOST_COLLECTIVES, MOST_ITERATIONS = 20, 50, 1000
"""Most entries of a summary's lists."""


class WorkTime(msgspec.Struct, frozen=True):
    """The time of a kind of work in an iteration [s].

    Parameters
    ----------
    share_seconds : time in which it is the first kind of work that runs; these add up to the busy time
    kernel_seconds : sum of the durations of its kernels
    count : number of its kernels in all iterations
    """

    work: Work
    share_seconds: Seconds
    kernel_seconds: Seconds
    count: int


class KernelTime(msgspec.Struct, frozen=True):
    """A kernel: its time in an iteration, its runs in all iterations, and the median of a run [s]."""

    name: str
    work: Work
    seconds: Seconds
    count: int
    median_seconds: Seconds


class CollectiveTime(msgspec.Struct, frozen=True):
    """The calls of a collective of one kind, size and group.

    Parameters
    ----------
    bytes, members : size [B] and ranks; null if unknown
    count : calls in all iterations
    seconds, exposed_seconds : time of an iteration, and the part beside which nothing computes [s]
    median_seconds : median time of a call, the waiting for late ranks included [s]
    algorithm_bandwidth, bus_bandwidth : rates of the median call, as nccl-tests defines them [B/s]; null if unknown
    """

    kind: CallKind
    label: str
    bytes: WholeBytes | None
    members: int | None
    group: str
    count: int
    seconds: Seconds
    exposed_seconds: Seconds
    median_seconds: Seconds
    algorithm_bandwidth: BytesPerSecond | None
    bus_bandwidth: BytesPerSecond | None


class StreamTime(msgspec.Struct, frozen=True):
    """A stream: its busy time in an iteration [s], and its runs in all iterations."""

    name: str
    seconds: Seconds
    count: int


class IterationTime(msgspec.Struct, frozen=True):
    """The time of one iteration by state [s]."""

    name: str
    seconds: Seconds
    computing_seconds: Seconds
    exposed_communication_seconds: Seconds
    exposed_copy_seconds: Seconds
    hidden_communication_seconds: Seconds
    idle_seconds: Seconds


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The times of a trace.

    Parameters
    ----------
    iterations : number of iterations
    iterations_from : how iterations were found
    seconds : time of an iteration, the mean [s]
    by_iteration : each iteration, at most the first `MOST_ITERATIONS`
    outside : share of the GPU's work that no iteration holds
    """

    file: str = ""
    program: str
    device: str
    rank: int | None
    ranks: int | None
    iterations: int
    iterations_from: Source
    seconds: Seconds
    computing_seconds: Seconds
    exposed_communication_seconds: Seconds
    hidden_communication_seconds: Seconds
    exposed_copy_seconds: Seconds
    idle_seconds: Seconds
    works: tuple[WorkTime, ...]
    collectives: tuple[CollectiveTime, ...]
    kernels: tuple[KernelTime, ...]
    streams: tuple[StreamTime, ...]
    by_iteration: tuple[IterationTime, ...]
    outside: Share = 0.0
    remarks: tuple[str, ...] = ()
    provenance: Provenance | None = None

    @property
    def communication_seconds(self) -> float:
        """Communication of an iteration, hidden or not [s]."""
        return self.exposed_communication_seconds + self.hidden_communication_seconds


def summarise(trace: DeviceTrace, iterations: Iterations | None = None) -> TraceSummary:
    """The summary of a trace."""
    iterations = iterations or iterations_of(trace)
    borders, count = iterations.borders, iterations.count
    split = split_time(trace, borders)
    computing: Floats = sum((split.by_work[work] for work in COMPUTING), np.zeros(count))
    clipped = _clipped(trace, borders)
    total = float(trace.seconds.sum())

    def mean(values: Floats) -> float:
        return float(values.sum()) / count

    return TraceSummary(
        program=trace.program,
        device=trace.device,
        rank=trace.rank,
        ranks=trace.ranks,
        iterations=count,
        iterations_from=iterations.source,
        seconds=(borders[-1] - borders[0]) / count,
        computing_seconds=mean(computing),
        exposed_communication_seconds=mean(split.by_work["communication"]),
        hidden_communication_seconds=mean(split.hidden),
        exposed_copy_seconds=mean(split.by_work["copies"]),
        idle_seconds=mean(split.idle),
        works=tuple(_work_time(trace, work, mean(split.by_work[work]), clipped, count) for work in WORKS),
        collectives=_collective_times(trace, clipped, borders),
        kernels=_kernel_times(trace, clipped, count),
        streams=_stream_times(trace, clipped, count),
        by_iteration=tuple(
            IterationTime(name, *map(float, row))
            for name, row in zip(
                iterations.names[:MOST_ITERATIONS],
                np.column_stack(
                    [
                        np.diff(borders),
                        computing,
                        split.by_work["communication"],
                        split.by_work["copies"],
                        split.hidden,
                        split.idle,
                    ]
                ),
                strict=False,
            )
        ),
        outside=max(0.0, 1 - float(clipped.sum()) / total) if total else 0.0,
        remarks=trace.remarks,
    )


def _clipped(trace: DeviceTrace, borders: Sequence[float]) -> Floats:
    """The duration of each piece of work between the first and the last border [s]."""
    clipped: Floats = np.maximum(np.minimum(trace.ends, borders[-1]) - np.maximum(trace.starts, borders[0]), 0.0)
    return clipped


def inside(trace: DeviceTrace, borders: Sequence[float]) -> "np.typing.NDArray[np.bool_]":
    """Which pieces of work start between the first and the last border."""
    return (trace.starts >= borders[0]) & (trace.starts < borders[-1])


def _work_time(trace: DeviceTrace, work: Work, share: float, clipped: Floats, count: int) -> WorkTime:
    members = trace.of_work(work) & (clipped > 0)
    return WorkTime(work, share, float(clipped[members].sum()) / count, int(members.sum()))


def _kernel_times(trace: DeviceTrace, clipped: Floats, count: int) -> tuple[KernelTime, ...]:
    totals = np.bincount(trace.names, weights=clipped, minlength=len(trace.kernels))
    longest = [int(name) for name in np.argsort(-totals, kind="stable")[:MOST_KERNELS] if totals[name] > 0]
    rows = []
    for name in longest:
        seconds = clipped[(trace.names == name) & (clipped > 0)]
        kernel, work = trace.kernels[name], trace.works[name]
        rows.append(
            KernelTime(kernel[:500], work, float(totals[name]) / count, len(seconds), float(np.median(seconds)))
        )
    return tuple(rows)


def _collective_times(trace: DeviceTrace, clipped: Floats, borders: Sequence[float]) -> tuple[CollectiveTime, ...]:
    if not trace.collectives:
        return ()
    communicating = trace.calls != NO_CALL
    calls = trace.calls[communicating]
    totals = np.bincount(calls, weights=clipped[communicating], minlength=len(trace.collectives))
    computing, count = busy_of(trace, *COMPUTING), len(borders) - 1
    rows = []
    for number in np.argsort(-totals, kind="stable")[:MOST_COLLECTIVES]:
        call, members = trace.collectives[number], trace.calls == number
        seconds = clipped[members & (clipped > 0)]
        if not len(seconds):
            continue
        median = float(np.median(seconds))
        rates = call.bandwidths(median) or (None, None)
        exposed = float(exposed_within(trace, members, computing, borders).sum()) / count
        rows.append(
            CollectiveTime(
                call.kind, call.label, call.bytes, call.members, call.group, len(seconds),
                float(totals[number]) / count, exposed, median, *rates,
            )
        )  # fmt: skip
    return tuple(rows)


def _stream_times(trace: DeviceTrace, clipped: Floats, count: int) -> tuple[StreamTime, ...]:
    totals = np.bincount(trace.lanes, weights=clipped, minlength=len(trace.streams))
    runs = np.bincount(trace.lanes[clipped > 0], minlength=len(trace.streams))
    order = np.argsort(-totals, kind="stable")[:MOST_KERNELS]
    return tuple(
        StreamTime(trace.streams[lane], float(totals[lane]) / count, int(runs[lane])) for lane in order if runs[lane]
    )
