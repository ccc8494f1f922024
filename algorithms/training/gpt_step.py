"""GPT step: the programs of a GPT training step, one for each kind of pipeline stage (first, between, last).

    first stage    embedding, its layers                    sends X, receives dX
    between        its layers                               receives and sends X and dX
    last stage     its layers, normalisation, loss          receives X, sends dX

In a V pipeline, the first stage also has normalisation and loss, and the last stage hands X and dX over between its
two chunks:

    first stage    embedding, its layers, loss              exchanges X and dX with the next stage, in both chunks
    between        its layers                               exchanges X and dX with both stages beside it
    last stage     its layers                               copies X from its first chunk to its second, dX back

With a shared vocabulary table, the first and last stage each compute a share of its gradient and exchange them before
the optimizer step.  In a V pipeline, both shares are on the first stage.  Without a pipeline, everything is one
program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from quadrille.algorithms.schedule.expressions import Affine, IntExpression, Max, Min, Sum
from quadrille.algorithms.schedule.ops import Kernel, Op, Pointwise, Receive, Send, reads, writes
from quadrille.algorithms.schedule.program import Program, Repeat
from quadrille.algorithms.schedule.program import ops as ops_of
from quadrille.algorithms.schedule.schedule import Role
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.layers import Layer, Parameter
from quadrille.algorithms.training.normalisation import NORM_VECTORS
from quadrille.algorithms.training.pipeline import BACKWARD_LANE, CHUNK, FORWARD_LANE, Stages
from quadrille.algorithms.training.step_programs import Steps, accumulate_loss, on_stages
from quadrille.algorithms.training.transformer import LAYER
from quadrille.algorithms.training.v_chunks import hand_over, handed_over, on_chunk
from quadrille.algorithms.training.vocabulary import TABLE
from quadrille.algorithms.training.zero import ParameterSharding, shard_layer
from quadrille.algorithms.training.zero_bubble import SplitBackward, split_backward, with_split_copies

OTHER_END_GRADIENT = f"d{TABLE} of the other end"
ON_ALL_CHUNKS = 1


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """Layers of a model.

    Parameters
    ----------
    ends : embedding, and what the table's gradient needs
    block : layer that represents all layers
    last, loss : final normalisation and loss
    """

    ends: Layer
    block: Layer
    last: Layer
    loss: Layer


NO_LAYER = Layer((), (), (), ())


class GptStep:
    """Programs of the step, and the tensors that they add to those of the layers.

    Parameters
    ----------
    model : layers of the model
    stages : stages of the pipeline
    plan : sharding and precision of the parameters
    steps : optimizer steps
    adam : optimizer
    balance : ops before (forward) and after (backward) all passes of a step, which add up an auxiliary loss
    """

    def __init__(
        self,
        model: ModelLayers,
        stages: Stages,
        plan: ParameterSharding,
        steps: int,
        adam: Adam,
        balance: Layer = NO_LAYER,
    ) -> None:
        self._stages, self._steps, self._balance = stages, Steps(plan, steps, adam, stages.count > 1), balance
        ends, head, loss, last = model.ends, model.last, model.loss, stages.loss_stage
        shared_gradients = _shared_gradients(loss, ends)
        if stages.count > 1:
            ends = on_stages(ends, (0,), {TABLE: (0, last)} if shared_gradients and last else None)
            head, loss = on_stages(head, (last,)), on_stages(loss, (last,))
        table = [parameter for parameter in ends.parameters if parameter.name == TABLE and shared_gradients]
        self._zero_shared_gradients: Program = tuple(
            Pointwise(name=f"zero {name}", function="zero", into=name) for name in shared_gradients
        )
        self._ends = shard_layer(ends, plan)
        self._tail = shard_layer(Layer((), tuple(table), (), _after(ends.backward, shared_gradients)), plan)
        self._block = shard_layer(stages.staged(model.block, "batch"), plan)
        self._last = shard_layer(head, plan)
        self._loss = shard_layer(accumulate_loss(loss) if plan.accumulates else loss, plan, table)
        self._split = self._split_backward() if stages.splits else None

    def _split_backward(self) -> SplitBackward:
        """The backward pass of a layer in two parts.

        The embedding, the loss and the gradients of normalisations stay in B.  In W, the last two would keep the
        gradients of logits and of all normalised activations.
        """
        others = (*self._block.forward, *self._ends.forward, *self._ends.backward, *self._head())
        parameters = [parameter for parameter in self._block.parameters if parameter.name.split()[-1] in NORM_VECTORS]
        gradients = ("dX", *(parameter.gradient for parameter in parameters))
        return split_backward(self._block.backward, gradients, others)

    def with_copies(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors, with the copies that passes of weights need, and those that a V pipeline hands over."""
        if self._split:
            tensors = with_split_copies(tensors, self._stages, [self._split], layered=True)
        return [*tensors, *handed_over(tensors, ("X", "dX"), self._stages)] if self._stages.v_placed else tensors

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (self._ends, self._block, self._last, self._loss)

    @property
    def parameters(self) -> list[Parameter]:
        return [parameter for layer in self.layers for parameter in layer.parameters]

    def tensors(self) -> list[Tensor]:
        """Tensors of the step itself."""
        if not self._steps.piped or self._stages.v_placed:
            return [*self._balance.tensors]
        shared = self._tail.parameters
        ends = (replace(parameter.gradient_tensor, name=OTHER_END_GRADIENT, shard_of=None) for parameter in shared)
        return [*ends, *self._balance.tensors]

    def roles(self) -> tuple[Role, ...]:
        """A program for each kind of stage."""
        if not self._steps.piped:
            return (Role(self._program(self.parameters, self._alone())),)
        if self._stages.v_placed:
            return self._v_roles()
        count, block = self._stages.count, list(self._block.parameters)
        first = [*self._ends.parameters, *block]
        counted = [*block, *self._last.parameters, *self._loss.parameters]
        last = [*self._tail.parameters, *counted]
        program = self._program(first, self._slots("first"), losses=False, exchange=self._exchange(0))
        roles = [Role(program, "pipeline", 0, 1)]
        if count > 2:
            program = self._program(block, self._slots("between"), losses=False)
            roles.append(Role(program, "pipeline", 1, count - 1))
        program = self._program(last, self._slots("last"), exchange=self._exchange(count - 1), counted=counted)
        return (*roles, Role(program, "pipeline", count - 1, count))

    def _program(self, parameters: Sequence[Parameter], passes: Program, **options: Any) -> Program:
        """All steps of the ranks that hold these parameters; `options` as in `Steps.program`."""
        whole = (*self._balance.forward, *passes, *self._balance.backward)
        return self._steps.program(parameters, whole, **options)

    def _alone(self) -> Program:
        """Forward and backward pass of all layers."""
        forward: Program = (Repeat(LAYER, 1, self._ends.forward), *self._layers_forward())
        return self._stages.interleaved(forward, (*self._head(), *self._layers_backward(), *self._ends.backward))

    def _layers_forward(self) -> Program:
        return (Repeat(LAYER, self._stages.length(), self._block.forward, first=self._stages.begin),)

    def _layers_backward(self) -> Program:
        return self._each_layer_backwards(self._split.inputs if self._split else self._block.backward)

    def _layers_weights(self) -> Program:
        return self._each_layer_backwards(self._split.weights) if self._split else ()

    def _each_layer_backwards(self, body: Program) -> Program:
        return (Repeat(LAYER, self._stages.length(), body, first=self._stages.begin, backwards=True),)

    def _head(self) -> Program:
        """Normalisation and loss, forward and backward, on the output of the last layer."""
        last, loss = self._last, self._loss
        body = (*last.forward, *loss.forward, *loss.backward, *last.backward)
        return (Repeat(LAYER, 1, body, first=self._stages.layers),)

    def _slots(self, kind: str) -> Program:
        """Forward and backward passes of one stage, in pipeline order."""
        chunks, wraps = self._stages.chunks, self._stages.chunks > 1
        first, last = kind == "first", kind == "last"
        embeds = _on_first_chunk() if wraps else ON_ALL_CHUNKS
        ends = _on_last_chunk(chunks) if wraps else ON_ALL_CHUNKS
        embed: Program = (Repeat(LAYER, 1, self._ends.forward),)
        towards_table: Program = (*self._zero_shared_gradients, *self._ends.backward)
        head: Program = (*self._head(), *self._tail.backward)
        forward = (
            *(_on_some_chunks(embeds, embed) if first else ()),
            *(_on_some_chunks(_not_on_first_chunk(), self._receive_x(True)) if first and wraps else ()),
            *(() if first else self._receive_x(False)),
            *self._layers_forward(),
            *(_on_some_chunks(_not_on_last_chunk(chunks), self._send_x(True)) if last and wraps else ()),
            *(() if last else self._send_x(False)),
        )
        backward = (
            *(_on_some_chunks(ends, head) if last else ()),
            *(_on_some_chunks(_not_on_last_chunk(chunks), self._receive_dx(True)) if last and wraps else ()),
            *(() if last else self._receive_dx(False)),
            *self._layers_backward(),
            *(_on_some_chunks(embeds, towards_table) if first else ()),
            *(_on_some_chunks(_not_on_first_chunk(), self._send_dx(True)) if first and wraps else ()),
            *(() if first else self._send_dx(False)),
        )
        return self._stages.interleaved(forward, backward, self._layers_weights())

    def _v_roles(self) -> tuple[Role, ...]:
        """A program for each kind of stage of a V pipeline."""
        count, block = self._stages.count, list(self._block.parameters)
        ends = [*self._ends.parameters, *block, *self._last.parameters, *self._loss.parameters]
        roles = [Role(self._program(ends, self._v_passes("first", is_odd=False)), "pipeline", 0, 1)]
        between = [
            self._program(block, self._v_passes("between", is_odd=is_odd), losses=False) for is_odd in (False, True)
        ]
        roles += [Role(between[stage % 2], "pipeline", stage, stage + 1) for stage in range(1, count - 1)]
        program = self._program(block, self._v_passes("last", is_odd=count % 2 == 0), losses=False)
        return (*roles, Role(program, "pipeline", count - 1, count))

    def _v_passes(self, kind: str, *, is_odd: bool) -> Program:
        """Forward, backward and W passes of one stage of a V pipeline, in pipeline order."""
        begin, end = self._stages.begin, Sum(self._stages.begin, self._stages.length())
        receive_x, send_x, receive_dx, send_dx = (
            self._v_message(tensor, receives=receives, of_odd=is_odd != receives)
            for tensor in ("X", "dX")
            for receives in (True, False)
        )
        embed, head, towards_table = self._v_ends()
        keep_x, take_x = hand_over("X", end), hand_over("X", begin, back=True)
        keep_dx, take_dx = hand_over("dX"), hand_over("dX", back=True)
        first, last = kind == "first", kind == "last"
        forwards, backwards = self._layers_forward(), self._layers_backward()
        forward = (
            *on_chunk(0, (*(embed if first else receive_x[0]), *forwards, *(keep_x if last else send_x[0]))),
            *on_chunk(1, (*(take_x if last else receive_x[1]), *forwards, *(() if first else send_x[1]))),
        )
        backward = (
            *on_chunk(1, (*(head if first else receive_dx[1]), *backwards, *(keep_dx if last else send_dx[1]))),
            *on_chunk(
                0, (*(take_dx if last else receive_dx[0]), *backwards, *(towards_table if first else send_dx[0]))
            ),
        )
        return self._stages.interleaved(forward, backward, self._layers_weights())

    def _v_ends(self) -> tuple[Program, Program, Program]:
        """Embedding, head with loss, and the backward pass of the embedding on the first stage of a V pipeline.

        With a shared table, the share of each end is added to the sum of the step if there are several microbatches.
        """
        embed: Program = (Repeat(LAYER, 1, self._ends.forward),)
        if not self._steps.plan.accumulates:
            return embed, self._head(), self._ends.backward
        towards_table: Program = (*self._zero_shared_gradients, *self._ends.backward)
        return embed, (*self._head(), *self._tail.backward), towards_table

    def _v_message(self, tensor: str, *, receives: bool, of_odd: bool) -> tuple[Program, Program]:
        """The message of X or dX that begins or ends a pass, through the first and through the second chunk."""
        stages, forward = self._stages, tensor == "X"
        lane = FORWARD_LANE if forward else BACKWARD_LANE
        layer = stages.begin if receives else Sum(stages.begin, stages.length())
        message = stages.receive if receives else stages.send
        towards_first = receives == forward
        ops = (
            message(tensor, lane, _stage(-1 if towards_first == (chunk == 0) else 1), wraps=chunk == 1, of_odd=of_odd)
            for chunk in range(2)
        )
        first, second = (((Repeat(LAYER, 1, (op,), first=layer),) if forward else (op,)) for op in ops)
        return first, second

    def _receive_x(self, wraps: bool) -> Program:
        op = self._stages.receive("X", FORWARD_LANE, _stage(-1), wraps=wraps)
        return (Repeat(LAYER, 1, (op,), first=self._stages.begin),)

    def _send_x(self, wraps: bool) -> Program:
        op = self._stages.send("X", FORWARD_LANE, _stage(1), wraps=wraps)
        return (Repeat(LAYER, 1, (op,), first=Sum(self._stages.begin, self._stages.length())),)

    def _receive_dx(self, wraps: bool) -> Program:
        return (self._stages.receive("dX", BACKWARD_LANE, _stage(1), wraps=wraps),)

    def _send_dx(self, wraps: bool) -> Program:
        return (self._stages.send("dX", BACKWARD_LANE, _stage(-1), wraps=wraps),)

    def _exchange(self, stage: int) -> Program:
        """Exchange and addition of both ends' shares of a shared table's gradient."""
        if not self._tail.parameters:
            return ()
        last = self._stages.count - 1
        gradient, other_end = f"d{TABLE}", last - stage
        send = Send(name=f"send {gradient}", axis="pipeline", to=other_end, source=gradient)
        receive = Receive(name=f"receive {gradient}", axis="pipeline", sender=other_end, into=OTHER_END_GRADIENT)
        add = Kernel(
            name=f"add {OTHER_END_GRADIENT}", function="add_to", updates=(gradient,), sources=(OTHER_END_GRADIENT,)
        )
        return (send, receive, add) if stage == 0 else (receive, send, add)


def _shared_gradients(loss: Layer, ends: Layer) -> tuple[str, ...]:
    """Gradients that the loss initialises and the embedding adds to: those of a shared table."""
    left = {name for op in ops_of(loss.backward) for name in writes(op)}
    added = {name for op in ops_of(ends.backward) if isinstance(op, Kernel) for name in op.updates}
    return tuple(sorted(left & added))


def _after(program: Program, shared_gradients: tuple[str, ...]) -> Program:
    """Ops on these gradients after the last addition to them."""
    reading, remaining = set(shared_gradients), list[Op | Repeat]()
    for entry in program:
        inside = list(ops_of(entry.body)) if isinstance(entry, Repeat) else [entry]
        if any(isinstance(op, Kernel) and set(op.updates) & set(shared_gradients) for op in inside):
            remaining = []
        elif any(reading & set(reads(op)) for op in inside):
            remaining.append(entry)
            reading |= {name for op in inside for name in writes(op)}
    return tuple(remaining)


def _on_some_chunks(count: IntExpression, body: Program) -> Program:
    """A body that only some chunks run."""
    return body if isinstance(count, int) and count == ON_ALL_CHUNKS else (Repeat("once", count, body),)


def _on_first_chunk() -> IntExpression:
    return Max(0, Affine(CHUNK, -1, 1))


def _not_on_first_chunk() -> IntExpression:
    return Min(1, Affine(CHUNK))


def _on_last_chunk(chunks: int) -> IntExpression:
    return Max(0, Affine(CHUNK, 1, 2 - chunks))


def _not_on_last_chunk(chunks: int) -> IntExpression:
    return Min(1, Affine(CHUNK, -1, chunks - 1))


def _stage(distance: int) -> Affine:
    return Affine("pipeline", 1, distance, modulo="pipeline")
