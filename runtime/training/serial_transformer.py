"""A serial transformer in float64, written plainly: loss and gradients as the reference for sharded ones.

Only the description of the architecture is shared with the schedules and kernels. Loops visit sequences, groups of
heads and heads one by one; rotary positions are multiplications by complex numbers. The tests check the formulas by
finite differences, and against PyTorch where it is installed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.training.architecture import PLAIN, Architecture
from quadrille.runtime.training.serial_training import Array, Matrices, gelu, gelu_slope

EPSILON = 1e-5


def layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
    """γ (x - mean) / √(variance + 1e-5) + β, row by row."""
    normalised: Array = _standard(x)[0] * gamma + beta
    return normalised


def _standard(x: Array) -> tuple[Array, Array]:
    """Rows scaled to mean 0 and variance 1, and the divisors."""
    deviation = np.sqrt(x.var(axis=1, keepdims=True) + EPSILON)
    return (x - x.mean(axis=1, keepdims=True)) / deviation, deviation


def layer_norm_gradients(x: Array, gamma: Array, g: Array) -> tuple[Array, Array, Array]:
    """Gradients of x, γ and β."""
    hat, deviation = _standard(x)
    scaled = g * gamma
    mean, along = scaled.mean(axis=1, keepdims=True), (scaled * hat).mean(axis=1, keepdims=True)
    return (scaled - mean - hat * along) / deviation, (g * hat).sum(0, keepdims=True), g.sum(0, keepdims=True)


def rms_norm(x: Array, gamma: Array) -> Array:
    """γ x / √(mean of x² + 1e-5), row by row."""
    normalised: Array = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPSILON) * gamma
    return normalised


def rms_norm_gradients(x: Array, gamma: Array, g: Array) -> tuple[Array, Array]:
    """Gradients of x and γ."""
    size = np.sqrt((x**2).mean(axis=1, keepdims=True) + EPSILON)
    scaled = g * gamma
    along = (scaled * x).sum(axis=1, keepdims=True) / (x.shape[1] * size**2)
    return (scaled - x * along) / size, (g * x / size).sum(axis=0, keepdims=True)


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
    """Softmax of q kᵀ / √head over the tokens up to each."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    scores = np.where(np.tril(np.ones_like(scores)) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    softmax: Array = weights / weights.sum(axis=1, keepdims=True)
    return softmax


def _queries(qkv: Array, sequence: int, heads: int, how: Architecture) -> Iterator[tuple[slice, list[slice], slice]]:
    """For each query head of each sequence: its rows, the columns of its q, k and v, and the columns of its output."""
    group = heads // (how.key_heads or heads)
    head = qkv.shape[1] // (heads // group * (group + 2))
    for start in range(0, qkv.shape[0], sequence):
        for j in range(heads):
            first = j // group * (group + 2)
            columns = [first + j % group, first + group, first + group + 1]
            of_head = [slice(column * head, (column + 1) * head) for column in columns]
            yield slice(start, start + sequence), of_head, slice(j * head, (j + 1) * head)


def _operands(qkv: Array, of_head: Sequence[slice], how: Architecture) -> tuple[Array, Array, Array]:
    """The q, k and v of a head; q and k are rotated by their positions if the model has rotary positions."""
    q, k, v = (qkv[:, columns_of_part] for columns_of_part in of_head)
    return (rotated(q, how.rotary_base), rotated(k, how.rotary_base), v) if how.positions == "rotary" else (q, k, v)


def attention(qkv: Array, sequence: int, heads: int, how: Architecture = PLAIN) -> Array:
    """Causal attention. The columns of a group are its queries, then their key and their value."""
    groups = how.key_heads or heads
    output = np.empty((qkv.shape[0], qkv.shape[1] // (heads + 2 * groups) * heads))
    for rows, of_head, columns in _queries(qkv, sequence, heads, how):
        q, k, v = _operands(qkv[rows], of_head, how)
        output[rows, columns] = _weights(q, k) @ v
    return output


def attention_gradient(qkv: Array, sequence: int, heads: int, g: Array, how: Architecture = PLAIN) -> Array:
    """The gradient of the columns of q, k and v."""
    gradient = np.zeros_like(qkv)
    for rows, of_head, columns in _queries(qkv, sequence, heads, how):
        q, k, v = _operands(qkv[rows], of_head, how)
        weights, out = _weights(q, k), g[rows, columns]
        towards = out @ v.T
        scores = weights * (towards - (weights * towards).sum(axis=1, keepdims=True)) / np.sqrt(q.shape[1])
        parts = [scores @ k, scores.T @ q, weights.T @ out]
        if how.positions == "rotary":
            parts[:2] = [rotated(columns_of_part, how.rotary_base, -1) for columns_of_part in parts[:2]]
        for columns_of_part, part in zip(of_head, parts, strict=True):
            gradient[rows, columns_of_part] += part
    return gradient


class _Model:
    """The parts of a layer for an architecture, on parameters by name; the `towards_…` methods add gradients."""

    def __init__(self, p: Mapping[str, Array], gradients: Matrices, sequence: int, heads: int, how: Architecture):
        self.p, self.gradients, self.sequence, self.heads, self.how = p, gradients, sequence, heads, how

    def product(self, x: Array, name: str, of: str) -> Array:
        """X W, and + b where products have biases."""
        result: Array = x @ self.p[f"{name} W{of}"]
        return result + self.p[f"{name} b{of}"] if self.how.biases else result

    def towards_product(self, x: Array, name: str, of: str, g: Array) -> Array:
        """Gradient of X."""
        self.gradients[f"{name} W{of}"] += x.T @ g
        if self.how.biases:
            self.gradients[f"{name} b{of}"] += g.sum(0, keepdims=True)
        return g @ self.p[f"{name} W{of}"].T

    def norm(self, x: Array, name: str, of: str = "") -> Array:
        """LayerNorm or RMSNorm."""
        gamma = self.p[f"{name} γ{of}"]
        return rms_norm(x, gamma) if self.how.norm == "rms" else layer_norm(x, gamma, self.p[f"{name} β{of}"])

    def towards_norm(self, x: Array, name: str, g: Array, of: str = "") -> Array:
        """Gradient of X."""
        gradients_of = rms_norm_gradients if self.how.norm == "rms" else layer_norm_gradients
        result, *parameters = gradients_of(x, self.p[f"{name} γ{of}"], g)
        for letter, value in zip("γβ", parameters, strict=False):
            self.gradients[f"{name} {letter}{of}"] += value
        return result

    def layer(self, x: Array, of: str) -> tuple[Array, tuple[Array, ...]]:
        """The layer's output and the values that its gradient needs."""
        n1 = self.norm(x, "norm1", of)
        qkv = self.product(n1, "QKV", of)
        a = attention(qkv, self.sequence, self.heads, self.how)
        x2 = x + self.product(a, "project", of)
        n2 = self.norm(x2, "norm2", of)
        u = self.product(n2, "up", of)
        active = swiglu(u) if self.how.gated else gelu(u)
        return x2 + self.product(active, "down", of), (x, n1, qkv, a, x2, n2, u, active)

    def towards_layer(self, saved: tuple[Array, ...], g: Array, of: str) -> Array:
        """The gradient of a layer's input, from the gradient of its output."""
        x, n1, qkv, a, x2, n2, u, active = saved
        towards_active = self.towards_product(active, "down", of, g)
        towards_u = swiglu_gradient(u, towards_active) if self.how.gated else towards_active * gelu_slope(u)
        g = g + self.towards_norm(x2, "norm2", self.towards_product(n2, "up", of, towards_u), of)
        towards_a = self.towards_product(a, "project", of, g)
        towards_qkv = attention_gradient(qkv, self.sequence, self.heads, towards_a, self.how)
        return g + self.towards_norm(x, "norm1", self.towards_product(n1, "QKV", of, towards_qkv), of)


def gpt_loss(
    parameters: Mapping[str, Array],
    tokens: NDArray[Any],
    targets: NDArray[Any],
    layers: int,
    heads: int,
    how: Architecture = PLAIN,
) -> tuple[float, Matrices]:
    """The loss and gradients of a transformer; `tokens` and `targets` are sequences × positions."""
    batch, sequence = tokens.shape
    p = parameters
    gradients: Matrices = {name: np.zeros_like(value) for name, value in p.items()}
    model = _Model(p, gradients, sequence, heads, how)
    x = p["table"][tokens.ravel()]
    if how.positions == "learned":
        x = x + np.tile(p["positions"], (batch, 1))
    saved = []
    for layer in range(layers):
        x, kept = model.layer(x, f" layer {layer}")
        saved.append(kept)
    last = model.norm(x, "last")
    table = "table" if how.shared_table else "output table"
    loss, towards_logits = cross_entropy(last @ p[table].T, targets)
    gradients[table] += towards_logits.T @ last
    g = model.towards_norm(x, "last", towards_logits @ p[table])
    for layer in reversed(range(layers)):
        g = model.towards_layer(saved[layer], g, f" layer {layer}")
    np.add.at(gradients["table"], tokens.ravel(), g)
    if how.positions == "learned":
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
