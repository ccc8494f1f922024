"""`simulate`: predicts the time of a schedule on a machine in virtual time.

Ranks that behave alike are simulated as one (`ranks/simulated_ranks.py`), and loops that become periodic are
simulated for a few iterations (`loops/`), so memory grows neither with ranks nor with iterations.  The simulation
itself is in `ranks/lane_simulation.py`.

If too much is left to simulate even so, because ranks differ, all ranks are walked at the granularity of collectives
(`bounds/`): every transfer has one rate, and two further rates, an upper and a lower limit, bound the makespan of the
exact simulation.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING

from quadrille.algorithms.analysis.coordinate_dependence import Kind
from quadrille.algorithms.analysis.op_plans import OpPlans
from quadrille.algorithms.analysis.traffic import traffic
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import AskedGranularity, Granularity
from quadrille.algorithms.schedule.ops import Communication, is_host_op
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.simulator.bounds.bounds_support import unsupported_reason
from quadrille.simulator.gc_paused import gc_paused
from quadrille.simulator.loops.period_detector import PeriodDetector, iteration_count
from quadrille.simulator.loops.skipped_iterations import (
    Iteration,
    IterationRange,
    SkippedIterations,
    copy_counts,
    iteration_ranges,
    most_skipped,
    walk_skipping,
)
from quadrille.simulator.machine.default_collectives import machine_choices
from quadrille.simulator.machine.placement import RankPlacement, place_ranks
from quadrille.simulator.prediction import MOST_LINKS, Extent, Prediction, TimeBreakdowns, mean_parts, sums_by_op
from quadrille.simulator.ranks.lane_simulation import OP_WALL_SECONDS, LaneSimulation, SimulationInputs
from quadrille.simulator.ranks.simulated_ranks import SimulatedRanks, choose_ranks, utilisation_by_name
from quadrille.simulator.ranks.time_breakdown import OpInstance
from quadrille.simulator.symmetry.signatures import LoopPosition
from quadrille.simulator.uncertainty import message_margins, uncertainty
from quadrille.simulator.work_budget import BudgetExceeded, WorkBudget
from quadrille.topologies.machines.machine import Machine

if TYPE_CHECKING:
    from quadrille.simulator.loops.restore import PeriodWindow
    from quadrille.simulator.ranks.jitter import Jitter

__all__ = ["Limits", "Prediction", "Shortcuts", "Simulator", "simulate"]

MAX_RANKS_EXPANDED = 64
"""Largest number of ranks of a timeline that contains every rank and iteration; else it has the simulated ranks."""
LINKS_LISTED = 20
"""Number of links in a prediction, the most used ones."""
SAMPLED_RANKS = 4
"""Number of simulated ranks whose steps are counted to estimate the wall time."""
STEP_WALL_SECONDS = 3e-6
"""Approximate wall time to simulate one step of an op, on two cores of 2026 [s]."""
NCCL_ONLY = "NCCL's model knows collectives, not the steps of ranks"
JITTER = "jitter draws noise for each op instance of each rank"
COLLECTIVE_REQUESTED = "collective granularity was asked for"
COMPILED_FROM_SECONDS = 0.3
"""Expected wall time from which kernels are compiled at once; loading compiled kernels takes 0.4 s [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortcuts:
    """Shortcuts that make a simulation fast and change no answer; each may be switched off to check that.

    Parameters
    ----------
    fold : simulate ranks that behave alike as one
    fold_time : skip periodic loop iterations
    memory : skip periodic steps of collectives
    local : recompute rates only where something changed
    """

    fold: bool = True
    fold_time: bool = True
    memory: bool = True
    local: bool = True


ALL_SHORTCUTS = Shortcuts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the wall time and the size of a simulation.

    With `auto`, NCCL's collectives, whose steps are unknown, are never simulated exactly if bounds are supported.

    Parameters
    ----------
    long_seconds : longest expected wall time of an exact simulation that `auto` starts [s]
    wall_seconds : wall time after which `auto` gives up an exact simulation, if bounds are supported, see `WorkBudget`
        [s]
    expanded_spans : largest number of spans of a timeline that contains every rank and iteration; at 20 us a span,
        more would take longer than the simulation
    """

    long_seconds: float = 20.0
    wall_seconds: float = 20.0
    expanded_spans: int = 100_000


LIMITS = Limits()
"""The usual limits."""


def simulate(
    schedule: Schedule,
    machine: Machine,
    *,
    choices: Choices | None = None,
    threads: int | None = None,
    placement: str = "packed",
    shortcuts: Shortcuts = ALL_SHORTCUTS,
    granularity: AskedGranularity = "exact",
    limits: Limits = LIMITS,
    jitter: "Jitter | None" = None,
) -> Prediction:
    """Predict a schedule on a machine.

    Parameters
    ----------
    choices : which implementation runs each collective; the library's take the seconds of the machine file, and
        are predicted as named algorithms if none were measured
    threads : BLAS threads of each rank, by default its share of the host's cores
    placement : rule of the rank placement, see `endpoints_by_rule`
    granularity : `collective` if bounds of the makespan suffice because an exact simulation would take too long
    limits : limits of the wall time and the size of the simulation
    jitter : noise of every op instance, which only an exact simulation knows, and the spread of speeds from GPU to GPU;
        None for no noise

    Raises
    ------
    InputError : more ranks than GPUs, an unknown topology, a network that faults have cut in two, jitter at collective
        granularity
    Deadlock : ranks that wait on each other, with their ops
    """
    simulation = Simulator(
        schedule,
        machine,
        choices=choices or Choices(),
        threads=threads,
        placement=placement,
        shortcuts=shortcuts,
        granularity=granularity,
        limits=limits,
        jitter=jitter,
    )
    return simulation.run()


class Simulator:
    """A schedule on a machine, prepared to estimate the wall time and to simulate; arguments as `simulate`."""

    def __init__(
        self,
        schedule: Schedule,
        machine: Machine,
        *,
        choices: Choices,
        threads: int | None,
        placement: str,
        shortcuts: Shortcuts,
        granularity: AskedGranularity = "exact",
        rank_placement: RankPlacement | None = None,
        limits: Limits = LIMITS,
        jitter: "Jitter | None" = None,
    ) -> None:
        if jitter is not None and jitter.draws and granularity == "collective":
            raise InputError(
                f"granularity collective, jitter {jitter}: bounds know no single op; accepted is exact or auto"
            )
        if granularity == "passes":
            raise InputError("granularity passes: is for `simulate` of training on a grid with pipeline=2 or more")
        self._schedule, self._machine, self._threads = schedule, machine, threads
        self._choices = machine_choices(choices, machine)
        self._placement = rank_placement or place_ranks(machine, schedule.grid.size, placement, schedule.grid)
        if any(map(is_host_op, all_ops(schedule))):
            from quadrille.simulator.ranks.host_links import check_host_link

            check_host_link(schedule, self._placement, self._choices)
        self._shortcuts, self._requested = shortcuts, granularity
        if jitter is not None:
            self._placement = self._placement.at_the_pace_of_the_slowest(jitter.gpus_of(machine))
        self.limits, self._jitter = limits, jitter if jitter is not None and jitter.draws else None
        self._budget_message = ""

    @cached_property
    def _ranks(self) -> SimulatedRanks:
        shortcuts, regular = self._shortcuts, self._jitter is None
        ranks = choose_ranks(
            self._schedule,
            self._choices,
            self._placement,
            fold=shortcuts.fold and regular,
            iterations=shortcuts.fold_time and regular,
        )
        return ranks if regular else replace(ranks, not_folded_reason=JITTER)

    @cached_property
    def _inputs(self) -> SimulationInputs:
        return SimulationInputs(self._schedule, self._machine, self._choices, self._ranks, self._threads, self._jitter)

    @property
    def simulated_ranks(self) -> int:
        return len(self._ranks.simulated)

    @property
    def not_folded_reason(self) -> str:
        """The reason why equivalent ranks are not simulated as one, in words; empty if they are."""
        if self._choices.implementation == "nccl" and self.granularity == "collective":
            return NCCL_ONLY
        if self._budget_message:
            return self._budget_message
        if self._requested == "collective":
            return COLLECTIVE_REQUESTED
        too_many = f"{self.simulated_ranks} of {self._schedule.grid.size} differ, too many to simulate in a few seconds"
        return self._ranks.not_folded_reason or (too_many if self.granularity == "collective" else "")

    @cached_property
    def expected_wall_seconds(self) -> float:
        """Estimated wall time of `run` on a laptop, from the steps of a few ranks [s]."""
        return self._seconds_without(self._most_skipped())

    @cached_property
    def _complete_wall_seconds(self) -> float:
        """Estimated wall time if no iteration is skipped [s]."""
        return self._seconds_without([])

    def _seconds_without(self, skipped: Sequence[SkippedIterations]) -> float:
        ranks, plans = self._ranks.simulated, OpPlans(self._schedule, self._choices)
        sampled = ranks[:: max(1, len(ranks) // SAMPLED_RANKS)]
        steps: dict[tuple[int, Kind], int] = {}
        return sum(self._wall_seconds_of(rank, plans, steps, skipped) for rank in sampled) * len(ranks) / len(sampled)

    def _wall_seconds_of(
        self, rank: int, plans: OpPlans, steps: dict[tuple[int, Kind], int], skipped: Sequence[SkippedIterations]
    ) -> float:
        """Wall seconds for the ops and steps of a rank; `steps` caches the steps of an op by kind."""
        schedule, seconds = self._schedule, 0.0
        start = schedule.coordinates(rank)
        for op, coordinates, _ in walk_skipping(schedule.program(start), start, skipped):
            seconds += OP_WALL_SECONDS
            if isinstance(op, Communication):
                kind = id(op), plans.kind(op, coordinates)
                if kind not in steps:
                    moved = traffic(op, schedule, coordinates, self._choices)
                    steps[kind] = 0 if moved is None else moved.lowered.steps
                seconds += steps[kind] * STEP_WALL_SECONDS
        return seconds

    def _most_skipped(self) -> list[SkippedIterations]:
        """Skipped iterations if every range is periodic at once."""
        return [most_skipped(iterations) for iterations in self._iteration_ranges]

    @property
    def granularity(self) -> Granularity:
        """Granularity of the simulation; an exact simulation may be given up later."""
        return "collective" if self._budget_message else self._chosen

    @cached_property
    def _chosen(self) -> Granularity:
        if self._requested != "auto":
            return self._requested
        if self._choices.implementation == "nccl":
            return "collective" if self._bounds_supported else "exact"
        too_long = self.expected_wall_seconds > self.limits.long_seconds
        return "collective" if too_long and self._bounds_supported else "exact"

    @cached_property
    def _bounds_supported(self) -> bool:
        """Whether the schedule can be walked at the granularity of collectives."""
        return self._jitter is None and not unsupported_reason(self._schedule, self._placement, self._choices)

    def run(self, wanted: Sequence[int] = (), *, tight: bool = True) -> Prediction:
        """Simulate the schedule; returns the prediction.

        Parameters
        ----------
        wanted : ranks that must be in the timeline, if it does not hold all
        tight : whether an upper bound, if one is computed, is tight
        """
        if self.granularity == "exact":
            try:
                with gc_paused():
                    return self._run_exact()
            except BudgetExceeded as reason:
                self._budget_message = str(reason)
        return self._run_bounds(wanted, tight=tight)

    def _run_bounds(self, wanted: Sequence[int], *, tight: bool) -> Prediction:
        from quadrille.simulator.bounds.bounds_prediction import bounds_prediction
        from quadrille.simulator.bounds.makespan_bounds import bound_schedule

        schedule, machine = self._schedule, self._machine
        result = bound_schedule(
            schedule,
            machine,
            self._choices,
            self._placement,
            threads=self._threads,
            wanted=wanted,
            fold_time=self._shortcuts.fold_time,
            tight=tight,
        )
        return bounds_prediction(
            result,
            machine,
            self._placement,
            schedule.name,
            schedule.grid,
            wanted=wanted,
            links=LINKS_LISTED,
            not_folded_reason=self.not_folded_reason,
        )

    def _run_exact(self) -> Prediction:
        """Simulate exactly; a range that turned out not to be periodic is simulated completely in another attempt."""
        whole: set[Iteration] = set()
        is_limited = self._requested == "auto" and self._bounds_supported
        budget = WorkBudget(self.limits.wall_seconds if is_limited else inf)
        long = self.expected_wall_seconds > COMPILED_FROM_SECONDS
        while True:
            detector = self._detector(whole)
            lanes = LaneSimulation(
                self._inputs,
                detector,
                local=self._shortcuts.local,
                memory=self._shortcuts.memory,
                long=long,
                budget=budget,
            )
            lanes.run()
            timeline = self._ranks.timeline(lanes.spans)
            windows, without_period = self._period_windows(detector, timeline, lanes)
            if not without_period:
                return self._prediction(lanes, timeline, windows)
            whole |= without_period

    def _period_windows(
        self, detector: PeriodDetector, timeline: Timeline, lanes: LaneSimulation
    ) -> tuple[list["PeriodWindow"], set[Iteration]]:
        """Windows around the skipped iterations, and the ranges that turned out to have none."""
        if not detector.skipped:
            return [], set()
        from quadrille.simulator.loops.restore import period_window

        windows, without_period = [], set()
        iteration_of = _iterations(timeline, lanes)
        for skipped in detector.skipped:
            window = period_window(skipped, timeline.spans, iteration_of)
            if window is None:
                without_period.add((skipped.loop, skipped.first))
            else:
                windows.append(window)
        return windows, without_period

    def _detector(self, whole: Collection[Iteration]) -> PeriodDetector:
        """The period detector of all ranges, except those that must be simulated completely."""
        schedule, ranks = self._schedule, self._ranks.simulated

        def ranks_with(loop: LoopPosition) -> int:
            all_coordinates = [schedule.coordinates(rank) for rank in ranks]
            return sum(
                iteration_count(schedule.program(coordinates), coordinates, loop) > 0 for coordinates in all_coordinates
            )

        shortened = [
            iterations for iterations in self._iteration_ranges if (iterations.loop, iterations.first) not in whole
        ]
        short = self._complete_wall_seconds <= self.limits.long_seconds
        patient = self._requested != "auto" or short or not self._bounds_supported
        return PeriodDetector(shortened, ranks_with, patient=patient)

    @cached_property
    def _iteration_ranges(self) -> list[IterationRange]:
        """Ranges of iterations of which some may be skipped; none if messages or noise make iterations differ."""
        if not self._shortcuts.fold_time or self._schedule.driven or self._jitter is not None:
            return []
        return iteration_ranges(self._ranks.iterations, copy_counts(self._schedule))

    def _prediction(self, lanes: LaneSimulation, short: Timeline, windows: Sequence["PeriodWindow"]) -> Prediction:
        timeline, weights, loads = _restored(lanes, short, windows)
        sums = sums_by_op(lanes.breakdowns, lambda instance: weights[instance] * self._ranks.count(instance[0]))
        times = timeline.op_times()
        parts = mean_parts(times, timeline.ranks, sums)
        span_count = sum(weight * self._ranks.count(rank) for (rank, *_), weight in weights.items())
        is_small = timeline.ranks <= MAX_RANKS_EXPANDED and span_count <= self.limits.expanded_spans
        return Prediction(
            timeline.expanded(self._schedule.grid) if is_small else timeline,
            parts,
            frozenset(lanes.extrapolated),
            uncertainty(
                self._machine,
                timeline.makespan,
                message_margins(self._schedule, self._choices),
                computing=sum(op_parts["compute"] for op_parts in parts.values()),
            ),
            {name: max(0.0, sums[name]["contention"]) / timeline.ranks for name in parts},
            self._ranks.loads(lanes.engine, loads, timeline.makespan, LINKS_LISTED),
            self._extent(lanes, windows),
            self._breakdowns(lanes, short, timeline),
            None if is_small else times,
            labels=dict(sorted(lanes.labels.items())),
            every_link=self._every_link(lanes, loads, timeline.makespan),
        )

    def _every_link(
        self, lanes: LaneSimulation, loads: Sequence[tuple[float, float]], makespan: float
    ) -> Callable[[], Mapping[str, float]]:
        """The function of a prediction that names the use of all links; it holds nothing of the engine."""
        if self._ranks.placement.net.link_count > MOST_LINKS:
            return dict
        return partial(self._ranks.every_link, utilisation_by_name(lanes.engine, loads, makespan))

    def _extent(self, lanes: LaneSimulation, windows: Sequence["PeriodWindow"]) -> Extent:
        folded = self._ranks.classes is not None
        skipped = sum(window.skipped.count for window in windows)
        return Extent(
            folded, self._ranks.not_folded_reason, *self._ranks.class_counts(), lanes.engine.counts.changes, skipped
        )

    def _breakdowns(self, lanes: LaneSimulation, short: Timeline, timeline: Timeline) -> TimeBreakdowns:
        """Time breakdowns of all spans, under the indices that the spans have with all iterations."""
        breakdowns = {}
        for before, after in zip(short.spans, timeline.spans, strict=True):
            breakdowns[_instance(after)] = lanes.breakdowns[_instance(before)]
        repeated: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for iterations in timeline.repeated:
            first: dict[tuple[int, str], int] = {}
            stop = iterations.start + iterations.seconds
            for span in timeline.spans:
                if iterations.start <= span.start < stop and span.op in iterations.per_iteration:
                    key = span.rank, span.op
                    first[key] = min(span.index, first.get(key, span.index))
            for key, index in first.items():
                repeated.setdefault(key, []).append((index, iterations.per_iteration[key[1]]))
        return TimeBreakdowns(breakdowns, self._ranks.stands_for, repeated)


def _restored(
    lanes: LaneSimulation, short: Timeline, windows: Sequence["PeriodWindow"]
) -> tuple[Timeline, dict[OpInstance, int], list[tuple[float, float]]]:
    """Timeline with all iterations, the number of instances that each simulated op stands for, and all loads."""
    if not windows:
        return short, {_instance(span): 1 for span in short.spans}, lanes.engine.loads()
    from quadrille.simulator.loops.restore import restore, restored_loads, restored_timeline

    spans = restore(windows, short.spans, _iterations(short, lanes))
    weights = {_instance(span): int(weight) for span, weight in zip(short.spans, spans.weights, strict=True)}
    loads = restored_loads(lanes.engine.loads(), lanes.load_snapshots, windows)
    return restored_timeline(short, spans), weights, loads


def _iterations(timeline: Timeline, lanes: LaneSimulation) -> list[Iteration | None]:
    """Iteration of each span."""
    return [lanes.iterations.get(_instance(span)) for span in timeline.spans]


def _instance(span: Span) -> OpInstance:
    return span.rank, span.op, span.index
