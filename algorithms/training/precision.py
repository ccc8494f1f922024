"""Mixed precision: which numbers of a parameter are kept in which dtype.

Where the schedule's dtype has 16 bits, products use weights of 16 bits, and
the optimizer keeps the weights themselves, its two moments and, by default, the
gradient that is added up and reduced, in float32:

    weights 2, gradient 4, optimizer 4 + 4 + 4      18 bytes a parameter
    with gradients of 2 bytes                       16

The gradient of 2 bytes that the backward pass of a layer leaves is there for
one layer at a time.  In float32 and float64 the weights are their own masters:
weights, gradient and two moments, of one dtype.

Source: Micikevicius et al., "Mixed precision training", ICLR 2018; Rajbhandari
et al., "ZeRO", arXiv 1910.02054, section 3.1 (16 bytes).
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, DType, Tensor

GRADIENT_BYTES = (4, 2)


@dataclass(frozen=True, slots=True)
class Precision:
    """What a parameter's numbers are.

    Parameters
    ----------
    dtype : of the schedule: of activations and of the weights that products use
    gradient_bytes : of a gradient as it is added up and reduced, where the dtype has 16 bits

    >>> Precision("bfloat16").master, Precision("bfloat16").gradient, Precision("bfloat16", 2).gradient
    ('float32', 'float32', None)
    """

    dtype: DType
    gradient_bytes: int = 4

    def __post_init__(self) -> None:
        if self.gradient_bytes not in GRADIENT_BYTES:
            raise InputError(f"gradient bytes {self.gradient_bytes}: accepted are 4 and 2")

    @property
    def mixed(self) -> bool:
        """Whether the optimizer has weights of its own."""
        return ITEM_BYTES[self.dtype] == 2

    @property
    def master(self) -> DType | None:
        """Dtype of the optimizer's weights and moments, where it is not the schedule's."""
        return "float32" if self.mixed else None

    @property
    def gradient(self) -> DType | None:
        """Dtype of gradients as they are added up and reduced, where it is not the schedule's."""
        return "float32" if self.mixed and self.gradient_bytes == 4 else None

    @property
    def statistics(self) -> DType | None:
        """Dtype of sums over many elements (moments, the loss, norms), where it is not the schedule's."""
        return "float32" if self.mixed else None


def in_dtype_of_statistics(tensor: Tensor, dtype: DType | None) -> Tensor:
    """The tensor; one of sums over many elements, one or two to a row, in the dtype of statistics."""
    sums = tensor.dtype is None and tensor.columns.dimension in ("one", "two")
    return replace(tensor, dtype=dtype) if sums else tensor
