"""Programs of an MLP training step: one of all layers, or one for each pipeline stage.

A stage sends the activation H after its last product, and receives the gradient of H.  A stage of a V pipeline does so
after each of its two chunks of layers.
"""

from collections.abc import Callable, Sequence
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
from quadrille.algorithms.training.v_chunks import between_chunks, hand_over, handed_over, on_chunk
from quadrille.algorithms.training.zero import shard_layer
from quadrille.algorithms.training.zero_bubble import SplitBackward, split_backward, with_split_copies


@dataclass(frozen=True, slots=True)
class PartLayers:
    """The layers first + 1 .. last of a stage, or of one chunk of a V pipeline's stage."""

    part: int
    stage: int
    chunk: int
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
        self._spans = [
            PartLayers(part, *stages.place(part), *ends[part : part + 2])
            for part in range(stages.count * stages.chunks)
        ]
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
            return (Role(self._program(0)),)
        return tuple(Role(self._program(stage), "pipeline", stage, stage + 1) for stage in range(self._stages.count))

    def _program(self, stage: int) -> Program:
        spans = [span for span in self._spans if span.stage == stage]
        parameters = [
            parameter
            for span in spans
            for layer in self.layers[span.first : span.last]
            for parameter in layer.parameters
        ]
        passes = self._stages.interleaved(
            self._on_chunks(spans, self._forward),
            self._on_chunks(spans[::-1], self._inputs_backward),
            self._on_chunks(spans[::-1], self._weights_backward),
        )
        return self._steps.program(parameters, passes, losses=stage == self._stages.loss_stage)

    def _on_chunks(self, spans: Sequence[PartLayers], body: Callable[[PartLayers], Program]) -> Program:
        """The bodies of the parts of a stage, each on its chunk."""
        if not self._stages.v_placed:
            return tuple(entry for span in spans for entry in body(span))
        return tuple(entry for span in spans for entry in on_chunk(span.chunk, body(span)))

    def _inputs_backward(self, span: PartLayers) -> Program:
        return self._splits[span.part].inputs if self._splits else self._backward(span)

    def _weights_backward(self, span: PartLayers) -> Program:
        return self._splits[span.part].weights if self._splits else ()

    def _split_backward(self, span: PartLayers) -> SplitBackward:
        """The backward pass of a part in two parts: the gradients of its activations, then those of its weights."""
        gradients = [f"dZ{number}" for number in range(span.first + 1, span.last + 1)]
        others = [each for each in self._spans if each.stage == span.stage and each != span]
        return split_backward(
            self._backward(span),
            [*gradients, between_chunks(f"dH{span.first}")],
            (
                *self._forward(span),
                *(entry for each in others for entry in (*self._forward(each), *self._backward(each))),
            ),
        )

    def _forward(self, span: PartLayers) -> Program:
        program: list[Op | Repeat] = []
        if span.first > 0:
            program += self._arrival(f"H{span.first}", span, -1)
        for number in range(span.first + 1, span.last + 1):
            program += self.layers[number - 1].forward
            if number < len(self.layers):
                program.append(
                    Kernel(name=f"L{number} gelu", function="gelu", into=(f"H{number}",), sources=(f"Z{number}",))
                )
        if span.last == len(self.layers):
            return (*program, *self.loss.forward)
        return (*program, *self._departure(f"H{span.last}", span, 1))

    def _backward(self, span: PartLayers) -> Program:
        program: list[Op | Repeat] = []
        if span.last < len(self.layers):
            program += [*self._arrival(f"dH{span.last}", span, 1), _gelu_gradient(span.last)]
        for number in range(span.last, span.first, -1):
            program += self.layers[number - 1].backward
            if number > span.first + 1:
                program.append(_gelu_gradient(number - 1))
        if span.first == 0:
            return tuple(program)
        return (*program, *self._departure(f"dH{span.first}", span, -1))

    def _arrival(self, tensor: str, span: PartLayers, step: int) -> Program:
        """The receive of a tensor from the part before (-1) or after (1), or the copy from there on the same stage."""
        sender, _ = self._stages.place(span.part + step)
        if sender == span.stage:
            return hand_over(tensor, back=True)
        lane = FORWARD_LANE if step < 0 else BACKWARD_LANE
        return (self._stages.receive(tensor, lane, sender, wraps=span.chunk > 0, of_odd=self._is_odd_in_v(sender)),)

    def _departure(self, tensor: str, span: PartLayers, step: int) -> Program:
        """The message of a tensor to the part before (-1) or after (1), or the copy to there on the same stage."""
        to, _ = self._stages.place(span.part + step)
        if to == span.stage:
            return hand_over(tensor)
        lane = BACKWARD_LANE if step < 0 else FORWARD_LANE
        return (self._stages.send(tensor, lane, to, wraps=span.chunk > 0, of_odd=self._is_odd_in_v(span.stage)),)

    def _is_odd_in_v(self, stage: int) -> bool:
        return self._stages.v_placed and stage % 2 == 1

    def with_copies(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors, activations with a copy for each microbatch in flight."""
        if not self._steps.piped:
            return tensors
        forward, backward = (
            {name for span in self._spans for op in ops_of(part(span)) for name in (*reads(op), *writes(op))}
            for part in (self._forward, self._backward)
        )
        in_flight = self._stages.in_flight_copies
        alternating: Copies = self._stages.gradient_copies if self._stages.v_placed else ((MICROBATCH, 2),)

        def copies(tensor: Tensor) -> Copies:
            activation = tensor.rows.dimension == "rows" and tensor.stages is None  # inputs are on one stage
            if activation and tensor.name in forward & backward:
                return (*tensor.copies, *in_flight)
            return alternating if activation and tensor.name.startswith("dH") else tensor.copies

        copied = [replace(tensor, copies=copies(tensor)) for tensor in tensors]
        if self._splits:
            copied = with_split_copies(copied, self._stages, self._splits, layered=False)
        return [*copied, *handed_over(copied, self._handed_over, self._stages)] if self._stages.v_placed else copied

    @property
    def _handed_over(self) -> tuple[str, str]:
        """The activation between the two chunks of the last stage of a V pipeline, and its gradient."""
        first = self._spans[self._stages.count].first
        return f"H{first}", f"dH{first}"


def _gelu_gradient(number: int) -> Kernel:
    """Gradient of a layer's sum, from the gradient of its GELU output."""
    return Kernel(
        name=f"L{number} gelu gradient",
        function="gelu_gradient",
        into=(f"dZ{number}",),
        sources=(f"Z{number}", f"dH{number}"),
    )
