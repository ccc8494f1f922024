"""Times of the passes of pipeline stages, read from a simulation in which each stage runs one pass of each kind.

pass       from the end of its message, or from its first op, until the end of its last op
travel     from the end of a pass until its message has arrived; negative if the pass sends before it ends
before     from the start of a step until the first pass
after      steps from the last pass to the end of a step: work of the stage, and messages between stages
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from quadrille.algorithms.analysis.folded_walk import different_iterations
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.ops import Communication, Op, Receive, Send
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import PassKind, is_concurrent
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.training.pipeline import Stages
from quadrille.algorithms.training.single_passes import Section, agrees_alone, sections
from quadrille.experiments.predict.pipeline_slots import Slot, SlotSeconds


@dataclass(frozen=True, slots=True)
class TimedOp:
    """An op of a rank, its coordinates with loop indices, and its span.

    Parameters
    ----------
    between_stages : whether the op communicates with other stages
    """

    op: Op
    coordinates: Coordinates
    span: Span
    between_stages: bool = field(init=False)

    def __post_init__(self) -> None:
        between = isinstance(self.op, Communication) and self.op.axis == "pipeline"
        object.__setattr__(self, "between_stages", between)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The ops of one rank of a pipeline stage by section, each section in program order.

    Parameters
    ----------
    rank : number of the rank
    smaller_last : number of the last microbatch, if it is smaller than the others
    by_section : ops of each section
    """

    rank: int
    smaller_last: int | None = None
    by_section: dict[Section, list[TimedOp]] = field(default_factory=dict)

    def section(self, slot: Slot) -> Section:
        """The section with the times of a slot."""
        return Section("passes", slot.kind, slot.chunk, of_last=slot.microbatch == self.smaller_last)

    def receive(self, section: Section) -> Span | None:
        """The span of the message that begins a pass; None if the pass needs no message."""
        ops = self.by_section.get(section, ())
        received = [each.span for each in ops if each.between_stages and isinstance(each.op, Receive)]
        return max(received, key=lambda span: span.end, default=None)

    def pass_start(self, section: Section) -> float:
        """Time at which a pass begins [s]."""
        message = self.receive(section)
        own = [each.span.start for each in self.own(section)]
        return message.end if message is not None else min(own, default=0.0)

    def pass_seconds(self, section: Section) -> float:
        """Time of a pass with its early ops [s]."""
        early = sum(each.span.seconds for each in self.early(section))
        return early + self.pass_end(section) - self.pass_start(section)

    def early(self, section: Section) -> list[TimedOp]:
        """The ops of a pass that ran while the stage waited for the message, and that nothing overlaps."""
        start = self.pass_start(section)
        return [each for each in self.own(section) if each.span.end <= start and not is_concurrent(each.op)]

    @property
    def work_seconds(self) -> float:
        """Time of one pass of each kind through each chunk [s]."""
        return sum(self.pass_seconds(section) for section in self.by_section if section.phase == "passes")

    def pass_end(self, section: Section) -> float:
        """Time at which a pass ends [s]."""
        return max((each.span.end for each in self.own(section)), default=self.pass_start(section))

    def end_of(self, *phases: str) -> float:
        """Time at which the last op of these phases ends [s]."""
        ends = [each.span.end for section, ops in self.by_section.items() for each in ops if section.phase in phases]
        return max(ends, default=0.0)

    def own(self, section: Section) -> list[TimedOp]:
        """The ops of a section, without messages between stages."""
        return [each for each in self.by_section.get(section, ()) if not each.between_stages]


def stage_times(schedule: Schedule, rank: int, spans: Sequence[Span], stages: Stages) -> StageTimes:
    """The ops of a rank with their spans.

    Parameters
    ----------
    schedule : schedule in which each stage runs one pass of each kind
    spans : spans of the rank
    stages : stages of the pipeline
    """
    by_instance = {(span.op, span.index): span for span in spans}
    instances: Counter[str] = Counter()
    times = StageTimes(rank, stages.microbatches - 1 if different_iterations(schedule) else None)
    for op, coordinates, section in sections(schedule, rank):
        span = by_instance.get((op.name, instances[op.name]))
        instances[op.name] += 1
        if span is not None and not agrees_alone(op, schedule.grid):
            times.by_section.setdefault(section, []).append(TimedOp(op, coordinates, span))
    return times


def slot_seconds(
    each: Sequence[StageTimes],
    stages: Stages,
    begins: Sequence[float],
    noise: Sequence[Mapping[tuple[PassKind, int], Sequence[float]]] = (),
) -> SlotSeconds:
    """The times of all slots of a pipeline.

    Parameters
    ----------
    each : times of a rank of each stage
    begins : time at which each stage begins its passes [s]
    noise : time by which the passes of each stage are longer, for each microbatch, by kind and chunk [s]; or empty
    """
    noise_of_parts = {
        (kind, stages.part(stage, chunk)): longer
        for stage, of_stage in enumerate(noise)
        for (kind, chunk), longer in of_stage.items()
    }
    usual = replace(_slot_seconds(each, stages, of_last=False), begins=begins, noise=noise_of_parts)
    if all(times.smaller_last is None for times in each):
        return usual
    return replace(usual, last=replace(_slot_seconds(each, stages, of_last=True), noise=noise_of_parts))


def _slot_seconds(each: Sequence[StageTimes], stages: Stages, *, of_last: bool) -> SlotSeconds:
    """The times of the slots of a microbatch: the first, or a smaller last one."""
    places = [stages.place(part) for part in range(stages.count * stages.chunks)]

    def seconds(kind: PassKind) -> list[float]:
        return [each[stage].pass_seconds(Section("passes", kind, chunk, of_last)) for stage, chunk in places]

    weights = seconds("W") if stages.splits else ()
    return SlotSeconds(seconds("F"), seconds("B"), 0.0, weights, _travels(each, stages, of_last=of_last))


def _travels(each: Sequence[StageTimes], stages: Stages, *, of_last: bool) -> dict[tuple[PassKind, int], float]:
    """Time of each message, by kind of its pass and position of the chunk that receives it [s]."""
    travels: dict[tuple[PassKind, int], float] = {}
    steps: tuple[tuple[PassKind, int], ...] = (("F", -1), ("B", 1))
    for kind, step in steps:
        for part in range(stages.count * stages.chunks):
            stage, chunk = stages.place(part)
            message = each[stage].receive(Section("passes", kind, chunk, of_last))
            if message is not None:
                sender, sent_chunk = stages.place(part + step)
                end = each[sender].pass_end(Section("passes", kind, sent_chunk, of_last))
                travels[kind, part] = message.end - max(message.start, end)
    return travels


def ends_after_passes(each: Sequence[StageTimes], starts: Sequence[float]) -> list[list[tuple[TimedOp, float]]]:
    """The ops of each stage after its passes, each with its end [s], from the time at which its last pass ends.

    Work of a stage between two messages takes as long as in the simulation of single passes.

    Parameters
    ----------
    each : times of a rank of each stage
    starts : time at which the last pass of each stage ends [s]
    """
    return _Tail(each, starts).run()


class _Tail:
    """Runs the ops after the passes of all stages in time, as far as messages between stages order them."""

    def __init__(self, each: Sequence[StageTimes], starts: Sequence[float]) -> None:
        self._now = list(starts)
        self._measured = [stage.end_of("setup", "before", "passes") for stage in each]
        self._ops = [stage.by_section.get(Section("after"), []) for stage in each]
        self._ends: list[list[tuple[TimedOp, float]]] = [[] for _ in each]
        self._sent: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._messages: Counter[tuple[int, int, str]] = Counter()
        self._joined: dict[tuple[str, int], dict[int, float]] = {}

    def run(self) -> list[list[tuple[TimedOp, float]]]:
        """The ops of each stage with their ends [s]."""
        progress = True
        while progress:
            progress = sum(self._advance(stage) for stage in range(len(self._ops))) > 0
        assert all(map(_same_length, self._ends, self._ops)), "stages wait for each other"
        return self._ends

    def _advance(self, stage: int) -> bool:
        """Whether a stage ran at least one op."""
        ends, ops = self._ends[stage], self._ops[stage]
        before = len(ends)
        while len(ends) < len(ops) and (end := self._run(stage, ops[len(ends)])) is not None:
            ends.append((ops[len(ends)], end))
        return len(ends) > before

    def _run(self, stage: int, timed: TimedOp) -> float | None:
        """Runs an op; returns its end [s], or None if it cannot run yet."""
        now, before, span = self._now[stage], self._measured[stage], timed.span
        if not timed.between_stages:
            end: float | None = now + span.end - before
        elif isinstance(timed.op, Send):
            end = now + span.seconds
            self._send(stage, evaluate(timed.op.to, timed.coordinates), span)
        elif isinstance(timed.op, Receive):
            end = self._receive(stage, evaluate(timed.op.sender, timed.coordinates), span)
        else:
            end = self._join(stage, span)
        if end is not None and not isinstance(timed.op, Send):
            self._now[stage], self._measured[stage] = max(now, end), max(before, span.end)
        return end

    def _send(self, stage: int, to: int, span: Span) -> None:
        number = self._messages[stage, to, "sent"]
        self._messages[stage, to, "sent"] += 1
        self._sent[stage, to, number] = self._now[stage], span.start

    def _receive(self, stage: int, sender: int, span: Span) -> float | None:
        """Runs a receive, once its message was sent; returns its end [s]."""
        number = self._messages[sender, stage, "received"]
        sent = self._sent.get((sender, stage, number))
        if sent is None:
            return None
        self._messages[sender, stage, "received"] += 1
        begin, measured = sent
        return max(self._now[stage], begin) + span.end - max(span.start, measured)

    def _join(self, stage: int, span: Span) -> float | None:
        """Runs a collective of all stages, once all have reached it; returns its end [s]."""
        arrived = self._joined.setdefault((span.op, span.index), {})
        arrived.setdefault(stage, self._now[stage])
        return max(arrived.values()) + span.seconds if len(arrived) == len(self._ops) else None


def _same_length(first: Sequence[object], second: Sequence[object]) -> bool:
    return len(first) == len(second)
