"""Op times: the mean time, waiting time and exposed communication of every op, and the shares of activities."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Protocol, cast

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.timelines.spans import COMPUTE, UNPAIRED, OutsideOps, Span

HOST_KINDS = ("host_copy", "host_kernel")
"""Kinds of ops that copy between device and host, or run on the host."""
HOST_ACTIVITIES = dict(zip(HOST_KINDS, ("host copies", "updates on the host"), strict=True))
"""Names of the activities that run beside a device, by kind of op."""
SMALL_SHARE = 0.005
"""Share of the total below which an activity is not named."""


def exposed_seconds(spans: Sequence[Span]) -> list[float]:
    """Returns, for each span of one rank, its seconds while the compute lane is idle; spans of the compute lane have
    none, except work for the host, during which the device computes nothing.

    If several spans run at once, the time counts for the one that arrived first.  Waiting is counted separately.
    """
    idle = _idle_clock([span for span in spans if span.lane == COMPUTE])
    exposed = [span.seconds if span.lane == COMPUTE and span.kind in HOST_KINDS else 0.0 for span in spans]
    covered = float("-inf")
    moving = [index for index, span in enumerate(spans) if span.lane != COMPUTE and span.seconds > 0]
    for index in sorted(moving, key=lambda index: (_arrived(spans[index]), index)):
        span = spans[index]
        begin = max(_arrived(span), covered)
        if span.end > begin:
            exposed[index] = max(0.0, idle(span.end) - idle(begin))
            covered = span.end
    return exposed


def _arrived(span: Span) -> float:
    return max(span.arrival, span.start)


def _idle_clock(computing: Sequence[Span]) -> Callable[[float], float]:
    """A clock that stops while the compute lane is busy: a time minus all busy time before it."""
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


class SpansOfRanks(Protocol):
    """The attributes of a timeline that this module reads; `timeline.Timeline` has them."""

    @property
    def spans(self) -> tuple[Span, ...]: ...

    @property
    def ranks(self) -> int: ...

    @property
    def copies(self) -> Mapping[int, int] | None: ...

    def weighted_spans(self) -> dict[int, list[tuple[Span, int]]]:
        """Spans of each rank by start, each with its multiplicity."""
        ...


@dataclass(frozen=True, slots=True)
class OpTimes:
    """One op over all instances: sums over instances, medians over repeats, means over all ranks [s]."""

    name: str
    kind: str
    lane: str
    axis: Axis | None
    count: int
    seconds: float
    waiting_seconds: float
    exposed_seconds: float


def op_times(*timelines: SpansOfRanks) -> dict[str, OpTimes]:
    """Returns the times of every op over one or more repeats of a run, by name, in the order of first start.

    Instances are summed for each rank, then the median over repeats is taken, then the mean over all ranks.  A rank
    without the op counts as 0, so that times of ops add up.
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


def outside_ops(*timelines: SpansOfRanks) -> dict[OutsideOps, float]:
    """The time of the mean rank outside ops, over one or more repeats [s]: medians over repeats.

    A run lasts from the first start of an op on any rank to the last end on any rank.  Before its first op a rank has
    started later than the first rank; between ops its program does something else; after its last op the last rank is
    still at work.

    >>> from quadrille.algorithms.timelines.timeline import Timeline
    >>> spans = [Span(0, "multiply", "gemm", "compute", 0, 0, 0, 3), Span(0, "sum", "all_reduce", "x", 3, 4, 4, 6)]
    >>> spans += [Span(1, "multiply", "gemm", "compute", 1, 1, 1, 4), Span(1, "sum", "all_reduce", "x", 4, 4, 4, 6)]
    >>> outside_ops(Timeline(tuple(spans), "measured", ranks=2))
    {'before the first op': 0.5, 'between ops': 0.5, 'after the last op': 0.0}
    """
    of_repeats = [_outside(timeline) for timeline in timelines if timeline.spans]
    if not of_repeats:
        return {}
    before, between, after = (median(column) for column in zip(*of_repeats, strict=True))
    return {"before the first op": before, "between ops": between, "after the last op": after}


def _outside(timeline: SpansOfRanks) -> tuple[float, float, float]:
    """Seconds of the mean rank before its first op, between ops and after its last op."""
    first, last = min(span.start for span in timeline.spans), max(span.end for span in timeline.spans)
    spans_of_rank: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        spans_of_rank[span.rank].append(span)
    before = between = after = 0.0
    for spans in spans_of_rank.values():
        start, end = min(span.start for span in spans), max(span.end for span in spans)
        idle = _idle_clock(spans)
        before, between, after = before + start - first, between + idle(end) - idle(start), after + last - end
    ranks = len(spans_of_rank)
    return before / ranks, between / ranks, after / ranks


@dataclass(slots=True)
class _Sums:
    """One op on one rank, over its instances."""

    count: int = 0
    seconds: float = 0.0
    waiting: float = 0.0
    exposed: float = 0.0


def _sums(timeline: SpansOfRanks) -> dict[str, dict[int, _Sums]]:
    """Sums by op and rank."""
    totals: dict[str, dict[int, _Sums]] = defaultdict(lambda: defaultdict(_Sums))
    for rank, weighted in timeline.weighted_spans().items():
        for (span, count), exposed in zip(weighted, exposed_seconds([span for span, _ in weighted]), strict=True):
            total = totals[span.op][rank]
            total.count += count
            total.seconds += count * span.seconds
            total.waiting += count * span.waiting_seconds
            total.exposed += count * exposed
    return totals


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


class TimedOp(Protocol):
    """The attributes of an op that its activity needs: of `OpTimes` and of an op of a record."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def axis(self) -> str | None: ...

    @property
    def seconds(self) -> float: ...

    @property
    def exposed_seconds(self) -> float: ...


def activity(op: TimedOp, lengths: Mapping[Axis, int]) -> str:
    """The activity that an op belongs to: products, attention, or communication over an axis.

    A receive or a send lasts until the other stage is there, so both hold the bubbles of a pipeline.

    >>> receive = OpTimes("receive X", "receive", "pipeline", "pipeline", 1, 1.0, 0.0, 1.0)
    >>> attention = OpTimes("attention", "kernel", "compute", None, 1, 1.0, 0.0, 0.0)
    >>> activity(receive, {"pipeline": 2}), activity(attention, {})
    ('waiting and messages between pipeline stages', 'attention')

    Parameters
    ----------
    lengths : length of each axis of the grid
    """
    if op.axis is not None and not is_of_one_rank(op, lengths):
        between = op.axis == "pipeline" and op.kind in UNPAIRED
        return "waiting and messages between pipeline stages" if between else f"communication over {op.axis}"
    if op.kind in HOST_KINDS:
        return HOST_ACTIVITIES[op.kind]
    if op.kind == "gemm":
        return "products"
    return "attention" if op.kind == "kernel" and "attention" in op.name else "other local work"


def is_of_one_rank(op: TimedOp, lengths: Mapping[Axis, int]) -> bool:
    """Whether an op communicates over an axis that has one rank: it copies at most."""
    return op.axis is not None and lengths.get(cast(Axis, op.axis), 1) == 1


def activity_shares(ops: Iterable[TimedOp], lengths: Mapping[Axis, int], total: float) -> list[tuple[str, float]]:
    """The shares of the total that local work and exposed communication take on the mean rank, the largest first.

    Copies from and to the host and updates on the host count as far as they are exposed, too.

    Parameters
    ----------
    lengths : length of each axis of the grid
    total : time of the run [s]
    """
    seconds: dict[str, float] = defaultdict(float)
    for op in ops:
        beside = op.kind in HOST_KINDS or (op.axis is not None and not is_of_one_rank(op, lengths))
        seconds[activity(op, lengths)] += op.exposed_seconds if beside else op.seconds
    shares = [(name, op_seconds / total) for name, op_seconds in seconds.items() if total]
    return sorted([(name, share) for name, share in shares if share >= SMALL_SHARE], key=lambda item: -item[1])


def bound_by(shares: Sequence[tuple[str, float]]) -> str:
    """The activity that takes most of the time and the others, as text; empty without shares.

    >>> bound_by([("products", 0.75), ("communication over z", 0.25)])
    'bound by products (75 %), communication over z 25 %'
    """
    if not shares:
        return ""
    (most, share), *others = shares
    return f"bound by {most} ({100 * share:.3g} %)" + "".join(f", {name} {100 * part:.3g} %" for name, part in others)
