"""Layers cut over the pipeline axis: which stage has which, and in which order a stage takes its microbatches.

1F1B: a stage begins `ahead` microbatches, then takes one backward for every
forward, then finishes those that are under way:

    stage 0 of 3    F0 F1 F2 B0 F3 B1    B2 B3        ahead = stages - 1 - stage
    stage 2         F0 B0 F1 B1 F2 B2 F3 B3

Interleaved, a stage has several chunks of layers, every stages-th one, and
takes turns of as many microbatches as there are stages, chunk after chunk; it
begins (stages - 1 - stage) · 2 + (chunks - 1) · stages turns ahead.  What a
forward turn leaves to its backward turn stands in one of ahead + 1 slots, shared
by all chunks: when one is given up, the next forward turn takes it.
`Stages.turns` alone decides the order: another scheduler is another such
function.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM", arXiv 2104.04473, section 2.2.
"""

from dataclasses import dataclass, replace

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
)
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.layers import Layer
from quadrille.algorithms.training.microbatches import MICROBATCH
from quadrille.algorithms.training.transformer import LAYER

CHUNK, TURN, SLOT = "chunk", "turn", "slot"
FORWARD_LANE, BACKWARD_LANE = 0, 1
"""Of what stages send each other: activations, and their gradients."""
STAGE, NUMBER_OF_TURN = Affine("pipeline"), Affine(TURN)


@dataclass(frozen=True, slots=True)
class Stages:
    """A pipeline.

    Parameters
    ----------
    count : of stages
    layers, microbatches : of the model, and of a step
    chunks : of layers that a stage has, interleaved with those of the others

    >>> Stages(2, 4, 3).order(0)
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']

    Raises
    ------
    InputError : fewer layers than stages; chunks that do not come out even
    """

    count: int
    layers: int
    microbatches: int
    chunks: int = 1

    def __post_init__(self) -> None:
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
        if self.chunks > 1 and self.layers % parts:
            raise InputError(
                f"interleave {self.chunks}: layers = {self.layers} must be a multiple of "
                f"pipeline={self.count} times {self.chunks}"
            )
        if self.chunks > 1 and self.microbatches % self.count:
            raise InputError(
                f"interleave {self.chunks}: the number of microbatches, {self.microbatches}, must be a multiple of "
                f"pipeline={self.count}"
            )

    def at(self, stage: int) -> tuple[int, ...] | None:
        """The stages that hold a tensor which one needs, counted from either end; None where there is only one."""
        return (stage % self.count,) if self.count > 1 else None

    @property
    def slot_count(self) -> int:
        """Forward turns of a stage, and as many backward ones."""
        return self.microbatches * self.chunks

    @property
    def position(self) -> IntExpression:
        """Which part of the layers a stage's chunk is."""
        return STAGE if self.chunks == 1 else Sum(Affine(CHUNK, self.count), STAGE)

    @property
    def begin(self) -> IntExpression:
        """The first layer of a stage, or of its chunk."""
        if self.count == 1:
            return 0
        return PartStart(self.layers, self.count * self.chunks, self.position)

    def length(self, plus: int = 0) -> IntExpression:
        """How many layers that is."""
        parts = self.count * self.chunks
        if self.layers % parts == 0:
            return self.layers // parts + plus
        return PartLength(self.layers, parts, self.position, plus)

    @property
    def warmup(self) -> IntExpression:
        """Forward turns that a stage begins before its first backward one."""
        if self.chunks == 1:
            return Min(self.slot_count, Affine("pipeline", -1, self.count - 1))
        first = 2 * (self.count - 1) + (self.chunks - 1) * self.count
        return Min(self.slot_count, Affine("pipeline", -2, first))

    @property
    def steady(self) -> IntExpression:
        """Turns of one forward and one backward."""
        return Sum(self.slot_count, _negative(self.warmup))

    def interleaved(self, forward: Program, backward: Program) -> Program:
        """The passes of one microbatch through one chunk, in the order in which a stage takes them."""
        if self.count == 1:
            both = (*forward, *backward)
            return both if self.microbatches == 1 else (Repeat(MICROBATCH, self.microbatches, both),)
        turn = NUMBER_OF_TURN
        return (
            Repeat(TURN, self.warmup, self._at(forward, turn)),
            Repeat(
                TURN,
                self.steady,
                (*self._at(forward, Sum(turn, self.warmup)), *self._at(backward, turn, backwards=True)),
            ),
            Repeat(TURN, self.warmup, self._at(backward, Sum(turn, self.steady), backwards=True)),
        )

    def _at(self, body: Program, turn: IntExpression, *, backwards: bool = False) -> Program:
        """A pass as the turn of that number takes it."""
        if self.chunks == 1:
            return (Repeat(MICROBATCH, 1, body, first=turn),)
        round_of, within = self.count * self.chunks, self.count
        chunk: IntExpression = FloorDivision(Modulo(turn, round_of), within)
        if backwards:
            chunk = Sum(self.chunks - 1, _negative(chunk))
        microbatch = Sum(Scaled(within, FloorDivision(turn, round_of)), Modulo(turn, within))
        slotted = (Repeat(SLOT, 1, body, first=self._slot),)
        return (Repeat(CHUNK, 1, (Repeat(MICROBATCH, 1, slotted, first=microbatch),), first=chunk),)

    @property
    def _slot(self) -> IntExpression:
        """The slot of a microbatch in a chunk."""
        runs = tuple(slots(self, stage) for stage in range(self.count))
        of_round = Sum(Affine(CHUNK, self.count), Modulo(Affine(MICROBATCH), self.count))
        return CyclicLookup(runs, (STAGE, of_round), FloorDivision(Affine(MICROBATCH), self.count))

    def order(self, stage: int) -> list[str]:
        """The turns of a stage, each with its microbatch and, where there are several, its chunk."""
        ahead = self.warmup_of(stage)
        steady = self.slot_count - ahead
        forward = [self._name("F", turn) for turn in range(self.slot_count)]
        backward = [self._name("B", turn) for turn in range(self.slot_count)]
        between = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
        return forward[:ahead] + between + backward[steady:]

    def warmup_of(self, stage: int) -> int:
        """Forward turns that a stage begins before its first backward one."""
        later = self.count - 1 - stage
        wanted = later if self.chunks == 1 else 2 * later + (self.chunks - 1) * self.count
        return min(self.slot_count, wanted)

    def _name(self, letter: str, turn: int) -> str:
        chunk, microbatch = self._of_turn(turn, backwards=letter == "B")
        return f"{letter}{microbatch}" if self.chunks == 1 else f"{letter}{microbatch}.{chunk}"

    def _of_turn(self, turn: int, *, backwards: bool) -> tuple[int, int]:
        """Chunk and microbatch."""
        if self.chunks == 1:
            return 0, turn
        rounds, rest = divmod(turn, self.count * self.chunks)
        chunk = rest // self.count
        return self.chunks - 1 - chunk if backwards else chunk, rounds * self.count + rest % self.count

    def in_flight(self, stage: int) -> int:
        """Turns under way on a stage, at most: those that it begins ahead, and one."""
        return min(self.slot_count, self.warmup_of(stage) + 1)

    @property
    def in_flight_copies(self) -> Copies:
        """The loops that tell apart what is kept of microbatches that are under way."""
        if self.count == 1:
            return ()
        if self.chunks == 1:
            return ((MICROBATCH, Min(self.microbatches, Affine("pipeline", -1, self.count))),)
        return ((SLOT, Lookup((tuple(self.in_flight(stage) for stage in range(self.count)),), (0, STAGE))),)

    def staged(self, layer: Layer, rows: str) -> Layer:
        """The layer that stands for all, with copies for those of a stage; activations are tensors of these rows."""
        return replace(
            layer,
            tensors=tuple(self.tensor(one, rows) for one in layer.tensors),
            parameters=tuple(replace(one, tensor=self.tensor(one.tensor, rows)) for one in layer.parameters),
        )

    def tensor(self, tensor: Tensor, rows: str) -> Tensor:
        """A tensor that every layer has, as a stage has it; activations once more for each microbatch under way."""
        loops = dict(tensor.copies)
        if self.count == 1 or LAYER not in loops:
            return tensor
        more = loops[LAYER]
        assert isinstance(more, int)
        inner = tuple(one for one in tensor.copies if one[0] != LAYER)
        of_layers = (LAYER, self.length(more - self.layers))
        if tensor.rows.dimension == rows:
            return replace(tensor, copies=(*inner, *self.in_flight_copies, of_layers))
        chunks = ((CHUNK, self.chunks),) if self.chunks > 1 else ()
        return replace(tensor, copies=(*inner, *chunks, of_layers), first_indices=((LAYER, self.begin),))


def slots(stages: Stages, stage: int) -> tuple[tuple[int, int, int], ...]:
    """Of each turn of a round, the slots that it has in turn, round after round: first, begin and how many.

    A turn of chunk c takes `ahead + 1 + stages · (chunks - 1 - 2 c)` turns until
    it is through backward; the turn begun then takes its slot.  So slots go
    around the turns of a round in cycles, and come back after whole rounds.

    >>> slots(Stages(2, layers=4, microbatches=8, chunks=2), stage=0)
    ((0, 0, 5), (0, 2, 5), (0, 3, 5), (0, 4, 5))
    """
    in_round, ahead = stages.count * stages.chunks, stages.warmup_of(stage)
    if stages.slot_count <= ahead + 1:  # each has a slot of its own
        each = stages.slot_count // in_round
        return tuple((turn * each, 0, each) for turn in range(in_round))
    found: dict[int, tuple[int, int, int]] = {}
    first = 0
    for begin in range(in_round):
        if begin in found:
            continue
        passed: dict[int, int] = {}
        turn = begin
        while (of_round := turn % in_round) not in passed:
            passed[of_round] = turn // in_round
            turn += ahead + 1 + stages.count * (stages.chunks - 1 - 2 * (of_round // stages.count))
        length = turn // in_round
        found |= {of_round: (first, -rounds % length, length) for of_round, rounds in passed.items()}
        first += length
    return tuple(found[turn] for turn in range(in_round))


def _negative(value: IntExpression) -> IntExpression:
    return Scaled(-1, value)
