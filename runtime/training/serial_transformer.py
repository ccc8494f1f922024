"""The serial reference of sharded transformer training, in float64: the loss and gradients of a GPT.

Only the description of the architecture and the random numbers of dropout are shared with the schedules and kernels.
Loops visit sequences, groups of heads and heads one by one; rotary positions are multiplications by complex numbers.
The tests check the formulas by finite differences, and against PyTorch where it is installed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.training.architecture import PLAIN, Architecture
from quadrille.algorithms.training.dropout import NO_DROPOUT, PLACES, Dropout, Place
from quadrille.runtime.kernels.dropout_masks import kept_elements
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


def rotated(x: Array, base: float, direction: int = 1) -> Array:
    """Rows rotated by the angles of their positions; columns i and i + half form one complex number."""
    half = x.shape[1] // 2
    angles = np.outer(np.arange(x.shape[0]), base ** (-np.arange(half) / half))
    z = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * direction * angles)
    return np.hstack([z.real, z.imag])


def _weights(q: Array, k: Array) -> Array:
    """The causal attention weights: the softmax of q kᵀ / √head over each token and its predecessors."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    scores = np.where(np.tril(np.ones_like(scores)) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    softmax: Array = weights / weights.sum(axis=1, keepdims=True)
    return softmax


def _queries(
    qkv: Array, sequence: int, heads: int, architecture: Architecture
) -> Iterator[tuple[slice, list[slice], slice]]:
    """For each query head of each sequence: its rows, the columns of its q, k and v, and the columns of its output."""
    group = heads // (architecture.key_heads or heads)
    head = qkv.shape[1] // (heads // group * (group + 2))
    for start in range(0, qkv.shape[0], sequence):
        for j in range(heads):
            first = j // group * (group + 2)
            columns = [first + j % group, first + group, first + group + 1]
            of_head = [slice(column * head, (column + 1) * head) for column in columns]
            yield slice(start, start + sequence), of_head, slice(j * head, (j + 1) * head)


def _operands(qkv: Array, of_head: Sequence[slice], architecture: Architecture) -> tuple[Array, Array, Array]:
    """The q, k and v of a head; q and k are rotated by their positions if the model has rotary positions."""
    q, k, v = (qkv[:, columns_of_part] for columns_of_part in of_head)
    if architecture.positions != "rotary":
        return q, k, v
    return rotated(q, architecture.rotary_base), rotated(k, architecture.rotary_base), v


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
) -> Array:
    """The output of causal attention. The columns of `qkv` for a group are its queries, then their key and value."""
    masks = masks or Masks()
    groups = architecture.key_heads or heads
    output = np.empty((qkv.shape[0], qkv.shape[1] // (heads + 2 * groups) * heads))
    for rows, of_head, columns in _queries(qkv, sequence, heads, architecture):
        q, k, v = _operands(qkv[rows], of_head, architecture)
        head = columns.start // (columns.stop - columns.start)
        output[rows, columns] = masks.weights(layer, rows.start, head, _weights(q, k)) @ v
    return output


def attention_gradient(
    qkv: Array,
    sequence: int,
    heads: int,
    g: Array,
    architecture: Architecture = PLAIN,
    masks: Masks | None = None,
    layer: int = 0,
) -> Array:
    """The gradient of the columns of q, k and v."""
    gradient, masks = np.zeros_like(qkv), masks or Masks()
    for rows, of_head, columns in _queries(qkv, sequence, heads, architecture):
        q, k, v = _operands(qkv[rows], of_head, architecture)
        weights, out = _weights(q, k), g[rows, columns]
        head = columns.start // (columns.stop - columns.start)
        towards = masks.weights(layer, rows.start, head, out @ v.T)
        scores = weights * (towards - (weights * towards).sum(axis=1, keepdims=True)) / np.sqrt(q.shape[1])
        parts = [scores @ k, scores.T @ q, masks.weights(layer, rows.start, head, weights).T @ out]
        if architecture.positions == "rotary":
            parts[:2] = [rotated(columns_of_part, architecture.rotary_base, -1) for columns_of_part in parts[:2]]
        for columns_of_part, part in zip(of_head, parts, strict=True):
            gradient[rows, columns_of_part] += part
    return gradient


class _Model:
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
    ):
        self.p, self.gradients, self.masks = p, gradients, masks
        self.sequence, self.heads, self.architecture = sequence, heads, architecture

    def product(self, x: Array, name: str, suffix: str) -> Array:
        """The product X W, plus b if the architecture has biases."""
        result: Array = x @ self.p[f"{name} W{suffix}"]
        return result + self.p[f"{name} b{suffix}"] if self.architecture.biases else result

    def backward_product(self, x: Array, name: str, suffix: str, g: Array) -> Array:
        """The gradient of X of a product."""
        self.gradients[f"{name} W{suffix}"] += x.T @ g
        if self.architecture.biases:
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

    def layer(self, x: Array, number: int) -> tuple[Array, tuple[Array, ...]]:
        """The output of a layer and the values that its gradient needs."""
        suffix = f" layer {number}"
        n1 = self.norm(x, "norm1", suffix)
        qkv = self.product(n1, "QKV", suffix)
        a = attention(qkv, self.sequence, self.heads, self.architecture, self.masks, number)
        x2 = x + self.masks.hidden("attention", number, self.product(a, "project", suffix))
        n2 = self.norm(x2, "norm2", suffix)
        u = self.product(n2, "up", suffix)
        active = swiglu(u) if self.architecture.gated else gelu(u)
        output = x2 + self.masks.hidden("mlp", number, self.product(active, "down", suffix))
        return output, (x, n1, qkv, a, x2, n2, u, active)

    def backward_layer(self, saved: tuple[Array, ...], g: Array, number: int) -> Array:
        """The gradient of a layer's input, from the gradient of its output."""
        suffix = f" layer {number}"
        x, n1, qkv, a, x2, n2, u, active = saved
        towards_active = self.backward_product(active, "down", suffix, self.masks.hidden("mlp", number, g))
        towards_u = swiglu_gradient(u, towards_active) if self.architecture.gated else towards_active * gelu_slope(u)
        g = g + self.backward_norm(x2, "norm2", self.backward_product(n2, "up", suffix, towards_u), suffix)
        towards_a = self.backward_product(a, "project", suffix, self.masks.hidden("attention", number, g))
        towards_qkv = attention_gradient(
            qkv, self.sequence, self.heads, towards_a, self.architecture, self.masks, number
        )
        return g + self.backward_norm(x, "norm1", self.backward_product(n1, "QKV", suffix, towards_qkv), suffix)


def gpt_loss(
    parameters: Mapping[str, Array],
    tokens: NDArray[Any],
    targets: NDArray[Any],
    layers: int,
    heads: int,
    architecture: Architecture = PLAIN,
    dropout: Dropout = NO_DROPOUT,
    step: int = 0,
) -> tuple[float, Matrices]:
    """The mean cross entropy of a GPT and its gradients.

    Parameters
    ----------
    parameters : parameters by name, such as "QKV W layer 0"
    tokens, targets : token numbers, sequences × positions
    layers, heads : number of layers, and of query heads
    architecture : norm, positions, activation and biases
    dropout : shares of dropped elements
    step : index of the step, which the dropout masks depend on
    """
    batch, sequence = tokens.shape
    masks = Masks(dropout, step)
    p = parameters
    gradients: Matrices = {name: np.zeros_like(value) for name, value in p.items()}
    model = _Model(p, gradients, sequence, heads, architecture, masks)
    x = p["table"][tokens.ravel()]
    if architecture.positions == "learned":
        x = x + np.tile(p["positions"], (batch, 1))
    x = masks.hidden("embedding", 0, x)
    saved = []
    for layer in range(layers):
        x, saved_layer = model.layer(x, layer)
        saved.append(saved_layer)
    last = model.norm(x, "last")
    table = "table" if architecture.shared_table else "output table"
    loss, towards_logits = cross_entropy(last @ p[table].T, targets)
    gradients[table] += towards_logits.T @ last
    g = model.backward_norm(x, "last", towards_logits @ p[table])
    for layer in reversed(range(layers)):
        g = model.backward_layer(saved[layer], g, layer)
    g = masks.hidden("embedding", 0, g)
    np.add.at(gradients["table"], tokens.ravel(), g)
    if architecture.positions == "learned":
        gradients["positions"] += g.reshape(batch, sequence, -1).sum(axis=0)
    return loss, gradients


def cross_entropy(logits: Array, targets: NDArray[Any]) -> tuple[float, Array]:
    """The mean cross entropy over tokens, and the gradient of the logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(targets.size)
    g = np.exp(logarithms)
    g[rows, targets.ravel()] -= 1
    return float(-logarithms[rows, targets.ravel()].mean()), g / targets.size
