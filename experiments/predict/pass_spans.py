"""Spans of ranks of a pipeline in a whole step, copied from a simulation of single passes to the slots of the step."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from quadrille.algorithms.formats.record import PathPart
from quadrille.algorithms.schedule.ops import Receive
from quadrille.algorithms.schedule.program import PassKind
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.training.pipeline import Stages
from quadrille.algorithms.training.single_passes import Section
from quadrille.experiments.predict.pass_times import StageTimes, TimedOp
from quadrille.experiments.predict.pipeline_slots import Slot, SlotSeconds
from quadrille.simulator.prediction import TimeBreakdowns
from quadrille.simulator.ranks.time_breakdown import OpInstance, TimeBreakdown


@dataclass(frozen=True, slots=True)
class StageSlots:
    """The slots of a stage in time, and when the stage waited.

    Parameters
    ----------
    slots : slots of the stage, by start
    begin : time at which the stage begins its passes [s]
    arrivals : time at which the message of each slot has arrived [s]; None if the slot needs no message
    travels : time that each of these messages travels [s]
    driven : whether messages order the slots; then they travel while the stage computes
    """

    slots: tuple[Slot, ...]
    begin: float
    arrivals: tuple[float | None, ...]
    travels: tuple[float, ...]
    driven: bool

    def received(self) -> list[tuple[Slot, float, float]]:
        """The slots that need a message, each with start and end of its receive [s]."""
        ends = [self.begin, *(slot.end for slot in self.slots[:-1])]
        posted: dict[PassKind, float] = {}
        received = []
        for slot, end, arrival, travel in zip(self.slots, ends, self.arrivals, self.travels, strict=True):
            if arrival is None:
                continue
            start = posted.get(slot.kind, self.begin) if self.driven else min(end, slot.start)
            posted[slot.kind] = slot.start
            received.append((slot, start, max(arrival, start + travel) if self.driven else slot.start))
        return received

    def idle_before(self) -> dict[Slot, float]:
        """The time for which the stage is idle before each slot [s]."""
        ends = [self.begin, *(slot.end for slot in self.slots)]
        return {slot: max(0.0, slot.start - end) for slot, end in zip(self.slots, ends, strict=False)}


def stage_slots(stages: Stages, slots: Iterable[Slot], seconds: SlotSeconds) -> list[StageSlots]:
    """The slots of each stage.

    Parameters
    ----------
    slots : slots of all stages
    seconds : times of the slots
    """
    slots = list(slots)
    ends = {(slot.kind, slot.microbatch, stages.part(slot.stage, slot.chunk)): slot.end for slot in slots}
    by_stage: dict[int, list[Slot]] = defaultdict(list)
    for slot in slots:
        by_stage[slot.stage].append(slot)
    step = {"F": -1, "B": 1}

    def arrival(slot: Slot) -> tuple[float | None, float]:
        part = stages.part(slot.stage, slot.chunk)
        travel = seconds.of_microbatch(slot.microbatch, stages).travels.get((slot.kind, part))
        if travel is None:
            return None, 0.0
        return ends[slot.kind, slot.microbatch, part + step[slot.kind]] + travel, travel

    each = []
    for stage in range(stages.count):
        messages = [arrival(slot) for slot in by_stage[stage]]
        arrivals, times = tuple(time for time, _ in messages), tuple(travel for _, travel in messages)
        each.append(StageSlots(tuple(by_stage[stage]), seconds.begins[stage], arrivals, times, stages.driven))
    return each


@dataclass(frozen=True, slots=True)
class _MeasuredPass:
    """A pass in the simulation of single passes.

    Parameters
    ----------
    start : time at which the pass begins [s]
    seconds : time of the pass with its early ops [s]
    early : identities of the ops that ran before the message of the pass
    early_seconds : time of these ops [s]
    """

    start: float
    seconds: float
    early: frozenset[int]
    early_seconds: float

    @classmethod
    def of(cls, times: StageTimes, section: Section) -> "_MeasuredPass":
        """The pass of a section."""
        early = times.early(section)
        early_seconds = sum(timed.span.seconds for timed in early)
        return cls(times.pass_start(section), times.pass_seconds(section), frozenset(map(id, early)), early_seconds)


@dataclass(slots=True)
class RankSpans:
    """Builds the spans of one rank in a whole step, with their time by cause.

    Parameters
    ----------
    times : ops of the rank in the simulation of single passes
    measured : time by cause of each op in that simulation
    """

    times: StageTimes
    measured: TimeBreakdowns
    spans: list[Span] = field(default_factory=list)
    breakdowns: dict[OpInstance, TimeBreakdown] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _passes: dict[Section, "_MeasuredPass"] = field(default_factory=dict)

    def add_outside(self, after: Iterable[tuple[TimedOp, float]]) -> None:
        """Adds the ops before and after all passes.

        Parameters
        ----------
        after : ops after the passes, each with its end [s]
        """
        for phase in ("setup", "before"):
            for timed in self.times.by_section.get(Section(phase), ()):
                self._add(timed, timed.span.start, timed.span.end)
        for timed, end in after:
            self._add(timed, end - timed.span.seconds, end)

    def add_passes(self, slots: StageSlots) -> None:
        """Adds the ops of all passes of a stage."""
        received = {slot: (start, end) for slot, start, end in slots.received()}
        for slot in slots.slots:
            self._add_pass(slot, *received.get(slot, (slot.start, slot.start)))

    def _add_pass(self, slot: Slot, receive_start: float, receive_end: float) -> None:
        section, begun = self.times.section(slot), slot.start
        measured = self._passes.get(section)
        if measured is None:
            measured = self._passes[section] = _MeasuredPass.of(self.times, section)
        stretch = (slot.end - slot.start) / measured.seconds if measured.seconds else 1.0

        def at(time: float) -> float:
            """Time in the step of a time after the message in the simulation of single passes."""
            return slot.start + stretch * (measured.early_seconds + time - measured.start)

        for timed in self.times.by_section[section]:
            span = timed.span
            if isinstance(timed.op, Receive) and timed.between_stages:
                self._add(timed, receive_start, receive_end)
            elif id(timed) in measured.early:
                self._add(timed, begun, begun + stretch * span.seconds, stretch=stretch)
                begun += stretch * span.seconds
            else:
                self._add(timed, at(span.start), at(span.end), at(span.arrival), stretch=stretch)

    def _add(
        self, timed: TimedOp, start: float, end: float, arrival: float | None = None, *, stretch: float = 1.0
    ) -> None:
        index = self._counts[timed.op.name]
        self._counts[timed.op.name] += 1
        span = timed.span.at(start, start, start if arrival is None else max(start, arrival), end, index)
        self.spans.append(span)
        path = self.measured.of(timed.span)
        if path:
            longer: dict[PathPart, float] = {part: stretch * seconds for part, seconds in path.items()}
            parts = _stretched(path, end - start) if timed.between_stages else longer
            self.breakdowns[span.rank, span.op, index] = TimeBreakdown(path=parts)


def _stretched(path: Mapping[PathPart, float], seconds: float) -> dict[PathPart, float]:
    """Time by cause of an op that takes these seconds; what is more or less than before is waiting."""
    parts: dict[PathPart, float] = {part: each for part, each in path.items() if part != "waiting"}
    waiting = seconds - sum(parts.values())
    if waiting > 0:
        parts["waiting"] = waiting
    return parts
