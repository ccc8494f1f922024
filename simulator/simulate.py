"""The virtual-time interpreter: one schedule, predicted on a machine.

Ranks that behave alike are simulated as one (`rank_classes.py`), and turns of
loops that repeat are simulated a few times (`turns.py`), so that what is kept
grows neither with ranks nor with turns.  The simulation itself is in `lanes.py`.

Where too much is left to simulate even so, since nothing is alike, all ranks are
walked at the granularity of collectives (`steady/`): every transfer keeps one rate,
and two more, which it can neither exceed nor fall below, bound the exact makespan.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from quadrille.algorithms.analysis.coordinate_dependence import Kind
from quadrille.algorithms.analysis.op_plans import OpPlans
from quadrille.algorithms.analysis.traffic import traffic
from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.formats.record import AskedGranularity, Granularity
from quadrille.algorithms.schedule.ops import Communication
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.simulator.bounds.supported import unsupported_reason
from quadrille.simulator.gc_paused import gc_paused
from quadrille.simulator.loops.period_detector import BudgetExceeded, PeriodDetector, iteration_count
from quadrille.simulator.loops.restore import PeriodWindow, period_window, restore
from quadrille.simulator.loops.skipped_iterations import (
    Iteration,
    IterationRange,
    SkippedIterations,
    copy_counts,
    iteration_ranges,
    shortest,
    walk_skipping,
)
from quadrille.simulator.machine.placement import RankPlacement, place_ranks
from quadrille.simulator.prediction import Extent, Prediction, TimeBreakdowns, mean_parts, sums
from quadrille.simulator.ranks.lanes import OP_WALL_SECONDS, LaneSimulation, OpInstance, SimulationInputs
from quadrille.simulator.ranks.restored_timeline import loads_with_turns, with_turns
from quadrille.simulator.ranks.simulated_ranks import SimulatedRanks, choose_ranks
from quadrille.simulator.symmetry.signatures import LoopPosition
from quadrille.simulator.uncertainty import message_margins, uncertainty
from quadrille.topologies.machines.machine import Machine

__all__ = ["Prediction", "Shortcuts", "Simulator", "simulate"]

EXPANDED = 64
"""Timelines of so many ranks name each of them and all turns; of more, only those that stand for others."""
SPANS_EXPANDED = 100_000
"""So do those of more spans: at 20 us for each, naming them all would take longer than the simulation."""
LINKS_NAMED = 20
"""Links named in a prediction, those used most."""
LOOKED_AT = 4
"""Ranks, of those that are simulated, whose steps are counted to say how long it will take."""
STEP_WALL_SECONDS = 3e-6
"""What a step of an op costs to simulate, about, on two cores of 2026."""
NCCL_ONLY = "NCCL's model knows collectives, not the steps of ranks"
NOT_LOOKED_FOR = "collective granularity was asked for"
COMPILED_FROM_SECONDS = 0.3
"""What is expected to take longer is compiled from the start; loading what is compiled takes 0.4 s."""
LONG_SECONDS = 20.0
"""An exact simulation that takes longer is not made unless it is asked for; nor, by `auto`, one of NCCL, whose steps
are not known."""
GIVEN_UP_SECONDS = LONG_SECONDS
"""One that has taken so long is given up, where a bound does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortcuts:
    """What makes a simulation fast and changes no answer: each may be switched off, to see that it does not.

    Parameters
    ----------
    fold : simulate ranks that behave alike as one
    fold_time : leave out turns of a loop that are known from those before
    memory : remember states, and pass over steps of collectives that come back to one
    local : find new rates only where something changed
    """

    fold: bool = True
    fold_time: bool = True
    memory: bool = True
    local: bool = True


EVERYTHING = Shortcuts()


def simulate(
    schedule: Schedule,
    machine: Machine,
    *,
    choices: Choices | None = None,
    threads: int | None = None,
    placement: str = "packed",
    shortcuts: Shortcuts = EVERYTHING,
    granularity: AskedGranularity = "exact",
) -> Prediction:
    """Predict the schedule on a machine.

    Parameters
    ----------
    choices : who carries out the collectives; the library's take what the machine file has them measured to take, and
        are predicted as named algorithms where it has not
    threads : BLAS threads of each rank, by default its share of the host's cores
    placement : the rule by which ranks are given their places, see `placed`
    granularity : `collective` where a bound of the makespan will do, and the exact simulation would take too long

    Raises
    ------
    InputError : more ranks than GPUs, an unknown topology, a network that faults have cut in two
    Deadlock : ranks that wait on each other, with their ops
    """
    chosen = choices or Choices()
    simulation = Simulator(
        schedule,
        machine,
        choices=chosen,
        threads=threads,
        placement=placement,
        shortcuts=shortcuts,
        granularity=granularity,
    )
    return simulation.run()


class Simulator:
    """A schedule on a machine, known well enough to say how much is to be simulated; arguments as `simulate`.

    Parameters
    ----------
    rank_placement : the GPU or host of each rank, where it is known; else it follows from `placement`
    """

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
    ) -> None:
        self._schedule, self._machine, self._choices, self._threads = schedule, machine, choices, threads
        self._homes = rank_placement or place_ranks(machine, schedule.grid.size, placement, schedule.grid)
        self._switches, self._asked = shortcuts, granularity
        self._given_up = ""

    @cached_property
    def _ranks(self) -> SimulatedRanks:
        shortcuts = self._switches
        return choose_ranks(self._schedule, self._choices, self._homes, fold=shortcuts.fold, turns=shortcuts.fold_time)

    @cached_property
    def _given(self) -> SimulationInputs:
        return SimulationInputs(self._schedule, self._machine, self._choices, self._ranks, self._threads)

    @property
    def simulated_ranks(self) -> int:
        return len(self._ranks.simulated)

    @property
    def why_not(self) -> str:
        """What keeps ranks from being simulated as one, in words; empty where they are."""
        if self._choices.carriage == "nccl" and self.granularity == "collective":
            return NCCL_ONLY
        if self._given_up:
            return self._given_up
        if self._asked == "collective":
            return NOT_LOOKED_FOR
        too_many = f"{self.simulated_ranks} of {self._schedule.grid.size} differ, too many to simulate in a few seconds"
        return self._ranks.why_not or (too_many if self.granularity == "collective" else "")

    @cached_property
    def expected_wall_seconds(self) -> float:
        """How long `run` will take on a laptop, about, from what a few of the ranks have to do."""
        return self._seconds_without(self._gaps())

    @cached_property
    def _whole_wall_seconds(self) -> float:
        """How long it would take if no turn were left out."""
        return self._seconds_without([])

    def _seconds_without(self, gaps: Sequence[SkippedIterations]) -> float:
        ranks, known = self._ranks.simulated, OpPlans(self._schedule, self._choices)
        looked_at = ranks[:: max(1, len(ranks) // LOOKED_AT)]
        steps: dict[tuple[int, Kind], int] = {}
        return sum(self._wall_seconds_of(rank, known, steps, gaps) for rank in looked_at) * len(ranks) / len(looked_at)

    def _wall_seconds_of(
        self, rank: int, known: OpPlans, steps: dict[tuple[int, Kind], int], gaps: Sequence[SkippedIterations]
    ) -> float:
        """Seconds for the ops and steps of a rank; `steps` keeps how many an op has at each kind of place."""
        schedule, seconds = self._schedule, 0.0
        place = schedule.coordinates(rank)
        for op, moment, _ in walk_skipping(schedule.program(place), place, gaps):
            seconds += OP_WALL_SECONDS
            if isinstance(op, Communication):
                kind = id(op), known.kind(op, moment)
                if kind not in steps:
                    moved = traffic(op, schedule, moment, self._choices)
                    steps[kind] = 0 if moved is None else moved.lowered.steps
                seconds += steps[kind] * STEP_WALL_SECONDS
        return seconds

    def _gaps(self) -> list[SkippedIterations]:
        """What is left out if every stretch is in rhythm at once."""
        return [shortest(one) for one in self._stretches]

    @property
    def granularity(self) -> Granularity:
        """What it is simulated at; an exact simulation may yet be given up."""
        return "collective" if self._given_up else self._chosen

    @cached_property
    def _chosen(self) -> Granularity:
        if self._asked != "auto":
            return self._asked
        if self._choices.carriage == "nccl":
            return "collective" if self._has_bounds else "exact"
        too_long = self.expected_wall_seconds > LONG_SECONDS
        return "collective" if too_long and self._has_bounds else "exact"

    @cached_property
    def _has_bounds(self) -> bool:
        """Whether the schedule can be walked at the granularity of collectives."""
        return not unsupported_reason(self._schedule, self._homes, self._choices)

    def run(self, wanted: Sequence[int] = ()) -> Prediction:
        """Simulate.

        Parameters
        ----------
        wanted : ranks that must be in the timeline, where not all are
        """
        if self.granularity == "exact":
            try:
                with gc_paused():
                    return self._exactly()
            except BudgetExceeded as reason:
                self._given_up = str(reason)
        return self._at_steady_rates(wanted)

    def _at_steady_rates(self, wanted: Sequence[int]) -> Prediction:
        from quadrille.simulator.bounds.bounds import bound_schedule
        from quadrille.simulator.bounds.predicted import bounds_prediction

        schedule, machine = self._schedule, self._machine
        found = bound_schedule(
            schedule,
            machine,
            self._choices,
            self._homes,
            threads=self._threads,
            wanted=wanted,
            fold_time=self._switches.fold_time,
        )
        return bounds_prediction(
            found,
            machine,
            self._homes,
            schedule.name,
            schedule.grid,
            wanted=wanted,
            links=LINKS_NAMED,
            why_not=self.why_not,
        )

    def _exactly(self) -> Prediction:
        """Simulate; stretches that were taken to be in rhythm and were not, once more as a whole."""
        whole: set[Iteration] = set()
        most = GIVEN_UP_SECONDS if self._asked == "auto" and self._has_bounds else inf
        long = self.expected_wall_seconds > COMPILED_FROM_SECONDS
        while True:
            watch, shortcuts = self._watch(whole), self._switches
            lanes = LaneSimulation(
                self._given,
                watch,
                local=shortcuts.local,
                memory=shortcuts.memory,
                long=long,
                most_wall_seconds=most,
            )
            lanes.run()
            most -= lanes.wall_seconds
            timeline = self._ranks.timeline(lanes.spans)
            turn_of = [lanes.turns.get(_instance(span)) for span in timeline.spans]
            found = [(gap, period_window(gap, timeline.spans, turn_of)) for gap in watch.gaps]
            missed = {(gap.loop, gap.first) for gap, one in found if one is None}
            if not missed:
                return self._prediction(lanes, timeline, [one for _, one in found if one is not None], turn_of)
            whole |= missed

    def _watch(self, whole: Collection[Iteration]) -> PeriodDetector:
        """What decides which turns are left out, but for the stretches that are to be simulated as a whole."""
        schedule, ranks = self._schedule, self._ranks.simulated

        def ranks_with(loop: LoopPosition) -> int:
            places = [schedule.coordinates(rank) for rank in ranks]
            return sum(iteration_count(schedule.program(place), place, loop) > 0 for place in places)

        shortened = [one for one in self._stretches if (one.loop, one.first) not in whole]
        patient = self._asked != "auto" or self._whole_wall_seconds <= LONG_SECONDS or not self._has_bounds
        return PeriodDetector(shortened, ranks_with, patient=patient)

    @cached_property
    def _stretches(self) -> list[IterationRange]:
        """Turns of which some may be left out."""
        return iteration_ranges(self._ranks.turns, copy_counts(self._schedule)) if self._switches.fold_time else []

    def _prediction(
        self,
        lanes: LaneSimulation,
        short: Timeline,
        rhythms: Sequence[PeriodWindow],
        turn_of: Sequence[Iteration | None],
    ) -> Prediction:
        told = restore(rhythms, short.spans, turn_of)
        timeline = with_turns(short, told)
        weights = {_instance(span): int(weight) for span, weight in zip(short.spans, told.weights, strict=True)}
        spent = sums(lanes.spent, lambda instance: weights[instance] * self._ranks.count(instance[0]))
        times = timeline.op_times()
        parts = mean_parts(times, timeline.ranks, spent)
        grid = self._given.schedule.grid
        every = sum(weight * self._ranks.count(rank) for (rank, *_), weight in weights.items())
        named = timeline.expanded(grid) if timeline.ranks <= EXPANDED and every <= SPANS_EXPANDED else timeline
        return Prediction(
            named,
            parts,
            frozenset(lanes.extrapolated),
            uncertainty(
                self._given.machine,
                timeline.makespan,
                message_margins(self._schedule, self._choices),
                computing=sum(one["compute"] for one in parts.values()),
            ),
            {name: max(0.0, spent[name]["contention"]) / timeline.ranks for name in parts},
            self._ranks.loads(lanes.engine, loads_with_turns(lanes, rhythms), timeline.makespan, LINKS_NAMED),
            self._extent(lanes, rhythms),
            self._stories(lanes, short, timeline),
            times if named is timeline else None,
            labels=dict(sorted(lanes.labels.items())),
        )

    def _extent(self, lanes: LaneSimulation, rhythms: Sequence[PeriodWindow]) -> Extent:
        folded = self._ranks.classes is not None
        skipped = sum(one.gap.count for one in rhythms)
        return Extent(folded, self._ranks.why_not, *self._ranks.class_counts(), lanes.engine.counts.changes, skipped)

    def _stories(self, lanes: LaneSimulation, short: Timeline, timeline: Timeline) -> TimeBreakdowns:
        """The stories of all spans, under the indices that they have with all turns."""
        spent = {}
        for before, after in zip(short.spans, timeline.spans, strict=True):
            spent[_instance(after)] = lanes.spent[_instance(before)]
        said: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for turns in timeline.repeated:
            first: dict[tuple[int, str], int] = {}
            for span in timeline.spans:
                if turns.start <= span.start < turns.start + turns.seconds and span.op in turns.per_iteration:
                    key = span.rank, span.op
                    first[key] = min(span.index, first.get(key, span.index))
            for key, index in first.items():
                said.setdefault(key, []).append((index, turns.per_iteration[key[1]]))
        return TimeBreakdowns(spent, self._ranks.stands_for, said)


def _instance(span: Span) -> OpInstance:
    return span.rank, span.op, span.index
