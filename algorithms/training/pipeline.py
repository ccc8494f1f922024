"""Pipeline parallelism: the layers of each stage, and the order of its passes over the microbatches.

The rule (`pass_rules.py`) decides the order.  With 1F1B, a stage runs `warmup` forward passes, then alternates one
forward and one backward pass, then runs the remaining backward passes:

    stage 0 of 3    F0 F1 F2 B0 F3 B1    B2 B3        warmup = stages - 1 - stage
    stage 2         F0 B0 F1 B1 F2 B2 F3 B3

ZB-H1 delays the gradients of weights (W) by `stage` passes, so that they fill the time in which a stage would wait:

    stage 0 of 3    F0 F1 F2 B0 W0 F3 B1 W1    B2 W2 B3 W3
    stage 2         F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

GPipe is the same as 1F1B with all forward passes as warm-up.  A *slot* is one pass of a microbatch through one chunk of
layers.

Interleaved 1F1B: stage i of s has several chunks of layers, chunks i, s + i, 2 s + i, ….  A stage processes rounds of
m microbatches, chunk after chunk, and starts with (s - 1 - i) · 2 + (chunks - 1) · m warm-up slots.  A round has s
microbatches or, if s does not divide their number, the next larger number that does (or all, if they are fewer than
s).  Activations between a forward slot and its backward slot are in one of warmup + 1 buffers, which all chunks share;
the next forward slot reuses a released buffer.

ZB-V places two chunks of layers on each stage as a V, and splits backward passes (`v_order.py`, `v_pipeline.py`).

If messages drive the pipeline, the schedule has the passes in 1F1B order, and the interpreters ask the rule which pass
is next.  Each stage then has a buffer for every microbatch that the limit lets be in flight.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", arXiv
2104.04473, section 2.2; Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.1; PyTorch,
torch/distributed/pipelining/schedules.py, `ScheduleInterleaved1F1B` (rounds longer than the number of stages).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.expressions import (
    Affine,
    CyclicLookup,
    FloorDivision,
    IntExpression,
    Lookup,
    Min,
    Modulo,
    PartLength,
    PartStart,
    Scaled,
    Sum,
    evaluate,
)
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.algorithms.schedule.ops import AllReduce, Communication, Op, Pointwise, Receive, Send
from quadrille.algorithms.schedule.parts import Coordinates, cut
from quadrille.algorithms.schedule.pass_rules import StageState, pass_order
from quadrille.algorithms.schedule.program import (
    Choice,
    DrivenPasses,
    Pass,
    PassKind,
    PipelineSchedule,
    Program,
    Repeat,
    ops,
)
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.schedule.v_order import v_order
from quadrille.algorithms.training.experts import DENSE_LAYER, EXPERT_LAYER, ROUTERS
from quadrille.algorithms.training.layers import Layer
from quadrille.algorithms.training.microbatches import MICROBATCH
from quadrille.algorithms.training.scheme import ONE
from quadrille.algorithms.training.transformer import LAYER
from quadrille.algorithms.training.v_pipeline import (
    Numbers,
    buffers,
    chunk_sizes,
    gradient_buffers,
    most_handed_over,
    part_of,
    pass_table,
)

CHUNK, SLOT, BUFFER = "chunk", "slot", "buffer"
"""Loops over the chunks of a stage, the slots of a step, and the activation buffers."""
GRADIENT = "gradient"
"""Loop over the copies of the gradient that stages of a V pipeline send each other."""
V_CHUNKS = 2
V_BUFFERS: dict[str, tuple[PassKind, PassKind]] = {BUFFER: ("F", "B"), "stored": ("F", "W"), "pending": ("B", "W")}
"""First and last pass that use the buffers of a V pipeline, by their loop."""
FORWARD_LANE, BACKWARD_LANE = 0, 1
"""Lanes on which stages send each other activations and their gradients."""
WRAP_LANE_OFFSET, DRIVEN_LANE_OFFSET, ODD_LANE_OFFSET = 2, 4, 6
"""Added to the lane of transfers between the last and the first stage, which only interleaved chunks have, or between
second chunks of a V pipeline; to the lanes of a message-driven pipeline; and to the lane of what an odd stage of a V
pipeline sends, so that no stage sends and receives on one lane."""
AGREEMENT_LANE = 4
"""Lane on which ranks of a stage agree on the next pass, so that no other message of the axis delays them."""
DECISION = "next pass"
"""Tensor of the number of the kind of the next pass."""
LAYER_LOOPS = (LAYER, DENSE_LAYER, EXPERT_LAYER)
"""Loops over layers: over all, or over those of one kind."""
PASSES = "passes"
"""Loop around the passes of a step, which runs once, if messages decide their order."""
STAGE, SLOT_NUMBER = Affine("pipeline"), Affine(SLOT)


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of a pipeline, and the order of their slots.

    Parameters
    ----------
    count : number of stages
    layers, microbatches : layers of the model, microbatches of a step
    chunks : chunks of layers of a stage, interleaved with those of other stages
    schedule : rule of the order of passes
    limit : microbatches that a message-driven stage may have in flight; 0 for the number of stages
    sizes : layers of each stage, of both chunks in a V pipeline; of each chunk in the order of the layers if chunks
        are interleaved; empty for as even as possible
    dense : whether each layer has a dense MLP beside layers of experts; empty if all layers are alike

    >>> Stages(2, 4, 3).order(0)
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']

    Raises
    ------
    InputError : fewer layers than stages; chunks that do not divide evenly
    """

    count: int
    layers: int
    microbatches: int
    chunks: int = 1
    schedule: PipelineSchedule = "1f1b"
    limit: int = 0
    sizes: tuple[int, ...] = ()
    dense: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        self._check_order()
        parts = self.count * self.chunks
        if self.chunks < 1:
            raise InputError(f"interleave {self.chunks}: a whole number from 1 is accepted")
        if self.layers < self.count:
            raise InputError(
                f"grid pipeline={self.count}: every stage needs a layer of its own, and there are {self.layers}: "
                f"up to pipeline={self.layers} is accepted"
            )
        if self.chunks > 1 and self.count == 1:
            raise InputError(
                f"interleave {self.chunks}: chunks are interleaved in a pipeline, and the grid has one stage; "
                "give pipeline=2 or more, or interleave 1"
            )
        self._check_sizes()
        if self.chunks > 1 and self.layers % parts and not self.sizes and not self.v_placed:
            raise InputError(
                f"interleave {self.chunks}: layers = {self.layers} must be a multiple of "
                f"pipeline={self.count} times {self.chunks}"
            )

    def _check_order(self) -> None:
        if self.schedule == "zb-v":
            self._check_v()
        elif self.chunks > 1 and self.schedule not in ("1f1b", "interleaved"):
            raise InputError(
                f"pipeline-schedule {self.schedule}: a stage has one chunk of layers, and interleave is {self.chunks}; "
                "interleaved is accepted with several chunks"
            )
        if self.schedule == "interleaved" and self.chunks == 1:
            raise InputError("pipeline-schedule interleaved: interleave 2 or more is needed")
        if self.limit < 0:
            raise InputError(f"pipeline-limit {self.limit}: a whole number from 1 is accepted")
        if self.limit and self.schedule != "message-driven":
            raise InputError(
                f"pipeline-limit {self.limit}: is for pipeline-schedule message-driven, not for {self.schedule}"
            )

    def _check_v(self) -> None:
        if self.v_placed and self.chunks != V_CHUNKS:
            raise InputError(
                f"interleave {self.chunks}: pipeline-schedule zb-v has two chunks on a stage: 2 is accepted"
            )
        if self.v_placed and self.layers < V_CHUNKS * self.count:
            raise InputError(
                f"pipeline-schedule zb-v: layers = {self.layers}: two chunks on each of {self.count} stages need "
                f"{V_CHUNKS * self.count} layers or more"
            )

    def _check_sizes(self) -> None:
        """Checks the layers of each stage: a chunk has a layer, so a stage of a V pipeline has two."""
        count, least = (self.count, V_CHUNKS) if self.v_placed else (self.count * self.chunks, 1)
        if self.sizes and (len(self.sizes) != count or sum(self.sizes) != self.layers or min(self.sizes) < least):
            raise InputError(
                f"stages {','.join(map(str, self.sizes))}: {count} numbers from {least} that add up to {self.layers} "
                "layers are accepted"
            )

    @property
    def v_placed(self) -> bool:
        """Whether stage i holds chunk i and, counted from the end, chunk i again."""
        return self.schedule == "zb-v" and self.count > 1

    @property
    def loss_stage(self) -> int:
        """The stage that ends the forward pass of a microbatch."""
        return 0 if self.v_placed else self.count - 1

    def part(self, stage: int, chunk: int) -> int:
        """Position of a chunk of a stage among all chunks."""
        return part_of(self.count, stage, chunk) if self.v_placed else chunk * self.count + stage

    def place(self, part: int) -> tuple[int, int]:
        """Stage and chunk at a position among all chunks."""
        chunk, stage = divmod(part, self.count)
        return self.count - 1 - stage if chunk and self.v_placed else stage, chunk

    def sum_of_stage(self, of_parts: Sequence[float], stage: int) -> float:
        """Sum over the chunks of a stage of a number for each chunk, in the order of the layers."""
        return sum(of_parts[self.part(stage, chunk)] for chunk in range(self.chunks))

    def at(self, stage: int) -> tuple[int, ...] | None:
        """Stages that hold a tensor of one stage, counted from either end; None without a pipeline."""
        return (stage % self.count,) if self.count > 1 else None

    @property
    def round_length(self) -> int:
        """Number of microbatches of a round, which a stage passes through one chunk after the other.

        The number of stages or, if it does not divide the number of microbatches, the next larger number that does.

        >>> [Stages(4, 8, microbatches, chunks=2).round_length for microbatches in (8, 9, 10, 7, 3)]
        [4, 9, 5, 7, 3]
        """
        lengths = range(min(self.count, self.microbatches), self.microbatches + 1)
        return next(length for length in lengths if self.microbatches % length == 0)

    @property
    def slot_count(self) -> int:
        """Number of forward slots of a stage, equal to the number of backward slots."""
        return self.microbatches * self.chunks

    @property
    def part_sizes(self) -> tuple[int, ...]:
        """Number of layers of each chunk among all chunks, in the order of the layers."""
        if self.sizes:
            return chunk_sizes(self.sizes) if self.v_placed else self.sizes
        parts = self.count * self.chunks
        even = (cut(self.layers, parts, part) for part in range(parts))
        return tuple(stop - start for start, stop in even)

    @property
    def most_layers(self) -> int:
        """Largest number of layers of a stage."""
        sizes = self.part_sizes
        return max(sum(sizes[self.part(stage, chunk)] for chunk in range(self.chunks)) for stage in range(self.count))

    @property
    def position(self) -> IntExpression:
        """Position of a stage's chunk among all chunks."""
        if self.v_placed:
            rows = tuple(tuple(self.part(stage, chunk) for stage in range(self.count)) for chunk in range(V_CHUNKS))
            return Lookup(rows, (Affine(CHUNK), STAGE))
        return STAGE if self.chunks == 1 else Sum(Affine(CHUNK, self.count), STAGE)

    @property
    def begin(self) -> IntExpression:
        """First layer of a stage, or of its chunk."""
        if self.count == 1:
            return 0
        if self.sizes:
            return Lookup((tuple(accumulate(self.part_sizes, initial=0))[:-1],), (0, self.position))
        return PartStart(self.layers, self.count * self.chunks, self.position)

    def length(self, plus: int = 0) -> IntExpression:
        """Number of layers of a stage, or of its chunk, plus `plus`."""
        parts = self.count * self.chunks
        if self.sizes:
            return Lookup((tuple(size + plus for size in self.part_sizes),), (0, self.position))
        if self.layers % parts == 0:
            return self.layers // parts + plus
        return PartLength(self.layers, parts, self.position, plus)

    def most_length(self, plus: int = 0) -> IntExpression:
        """Number of layers of the longest chunk of a stage, plus `plus`: its chunks share buffers of this length."""
        if self.chunks == 1 or len(set(self.part_sizes)) == 1:
            return self.length(plus)
        sizes, chunks = self.part_sizes, range(self.chunks)
        most = (max(sizes[self.part(stage, chunk)] for chunk in chunks) for stage in range(self.count))
        return Lookup((tuple(length + plus for length in most),), (0, STAGE))

    @property
    def gradient_copies(self) -> Copies:
        """Loop over the copies of the gradient that passes through all layers: two, of which one may be sent.

        In a round that is longer than the number of stages, the last stage takes a gradient of the first only after
        more backward slots.  So the first stage has a copy for each microbatch of such a round.
        """
        if self.count == 1:
            return ()
        if self.v_placed:
            return ((GRADIENT, _counts(gradient_buffers(self.count, self.microbatches))),)
        if self.chunks == 1 or self.round_length <= self.count:
            return ((MICROBATCH, 2),)
        return ((MICROBATCH, Lookup(((self.round_length, *[2] * (self.count - 1)),), (0, STAGE))),)

    @property
    def driven(self) -> bool:
        """Whether messages decide the order of passes."""
        return self.schedule == "message-driven" and self.count > 1

    def send(
        self, tensor: str, direction: int, to: IntExpression, *, wraps: bool = False, of_odd: bool = False
    ) -> Send:
        """The message of a tensor to another stage.

        Parameters
        ----------
        wraps : between the last and the first stage, around the others, or between second chunks of a V pipeline
        of_odd : whether a stage of a V pipeline with an odd number sends
        """
        return Send(
            name=_message_name("send", tensor, wraps),
            axis="pipeline",
            lane=self._lane(direction, wraps, of_odd),
            to=to,
            source=tensor,
            concurrent=True,
        )

    def receive(
        self, tensor: str, direction: int, sender: IntExpression, *, wraps: bool = False, of_odd: bool = False
    ) -> Receive:
        """The receive that meets `send`; a message-driven stage posts it before its pass begins."""
        return Receive(
            name=_message_name("receive", tensor, wraps),
            axis="pipeline",
            lane=self._lane(direction, wraps, of_odd),
            sender=sender,
            into=tensor,
            posted=self.driven,
            concurrent=self.driven,
        )

    def _lane(self, direction: int, wraps: bool, of_odd: bool) -> int:
        """Lane of the messages of a direction.

        A posted receive takes the next message of its lane, so no other message of a message-driven pipeline uses it.
        """
        offset = DRIVEN_LANE_OFFSET if self.driven else WRAP_LANE_OFFSET if wraps else 0
        return direction + offset + (ODD_LANE_OFFSET if of_odd else 0)

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors of the pipeline itself."""
        return [Tensor(DECISION, ONE, ONE, dtype="int32")] if self.driven else []

    @property
    def most_in_flight(self) -> int:
        """Largest number of microbatches that a message-driven stage may have in flight."""
        return min(self.limit or self.count, self.microbatches)

    @property
    def warmup(self) -> IntExpression:
        """Forward slots before the first forward slot that a backward slot follows, as an expression."""
        if self.schedule == "gpipe":
            return self.slot_count
        if self.driven:
            return Min(self.most_in_flight - 1, Affine("pipeline", -1, self.count - 1))
        if self.chunks == 1:
            return Min(self.slot_count, Affine("pipeline", -1, self.count - 1))
        first = 2 * (self.count - 1) + (self.chunks - 1) * self.round_length
        return Min(self.slot_count, Affine("pipeline", -2, first))

    @property
    def alternating(self) -> IntExpression:
        """Number of forward slots that are each followed by a backward slot, as an expression."""
        return Sum(self.slot_count, _negative(self.warmup))

    @property
    def splits(self) -> bool:
        """Whether the gradients of weights are passes of their own."""
        return self.schedule in ("zb-h1", "zb-v") and self.count > 1

    @property
    def pending(self) -> IntExpression:
        """Largest number of W passes that a stage leaves for later, as an expression."""
        return Min(self.microbatches, STAGE) if self.splits else 0

    @property
    def pending_buffers(self) -> IntExpression:
        """Largest number of microbatches whose B pass was begun and whose W pass has not ended."""
        return Min(self.microbatches, Affine("pipeline", 1, 1))

    @property
    def most_stored(self) -> int:
        """Largest number of microbatches whose forward pass was begun and whose W pass has not ended, on any stage."""
        return min(self.microbatches, self.count)

    @property
    def pending_copies(self) -> tuple[str, IntExpression]:
        """Loop over the copies of gradients of microbatches between their B pass and their W pass."""
        return self._v_copies("pending") if self.v_placed else (MICROBATCH, self.pending_buffers)

    @property
    def stored_copies(self) -> tuple[str, IntExpression]:
        """Loop over the copies of activations of microbatches between their forward pass and their W pass."""
        return self._v_copies("stored") if self.v_placed else (MICROBATCH, self.most_stored)

    @property
    def handed_over(self) -> int:
        """Largest number of microbatches between the two chunks of the last stage of a V pipeline, in one direction."""
        return most_handed_over(self.count, self.microbatches)

    def _v_copies(self, loop: str) -> tuple[str, IntExpression]:
        return loop, _counts(buffers(self.count, self.microbatches, *V_BUFFERS[loop]))

    @property
    def segments(self) -> list[tuple[tuple[PassKind, ...], IntExpression]]:
        """Loops of a step: the kinds of passes of an iteration, and the number of iterations."""
        if not self.splits:
            return [(("F",), self.warmup), (("F", "B"), self.alternating), (("B",), self.warmup)]
        early = Min(self.alternating, STAGE)
        late = Min(self.warmup, Sum(STAGE, _negative(early)))
        return [
            (("F",), self.warmup),
            (("F", "B"), early),
            (("F", "B", "W"), Sum(self.alternating, _negative(early))),
            (("B",), late),
            (("B", "W"), Sum(self.warmup, _negative(late))),
            (("W",), Sum(early, late)),
        ]

    def _loops(self, bodies: dict[PassKind, Program]) -> Program:
        """The passes of a step, a loop for each segment."""
        begun: dict[PassKind, IntExpression | None] = dict.fromkeys(bodies)
        loops: list[Repeat] = []
        for kinds, count in self.segments:
            body: list[Op | Repeat] = []
            for kind in kinds:
                before = begun[kind]
                slot = SLOT_NUMBER if before is None else Sum(SLOT_NUMBER, before)
                body += self._at(bodies[kind], slot, kind)
                begun[kind] = count if before is None else Sum(before, count)
            loops.append(Repeat(SLOT, count, tuple(body)))
        return tuple(loops)

    def interleaved(self, forward: Program, backward: Program, weights: Program = ()) -> Program:
        """Passes of one microbatch through one chunk, in the order of the stage.

        Parameters
        ----------
        forward, backward : forward and backward pass
        weights : W pass, if the stages split backward passes
        """
        if self.count == 1:
            both = (*forward, *backward)
            return both if self.microbatches == 1 else (Repeat(MICROBATCH, self.microbatches, both),)
        if self.driven:
            agreement = _agreement((*forward, *backward))
            forward, backward = (*agreement, *forward), (*agreement, *backward)
        bodies: dict[PassKind, Program] = {"F": forward, "B": backward, "W": weights}
        passes = self._v_loop(bodies) if self.v_placed else self._loops(bodies)
        if not self.driven:
            return passes
        clear = Pointwise(name=f"clear {DECISION}", function="zero", into=DECISION)
        return (clear, DrivenPasses(PASSES, 1, passes, limit=self.most_in_flight, decision=DECISION))

    def _v_loop(self, bodies: dict[PassKind, Program]) -> Program:
        """The passes of a step of a V pipeline: one loop, whose iterations look up their pass."""
        kinds, chunks, microbatches = pass_table(self.count, self.microbatches)
        choices = list[Repeat]()
        for number, (kind, body) in enumerate(bodies.items()):
            chosen = tuple(tuple(int(each == number) for each in row) for row in kinds)
            inner: Program = (Pass(BUFFER, 1, body, first=self._v_buffer(V_BUFFERS[BUFFER]), kind=kind),)
            for loop in ("stored", "pending"):
                inner = (Repeat(loop, 1, inner, first=self._v_buffer(V_BUFFERS[loop])),)
            inner = (Repeat(GRADIENT, 1, inner, first=self._of_chunk(gradient_buffers(self.count, self.microbatches))),)
            inner = (Repeat(MICROBATCH, 1, inner, first=Lookup(microbatches, (STAGE, SLOT_NUMBER))),)
            inner = (Repeat(CHUNK, 1, inner, first=Lookup(chunks, (STAGE, SLOT_NUMBER))),)
            choices.append(Choice("chosen", Lookup(chosen, (STAGE, SLOT_NUMBER)), inner))
        return (Repeat(SLOT, len(kinds[0]), tuple(choices)),)

    def _v_buffer(self, between: tuple[PassKind, PassKind]) -> IntExpression:
        return self._of_chunk(buffers(self.count, self.microbatches, *between))

    def _of_chunk(self, table: Numbers) -> IntExpression:
        """Number of the current microbatch and chunk."""
        return Lookup(table, (STAGE, Sum(Affine(CHUNK, self.microbatches), Affine(MICROBATCH))))

    def _at(self, body: Program, slot: IntExpression, kind: PassKind) -> Program:
        """The pass of the microbatch and chunk that the slot of this number processes."""
        backwards = kind == "B"
        if self.chunks == 1:
            return (Pass(MICROBATCH, 1, body, first=slot, kind=kind),)
        round_of, within = self.round_length * self.chunks, self.round_length
        chunk: IntExpression = FloorDivision(Modulo(slot, round_of), within)
        if backwards:
            chunk = Sum(self.chunks - 1, _negative(chunk))
        microbatch = Sum(Scaled(within, FloorDivision(slot, round_of)), Modulo(slot, within))
        buffered = (Pass(BUFFER, 1, body, first=self._buffer, kind=kind),)
        return (Repeat(CHUNK, 1, (Repeat(MICROBATCH, 1, buffered, first=microbatch),), first=chunk),)

    @property
    def _buffer(self) -> IntExpression:
        """Activation buffer of a microbatch in a chunk."""
        runs = tuple(slot_buffers(self, stage) for stage in range(self.count))
        length = self.round_length
        of_round = Sum(Affine(CHUNK, length), Modulo(Affine(MICROBATCH), length))
        return CyclicLookup(runs, (STAGE, of_round), FloorDivision(Affine(MICROBATCH), length))

    def order(self, stage: int) -> list[str]:
        """Slots of a stage, each with its microbatch and, if there are several, its chunk.

        Messages that drive a stage may lead to another order.
        """
        if self.v_placed:
            each = v_order(self.count, stage, self.microbatches)
            return [f"{kind}{microbatch}.{chunk}" for kind, chunk, microbatch in each]
        schedule = "1f1b" if self.driven else self.schedule
        begun = {"F": 0, "B": 0, "W": 0}
        names = []
        for kind in pass_order(schedule, self.first_state(stage)):
            names.append(self._name(kind, begun[kind]))
            begun[kind] += 1
        return names

    def first_state(self, stage: int) -> StageState:
        """The state of a stage before its first pass."""
        warmup = self.warmup_of(stage)
        limit = self.most_in_flight if self.driven else warmup + 1
        return StageState(
            passes=self.slot_count, warmup=warmup, limit=limit, pending=self.on_stage(stage, self.pending)
        )

    def warmup_of(self, stage: int) -> int:
        """Value of `warmup` on a stage."""
        return self.on_stage(stage, self.warmup)

    def on_stage(self, stage: int, value: IntExpression) -> int:
        """Value of an expression on a stage."""
        return evaluate(value, Coordinates(Grid(pipeline=self.count), {}, {"pipeline": stage}))

    def _name(self, letter: str, slot: int) -> str:
        chunk, microbatch = self.of_slot(slot, backwards=letter == "B")
        return f"{letter}{microbatch}" if self.chunks == 1 else f"{letter}{microbatch}.{chunk}"

    def of_slot(self, slot: int, *, backwards: bool) -> tuple[int, int]:
        """Chunk and microbatch of a slot."""
        if self.chunks == 1:
            return 0, slot
        length = self.round_length
        rounds, rest = divmod(slot, length * self.chunks)
        chunk = rest // length
        return self.chunks - 1 - chunk if backwards else chunk, rounds * length + rest % length

    def slot_of(self, position: int, microbatch: int) -> int:
        """The slot in which a microbatch passes through the chunk at a position in the order of the stage's slots.

        >>> stages = Stages(2, layers=4, microbatches=4, chunks=2)
        >>> [stages.of_slot(stages.slot_of(1, microbatch), backwards=False) for microbatch in range(4)]
        [(1, 0), (1, 1), (1, 2), (1, 3)]
        """
        length = self.round_length
        rounds, rest = divmod(microbatch, length)
        return (rounds * self.chunks + position) * length + rest

    def in_flight(self, stage: int) -> int:
        """Largest number of slots in flight on a stage: its warm-up slots and one more."""
        if self.v_placed:
            return max(buffers(self.count, self.microbatches, "F", "B")[stage]) + 1
        return self.most_in_flight if self.driven else min(self.slot_count, self.warmup_of(stage) + 1)

    @property
    def in_flight_copies(self) -> Copies:
        """Loops over the copies of activations of microbatches between their forward and their backward pass."""
        if self.count == 1:
            return ()
        if self.v_placed:
            return (self._v_copies(BUFFER),)
        if self.driven or self.schedule == "gpipe":
            return ((MICROBATCH, self.in_flight(0)),)
        if self.chunks == 1:
            return ((MICROBATCH, Min(self.microbatches, Affine("pipeline", -1, self.count))),)
        return ((BUFFER, Lookup((tuple(self.in_flight(stage) for stage in range(self.count)),), (0, STAGE))),)

    def staged(self, layer: Layer, rows: str) -> Layer:
        """The layer with the copies of one stage; activations are tensors with these rows."""
        return replace(
            layer,
            tensors=tuple(self.tensor(member, rows) for member in layer.tensors),
            parameters=tuple(replace(member, tensor=self.tensor(member.tensor, rows)) for member in layer.parameters),
        )

    def tensor(self, tensor: Tensor, rows: str) -> Tensor:
        """A tensor of every layer, as a stage holds it; activations also have a copy for each microbatch in flight."""
        loop = next((loop for loop, _ in tensor.copies if loop in LAYER_LOOPS), None)
        if self.count == 1 or loop is None:
            return tensor
        inner = tuple(loop_count for loop_count in tensor.copies if loop_count[0] != loop)
        chunks = ((CHUNK, self.chunks),) if self.chunks > 1 else ()
        is_activation = tensor.rows.dimension in (rows, ROUTERS)
        if loop != LAYER:
            length, begin = self.of_kind(loop, longest=is_activation)
        else:
            more = dict(tensor.copies)[loop]
            assert isinstance(more, int)
            length_of = self.most_length if is_activation else self.length
            length, begin = length_of(more - self.layers), self.begin
        if is_activation:
            return replace(tensor, copies=(*inner, *self.in_flight_copies, (loop, length)))
        return replace(tensor, copies=(*inner, *chunks, (loop, length)), first_indices=((loop, begin),))

    def of_kind(self, loop: str, *, longest: bool) -> tuple[IntExpression, IntExpression]:
        """Number of layers of one kind of a stage's chunk, or of its longest chunk, and how many are before the chunk.

        Parameters
        ----------
        loop : loop over the layers of the kind
        """
        chosen = [int(is_dense == (loop == DENSE_LAYER)) for is_dense in self.dense]
        of_layers = tuple(accumulate(chosen, initial=0))
        ends = tuple(of_layers[end] for end in accumulate(self.part_sizes, initial=0))
        counts = tuple(end - begin for begin, end in pairwise(ends))
        begin = Lookup((ends[:-1],), (0, self.position))
        if not longest or self.chunks == 1:
            return Lookup((counts,), (0, self.position)), begin
        most = (max(counts[self.part(stage, chunk)] for chunk in range(self.chunks)) for stage in range(self.count))
        return Lookup((tuple(most),), (0, STAGE)), begin


def slot_buffers(stages: Stages, stage: int) -> tuple[tuple[int, int, int], ...]:
    """Activation buffers of each slot of a round, cyclic from round to round: first buffer, offset and number.

    With m microbatches in a round, the backward pass of a slot of chunk c ends `warmup + 1 + m · (chunks - 1 - 2 c)`
    slots later; the slot that begins then reuses the buffer.  So the buffers cycle through the slots of a round, and
    return after whole rounds.

    >>> slot_buffers(Stages(2, layers=4, microbatches=8, chunks=2), stage=0)
    ((0, 0, 5), (0, 2, 5), (0, 3, 5), (0, 4, 5))
    """
    in_round, ahead = stages.round_length * stages.chunks, stages.warmup_of(stage)
    if stages.slot_count <= ahead + 1:  # each slot has a buffer of its own
        each = stages.slot_count // in_round
        return tuple((slot * each, 0, each) for slot in range(in_round))
    cycles: dict[int, tuple[int, int, int]] = {}
    first = 0
    for begin in range(in_round):
        if begin in cycles:
            continue
        passed: dict[int, int] = {}
        slot = begin
        while (of_round := slot % in_round) not in passed:
            passed[of_round] = slot // in_round
            slot += ahead + 1 + stages.round_length * (stages.chunks - 1 - 2 * (of_round // stages.round_length))
        length = slot // in_round
        cycles |= {of_round: (first, -rounds % length, length) for of_round, rounds in passed.items()}
        first += length
    return tuple(cycles[slot] for slot in range(in_round))


def _message_name(verb: str, tensor: str, wraps: bool) -> str:
    return f"{verb} {tensor} around" if wraps else f"{verb} {tensor}"


def _agreement(passes: Program) -> Program:
    """Ops by which ranks that communicate within a pass learn which pass is next.

    One rank of them decides.  It contributes the number of the kind of pass, the others contribute 0.
    """
    within = {op.axis for op in ops(passes) if isinstance(op, Communication)} - {"pipeline"}
    return tuple(
        AllReduce(
            name=f"agree on the next pass over {axis}",
            axis=axis,
            lane=AGREEMENT_LANE,
            buffer=DECISION,
            combination="max",
        )
        for axis in AXES
        if axis in within
    )


def _counts(table: Numbers) -> IntExpression:
    """Number of buffers of a stage."""
    return Lookup((tuple(max(row) + 1 for row in table),), (0, STAGE))


def _negative(value: IntExpression) -> IntExpression:
    return Scaled(-1, value)
