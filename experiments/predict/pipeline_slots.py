"""End times of the stages of a pipeline, from the time of each slot.

A slot is one pass of a microbatch through one chunk of a stage's layers: forward, backward or, with zero-bubble orders,
the gradients of weights.  It begins when the stage is free, the rule of the pipeline's order asks for it (see
`algorithms/schedule/pass_rules.py`) and its input has arrived: forward, from the chunk before; backward, from the chunk
after; gradients of weights, from their own backward slot.  So bubbles, uneven stages and chunks follow from the order
and not from a formula.

A stage does nothing else while it sends, as in Megatron-LM and DeepSpeed, and as in the simulated schedule, whose
messages begin when both sides are ready and whose layers have one receive buffer.  With the times of its slots and
messages, the walk ends within 0.5 % of the simulated schedule, which a test shows; with few microbatches in many chunks
and messages of a tenth of a slot, it ends up to 7 % earlier.  A message-driven stage computes while it sends.

Source: Narayanan et al., SC21, section 2.2 (the order); NVIDIA Megatron-LM, megatron/p2p_communication.py,
`_communicate` (waits for every message, then synchronizes the GPU); microsoft/DeepSpeed,
deepspeed/runtime/pipe/schedule.py, `SendActivation` ("The communication is blocking").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import get_args

from quadrille.algorithms.schedule.pass_rules import in_order_of_arrival, next_pass, pass_order
from quadrille.algorithms.schedule.program import PassKind
from quadrille.algorithms.schedule.v_order import v_order
from quadrille.algorithms.training.pipeline import Stages

NEVER = float("inf")
Input = tuple[PassKind, int, int]
"""Kind, microbatch and position of the chunk of a slot."""
KINDS: tuple[PassKind, ...] = get_args(PassKind)


@dataclass(frozen=True, slots=True)
class SlotSeconds:
    """Times of the slots of a pipeline [s].

    Parameters
    ----------
    forward, backward : time of a microbatch's pass through each chunk of layers, in the order of the layers
    travel : time of a message between chunks
    weights : time of the gradients of weights of each chunk, if they are slots of their own
    travels : time of the message that begins a pass of a kind on a chunk, by kind and position of the chunk, where it
        is not `travel`; from the end of the pass before, so negative for a message that is sent earlier
    begins : time at which each stage may begin its first slot; 0 for all if empty
    noise : time by which the slots of a kind on a chunk are longer, for each microbatch, by kind and position of the
        chunk; no noise where there is no entry
    last : times of the last microbatch, if it is smaller than the others; None if it is not
    """

    forward: Sequence[float]
    backward: Sequence[float]
    travel: float = 0.0
    weights: Sequence[float] = ()
    travels: Mapping[tuple[PassKind, int], float] = field(default_factory=dict)
    begins: Sequence[float] = ()
    noise: Mapping[tuple[PassKind, int], Sequence[float]] = field(default_factory=dict)
    last: "SlotSeconds | None" = None

    def of_microbatch(self, microbatch: int, stages: Stages) -> "SlotSeconds":
        """The times of the slots of a microbatch."""
        is_last = microbatch == stages.microbatches - 1
        return self.last if is_last and self.last is not None else self

    def slot(self, kind: PassKind, part: int, microbatch: int) -> float:
        """Time of the slot of a microbatch."""
        longer = self.noise.get((kind, part))
        return self.of(kind)[part] + (longer[microbatch] if longer else 0.0)

    def travel_to(self, kind: PassKind, part: int) -> float:
        """Time of the message that begins a pass of a kind on the chunk at a position."""
        return self.travels.get((kind, part), self.travel)

    def of(self, kind: PassKind) -> Sequence[float]:
        """Time of a pass of a kind through each chunk of layers."""
        return {"F": self.forward, "B": self.backward, "W": self.weights}[kind]


@dataclass(frozen=True, slots=True)
class Slot:
    """A pass of a microbatch through a chunk of layers on a stage, from `start` to `end` [s]."""

    stage: int
    kind: PassKind
    microbatch: int
    chunk: int
    start: float
    end: float


def stage_ends(stages: Stages, times: SlotSeconds) -> list[float]:
    """The time at which each stage ends its last slot [s].

    Parameters
    ----------
    stages : stages, chunks and microbatches of the pipeline
    times : times of the slots, and of a message between chunks

    Two stages and three microbatches of 1 s forward and 2 s backward take (3 + 1) · 3 s:

    >>> stage_ends(Stages(2, 2, 3), SlotSeconds([1, 1], [2, 2]))
    [12.0, 10.0]
    """
    _, ends = slots_and_ends(stages, times)
    return ends


def slots_in_time(stages: Stages, times: SlotSeconds) -> list[Slot]:
    """All slots of a pipeline, in the order in which they start; arguments as `stage_ends`.

    >>> [(slot.stage, slot.kind, slot.start) for slot in slots_in_time(Stages(2, 2, 1), SlotSeconds([1, 1], [2, 2]))]
    [(0, 'F', 0.0), (1, 'F', 1.0), (1, 'B', 2.0), (0, 'B', 4.0)]
    """
    slots, _ = slots_and_ends(stages, times)
    return slots


def slots_and_ends(stages: Stages, times: SlotSeconds) -> tuple[list[Slot], list[float]]:
    """What `slots_in_time` and `stage_ends` return, from one walk; arguments as `stage_ends`."""
    walk = _PipelineWalk(stages, times)
    walk.run()
    return walk.slots, walk.free_from


class _PipelineWalk:
    """Runs the slots of all stages in time; `free_from` and `slots` hold the results."""

    def __init__(self, stages: Stages, times: SlotSeconds) -> None:
        self._stages, self._times = stages, times
        self._parts = stages.count * stages.chunks
        firsts = [stages.first_state(stage) for stage in range(stages.count)]
        self._states = firsts
        self._order_of = (
            {stage: _numbers_by_kind(stages, stage) for stage in range(stages.count)} if stages.v_placed else {}
        )
        self._orders = None if stages.driven else [_kinds(stages, stage) for stage in range(stages.count)]
        self._next: list[dict[PassKind, Input]] = [
            {kind: self._input(stage, kind, 0) for kind in KINDS} for stage in range(stages.count)
        ]
        self._arrivals: dict[Input, float] = {("F", microbatch, 0): 0.0 for microbatch in range(stages.microbatches)}
        self.free_from = list(times.begins) or [0.0] * stages.count
        self._wakes = sorted((free, stage) for stage, free in enumerate(self.free_from))
        self._begun = [{"F": 0, "B": 0, "W": 0} for _ in range(stages.count)]
        self.slots: list[Slot] = []

    def run(self) -> None:
        while self._wakes:
            now, stage = heappop(self._wakes)
            if now >= self.free_from[stage] and (kind := self._next_kind(stage, now)) is not None:
                self._begin(stage, kind, now)
        kinds = 3 if self._stages.splits else 2
        assert len(self.slots) == kinds * self._stages.count * self._stages.slot_count, "stages wait for each other"

    def _next_kind(self, stage: int, now: float) -> PassKind | None:
        """The kind of the next slot of a free stage; None if its input has not arrived."""
        next_inputs, arrivals = self._next[stage], self._arrivals
        if self._orders is not None:
            position = sum(self._begun[stage].values())
            if position == len(self._orders[stage]):
                return None
            kind = self._orders[stage][position]
            return kind if arrivals.get(next_inputs[kind], NEVER) <= now else None
        inputs = {kind: arrivals.get(of_kind, NEVER) for kind, of_kind in next_inputs.items()}
        arrived = in_order_of_arrival({kind: arrival for kind, arrival in inputs.items() if arrival <= now})
        return next_pass(self._stages.schedule, replace(self._states[stage], arrived=arrived))

    def _begin(self, stage: int, kind: PassKind, now: float) -> None:
        stages = self._stages
        _, microbatch, part = self._next[stage][kind]
        times = self._times.of_microbatch(microbatch, stages)
        begun = self._begun[stage]
        begun[kind] += 1
        self._next[stage][kind] = self._input(stage, kind, begun[kind])
        if stages.driven:
            self._states[stage] = self._states[stage].after(kind)
        end = now + times.slot(kind, part, microbatch)
        self.slots.append(Slot(stage, kind, microbatch, stages.place(part)[1], now, end))
        next_part = part + {"F": 1, "B": -1, "W": 0}[kind]
        free = end
        if kind == "B" and stages.splits:
            self._arrivals["W", microbatch, part] = end
        if next_part == self._parts:
            self._arrivals["B", microbatch, part] = -NEVER  # needs no message, so it comes before all that do
        elif next_part >= 0 and kind != "W":
            next_stage, _ = stages.place(next_part)
            arrival = end if next_stage == stage else end + times.travel_to(kind, next_part)
            self._arrivals[kind, microbatch, next_part] = arrival
            heappush(self._wakes, (arrival, next_stage))
            free = end if stages.driven else max(end, arrival)
        self.free_from[stage] = free
        heappush(self._wakes, (free, stage))

    def _input(self, stage: int, kind: PassKind, slot: int) -> Input:
        """Kind, microbatch and position of the chunk of a slot of a stage."""
        stages = self._stages
        if stages.v_placed:
            of_kind = self._order_of[stage][kind]
            chunk, microbatch = of_kind[min(slot, len(of_kind) - 1)]
        else:
            chunk, microbatch = stages.of_slot(slot, backwards=kind == "B")
        return kind, microbatch, stages.part(stage, chunk)


def _kinds(stages: Stages, stage: int) -> tuple[PassKind, ...]:
    """The kinds of all passes of a stage, in their order."""
    if stages.v_placed:
        return tuple(kind for kind, _, _ in v_order(stages.count, stage, stages.microbatches))
    return pass_order(stages.schedule, stages.first_state(stage))


def _numbers_by_kind(stages: Stages, stage: int) -> dict[PassKind, list[tuple[int, int]]]:
    """Chunk and microbatch of each pass of a stage of a V pipeline, by kind."""
    order = v_order(stages.count, stage, stages.microbatches)
    return {kind: [(chunk, microbatch) for each, chunk, microbatch in order if each == kind] for kind in KINDS}
