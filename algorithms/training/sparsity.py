"""Pruned training (SAMO): products read dense weights with zeros; optimizer states are compressed behind one index.

A mask prunes the weight matrices of linear layers; embeddings, biases and normalisations stay dense.  Gradients of
pruned elements are set to zero in every microbatch, so pruned weights stay zero.

    --sparsity S                   weights, gradients and moments are dense, with zeros: the reference
    --sparsity S --sparse-states   they are compressed vectors of the kept elements, with f = 1 - S:

    W                        compressed master weights
    W index                  places of the kept elements, 4 bytes each, shared by all compressed vectors of W
    W held                   dense weights that products read: `expand` writes them at the start of a step, or, with
                             ZeRO 3, before each use
    W gathered               (ZeRO) the compressed weights of all ranks along data
    dW of the microbatch     dense gradient of one layer, which `compress` or `compress_add` reads at once
    dW                       compressed gradient: reductions over data send the share f

With the optimizer in host memory (`offload.py`), the buckets of W and its moments are compressed.  The update of a
bucket writes its kept weights into W held, whose other elements stay zero; with ZeRO, into W cast, which is gathered
and expanded at the start of a step, or before each use.

Bytes of a parameter, with s = 16-bit weights and g = bytes of a gradient element:

    dense       2 + g + 12                 18 (g = 4), 16 (g = 2); float32: 16
    compressed  2 + f (4 + 8 + g + 4)      22 - 20 S,  20 - 18 S;  float32: 24 - 20 S
    break-even  S = 0.2,  0.22;  float32: 0.4

SAMO counts 20 bytes and 26 - 24 S, with a 16-bit gradient beside the 32-bit gradient, and a 16-bit copy of the
compressed weights: break-even at S = 0.25.  Here the first exists for one layer at a time, and `expand` rounds.

A mask is a function of the matrix alone, so it is the same on every grid.  Each tile of 16 x 64 elements keeps an exact
number (`kept_elements.py`): the elements with the largest initial magnitude, or with the largest random numbers of a
counter-based generator.

Source: Singh, Bhatele, "Exploiting Sparsity in Pruned Neural Networks to Optimize Large Model Training", IPDPS 2023,
sections III and IV.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.kept_elements import TILE, Kept
from quadrille.algorithms.schedule.ops import Kernel
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.adam import moment_names
from quadrille.algorithms.training.layers import Layer, Parameter
from quadrille.algorithms.training.layers import index_name as index_name

PruneMethod = Literal["magnitude", "random"]
INDEX = "int32"
"""Element type of an index."""


@dataclass(frozen=True, slots=True)
class Pruning:
    """How a model is pruned.

    Parameters
    ----------
    sparsity : share of the elements of each pruned matrix that are zero
    method : which elements stay: those of the largest initial magnitude, or random ones
    compressed : whether optimizer states and gradients are compressed
    """

    sparsity: float = 0.0
    method: PruneMethod = "magnitude"
    compressed: bool = False

    def __post_init__(self) -> None:
        if self.method not in get_args(PruneMethod):
            raise InputError(f"prune {self.method!r}: accepted are {', '.join(get_args(PruneMethod))}")
        if not 0 <= self.sparsity < 1:
            raise InputError(f"sparsity {self.sparsity:g}: a number from 0 and below 1 is accepted")
        if self.compressed and not self.sparsity:
            raise InputError("sparse states without a sparsity: a sparsity above 0 is accepted")

    @property
    def kept(self) -> Kept | None:
        """Share of the elements that pruning keeps; None without pruning."""
        return Kept(self.sparsity) if self.sparsity else None

    @property
    def kept_share(self) -> float:
        """Share of the elements that compressed vectors of whole tiles have."""
        kept, tile = self.kept, TILE[0] * TILE[1]
        return kept.of_tile(tile) / tile if kept is not None and self.compressed else 1.0


NO_PRUNING = Pruning()


def pruned_layer(layer: Layer, pruning: Pruning) -> Layer:
    """The layer with the weight matrices of its products pruned."""
    if pruning.kept is None:
        return layer
    return replace(
        layer,
        parameters=tuple(
            replace(parameter, pruned=pruning.kept) if is_pruned_name(parameter.name) else parameter
            for parameter in layer.parameters
        ),
    )


def is_pruned_name(name: str) -> bool:
    """Whether a parameter of this name is the weight matrix of a product.

    >>> [name for name in ("L1 W", "L1 b", "up W", "last γ", "table") if is_pruned_name(name)]
    ['L1 W', 'up W']
    """
    return name.endswith(" W")


def base_name(name: str) -> str:
    """Name of the parameter to which an index, a moment or the parameter itself belongs.

    >>> [base_name(name) for name in ("L1 W", "L1 W index", "mean of L1 W")]
    ['L1 W', 'L1 W', 'L1 W']
    """
    for prefix in moment_names(""):
        name = name.removeprefix(prefix)
    return name.removesuffix(index_name(""))


def index_names(parameters: list[Parameter]) -> tuple[str, ...]:
    """Names of the indices of all pruned parameters: inputs of the schedule."""
    return tuple(parameter.index for parameter in parameters if parameter.pruned is not None)


def index_tensor(parameter: Parameter) -> Tensor:
    """The index of a pruned parameter that is not sharded over data."""
    return compressed(parameter, parameter.index, dtype=INDEX)


def compressed(parameter: Parameter, name: str, **changes: object) -> Tensor:
    """A compressed tensor of the kept elements of a pruned parameter."""
    return replace(parameter.tensor, name=name, kept=parameter.pruned, **changes)  # type: ignore[arg-type]


def expand(parameter: Parameter, source: str, into: str, suffix: str = "") -> Kernel:
    """The op that writes dense weights from compressed weights."""
    sources = (parameter.index, source)
    return Kernel(name=f"expand {parameter.name}{suffix}", function="expand", into=(into,), sources=sources)


def expand_bucket(parameter: Parameter, index: str, source: str, into: str) -> Kernel:
    """The op that writes the kept weights of one bucket into the dense weights."""
    name = f"expand {parameter.name} bucket"
    return Kernel(name=name, function="expand_bucket", updates=(into,), sources=(index, source))


def compress(parameter: Parameter, gradient: str, into: str, *, add: bool) -> Kernel:
    """The op that writes the compressed gradient, or adds to it."""
    sources = (parameter.index, gradient)
    name = f"compress {parameter.gradient}"
    if add:
        return Kernel(name=name, function="compress_add", updates=(into,), sources=sources)
    return Kernel(name=name, function="compress", into=(into,), sources=sources)


def mask(parameter: Parameter, gradient: str) -> Iterator[Kernel]:
    """The op that sets the gradients of pruned elements to zero, if the parameter is pruned."""
    if parameter.pruned is not None:
        sources = (parameter.index, gradient)
        yield Kernel(name=f"mask {parameter.gradient}", function="mask", into=(gradient,), sources=sources)
