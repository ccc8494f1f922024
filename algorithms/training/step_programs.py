"""Step programs: the program of a whole training run for the ranks of one pipeline stage.

Each step gathers weights, runs the passes of all microbatches, reduces gradients and updates the parameters (Adam).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from quadrille.algorithms.passes.rewriting import rename_tensors
from quadrille.algorithms.schedule.ops import AllReduce, Kernel, Op, Pointwise
from quadrille.algorithms.schedule.program import Program, Repeat, in_sequence
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.adam import (
    NORM,
    STEP,
    Adam,
    Update,
    moment_names,
    optimizer_step,
    update_parameter,
    zero_moments,
)
from quadrille.algorithms.training.layers import LOSS, Layer, Parameter
from quadrille.algorithms.training.offload import SETS, bucketed_update, offload_tensors
from quadrille.algorithms.training.zero import ParameterSharding, gather_weights, scatter_gradients, updated_weight

LOSS_PART = f"{LOSS} of the microbatch"


@dataclass(frozen=True, slots=True)
class Steps:
    """The parts of a training run that are equal on all pipeline stages.

    Parameters
    ----------
    plan : sharding and precision of the parameters (ZeRO)
    steps : optimizer steps
    adam : optimizer
    piped : whether there are several pipeline stages, over which the gradient norm is reduced
    """

    plan: ParameterSharding
    steps: int
    adam: Adam
    piped: bool

    def program(
        self,
        parameters: Sequence[Parameter],
        passes: Program,
        *,
        losses: bool = True,
        exchange: Program = (),
        counted: Sequence[Parameter] | None = None,
    ) -> Program:
        """All steps of the ranks that hold these parameters.

        Parameters
        ----------
        parameters : parameters of these ranks
        passes : forward and backward passes of all microbatches
        losses : whether these ranks compute the loss
        exchange, counted : as in `optimizer_step`
        """
        across = (AllReduce(name="sum norm over pipeline", axis="pipeline", buffer=NORM),) if self.piped else ()
        zero_loss = (
            (Pointwise(name="zero loss", function="zero", into=LOSS),) if losses and self.plan.accumulates else ()
        )
        step: Program = (
            *zero_loss,
            *gather_weights(parameters, self.plan),
            *passes,
            *scatter_gradients(parameters, self.plan),
            *optimizer_step(
                parameters,
                self.adam,
                exchange=exchange,
                counted=counted,
                across=across,
                update=self._update(parameters),
            ),
        )
        return in_sequence((*zero_moments(parameters), Repeat(STEP, self.steps, step)))

    def _update(self, parameters: Sequence[Parameter]) -> Update:
        """The ops that update a parameter: one kernel, or one for each bucket between copies of its state."""
        ends = accumulate((parameter.buckets for parameter in parameters), initial=0)
        firsts = {parameter.name: end % SETS for parameter, end in zip(parameters, ends, strict=False)}

        def update(parameter: Parameter) -> Sequence[Op | Repeat]:
            if not parameter.buckets:
                return [update_parameter(parameter, self.adam)]
            target, first = updated_weight(parameter, self.plan), firsts[parameter.name]
            return bucketed_update(parameter, target, self.adam, first, on_host=self.plan.updates_on_host)

        return update


def bucket_tensors(parameters: Sequence[Parameter], plan: ParameterSharding, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that an update in buckets needs beside those of the step.

    Raises
    ------
    InputError : a bucket larger than the model
    """
    if plan.buckets is None:
        return []
    plan.buckets.check(parameters)
    by_name = {tensor.name: tensor for tensor in tensors}
    targets = {each.name: by_name[updated_weight(each, plan)] for each in parameters if each.buckets}
    return offload_tensors(parameters, targets, on_host=plan.updates_on_host)


def initial_state(parameters: Sequence[Parameter], plan: ParameterSharding) -> tuple[str, ...]:
    """Tensors that exist at the start: parameters; of those in host memory also moments and the used weights."""
    offloaded = [parameter for parameter in parameters if parameter.buckets]
    return (
        *(parameter.name for parameter in parameters),
        *(name for parameter in offloaded for name in moment_names(parameter.name)),
        *(updated_weight(parameter, plan) for parameter in offloaded),
    )


def accumulate_loss(loss: Layer) -> Layer:
    """The loss layer, with each microbatch's loss added to the batch's."""
    whole = next(tensor for tensor in loss.tensors if tensor.name == LOSS)
    add = Kernel(name="add loss", function="add_to", updates=(LOSS,), sources=(LOSS_PART,))
    part = replace(whole, name=LOSS_PART, copies=(), stages=None)
    return replace(loss, tensors=(*loss.tensors, part), forward=(*rename_tensors(loss.forward, {LOSS: LOSS_PART}), add))


def on_stages(layer: Layer, stages: tuple[int, ...], special: dict[str, tuple[int, ...]] | None = None) -> Layer:
    """The layer with its parameters on these pipeline stages only, some by name on others."""
    parameters = (
        replace(parameter, tensor=replace(parameter.tensor, stages=(special or {}).get(parameter.name, stages)))
        for parameter in layer.parameters
    )
    return replace(layer, parameters=tuple(parameters))
