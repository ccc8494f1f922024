"""What one layer and the two ends of a model take on a tensor-parallel group: simulated, from the schedule of a step.

A schedule of one layer and one microbatch is simulated on so many GPUs of the
machine.  Ops are one after the other in it, so their times may be added: those
of the layer count once for each layer, those of the ends on the first and the
last stage.  The optimizer and sums over replicas are not of a microbatch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from algorithms.collectives.choices import parse_choices
from algorithms.formats.machine import Machine
from algorithms.grid import Grid
from algorithms.parts import Part
from algorithms.program import Program, ops
from algorithms.tensors import DType
from algorithms.timelines.op_times import OpTimes
from algorithms.training.gpt import Gpt, gpt_schedule
from algorithms.training.layers import Layer
from algorithms.training.models import ModelShape
from algorithms.training.norm import Norm, normalisation
from algorithms.training.scheme_4d import Scheme4D
from algorithms.training.transformer import Shape, transformer_layer
from simulator.simulate import simulate

MEGATRON = Scheme4D()
"""With x the only long axis these are Megatron-LM's column and row parallel pairs."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of a forward and a backward pass over one microbatch."""

    forward: float
    backward: float

    def __add__(self, other: "Seconds") -> "Seconds":
        return Seconds(self.forward + other.forward, self.backward + other.backward)

    @property
    def both(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True, slots=True)
class Pieces:
    """Times of a layer, of the embedding, and of all from the last norm to the loss."""

    layer: Seconds
    first: Seconds
    last: Seconds


def pieces_of(shape: ModelShape, tensor: int, micro: int, dtype: DType, machine: Machine) -> Pieces:
    """The pieces of a model whose layers are cut over `tensor` GPUs, for microbatches of `micro` sequences."""
    problem = Gpt(1, shape.hidden, shape.heads, shape.sequence, shape.vocabulary, micro, dtype=dtype)
    schedule = gpt_schedule(problem, Grid(x=tensor), MEGATRON)
    times = simulate(schedule, machine, choices=parse_choices("library")).timeline.op_times()
    rows, hidden = Part("batch", each=shape.sequence), Part("hidden")
    norm = Norm("last", rows, hidden, shape.hidden, "X", "last N", "dlast N", "dX")
    layer = transformer_layer(Shape(1, shape.hidden, shape.heads, shape.sequence), rows, MEGATRON)
    loss = MEGATRON.vocabulary_loss(rows, "last N", "dlast N", problem.tokens)
    return Pieces(
        _seconds(layer, times),
        _seconds(MEGATRON.embedding(rows, "X", "dX"), times),
        _seconds(normalisation(norm, MEGATRON), times) + _seconds(loss, times),
    )


def _seconds(piece: Layer, times: Mapping[str, OpTimes]) -> Seconds:
    return Seconds(_sum(piece.forward, times), _sum(piece.backward, times))


def _sum(program: Program, times: Mapping[str, OpTimes]) -> float:
    return sum(times[op.name].seconds + times[op.name].waiting_seconds for op in ops(program))
