"""Programs of an MLP training step: one of all layers, or one for each pipeline stage.

A stage sends the activation H after its last product, and receives the gradient of H.
"""

from dataclasses import dataclass, replace
from itertools import accumulate

from quadrille.algorithms.schedule.ops import Kernel, Op, reads, writes
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.program import ops as ops_of
from quadrille.algorithms.schedule.schedule import Role
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.layers import Layer, Parameter
from quadrille.algorithms.training.microbatches import MICROBATCH
from quadrille.algorithms.training.pipeline import BACKWARD_LANE, FORWARD_LANE, Stages
from quadrille.algorithms.training.step_programs import Steps, accumulate_loss, on_stages
from quadrille.algorithms.training.zero import shard_layer
from quadrille.algorithms.training.zero_bubble import SplitBackward, split_backward, with_split_copies


@dataclass(frozen=True, slots=True)
class StageLayers:
    """The layers first + 1 .. last of a stage."""

    stage: int
    first: int
    last: int


class MlpStep:
    """The programs of an MLP training step.

    Parameters
    ----------
    layers : the products, from the first to the last
    loss : the loss, which has a forward pass only and writes the gradient of the last output
    stages : pipeline stages
    steps : parts that are equal on all stages
    """

    def __init__(self, layers: list[Layer], loss: Layer, stages: Stages, steps: Steps) -> None:
        self._stages, self._steps = stages, steps
        ends = tuple(accumulate(stages.part_sizes, initial=0))
        self._spans = [StageLayers(stage, *ends[stage : stage + 2]) for stage in range(stages.count)]
        placed = [
            on_stages(layer, (span.stage,)) if steps.piped else layer
            for span in self._spans
            for layer in layers[span.first : span.last]
        ]
        self.layers = [shard_layer(layer, steps.plan) for layer in placed]
        self.loss = accumulate_loss(loss) if steps.plan.accumulates else loss
        self._splits = [self._split_backward(span) for span in self._spans] if stages.splits else []

    @property
    def parameters(self) -> list[Parameter]:
        return [parameter for layer in self.layers for parameter in layer.parameters]

    def roles(self) -> tuple[Role, ...]:
        """A program for each stage."""
        if not self._steps.piped:
            return (Role(self._program(self._spans[0])),)
        return tuple(Role(self._program(span), "pipeline", span.stage, span.stage + 1) for span in self._spans)

    def _program(self, span: StageLayers) -> Program:
        own = self.layers[span.first : span.last]
        parameters = [parameter for layer in own for parameter in layer.parameters]
        split = self._splits[span.stage] if self._splits else None
        backward, weights = (split.inputs, split.weights) if split else (self._backward(span), ())
        passes = self._stages.interleaved(self._forward(span), backward, weights)
        return self._steps.program(parameters, passes, losses=span.last == len(self.layers))

    def _split_backward(self, span: StageLayers) -> SplitBackward:
        """The backward pass of a stage in two parts: the gradients of its activations, then those of its weights."""
        gradients = [f"dZ{number}" for number in range(span.first + 1, span.last + 1)]
        return split_backward(self._backward(span), gradients, self._forward(span))

    def _forward(self, span: StageLayers) -> Program:
        program: list[Op | Repeat] = []
        if span.first > 0:
            program.append(self._stages.receive(f"H{span.first}", FORWARD_LANE, span.stage - 1))
        for number in range(span.first + 1, span.last + 1):
            program += self.layers[number - 1].forward
            if number < len(self.layers):
                program.append(
                    Kernel(name=f"L{number} gelu", function="gelu", into=(f"H{number}",), sources=(f"Z{number}",))
                )
        if span.last == len(self.layers):
            return (*program, *self.loss.forward)
        return (*program, self._stages.send(f"H{span.last}", FORWARD_LANE, span.stage + 1))

    def _backward(self, span: StageLayers) -> Program:
        program: list[Op | Repeat] = []
        if span.last < len(self.layers):
            program += [
                self._stages.receive(f"dH{span.last}", BACKWARD_LANE, span.stage + 1),
                _gelu_gradient(span.last),
            ]
        for number in range(span.last, span.first, -1):
            program += self.layers[number - 1].backward
            if number > span.first + 1:
                program.append(_gelu_gradient(number - 1))
        if span.first == 0:
            return tuple(program)
        return (*program, self._stages.send(f"dH{span.first}", BACKWARD_LANE, span.stage - 1))

    def with_copies(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors, activations with a copy for each microbatch in flight."""
        if not self._steps.piped:
            return tensors
        forward, backward = (
            {name for span in self._spans for op in ops_of(part(span)) for name in (*reads(op), *writes(op))}
            for part in (self._forward, self._backward)
        )
        in_flight, alternating = self._stages.in_flight_copies, ((MICROBATCH, 2),)

        def copies(tensor: Tensor) -> Copies:
            activation = tensor.rows.dimension == "rows" and MICROBATCH not in dict(tensor.copies)
            if activation and tensor.name in forward & backward:
                return (*tensor.copies, *in_flight)
            return alternating if activation and tensor.name.startswith("dH") else tensor.copies

        copied = [replace(tensor, copies=copies(tensor)) for tensor in tensors]
        return with_split_copies(copied, self._stages, self._splits, layered=False) if self._splits else copied


def _gelu_gradient(number: int) -> Kernel:
    """Gradient of a layer's sum, from the gradient of its GELU output."""
    return Kernel(
        name=f"L{number} gelu gradient",
        function="gelu_gradient",
        into=(f"dZ{number}",),
        sources=(f"Z{number}", f"dH{number}"),
    )
