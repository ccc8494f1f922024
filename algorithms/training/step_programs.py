"""Step programs: the program of a whole training run for the ranks of one pipeline stage.

Each step gathers weights, runs the passes of all microbatches, reduces gradients and updates the parameters (Adam).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quadrille.algorithms.passes.rewriting import rename_tensors
from quadrille.algorithms.schedule.ops import AllReduce, Kernel, Pointwise
from quadrille.algorithms.schedule.program import Program, Repeat, in_sequence
from quadrille.algorithms.training.adam import NORM, STEP, Adam, optimizer_step, zero_moments
from quadrille.algorithms.training.layers import LOSS, Layer, Parameter
from quadrille.algorithms.training.zero import ParameterSharding, gather_weights, scatter_gradients

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
            *optimizer_step(parameters, self.adam, exchange=exchange, counted=counted, across=across),
        )
        return in_sequence((*zero_moments(parameters), Repeat(STEP, self.steps, step)))


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
