"""Optimizer state on the host: float32 weights and moments in host memory, updated on the device bucket by bucket.

The flattened block of a weight matrix is cut into buckets.  For each bucket the device fetches weights and moments,
runs Adam, writes the weights that products read, and stores weights and moments back:

    to device    fetch 1    fetch 2               fetch 3
    compute                 Adam 1      Adam 2               Adam 3
    to host                             store 1   store 2               store 3

If the cores of the host run Adam (`optimizer:host`), a bucket of gradients goes to the host, and the weights that
products read come back: 4 + 2 bytes of a parameter instead of 12 + 12, and no bucket buffers on the device.

Copies run on lanes of their own, one for each direction.  Two sets of bucket buffers are used in turn, so the copies of
a bucket overlap the update of its neighbours.  Reductions of gradients begin together; a bucket waits for the
reduction of its own parameter only.  With clipping, the norm waits for all of them.

Bytes of a parameter in 16-bit precision, of φ parameters on a rank and buckets of b parameters:

    on the device    weights 2, gradient 4 (or 2)              6 φ (or 4 φ) + 2 · 12 b
    on the host      weights 4, moments 4 + 4                  12 φ

Buckets of a pruned parameter with compressed states (`sparsity.py`) cut the compressed vector: host memory, bucket
buffers and copies shrink to the share of the kept elements.  The index stays on the device.  If data does not shard the
weights, the update of a bucket expands its weights into the dense weights, whose other elements stay zero.

Vectors (biases, γ, β) keep their state on the device: they hold less than a thousandth of a transformer's parameters,
and copies of them would only add latency.

Source: Singh, Bhatele, "AxoNN: an asynchronous, message-driven parallel framework for extreme-scale deep learning",
IPDPS 2022 (memory optimisation); Ren et al., "ZeRO-Offload: democratizing billion-scale model training", USENIX ATC
2021 (Adam on the host).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import AXES, Axis, Grid
from quadrille.algorithms.schedule.ops import HostCopy, Kernel, Op, Pointwise
from quadrille.algorithms.schedule.parts import Coordinates, Part
from quadrille.algorithms.schedule.program import Repeat
from quadrille.algorithms.schedule.tensors import ElementType, Tensor
from quadrille.algorithms.training.adam import Adam, moments, update_parameter
from quadrille.algorithms.training.layers import BUCKET, Parameter
from quadrille.algorithms.training.scheme import ONE
from quadrille.algorithms.training.sparsity import expand_bucket, index_tensor
from quadrille.algorithms.units import parse_integer

DEFAULT_BUCKET = 1 << 22
"""Parameters of a bucket by default: 48 MiB of state, whose copy takes 200 times the latency of a PCIe 4 link."""
SETS = 2
"""Sets of bucket buffers, which are used in turn."""
BUCKET_SIZE = "bucket"
"""Dimension of the bucket buffers."""
STAGING = ("bucket of weights", "bucket of means", "bucket of squares")
"""Bucket buffers of weights and of both moments."""
KEPT_STAGING = "bucket of kept weights"
"""Bucket buffers of compressed used weights, if the cores of the host run Adam and the device expands the weights."""
HOST_STAGING = ("bucket of gradients", "bucket of used weights")
"""Bucket buffers in host memory, if the cores of the host run Adam."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Choice of the optimizer state in host memory.

    Parameters
    ----------
    bucket : largest number of parameters of a bucket; 0 for `DEFAULT_BUCKET`, or the largest block if that is smaller
    updates_on_host : whether the cores of the host run Adam, instead of the device

    >>> str(Offload()), str(Offload(4096)), str(Offload(4096, updates_on_host=True))
    ('optimizer', 'optimizer:4096', 'optimizer:host:4096')
    """

    bucket: int = 0
    updates_on_host: bool = False

    def __str__(self) -> str:
        words = ["optimizer", *(["host"] if self.updates_on_host else []), *([str(self.bucket)] if self.bucket else [])]
        return ":".join(words)


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
        """Elements of the largest block on any rank.

        Cuts put longer parts first, but any compressed block may cut tiles.
        """
        whole = replace(tensor, stages=None, held_at=None, buckets=None)
        first: dict[Axis, int] = dict.fromkeys(AXES, 0)
        axes = [axis for axis in AXES if whole.kept is not None and axis in whole.cut_over - {"data", "pipeline"}]
        return max(
            whole.block(Coordinates(self.grid, self.sizes, first | dict(zip(axes, along, strict=True)))).elements
            for along in product(*(range(self.grid.length(axis)) for axis in axes))
        )

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
        """Parameters of all copies of a tensor, over all ranks; of a compressed tensor, its kept elements."""
        rows, columns = (self.sizes[part.dimension] * part.unit for part in (tensor.rows, tensor.columns))
        layers = (count if isinstance(count, int) else self.sizes.get(loop, 1) for loop, count in tensor.copies)
        return (rows * columns if tensor.kept is None else tensor.kept.of_matrix(rows, columns)) * prod(layers)


def is_vector(tensor: Tensor) -> bool:
    """Whether a parameter is a vector, whose optimizer state stays on the device."""
    return ONE.dimension in (tensor.rows.dimension, tensor.columns.dimension)


def parse_offload(text: str) -> Offload | None:
    """The offload that a text describes; None for an empty text.

    >>> parse_offload("optimizer:4096"), parse_offload("")
    (Offload(bucket=4096, updates_on_host=False), None)
    >>> parse_offload("optimizer:host")
    Offload(bucket=0, updates_on_host=True)

    Raises
    ------
    InputError : another text than optimizer[:host][:BUCKET], with a bucket from 1
    """
    if not text:
        return None
    word, *rest = text.split(":")
    on_host = rest[:1] == ["host"]
    sizes = rest[1:] if on_host else rest
    if word != "optimizer" or len(sizes) > 1:
        raise InputError(
            f"offload {text[:80]!r}: accepted are optimizer[:BUCKET] and optimizer:host[:BUCKET], BUCKET in parameters"
        )
    size = parse_integer(sizes[0]) if sizes else 0
    if size is None or (sizes and size < 1):
        raise InputError(f"offload {text[:80]!r}: a bucket of 1 parameter or more is accepted")
    return Offload(size, updates_on_host=on_host)


def offload_tensors(parameters: Sequence[Parameter], targets: Mapping[str, Tensor], *, on_host: bool) -> list[Tensor]:
    """Bucket buffers, and the views of parameters, moments, gradients and used weights that hold one bucket.

    Parameters
    ----------
    parameters : parameters of the model
    targets : by parameter, the tensor that the update writes for products
    on_host : whether the cores of the host run Adam
    """
    offloaded = [parameter for parameter in parameters if parameter.buckets]
    if not offloaded:
        return []
    tensors = _staging_buffers(offloaded, on_host=on_host)
    for parameter in offloaded:
        gradient, target = parameter.gradient_tensor, targets[parameter.name]
        used = _kept_weights(parameter) if expands(parameter) else target
        tensors += _views(parameter, (gradient, index_tensor(parameter) if expands(parameter) else target))
        staged = (gradient, used) if on_host else (parameter.stored, *moments(parameter))
        for tensor, buffer in zip(staged, HOST_STAGING if on_host else STAGING, strict=True):
            tensors.append(_in_buffer(parameter, tensor, _staged(tensor.name), buffer, on_host=on_host))
        if on_host and expands(parameter):
            tensors.append(_in_buffer(parameter, used, _bucket(used.name), KEPT_STAGING, on_host=False))
    return tensors


def expands(parameter: Parameter) -> bool:
    """Whether the update of a compressed parameter writes dense weights: data does not shard the parameter."""
    return parameter.tensor.kept is not None and "data" not in parameter.tensor.shards


def _kept_weights(parameter: Parameter) -> Tensor:
    """The compressed weights that the device expands, in the dtype of products."""
    return replace(parameter.tensor, name=f"{parameter.name} kept", dtype=None)


def _views(parameter: Parameter, wholes: Sequence[Tensor]) -> Iterator[Tensor]:
    """One bucket of each of these tensors, in the tensor's own buffer."""
    for whole in wholes:
        buckets = (BUCKET, parameter.buckets)
        yield replace(whole, name=_bucket(whole.name), buckets=buckets, value_of=None, shard_of=whole.name)


def _in_buffer(parameter: Parameter, tensor: Tensor, name: str, buffer: str, *, on_host: bool) -> Tensor:
    """One bucket of a tensor in a bucket buffer."""
    staged = replace(tensor, name=name, copies=(), first_indices=(), shard_of=None, value_of=None)
    return replace(staged, buckets=(BUCKET, parameter.buckets), on_host=on_host, staged_in=buffer)


def _staging_buffers(offloaded: Sequence[Parameter], *, on_host: bool) -> list[Tensor]:
    """The bucket buffers of all kinds."""
    first = offloaded[0]
    if not on_host:
        return [_staging_buffer(name, first.tensor.dtype, on_host=False) for name in STAGING]
    dtypes = (first.gradient_dtype, None)
    buffers = [_staging_buffer(name, dtype, on_host=True) for name, dtype in zip(HOST_STAGING, dtypes, strict=True)]
    if any(map(expands, offloaded)):
        buffers.append(_staging_buffer(KEPT_STAGING, None, on_host=False))
    return buffers


def _staging_buffer(name: str, dtype: ElementType | None, *, on_host: bool) -> Tensor:
    """The bucket buffers of one kind."""
    return Tensor(name, ONE, Part(BUCKET_SIZE), copies=((BUCKET, SETS),), dtype=dtype, on_host=on_host)


def bucketed_update(parameter: Parameter, target: str, adam: Adam, first: int, *, on_host: bool) -> list[Op | Repeat]:
    """Ops that update a parameter, bucket by bucket.

    Parameters
    ----------
    target : tensor that the update writes for products
    first : first index of the loop, so that the set of buffers changes from one parameter to the next
    on_host : whether the cores of the host run Adam
    """
    body = _update_on_host(parameter, target, adam) if on_host else _update_on_device(parameter, target, adam)
    return [Repeat(BUCKET, parameter.buckets, tuple(body), first=first)]


def _update_on_host(parameter: Parameter, target: str, adam: Adam) -> Iterator[Op]:
    """Ops of a bucket: the gradient goes to the host, and the weights that products read come back."""
    gradient, update = parameter.gradient, update_parameter(parameter, adam)
    yield HostCopy(name=f"fetch {gradient}", source=_bucket(gradient), into=_staged(gradient), to_host=True)
    yield replace(update, sources=(_staged(gradient),), on_host=True)
    used = _kept_weights(parameter).name if expands(parameter) else target
    write = _write(parameter.name, _staged(used), casts=parameter.tensor.dtype is not None)
    yield replace(write, on_host=True)
    yield HostCopy(name=f"store {target}", source=_staged(used), into=_bucket(used))
    if expands(parameter):
        yield expand_bucket(parameter, _bucket(parameter.index), _bucket(used), target)


def _update_on_device(parameter: Parameter, target: str, adam: Adam) -> Iterator[Op]:
    """Ops of a bucket: weights and moments come from the host, and go back."""
    states = [tensor.name for tensor in (parameter.stored, *moments(parameter))]
    names = {name: _staged(name) for name in states} | {parameter.gradient: _bucket(parameter.gradient)}
    update = update_parameter(parameter, adam)
    update = replace(
        update,
        updates=tuple(names[name] for name in update.updates),
        sources=tuple(names[name] for name in update.sources),
    )
    if expands(parameter):
        write: Op = expand_bucket(parameter, _bucket(parameter.index), _staged(parameter.name), target)
    else:
        write = _write(_staged(parameter.name), _bucket(target), casts=parameter.tensor.dtype is not None)
    yield from (*_fetches(states), update, write, *_stores(states))


def _fetches(names: Sequence[str]) -> Iterator[Op]:
    for name in names:
        yield HostCopy(name=f"fetch {name}", source=name, into=_staged(name))


def _stores(names: Sequence[str]) -> Iterator[Op]:
    for name in names:
        yield HostCopy(name=f"store {name}", source=_staged(name), into=name, to_host=True)


def _write(source: str, into: str, *, casts: bool) -> Kernel | Pointwise:
    """The op that writes the used weights."""
    if casts:
        return Kernel(name=f"write {into}", function="cast", into=(into,), sources=(source,))
    return Pointwise(name=f"write {into}", function="copy", into=into, sources=(source,))


def _staged(name: str) -> str:
    return f"{name} staged"


def _bucket(name: str) -> str:
    return f"{name} bucket"
