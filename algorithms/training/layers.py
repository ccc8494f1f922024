"""What a layer adds to a training step: tensors, parameters, and its two passes."""

from dataclasses import dataclass

from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import DType, Tensor

LOSS = "loss"
"""The tensor of every problem's loss, a copy for each step."""
Start = str
"""How a parameter begins: `normal`, `zeros` or `ones`."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor that is learned.

    Parameters
    ----------
    tensor : the parameter as a rank stores it; its gradient and the optimizer's two moments are laid out alike
    summed_over : axes over which its gradient is still a partial sum after the backward pass
    start : how its elements begin
    gradient_dtype : of its gradient, where it is not the schedule's
    """

    tensor: Tensor
    summed_over: tuple[Axis, ...]
    start: Start = "normal"
    gradient_dtype: DType | None = None

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def gradient(self) -> str:
        return f"d{self.name}"


@dataclass(frozen=True, slots=True)
class Layer:
    """Both passes of a layer, and what they need beside the activations that go in and out.

    The backward pass finds the gradient of the layer's output and leaves that
    of its input and those of its parameters.
    """

    tensors: tuple[Tensor, ...]
    parameters: tuple[Parameter, ...]
    forward: Program
    backward: Program
