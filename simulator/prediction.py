"""What a schedule will take on a machine, and how much had to be simulated to know it."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from quadrille.algorithms.formats.record import LinkLoad, PathPart
from quadrille.algorithms.timelines.op_times import OpTimes
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.simulator.ranks.lanes import OpInstance
from quadrille.simulator.ranks.time_breakdown import TimeBreakdown
from quadrille.simulator.uncertainty import Uncertainty

Parts = dict[str, float]


@dataclass(frozen=True, slots=True)
class Extent:
    """How much was simulated, and what kept it from being less.

    Parameters
    ----------
    folded : whether ranks were simulated as one
    why_not : what keeps them apart, in words
    rank_classes, flow_classes, link_classes : how many kinds there are; of flows and links where folded
    events : changes of rates
    iterations_skipped : turns of loops that were known from others
    """

    folded: bool
    why_not: str
    rank_classes: int
    flow_classes: int
    link_classes: int
    events: int
    iterations_skipped: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """Between which two the exact simulation's makespan lies [s], where collectives were simulated as a whole.

    Parameters
    ----------
    proven : false where there is no exact simulation, as of NCCL's collectives: then `low` is with ops of different
        axes apart, and `high` with those that may be under way together one after the other
    """

    low: float
    high: float
    proven: bool = True


@dataclass(frozen=True, slots=True)
class TimeBreakdowns:
    """What the time of each simulated span went into.

    Parameters
    ----------
    spent : of each instance that is said in a timeline whose turns are said once
    stands_for : the simulated rank that stands for a rank
    said : by rank and op, the first instance and the number of instances of turns that are said once
    """

    spent: Mapping[OpInstance, TimeBreakdown]
    stands_for: Callable[[int], int]
    said: Mapping[tuple[int, str], Sequence[tuple[int, int]]]

    def of(self, span: Span) -> Mapping[PathPart, float]:
        rank = self.stands_for(span.rank)
        found = self.spent.get((rank, span.op, span.index))
        for first, count in self.said.get((rank, span.op), ()) if found is None else ():
            if span.index < first:
                found = self.spent.get((rank, span.op, first + (span.index - first) % count))
                break
        return {} if found is None else found.path


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a schedule will take on a machine.

    Parameters
    ----------
    timeline : every op of every rank; of many ranks, those that stand for others, and turns that repeat said once
    parts : seconds of each op by cause (compute, transfer, latency, waiting), means over ranks
    extrapolated : names of the ops whose time lies outside what was measured on the machine
    uncertainty : how far off the makespan may be
    contention : seconds of each op that sharing adds, means over ranks
    links : the resources that are used most, the most used first
    extent : how much was simulated
    times : of every op, where the timeline holds some of the ranks only
    bound : of the makespan, where the simulation is not exact
    labels : algorithms of collectives, by op, where they were chosen on the way
    """

    timeline: Timeline
    parts: dict[str, Parts]
    extrapolated: frozenset[str]
    uncertainty: Uncertainty
    contention: Mapping[str, float]
    links: tuple[LinkLoad, ...]
    extent: Extent
    stories: TimeBreakdowns = field(compare=False, repr=False)
    times: Mapping[str, OpTimes] | None = None
    bound: Bound | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def op_times(self) -> Mapping[str, OpTimes]:
        """Times of every op over all ranks, by name, in the order of first start."""
        return self.timeline.op_times() if self.times is None else self.times

    def parts_of(self, span: Span) -> Mapping[PathPart, float]:
        """What the time of a span went into; it adds up to end - start [s]."""
        return self.stories.of(span)


def mean_parts(times: Mapping[str, OpTimes], ranks: int, spent: Mapping[str, Mapping[str, float]]) -> dict[str, Parts]:
    """Seconds of each op by cause, means over ranks; transfer is what the other causes leave.

    Parameters
    ----------
    spent : latency and compute of each op, sums over all ranks
    """
    found: dict[str, Parts] = {}
    for name, one in times.items():
        own = spent.get(name, {})
        latency = min(one.seconds, own.get("latency", 0.0) / ranks)
        compute = min(one.seconds - latency, own.get("compute", 0.0) / ranks)
        if one.lane == "compute":
            latency, compute = 0.0, one.seconds
        found[name] = {
            "compute": compute,
            "transfer": one.seconds - latency - compute,
            "latency": latency,
            "waiting": one.waiting_seconds,
        }
    return found


def sums(spent: Mapping[OpInstance, TimeBreakdown], weight: Callable[[OpInstance], int]) -> dict[str, dict[str, float]]:
    """Latency, compute and contention of each op, sums over all ranks.

    Parameters
    ----------
    weight : how many instances one stands for
    """
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for instance, one in spent.items():
        of_op, count = found[instance[1]], weight(instance)
        of_op["latency"] += count * one.latency
        of_op["compute"] += count * one.compute
        of_op["contention"] += count * one.path.get("contention", 0.0)
    return found
