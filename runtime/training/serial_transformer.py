"""The serial reference of sharded transformer training, in float64: the loss and gradients of a GPT.

Only the description of the architecture and the random numbers of dropout are shared with the schedules and kernels.
Loops visit sequences, groups of heads and heads one by one; rotary positions are multiplications by complex numbers.
The tests check the formulas by finite differences, and against PyTorch where it is installed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.training.architecture import PLAIN, Architecture
from quadrille.algorithms.training.dropout import NO_DROPOUT, PLACES, Dropout, Place
from quadrille.runtime.kernels.dropout_masks import kept_elements
from quadrille.runtime.training.serial_experts import SerialExperts
from quadrille.runtime.training.serial_training import Array, Matrices, gelu, gelu_slope

EPSILON = 1e-5


def layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
    """γ (x - mean) / √(variance + 1e-5) + β, row by row."""
    normalised: Array = _standardised(x)[0] * gamma + beta
    return normalised


def _standardised(x: Array) -> tuple[Array, Array]:
    """The rows scaled to mean 0 and variance 1, and their standard deviations."""
    deviation = np.sqrt(x.var(axis=1, keepdims=True) + EPSILON)
    return (x - x.mean(axis=1, keepdims=True)) / deviation, deviation


def layer_norm_gradients(x: Array, gamma: Array, g: Array) -> tuple[Array, Array, Array]:
    """The gradients of x, γ and β of LayerNorm."""
    hat, deviation = _standardised(x)
    scaled = g * gamma
    mean, projection = scaled.mean(axis=1, keepdims=True), (scaled * hat).mean(axis=1, keepdims=True)
    return (scaled - mean - hat * projection) / deviation, (g * hat).sum(0, keepdims=True), g.sum(0, keepdims=True)


def rms_norm(x: Array, gamma: Array) -> Array:
    """γ x / √(mean of x² + 1e-5), row by row."""
    normalised: Array = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPSILON) * gamma
    return normalised


def rms_norm_gradients(x: Array, gamma: Array, g: Array) -> tuple[Array, Array]:
    """The gradients of x and γ of RMSNorm."""
    size = np.sqrt((x**2).mean(axis=1, keepdims=True) + EPSILON)
    scaled = g * gamma
    projection = (scaled * x).sum(axis=1, keepdims=True) / (x.shape[1] * size**2)
    return (scaled - x * projection) / size, (g * x / size).sum(axis=0, keepdims=True)


def swiglu(x: Array) -> Array:
    """The product silu(gate) · up of every pair of columns."""
    gate, up = x[:, 0::2], x[:, 1::2]
    activated: Array = gate / (1 + np.exp(-gate)) * up
    return activated


def swiglu_gradient(x: Array, g: Array) -> Array:
    """The gradient of gate and up."""
    gate, up = x[:, 0::2], x[:, 1::2]
    share = 1 / (1 + np.exp(-gate))
    gradient = np.empty_like(x)
    gradient[:, 0::2] = g * up * (share + gate * share * (1 - share))
    gradient[:, 1::2] = g * gate * share
    return gradient


def geglu(x: Array) -> Array:
    """The product gelu(gate) · up of every pair of columns."""
    activated: Array = gelu(x[:, 0::2]) * x[:, 1::2]
    return activated


def geglu_gradient(x: Array, g: Array) -> Array:
    """The gradient of gate and up."""
    gate, up = x[:, 0::2], x[:, 1::2]
    gradient = np.empty_like(x)
    gradient[:, 0::2] = g * up * gelu_slope(gate)
    gradient[:, 1::2] = g * gelu(gate)
    return gradient


def clamped_swiglu(x: Array) -> Array:
    """The product (up + 1) · gate · sigmoid(1.702 gate) of every pair of columns, after both are clamped to 7."""
    gate, up = np.minimum(x[:, 0::2], 7), np.clip(x[:, 1::2], -7, 7)
    activated: Array = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
    return activated


def clamped_swiglu_gradient(x: Array, g: Array) -> Array:
    """The gradient of gate and up."""
    gate, up = np.minimum(x[:, 0::2], 7), np.clip(x[:, 1::2], -7, 7)
    share = 1 / (1 + np.exp(-1.702 * gate))
    gradient = np.empty_like(x)
    gradient[:, 0::2] = np.where(x[:, 0::2] > 7, 0, g * (up + 1) * (share + 1.702 * gate * share * (1 - share)))
    gradient[:, 1::2] = np.where(np.abs(x[:, 1::2]) > 7, 0, g * gate * share)
    return gradient


def rotated(x: Array, base: float, direction: int = 1) -> Array:
    """Rows rotated by the angles of their positions; columns i and i + half form one complex number."""
    half = x.shape[1] // 2
    angles = np.outer(np.arange(x.shape[0]), base ** (-np.arange(half) / half))
    z = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * direction * angles)
    return np.hstack([z.real, z.imag])


@dataclass(frozen=True, slots=True)
class AttentionRules:
    """The rules of attention in one layer.

    Parameters
    ----------
    architecture : architecture of the model
    layer : number of the layer, which decides whether it has the window
    sinks : logit of the sink of each head; None without sinks
    """

    architecture: Architecture = PLAIN
    layer: int = 0
    sinks: Array | None = None

    @property
    def window(self) -> int:
        """Tokens that a token sees; 0 for all before it."""
        return 0 if self.architecture.is_global(self.layer) else self.architecture.window

    def rotated(self, x: Array, direction: int = 1) -> Array:
        """A query or key, of which the first columns are rotated by the positions of its rows."""
        architecture, columns = self.architecture, self.architecture.rotated_columns(x.shape[1])
        if architecture.positions != "rotary":
            return x
        local = 0.0 if architecture.is_global(self.layer) else architecture.local_rotary_base
        turned = rotated(x[:, :columns], local or architecture.rotary_base, direction)
        return np.hstack([turned, x[:, columns:]])

    def root(self, head: int) -> float:
        """The number by which scores are divided."""
        return float(np.sqrt(self.architecture.score_columns or head))

    def scores(self, q: Array, k: Array) -> tuple[Array, Array]:
        """The scores of every pair of tokens under the soft cap, and the slope of the cap."""
        return capped(q @ k.T / self.root(q.shape[1]), self.architecture.score_cap)

    def weights(self, q: Array, k: Array, head: int = 0) -> tuple[Array, Array]:
        """The attention weights: the softmax of the scores over the tokens that each token sees; and the slopes.

        A head's sink is one more column of the softmax, left out of the weights.
        """
        scores, slopes = self.scores(q, k)
        distance = np.arange(q.shape[0])[:, None] - np.arange(k.shape[0])[None, :]
        seen = (distance >= 0) & (distance < (self.window or q.shape[0]))
        scores = np.where(seen, scores, -np.inf)
        columns = scores
        if self.sinks is not None:
            columns = np.hstack([scores, np.full((q.shape[0], 1), self.sinks[head])])
        weights = np.exp(columns - columns.max(axis=1, keepdims=True))
        return (weights / weights.sum(axis=1, keepdims=True))[:, : scores.shape[1]], slopes


def _queries(
    qkv: Array, sequence: int, heads: int, architecture: Architecture
) -> Iterator[tuple[slice, list[slice], slice]]:
    """For each query head of each sequence: its rows, the columns of its q, k and v, and the columns of its output."""
    group = heads // (architecture.key_heads or heads)
    of_group = qkv.shape[1] // (heads // group)
    value = architecture.value_columns or of_group // (group + 2)
    head = (of_group - value) // (group + 1)
    for start in range(0, qkv.shape[0], sequence):
        for j in range(heads):
            first = j // group * of_group
            key = first + group * head
            query = first + j % group * head
            of_head = [slice(query, query + head), slice(key, key + head), slice(key + head, key + head + value)]
            yield slice(start, start + sequence), of_head, slice(j * value, (j + 1) * value)


def _operands(qkv: Array, of_head: Sequence[slice], rules: AttentionRules) -> tuple[Array, Array, Array]:
    """The q, k and v of a head; q and k are rotated by their positions if the model has rotary positions."""
    q, k, v = (qkv[:, columns_of_part] for columns_of_part in of_head)
    return rules.rotated(q), rules.rotated(k), v


class Masks:
    """The factors by which dropout multiplies activations in one step.

    Parameters
    ----------
    dropout : shares of dropped elements
    step : index of the step
    """

    def __init__(self, dropout: Dropout = NO_DROPOUT, step: int = 0) -> None:
        self._dropout, self._step = dropout, step

    def hidden(self, place: Place, layer: int, x: Array) -> Array:
        """The activation, or its gradient, after dropout at a place."""
        rows, columns = np.arange(x.shape[0])[:, None], np.arange(x.shape[1])[None, :]
        return self._dropped(x, rows, columns, self._dropout.hidden, place, layer)

    def weights(self, layer: int, first_row: int, head: int, x: Array) -> Array:
        """The attention weights of a head, or their gradient, after dropout.

        Parameters
        ----------
        first_row : first row of the sequence in the batch
        """
        rows = first_row + np.arange(x.shape[0])[:, None]
        columns = head * x.shape[1] + np.arange(x.shape[1])[None, :]
        return self._dropped(x, rows, columns, self._dropout.attention, "attention weights", layer)

    def _dropped(
        self, x: Array, rows: NDArray[Any], columns: NDArray[Any], share: float, place: Place, layer: int
    ) -> Array:
        if not share:
            return x
        number = PLACES[place]
        kept = kept_elements(np, rows, columns, share=share, place=number, layer=layer, step=self._step)
        dropped: Array = np.where(kept, x / (1 - share), 0.0)
        return dropped


def attention(
    qkv: Array,
    sequence: int,
    heads: int,
    architecture: Architecture = PLAIN,
    masks: Masks | None = None,
    layer: int = 0,
    sinks: Array | None = None,
) -> Array:
    """The output of causal attention. The columns of `qkv` for a group are its queries, then their key and value."""
    masks, rules = masks or Masks(), AttentionRules(architecture, layer, sinks)
    groups = architecture.key_heads or heads
    value = architecture.value_columns or qkv.shape[1] // (heads + 2 * groups)
    output = np.empty((qkv.shape[0], value * heads))
    for rows, of_head, columns in _queries(qkv, sequence, heads, architecture):
        q, k, v = _operands(qkv[rows], of_head, rules)
        head = columns.start // (columns.stop - columns.start)
        output[rows, columns] = masks.weights(layer, rows.start, head, rules.weights(q, k, head)[0]) @ v
    return output


def attention_gradient(
    qkv: Array,
    sequence: int,
    heads: int,
    g: Array,
    architecture: Architecture = PLAIN,
    masks: Masks | None = None,
    layer: int = 0,
    sinks: Array | None = None,
    towards_sinks: Array | None = None,
) -> Array:
    """The gradient of the columns of q, k and v; that of the sinks is added to `towards_sinks`."""
    gradient, masks, rules = np.zeros_like(qkv), masks or Masks(), AttentionRules(architecture, layer, sinks)
    for rows, of_head, columns in _queries(qkv, sequence, heads, architecture):
        q, k, v = _operands(qkv[rows], of_head, rules)
        head = columns.start // (columns.stop - columns.start)
        (weights, slopes), out = rules.weights(q, k, head), g[rows, columns]
        towards = masks.weights(layer, rows.start, head, out @ v.T)
        sums = (weights * towards).sum(axis=1, keepdims=True)
        scores = slopes * weights * (towards - sums) / rules.root(q.shape[1])
        if towards_sinks is not None:
            towards_sinks[head] -= ((1 - weights.sum(axis=1, keepdims=True)) * sums).sum()
        parts = [scores @ k, scores.T @ q, masks.weights(layer, rows.start, head, weights).T @ out]
        parts[:2] = [rules.rotated(columns_of_part, -1) for columns_of_part in parts[:2]]
        for columns_of_part, part in zip(of_head, parts, strict=True):
            gradient[rows, columns_of_part] += part
    return gradient


class Transformer:
    """The parts of a transformer layer and their gradients, for an architecture, on parameters by name.

    The `backward_…` methods add to the gradients of the parameters and return the gradient of the input. `suffix` is
    the end of the layer's parameter names, such as " layer 3".
    """

    def __init__(
        self,
        p: Mapping[str, Array],
        gradients: Matrices,
        sequence: int,
        heads: int,
        architecture: Architecture,
        masks: Masks,
        experts: SerialExperts | None = None,
    ):
        self.p, self.gradients, self.masks = p, gradients, masks
        self.sequence, self.heads, self.architecture = sequence, heads, architecture
        self.experts = experts

    def product(self, x: Array, name: str, suffix: str) -> Array:
        """The product X W, plus b if the product has a bias."""
        result: Array = x @ self.p[f"{name} W{suffix}"]
        return result + self.p[f"{name} b{suffix}"] if self._has_bias(name) else result

    def _has_bias(self, name: str) -> bool:
        return self.architecture.biases or (name == "QKV" and self.architecture.qkv_biases)

    def backward_product(self, x: Array, name: str, suffix: str, g: Array) -> Array:
        """The gradient of X of a product."""
        self.gradients[f"{name} W{suffix}"] += x.T @ g
        if self._has_bias(name):
            self.gradients[f"{name} b{suffix}"] += g.sum(0, keepdims=True)
        return g @ self.p[f"{name} W{suffix}"].T

    def norm(self, x: Array, name: str, suffix: str = "") -> Array:
        """The output of LayerNorm or RMSNorm."""
        gamma = self.p[f"{name} γ{suffix}"]
        return (
            rms_norm(x, gamma) if self.architecture.norm == "rms" else layer_norm(x, gamma, self.p[f"{name} β{suffix}"])
        )

    def backward_norm(self, x: Array, name: str, g: Array, suffix: str = "") -> Array:
        """The gradient of X of a norm."""
        gradients_of = rms_norm_gradients if self.architecture.norm == "rms" else layer_norm_gradients
        result, *parameters = gradients_of(x, self.p[f"{name} γ{suffix}"], g)
        for letter, value in zip("γβ", parameters, strict=False):
            self.gradients[f"{name} {letter}{suffix}"] += value
        return result

    def input_norm(self, x: Array, name: str, suffix: str) -> Array:
        """The norm of the input of attention or of the MLP; the input itself if the norms follow them."""
        return x if self.architecture.norm_place == "after" else self.norm(x, name, suffix)

    def backward_input_norm(self, x: Array, name: str, g: Array, suffix: str) -> Array:
        return g if self.architecture.norm_place == "after" else self.backward_norm(x, name, g, suffix)

    def output_norm(self, x: Array, name: str, suffix: str) -> Array:
        """The norm of the output of attention or of the MLP; the output itself if the norms precede them."""
        return x if self.architecture.norm_place == "before" else self.norm(x, name, suffix)

    def backward_output_norm(self, x: Array, name: str, g: Array, suffix: str) -> Array:
        return g if self.architecture.norm_place == "before" else self.backward_norm(x, name, g, suffix)

    def activated(self, u: Array) -> Array:
        """The output of the function between both products of the MLP."""
        if not self.architecture.gated:
            return gelu(u)
        return {"silu": swiglu, "gelu": geglu, "clamped": clamped_swiglu}[self.architecture.gate](u)

    def activated_gradient(self, u: Array, g: Array) -> Array:
        if not self.architecture.gated:
            gradient: Array = g * gelu_slope(u)
            return gradient
        functions = {"silu": swiglu_gradient, "gelu": geglu_gradient, "clamped": clamped_swiglu_gradient}
        return functions[self.architecture.gate](u, g)

    def layer(self, x: Array, number: int) -> tuple[Array, tuple[Any, ...]]:
        """The output of a layer and the values that its gradient needs."""
        suffix = f" layer {number}"
        n1 = self.input_norm(x, "norm1", suffix)
        qkv = self.projected(n1, suffix)
        normalised = self.query_key_norm(qkv, suffix)
        sinks = self.sinks(self.p, suffix)
        a = attention(normalised, self.sequence, self.heads, self.architecture, self.masks, number, sinks)
        d = self.product(self.gated(a, n1, suffix), "project", suffix)
        x2 = x + self.masks.hidden("attention", number, self.output_norm(d, "attention norm", suffix))
        n2 = (
            n1
            if self.branches == "shared"
            else self.input_norm(x2 if self.branches == "serial" else x, "norm2", suffix)
        )
        e, of_mlp = self.branch_mlp(n2, number)
        output = x2 + self.masks.hidden("mlp", number, self.output_norm(e, "mlp norm", suffix))
        return output, (x, n1, qkv, normalised, a, d, x2, n2, of_mlp, e)

    def branch_mlp(self, n2: Array, number: int) -> tuple[Array, Any]:
        """The output of the MLP of a layer, dense or of experts, and the values that its gradient needs."""
        if self.experts is None:
            return self.mlp(n2, f" layer {number}")
        if self.experts.is_dense(number):
            return self.mlp(n2, self.experts.suffix(number))
        return self.experts.forward(self, n2, number)

    def backward_branch_mlp(self, n2: Array, saved: Any, g: Array, number: int) -> Array:
        """The gradient of the input of the MLP of a layer."""
        if self.experts is None:
            return self.backward_mlp(n2, saved, g, f" layer {number}")
        if self.experts.is_dense(number):
            return self.backward_mlp(n2, saved, g, self.experts.suffix(number))
        return self.experts.backward(self, n2, saved, g, number)

    def mlp(self, n2: Array, suffix: str) -> tuple[Array, Any]:
        """The output of the dense MLP, and the values that its gradient needs."""
        u = self.product(n2, "up", suffix)
        active = self.activated(u)
        return self.product(active, "down", suffix), (u, active)

    def backward_mlp(self, n2: Array, saved: Any, g: Array, suffix: str) -> Array:
        """The gradient of the input of the dense MLP."""
        u, active = saved
        towards_u = self.activated_gradient(u, self.backward_product(active, "down", suffix, g))
        return self.backward_product(n2, "up", suffix, towards_u)

    def backward_layer(self, saved: tuple[Any, ...], g: Array, number: int) -> Array:
        """The gradient of a layer's input, from the gradient of its output."""
        suffix = f" layer {number}"
        x, n1, qkv, normalised, a, d, x2, n2, of_mlp, e = saved
        towards_e = self.backward_output_norm(e, "mlp norm", self.masks.hidden("mlp", number, g), suffix)
        towards_n2 = self.backward_branch_mlp(n2, of_mlp, towards_e, number)
        beside = self.branches != "serial"
        after = g
        if self.branches != "shared":
            g = g + self.backward_input_norm(x if beside else x2, "norm2", towards_n2, suffix)
            after = after if beside else g
        towards_d = self.backward_output_norm(
            d, "attention norm", self.masks.hidden("attention", number, after), suffix
        )
        towards_gated = self.backward_product(self.gated(a, n1, suffix), "project", suffix, towards_d)
        towards_a, more = self.backward_gated(a, n1, towards_gated, suffix)
        towards_normalised = attention_gradient(
            normalised,
            self.sequence,
            self.heads,
            towards_a,
            self.architecture,
            self.masks,
            number,
            self.sinks(self.p, suffix),
            self.sinks(self.gradients, suffix),
        )
        towards_qkv = self.backward_query_key_norm(qkv, towards_normalised, suffix)
        towards_n1 = self.backward_projected(n1, towards_qkv, suffix) + more
        if self.branches == "shared":
            towards_n1 = towards_n1 + towards_n2
        return g + self.backward_input_norm(x, "norm1", towards_n1, suffix)

    @property
    def branches(self) -> str:
        """Whether the MLP follows attention, or reads what attention reads."""
        return self.architecture.branches

    def sinks(self, matrices: Mapping[str, Array], suffix: str) -> Array | None:
        """The sinks of a layer, or their gradients, as one row; None without sinks."""
        return matrices[f"sinks{suffix}"][0] if self.architecture.sinks else None

    def gated(self, a: Array, n: Array, suffix: str) -> Array:
        """The output of attention times the sigmoid of a product of its input; unchanged without a gate."""
        if not self.architecture.gated_attention:
            return a
        gated: Array = a / (1 + np.exp(-self.product(n, "gate", suffix)))
        return gated

    def backward_gated(self, a: Array, n: Array, g: Array, suffix: str) -> tuple[Array, Array]:
        """The gradients of the output of attention, and of its input through the gate."""
        if not self.architecture.gated_attention:
            return g, np.zeros_like(n)
        share = 1 / (1 + np.exp(-self.product(n, "gate", suffix)))
        return g * share, self.backward_product(n, "gate", suffix, g * a * share * (1 - share))

    def projected(self, n: Array, suffix: str) -> Array:
        """The queries, keys and values of a layer, from the input of its attention."""
        if not self.architecture.key_rank:
            return self.product(n, "QKV", suffix)
        q, keys = self._query_input(n, suffix), self._latent(n, "key", suffix)
        shared = self.product(n, "key rotary", suffix)
        queries, pairs = self.product(q, self._query_product, suffix), self.product(keys, "key up", suffix)
        rows, heads = n.shape[0], self.heads
        of_heads = [
            queries.reshape(rows, heads, -1),
            np.repeat(shared[:, None], heads, axis=1),
            pairs.reshape(rows, heads, -1),
        ]
        return np.concatenate(of_heads, axis=2).reshape(rows, -1)

    def backward_projected(self, n: Array, g: Array, suffix: str) -> Array:
        """The gradient of the input of attention, from that of its queries, keys and values."""
        if not self.architecture.key_rank:
            return self.backward_product(n, "QKV", suffix, g)
        head, rotated = self.architecture.head_columns, self.architecture.rotary_columns
        of_heads = g.reshape(n.shape[0], self.heads, -1)
        queries, shared, pairs = np.split(of_heads, [head, head + rotated], axis=2)
        rows = n.shape[0]
        q, keys = self._query_input(n, suffix), self._latent(n, "key", suffix)
        towards_q = self.backward_product(q, self._query_product, suffix, queries.reshape(rows, -1))
        if self.architecture.query_rank:
            towards_q = self._backward_latent(n, towards_q, "query", suffix)
        towards_keys = self.backward_product(keys, "key up", suffix, pairs.reshape(rows, -1))
        towards_n = towards_q + self._backward_latent(n, towards_keys, "key", suffix)
        return towards_n + self.backward_product(n, "key rotary", suffix, shared.sum(axis=1))

    @property
    def _query_product(self) -> str:
        return "query up" if self.architecture.query_rank else "query"

    def _query_input(self, n: Array, suffix: str) -> Array:
        return self._latent(n, "query", suffix) if self.architecture.query_rank else n

    def _latent(self, n: Array, kind: str, suffix: str) -> Array:
        """The normalised latent of queries or of keys and values."""
        return self.norm(self.product(n, f"{kind} down", suffix), f"{kind} latent", suffix)

    def _backward_latent(self, n: Array, g: Array, kind: str, suffix: str) -> Array:
        latent = self.product(n, f"{kind} down", suffix)
        towards = self.backward_norm(latent, f"{kind} latent", g, suffix)
        return self.backward_product(n, f"{kind} down", suffix, towards)

    def _query_key_parts(self, qkv: Array, suffix: str) -> Iterator[tuple[Array, str, Array]]:
        """The columns that are normalised together, the name of their γ, and its columns."""
        groups, norm = self.architecture.key_heads or self.heads, self.architecture.qk_norm
        group = self.heads // groups
        head = qkv.shape[1] // (groups * (group + 2))
        numbers, of_group = np.arange(groups)[:, None], np.arange(group + 1)[None, :]
        columns = ((numbers * (group + 2) + of_group)[:, :, None]) * head + np.arange(head)
        if norm == "head":
            for kind, heads in (("query", columns[:, :-1]), ("key", columns[:, -1:])):
                for one_head in heads.reshape(-1, head):
                    yield one_head, f"{kind} norm γ{suffix}", np.arange(head)
        if norm == "row":
            stored = np.arange(columns.size).reshape(columns.shape)
            for heads in (slice(0, -1), slice(-1, None)):
                yield columns[:, heads].ravel(), f"QK norm γ{suffix}", stored[:, heads].ravel()

    def query_key_norm(self, qkv: Array, suffix: str) -> Array:
        """QKV with normalised queries and keys."""
        result = qkv.copy()
        for columns, name, of_gamma in self._query_key_parts(qkv, suffix):
            result[:, columns] = rms_norm(qkv[:, columns], self.p[name][:, of_gamma])
        return result

    def backward_query_key_norm(self, qkv: Array, g: Array, suffix: str) -> Array:
        """The gradient of QKV before the normalisation of queries and keys."""
        result = g.copy()
        for columns, name, of_gamma in self._query_key_parts(qkv, suffix):
            gamma = self.p[name][:, of_gamma]
            result[:, columns], towards_gamma = rms_norm_gradients(qkv[:, columns], gamma, g[:, columns])
            self.gradients[name][:, of_gamma] += towards_gamma
        return result


def gpt_loss(
    parameters: Mapping[str, Array],
    tokens: NDArray[Any],
    targets: NDArray[Any],
    layers: int,
    heads: int,
    architecture: Architecture = PLAIN,
    dropout: Dropout = NO_DROPOUT,
    step: int = 0,
    experts: SerialExperts | None = None,
) -> tuple[float, Matrices]:
    """The mean cross entropy of a GPT and its gradients.

    With experts, the gradients are those of the sum of cross entropy and auxiliary loss.

    Parameters
    ----------
    parameters : parameters by name, such as "QKV W layer 0"
    tokens, targets : token numbers, sequences × positions
    layers, heads : number of layers, and of query heads
    architecture : norm, positions, activation and biases
    dropout : shares of dropped elements
    step : index of the step, which the dropout masks depend on
    experts : the experts of its layers; they also keep the auxiliary loss
    """
    batch, sequence = tokens.shape
    masks = Masks(dropout, step)
    p = parameters
    gradients: Matrices = {name: np.zeros_like(value) for name, value in p.items()}
    model = Transformer(p, gradients, sequence, heads, architecture, masks, experts)
    scale = np.sqrt(p["table"].shape[1]) if architecture.scaled_embedding else 1.0
    x = p["table"][tokens.ravel()]
    if architecture.positions == "learned":
        x = x + np.tile(p["positions"], (batch, 1))
    x = masks.hidden("embedding", 0, x * scale)
    saved = []
    for layer in range(layers):
        x, saved_layer = model.layer(x, layer)
        saved.append(saved_layer)
    last = model.norm(x, "last")
    table = "table" if architecture.shared_table else "output table"
    logits, slopes = capped(last @ p[table].T, architecture.logit_cap)
    loss, towards_logits = cross_entropy(logits, targets)
    towards_logits = towards_logits * slopes
    gradients[table] += towards_logits.T @ last
    g = model.backward_norm(x, "last", towards_logits @ p[table])
    for layer in reversed(range(layers)):
        g = model.backward_layer(saved[layer], g, layer)
    g = masks.hidden("embedding", 0, g) * scale
    np.add.at(gradients["table"], tokens.ravel(), g)
    if architecture.positions == "learned":
        gradients["positions"] += g.reshape(batch, sequence, -1).sum(axis=0)
    return loss, gradients


def capped(x: Array, cap: float) -> tuple[Array, Array]:
    """The numbers c · tanh(x / c) under a soft cap c, and their slopes; unchanged numbers without a cap."""
    if not cap:
        return x, np.ones_like(x)
    return cap * np.tanh(x / cap), 1 / np.cosh(x / cap) ** 2


def cross_entropy(logits: Array, targets: NDArray[Any]) -> tuple[float, Array]:
    """The mean cross entropy over tokens, and the gradient of the logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(targets.size)
    g = np.exp(logarithms)
    g[rows, targets.ravel()] -= 1
    return float(-logarithms[rows, targets.ravel()].mean()), g / targets.size
