"""Optimizer state on the host: float32 weights and moments in host memory, updated on the device bucket by bucket.

The flattened block of a weight matrix is cut into buckets.  For each bucket the device fetches weights and moments,
runs Adam, writes the weights that products read, and stores weights and moments back:

    to device    fetch 1    fetch 2               fetch 3
    compute                 Adam 1      Adam 2               Adam 3
    to host                             store 1   store 2               store 3

Copies run on lanes of their own, one for each direction.  Two sets of bucket buffers are used in turn, so the copies of
a bucket overlap the update of its neighbours.  Reductions of gradients begin together; a bucket waits for the
reduction of its own parameter only.  With clipping, the norm waits for all of them.

Bytes of a parameter in 16-bit precision, of φ parameters on a rank and buckets of b parameters:

    on the device    weights 2, gradient 4 (or 2)              6 φ (or 4 φ) + 2 · 12 b
    on the host      weights 4, moments 4 + 4                  12 φ

Vectors (biases, γ, β) keep their state on the device: they hold less than a thousandth of a transformer's parameters,
and copies of them would only add latency.

Source: Singh, Bhatele, "AxoNN: an asynchronous, message-driven parallel framework for extreme-scale deep learning",
IPDPS 2022, section V.B (memory optimisation).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.algorithms.schedule.ops import HostCopy, Kernel, Op, Pointwise
from quadrille.algorithms.schedule.parts import Coordinates, Part
from quadrille.algorithms.schedule.program import Repeat
from quadrille.algorithms.schedule.tensors import ElementType, Tensor
from quadrille.algorithms.training.adam import Adam, moments, update_parameter
from quadrille.algorithms.training.layers import BUCKET, Parameter
from quadrille.algorithms.training.scheme import ONE

DEFAULT_BUCKET = 1 << 22
"""Parameters of a bucket by default: 48 MiB of state, whose copy takes 200 times the latency of a PCIe 4 link."""
SETS = 2
"""Sets of bucket buffers, which are used in turn."""
BUCKET_SIZE = "bucket"
"""Dimension of the bucket buffers."""
STAGING = ("bucket of weights", "bucket of means", "bucket of squares")
"""Bucket buffers of weights and of both moments."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Choice of the optimizer state in host memory.

    Parameters
    ----------
    bucket : largest number of parameters of a bucket; 0 for `DEFAULT_BUCKET`, or the largest block if that is smaller

    >>> str(Offload()), str(Offload(4096))
    ('optimizer', 'optimizer:4096')
    """

    bucket: int = 0

    def __str__(self) -> str:
        return f"optimizer:{self.bucket}" if self.bucket else "optimizer"


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of a model's parameters on a grid.

    Parameters
    ----------
    offload : size of a bucket
    grid : grid of ranks
    sizes : length of each dimension of the parameters
    """

    offload: Offload
    grid: Grid
    sizes: Mapping[str, int]

    def count(self, stored: Tensor) -> int:
        """Buckets of a parameter, equally many on all ranks; 0 for a vector."""
        if is_vector(stored):
            return 0
        return -(-self._largest_block(stored) // (self.offload.bucket or DEFAULT_BUCKET)) or 1

    def sizes_of(self, parameters: Sequence[Parameter]) -> dict[str, int]:
        """The dimension of the bucket buffers, by its name; empty if all parameters are vectors."""
        size = self._size(parameters)
        return {BUCKET_SIZE: size} if size else {}

    def _size(self, parameters: Sequence[Parameter]) -> int:
        """Parameters of the largest bucket."""
        return max(
            (-(-self._largest_block(each.tensor) // each.buckets) for each in parameters if each.buckets), default=0
        )

    def _largest_block(self, tensor: Tensor) -> int:
        """Elements of the largest block on any rank: cuts put longer parts first."""
        first_rank = Coordinates(self.grid, self.sizes, dict.fromkeys(AXES, 0))
        return replace(tensor, stages=None, held_at=None, buckets=None).block(first_rank).elements

    def check(self, parameters: Sequence[Parameter]) -> None:
        """Checks that a bucket is not larger than the model.

        Raises
        ------
        InputError : names the bucket and the number of parameters
        """
        total = sum(self._parameters(parameter.tensor) for parameter in parameters)
        if self.offload.bucket > total:
            raise InputError(
                f"offload {self.offload}: the model has {total} parameters; a bucket of 1 to {total} is accepted"
            )

    def _parameters(self, tensor: Tensor) -> int:
        """Parameters of all copies of a tensor, over all ranks."""
        rows, columns = (self.sizes[part.dimension] * part.unit for part in (tensor.rows, tensor.columns))
        layers = (count if isinstance(count, int) else self.sizes.get(loop, 1) for loop, count in tensor.copies)
        return rows * columns * prod(layers)


def is_vector(tensor: Tensor) -> bool:
    """Whether a parameter is a vector, whose optimizer state stays on the device."""
    return ONE.dimension in (tensor.rows.dimension, tensor.columns.dimension)


def parse_offload(text: str) -> Offload | None:
    """The offload that a text describes; None for an empty text.

    >>> parse_offload("optimizer:4096"), parse_offload("")
    (Offload(bucket=4096), None)

    Raises
    ------
    InputError : another text than optimizer or optimizer:BUCKET, with a bucket from 1
    """
    if not text:
        return None
    word, _, bucket = text.partition(":")
    if word != "optimizer":
        raise InputError(f"offload {text!r}: accepted are optimizer and optimizer:BUCKET, a number of parameters")
    if not bucket and ":" not in text:
        return Offload()
    if not (bucket.isascii() and bucket.isdigit() and int(bucket) > 0):
        raise InputError(f"offload {text!r}: a bucket of 1 parameter or more is accepted")
    return Offload(int(bucket))


def offload_tensors(parameters: Sequence[Parameter], targets: Mapping[str, Tensor]) -> list[Tensor]:
    """Bucket buffers, and the views of parameters, moments, gradients and used weights that hold one bucket.

    Parameters
    ----------
    parameters : parameters of the model
    targets : by parameter, the tensor that the update writes for products
    """
    offloaded = [parameter for parameter in parameters if parameter.buckets]
    if not offloaded:
        return []
    dtype = offloaded[0].tensor.dtype
    tensors = [_staging_buffer(name, dtype) for name in STAGING]
    for parameter in offloaded:
        buckets, gradient = (BUCKET, parameter.buckets), parameter.gradient_tensor
        for tensor, buffer in zip((parameter.stored, *moments(parameter)), STAGING, strict=True):
            staged = replace(tensor, name=_staged(tensor.name), copies=(), first_indices=(), on_host=False)
            tensors.append(replace(staged, staged_in=buffer))
        for whole in (gradient, targets[parameter.name]):
            view = replace(whole, name=_bucket(whole.name), buckets=buckets, shard_of=whole.name, value_of=None)
            tensors.append(view)
    return tensors


def _staging_buffer(name: str, dtype: ElementType | None) -> Tensor:
    """The bucket buffers of weights or of a moment."""
    return Tensor(name, ONE, Part(BUCKET_SIZE), copies=((BUCKET, SETS),), dtype=dtype)


def bucketed_update(parameter: Parameter, target: str, adam: Adam, first: int) -> list[Op | Repeat]:
    """Ops that update a parameter, bucket by bucket.

    Parameters
    ----------
    target : tensor that the update writes for products
    first : first index of the loop, so that the set of buffers changes from one parameter to the next
    """
    states = [tensor.name for tensor in (parameter.stored, *moments(parameter))]
    names = {name: _staged(name) for name in states} | {parameter.gradient: _bucket(parameter.gradient)}
    update = update_parameter(parameter, adam)
    update = replace(
        update,
        updates=tuple(names[name] for name in update.updates),
        sources=tuple(names[name] for name in update.sources),
    )
    write = _write(_staged(parameter.name), _bucket(target), casts=parameter.tensor.dtype is not None)
    body = (*_fetches(states), update, write, *_stores(states))
    return [Repeat(BUCKET, parameter.buckets, body, first=first)]


def _fetches(names: Sequence[str]) -> Iterator[Op]:
    for name in names:
        yield HostCopy(name=f"fetch {name}", source=name, into=_staged(name))


def _stores(names: Sequence[str]) -> Iterator[Op]:
    for name in names:
        yield HostCopy(name=f"store {name}", source=_staged(name), into=name, to_host=True)


def _write(source: str, into: str, *, casts: bool) -> Op:
    """The op that writes the used weights."""
    if casts:
        return Kernel(name=f"write {into}", function="cast", into=(into,), sources=(source,))
    return Pointwise(name=f"write {into}", function="copy", into=into, sources=(source,))


def _staged(name: str) -> str:
    return f"{name} staged"


def _bucket(name: str) -> str:
    return f"{name} bucket"
