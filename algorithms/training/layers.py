"""Layers of a training step: tensors, trainable parameters, and the programs of the forward and backward pass."""

from dataclasses import dataclass, replace

from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.kept_elements import Kept
from quadrille.algorithms.schedule.program import Program
from quadrille.algorithms.schedule.tensors import DType, Tensor

LOSS = "loss"
"""Tensor of the loss in every problem, one copy for each step."""
AUXILIARY_LOSS = "auxiliary loss"
"""Tensor of the loss that keeps the loads of experts even: a row for each pipeline stage, one copy for each step."""
SEQUENCE_LOADS = "sequence loads"
"""Tensor of the rows of each expert in every sequence, where several ranks share sequences."""
BUCKET = "bucket"
"""Loop over the buckets of a parameter."""
Start = str
"""Initial values of a parameter: `normal`, `zeros` or `ones`."""


def index_name(name: str) -> str:
    """Name of the index of a pruned parameter's kept elements."""
    return f"{name} index"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A trainable tensor.

    Parameters
    ----------
    tensor : the parameter as a rank stores it; its gradient and moments are distributed alike
    summed_over : axes over which its gradient is a partial sum after the backward pass
    start : initial values
    gradient_dtype : dtype of the gradient, if it differs from the schedule's
    gradient_shard_of : tensor whose buffer stores the gradient, if it is a shard
    buckets : number of buckets in which the optimizer updates it from host memory; 0 if its state is on the device
    pruned : share of the elements that pruning keeps; None for a parameter that is not pruned
    replicas : axis whose ranks hold the same parameter and shard it with ZeRO
    small : whether products read it in 8 or 4 bits (`small_numbers.py`)
    """

    tensor: Tensor
    summed_over: tuple[Axis, ...]
    start: Start = "normal"
    gradient_dtype: DType | None = None
    gradient_shard_of: str | None = None
    buckets: int = 0
    pruned: Kept | None = None
    replicas: Axis = "data"
    small: bool = False

    @property
    def name(self) -> str:
        """Name of the parameter."""
        return self.tensor.name

    @property
    def stored(self) -> Tensor:
        """The parameter as the optimizer keeps it between steps: `tensor`, or all its buckets in host memory."""
        if not self.buckets:
            return self.tensor
        copies = (*self.tensor.copies, (BUCKET, self.buckets))
        return replace(self.tensor, on_host=True, copies=copies, buckets=(BUCKET, self.buckets))

    @property
    def index(self) -> str:
        """Name of the index of its kept elements, if it is pruned."""
        return index_name(self.name)

    @property
    def gradient(self) -> str:
        """Name of the tensor of its gradient."""
        return f"d{self.name}"

    @property
    def gradient_tensor(self) -> Tensor:
        """The gradient, distributed like the parameter."""
        return replace(self.tensor, name=self.gradient, dtype=self.gradient_dtype, shard_of=self.gradient_shard_of)


@dataclass(frozen=True, slots=True)
class Layer:
    """Forward and backward pass of a layer, and its tensors and parameters.

    The backward pass reads the gradient of the layer's output and writes those of its input and parameters.
    """

    tensors: tuple[Tensor, ...]
    parameters: tuple[Parameter, ...]
    forward: Program
    backward: Program
