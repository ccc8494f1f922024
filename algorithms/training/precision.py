"""Mixed precision: the dtypes of weights, master weights, gradients and moments.

With a 16-bit dtype, products read 16-bit weights.  The optimizer stores float32 master weights, two moments and, by
default, the accumulated and reduced gradient:

    weights 2, gradient 4, optimizer 4 + 4 + 4      18 bytes a parameter
    with gradients of 2 bytes                       16

The 2-byte gradient that the backward pass of a layer writes exists for one layer at a time.  In float32 and float64,
weights, gradient and moments have one dtype.

Source: Micikevicius et al., "Mixed precision training", ICLR 2018; Rajbhandari et al., "ZeRO", arXiv 1910.02054,
section 3.1 (16 bytes).
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import Products
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, DType, Tensor
from quadrille.algorithms.training.layers import SEQUENCE_LOADS

GRADIENT_BYTES = (4, 2)


@dataclass(frozen=True, slots=True)
class Precision:
    """Dtypes of a parameter's numbers.

    Parameters
    ----------
    dtype : dtype of the schedule: of activations and of the weights in products
    gradient_bytes : bytes of an accumulated gradient element, with a 16-bit dtype
    products : precision of the products of linear layers (`small_numbers.py`)
    gathers_small : whether weights are stored and gathered in small numbers alone (`--fp8-param-gather`)

    >>> Precision("bfloat16").master, Precision("bfloat16").gradient, Precision("bfloat16", 2).gradient
    ('float32', 'float32', None)
    """

    dtype: DType
    gradient_bytes: int = 4
    products: Products = "dtype"
    gathers_small: bool = False

    def __post_init__(self) -> None:
        if self.gradient_bytes not in GRADIENT_BYTES:
            raise InputError(f"gradient bytes {self.gradient_bytes}: accepted are 4 and 2")

    @property
    def mixed(self) -> bool:
        """Whether the optimizer stores master weights."""
        return ITEM_BYTES[self.dtype] == 2

    @property
    def master(self) -> DType | None:
        """Dtype of master weights and moments, if it differs from the schedule's."""
        return "float32" if self.mixed else None

    @property
    def gradient(self) -> DType | None:
        """Dtype of accumulated and reduced gradients, if it differs from the schedule's."""
        return "float32" if self.mixed and self.gradient_bytes == 4 else None

    @property
    def statistics(self) -> DType | None:
        """Dtype of sums over many elements (moments, loss, norms), if it differs from the schedule's."""
        return "float32" if self.mixed else None


def in_dtype_of_statistics(tensor: Tensor, dtype: DType | None) -> Tensor:
    """Returns the tensor, with the dtype of statistics if it holds sums: one or two columns, or counts."""
    sums = tensor.columns.dimension in ("one", "two") or tensor.name == SEQUENCE_LOADS
    return replace(tensor, dtype=dtype) if sums and tensor.dtype is None else tensor
