"""The prediction of a schedule on a machine: timeline, time by cause, link loads, and how much was simulated."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from quadrille.algorithms.formats.record import Granularity, LinkLoad, PathPart, interval_as_text
from quadrille.algorithms.timelines.op_times import OpTimes
from quadrille.algorithms.timelines.run_result import RunResult
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.simulator.ranks.time_breakdown import OpInstance, TimeBreakdown
from quadrille.simulator.uncertainty import EXACT, Uncertainty

MOST_LINKS = 20_000
"""Number of links of a network up to which a prediction can name the use of each."""
Parts = dict[str, float]
"""Seconds by cause."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a simulation: numbers of classes, of rate updates and of skipped iterations.

    Parameters
    ----------
    folded : whether equal ranks were simulated as one
    not_folded_reason : reason why ranks were not folded, in words
    rank_classes, flow_classes, link_classes : numbers of classes; of flows and links only if ranks were folded
    events : updates of rates
    iterations_skipped : loop iterations that were not simulated
    """

    folded: bool
    not_folded_reason: str
    rank_classes: int
    flow_classes: int
    link_classes: int
    events: int
    iterations_skipped: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """Bounds of the makespan that an exact simulation would have [s].

    Parameters
    ----------
    proven : false if there is no exact simulation, as for NCCL's collectives; then `low` assumes that ops of different
        axes never overlap, and `high` that ops that may overlap run one after the other
    """

    low: float
    high: float
    proven: bool = True


@dataclass(frozen=True, slots=True)
class TimeBreakdowns:
    """Seconds by cause of each simulated span.

    Parameters
    ----------
    breakdowns : by instance of the timeline with run-length encoded iterations
    stands_for : function from a rank to the simulated rank that stands for it
    repeated : by rank and op, the first instance and the number of instances of run-length encoded iterations
    """

    breakdowns: Mapping[OpInstance, TimeBreakdown]
    stands_for: Callable[[int], int]
    repeated: Mapping[tuple[int, str], Sequence[tuple[int, int]]]

    def of(self, span: Span) -> Mapping[PathPart, float]:
        """Seconds by cause of a span; empty if they are not known."""
        rank = self.stands_for(span.rank)
        breakdown = self.breakdowns.get((rank, span.op, span.index))
        for first, count in self.repeated.get((rank, span.op), ()) if breakdown is None else ():
            if span.index < first:
                breakdown = self.breakdowns.get((rank, span.op, first + (span.index - first) % count))
                break
        return {} if breakdown is None else breakdown.path


@dataclass(frozen=True, slots=True, repr=False)
class Prediction(RunResult):
    """The prediction of a schedule on a machine.

    Parameters
    ----------
    timeline : every op of every rank; for many ranks, the simulated ranks with run-length encoded iterations
    parts : seconds of each op by cause (compute, transfer, latency, waiting), means over ranks
    extrapolated : names of ops whose time lies outside what was measured on the machine
    uncertainty : interval of the makespan
    contention : seconds that sharing adds to each op, means over ranks
    links : the most used resources, the most used first
    extent : how much was simulated
    times : times of every op, if the timeline holds only some ranks
    bound : bounds of the makespan, if the simulation is not exact
    labels : algorithm of each collective, by op, if it was chosen during the simulation
    every_link : function that returns the utilisation of all used links by name; of a network with more than
        `MOST_LINKS` links, that of `links` only
    pass_orders : order of passes on each pipeline stage, if the simulation walked through passes; else empty
    machine : name of the machine, for figures
    """

    timeline: Timeline
    parts: dict[str, Parts]
    extrapolated: frozenset[str]
    uncertainty: Uncertainty
    contention: Mapping[str, float]
    links: tuple[LinkLoad, ...]
    extent: Extent
    breakdowns: TimeBreakdowns = field(compare=False, repr=False)
    times: Mapping[str, OpTimes] | None = None
    bound: Bound | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    pass_orders: tuple[str, ...] = ()
    every_link: Callable[[], Mapping[str, float]] = field(default=dict, compare=False, repr=False)
    machine: str = field(default="", compare=False)

    @property
    def granularity(self) -> Granularity:
        """What the simulation computed one by one: transfers (exact), collectives or passes."""
        if self.pass_orders:
            return "passes"
        return "exact" if self.bound is None else "collective"

    def op_times(self) -> Mapping[str, OpTimes]:
        """Times of every op over all ranks, by name, in the order of first start."""
        return self.timeline.op_times() if self.times is None else self.times

    @property
    def seconds(self) -> float:
        """Time from the first rank's start to the last rank's end [s]."""
        return self.timeline.makespan

    @property
    def exact_interval(self) -> tuple[float, float]:
        """The least and the most seconds without uncertainty.

        Residuals of published steps contain the error of bounds that are only expected to hold.
        """
        bound = self.bound
        if bound is None or (not bound.proven and self.uncertainty != EXACT):
            return self.seconds, self.seconds
        return bound.low, bound.high

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the 90 % interval, around the bounds if the simulation is not exact [s]."""
        return self.uncertainty.around(*self.exact_interval)

    @property
    def interval_text(self) -> str:
        """The interval as text, as the command line prints it."""
        bound = self.bound
        return interval_as_text(
            *self.interval, bound.proven if bound is not None and self.interval == (bound.low, bound.high) else None
        )

    def parts_of(self, span: Span) -> Mapping[PathPart, float]:
        """Seconds by cause of a span, which add up to end - start."""
        return self.breakdowns.of(span)


def mean_parts(times: Mapping[str, OpTimes], ranks: int, sums: Mapping[str, Mapping[str, float]]) -> dict[str, Parts]:
    """Seconds of each op by cause, means over ranks; transfer is the rest of the op's time.

    Parameters
    ----------
    sums : latency and compute of each op, sums over all ranks [s]
    """
    parts: dict[str, Parts] = {}
    for name, op_times in times.items():
        op_sums = sums.get(name, {})
        latency = min(op_times.seconds, op_sums.get("latency", 0.0) / ranks)
        compute = min(op_times.seconds - latency, op_sums.get("compute", 0.0) / ranks)
        if op_times.lane == "compute":
            latency, compute = 0.0, op_times.seconds
        parts[name] = {
            "compute": compute,
            "transfer": op_times.seconds - latency - compute,
            "latency": latency,
            "waiting": op_times.waiting_seconds,
        }
    return parts


def sums_by_op(
    breakdowns: Mapping[OpInstance, TimeBreakdown], weight: Callable[[OpInstance], int]
) -> dict[str, dict[str, float]]:
    """Latency, compute and contention of each op, sums over all ranks [s].

    Parameters
    ----------
    weight : number of instances that an instance stands for
    """
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for instance, breakdown in breakdowns.items():
        op_sums, count = sums[instance[1]], weight(instance)
        op_sums["latency"] += count * breakdown.latency
        op_sums["compute"] += count * breakdown.compute
        op_sums["contention"] += count * breakdown.path.get("contention", 0.0)
    return sums
