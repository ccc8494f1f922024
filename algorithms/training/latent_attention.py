"""Multi-head latent attention (MLA): queries, keys and values that are projected down to few columns and up again.

    query latent = N1 W       N = norm(query latent)     Q  = N W      every query head: rotated columns, then others
    key latent   = N1 W       N = norm(key latent)       KV = N W      every head: columns of its key, then its value
    key rotary   = N1 W                                                the rotated columns, which all heads share
    QKV = Q, key rotary and KV, joined head by head

Without a rank of queries, Q is one product.  The two latents are normalised whole; no axis cuts the heads' shared
columns.  The tensors between the norms and QKV exist for one layer at a time: the joined QKV is what attention's
gradient reads, and its own gradient is split again.

Megatron and the published models multiply by both down projections of keys in one product; here they are two.

Source: DeepSeek-AI, "DeepSeek-V2", arXiv 2405.04434, section 2.1, and "DeepSeek-V3", arXiv 2412.19437, section 2.1.1.
"""

from dataclasses import dataclass, replace

from quadrille.algorithms.matmuls.matmul import Gathered
from quadrille.algorithms.schedule.ops import Kernel, SmallPrecision
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.tensors import Copies, Tensor
from quadrille.algorithms.training.architecture import Architecture
from quadrille.algorithms.training.layers import Layer
from quadrille.algorithms.training.normalisation import Norm, normalisation
from quadrille.algorithms.training.scheme import Linear, Scheme
from quadrille.algorithms.training.small_numbers import small_latent, small_linear, small_shared

QUERY_LATENT, KEY_LATENT, KEY_ROTARY = "query latent", "key latent", "key rotary"
"""Activations, and dimensions of their columns."""


def latent_sizes(architecture: Architecture) -> dict[str, int]:
    """Lengths of the dimensions of latent attention; empty without it."""
    sizes = {
        QUERY_LATENT: architecture.query_rank,
        KEY_LATENT: architecture.key_rank,
        KEY_ROTARY: architecture.rotary_columns,
    }
    return {name: size for name, size in sizes.items() if size}


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """The projections of a layer from its normalised input to QKV.

    Parameters
    ----------
    architecture : ranks, and columns of a head
    rows : rows of the activations, uncut
    source, gradient : input of attention, and the gradient of that input
    copies : a copy for each layer
    gathered : whether gathered weights are kept for the backward pass
    scheme : scheme of the step
    products : small precision of the products; None for the dtype
    """

    architecture: Architecture
    rows: Part
    source: str
    gradient: str
    copies: Copies
    gathered: Gathered
    scheme: Scheme
    products: SmallPrecision | None = None

    def layer(self) -> Layer:
        """The layer from the input to `QKV`, and from `dQKV` to the gradient of the input."""
        queries, keys = self._queries(), self._projected(KEY_LATENT, self._pair, "KV", self._more_gradient)
        shared = self._shared(
            self._linear("key rotary", Part("hidden"), Part(KEY_ROTARY), (self.source, KEY_ROTARY), self._more_gradient)
        )
        join, split = self._joined()
        parts = (queries, keys, shared)
        return Layer(
            (*self._tensors(), *(tensor for part in parts for tensor in part.tensors)),
            tuple(parameter for part in parts for parameter in part.parameters),
            (*(op for part in parts for op in part.forward), join),
            (
                split,
                *queries.backward,
                *keys.backward,
                self._add("keys"),
                *shared.backward,
                self._add("shared keys"),
            ),
        )

    @property
    def _more_gradient(self) -> str:
        return f"{self.gradient} of keys"

    @property
    def _pair(self) -> int:
        """Columns of a head's key that are not rotated, and of its value."""
        architecture = self.architecture
        return architecture.head_columns - architecture.rotary_columns + architecture.value_columns

    def _add(self, part: str) -> Kernel:
        return Kernel(
            name=f"add gradient of {part}", function="add_to", updates=(self.gradient,), sources=(self._more_gradient,)
        )

    def _queries(self) -> Layer:
        columns = self.architecture.head_columns
        if self.architecture.query_rank:
            return self._projected(QUERY_LATENT, columns, "Q", self.gradient)
        return self._product(
            self._linear("query", Part("hidden"), Part("heads", unit=columns), (self.source, "Q"), self.gradient)
        )

    def _projected(self, latent: str, columns: int, into: str, gradient: str) -> Layer:
        """The products from the input to a latent, and from the normalised latent to heads of `columns` columns.

        Parameters
        ----------
        gradient : gradient of the input, this path's share alone
        """
        kind, narrow = latent.split()[0], Part(latent)
        normalised = f"{latent} N"
        down = self._latent(self._linear(f"{kind} down", Part("hidden"), narrow, (self.source, latent), gradient))
        length = latent_sizes(self.architecture)[latent]
        activations, gradients = (latent, normalised), (f"d{normalised}", f"d{latent}")
        norm = normalisation(
            Norm(
                latent, self.rows, narrow, length, *activations, *gradients, self.copies, self.copies,
                self.architecture.norm,
            ),
            self.scheme,
        )  # fmt: skip
        up = self._product(
            self._linear(f"{kind} up", narrow, Part("heads", unit=columns), (normalised, into), f"d{normalised}")
        )
        stored = (replace(tensor, copies=self.copies) if tensor.name == latent else tensor for tensor in down.tensors)
        between = (self.scheme.stream.tensor(name, self.rows, narrow) for name in gradients)
        return Layer(
            (*stored, *norm.tensors, *up.tensors, *between),
            (*down.parameters, *norm.parameters, *up.parameters),
            (*down.forward, *norm.forward, *up.forward),
            (*up.backward, *norm.backward, *down.backward),
        )

    def _product(self, linear: Linear) -> Layer:
        """The layer of a product with the output of the inner layout."""
        return self.scheme.linear(linear) if self.products is None else small_linear(linear, self.scheme, self.products)

    def _latent(self, linear: Linear) -> Layer:
        """The layer of a product to a latent; the first product of the layer casts the input that all of them read."""
        if self.products is None:
            return self.scheme.latent(linear)
        return small_latent(linear, self.scheme, self.products, casts_input=linear.into == QUERY_LATENT)

    def _shared(self, linear: Linear) -> Layer:
        if self.products is None:
            return self.scheme.shared(linear)
        return small_shared(linear, self.scheme, self.products, casts_input=False)

    def _linear(self, name: str, inputs: Part, outputs: Part, activations: tuple[str, str], gradient: str) -> Linear:
        return Linear(
            name,
            self.rows,
            inputs,
            outputs,
            *activations,
            gradient,
            f"d{activations[1]}",
            gathered=self.gathered,
            copies=self.copies,
            biased=False,
        )

    def _joined(self) -> tuple[Kernel, Kernel]:
        """The kernel that joins QKV from its parts, and the one that splits its gradient."""
        architecture = self.architecture
        scalars = (
            ("head", float(architecture.head_columns)),
            ("value", float(architecture.value_columns)),
            ("rotated", float(architecture.rotary_columns)),
            ("pair", float(self._pair)),
        )
        parts = ("Q", "KV", KEY_ROTARY)
        return (
            Kernel(name="join QKV", function="join_heads", into=("QKV",), sources=parts, scalars=scalars),
            Kernel(
                name="split dQKV",
                function="split_heads",
                into=tuple(f"d{part}" for part in parts),
                sources=("dQKV",),
                scalars=scalars,
            ),
        )

    def _tensors(self) -> list[Tensor]:
        """QKV, and the gradients of its parts and of the input."""
        inner, stream, rows = self.scheme.inner, self.scheme.stream, self.rows
        architecture = self.architecture
        joined = 2 * architecture.head_columns + architecture.value_columns
        of_heads = {"dQ": architecture.head_columns, "dKV": self._pair}
        return [
            inner.tensor("QKV", rows, Part("heads", unit=joined)),
            *(inner.tensor(name, rows, Part("heads", unit=unit)) for name, unit in of_heads.items()),
            Tensor(f"d{KEY_ROTARY}", inner.cut_rows(rows), Part(KEY_ROTARY)),
            stream.tensor(self._more_gradient, rows, Part("hidden")),
        ]
