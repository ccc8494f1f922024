"""Training steps of one process in float64, written plainly: what the sharded ones are compared with.

Nothing here is shared with the schedules or their kernels.  Parameters are
dictionaries of matrices under the names that schedules give them; a gradient
has the name of its parameter.  The formulas are checked by finite differences
in the tests, and against PyTorch where it is installed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Matrices = dict[str, Array]


def gelu(x: Array) -> Array:
    """X (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2."""
    found: Array = x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    return found


def gelu_slope(x: Array) -> Array:
    """Derivative of `gelu`."""
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    found: Array = (1 + t) / 2 + x * (1 - t**2) / 2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return found


def mlp_loss(parameters: Mapping[str, Array], x: Array, target: Array) -> tuple[float, Matrices]:
    """Loss and gradients of a stack of layers `L1`, `L2`, … with GELU between them."""
    layers = sum(name.endswith(" W") for name in parameters)
    inputs, sums = [x], []
    for layer in range(1, layers + 1):
        sums.append(inputs[-1] @ parameters[f"L{layer} W"] + parameters[f"L{layer} b"])
        inputs.append(gelu(sums[-1]) if layer < layers else sums[-1])
    difference = inputs[-1] - target
    loss = float((difference**2).sum() / (2 * difference.size))
    gradients: Matrices = {}
    g: Array = difference / difference.size
    for layer in range(layers, 0, -1):
        gradients[f"L{layer} W"] = inputs[layer - 1].T @ g
        gradients[f"L{layer} b"] = g.sum(axis=0, keepdims=True)
        if layer > 1:
            g = (g @ parameters[f"L{layer} W"].T) * gelu_slope(sums[layer - 2])
    return loss, gradients


def clipped(gradients: Matrices, limit: float) -> Matrices:
    """The gradients, scaled so that the norm of all together is at most the limit (0: none)."""
    if not limit:
        return gradients
    norm = np.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
    return {name: g * min(1.0, limit / (norm + 1e-6)) for name, g in gradients.items()}


def adam_step(value: Array, moments: tuple[Array, Array], g: Array, step: int, adam: Any) -> tuple[Array, Array, Array]:
    """A parameter and its two moments after one step of Adam with decoupled decay; steps count from 0.

    Parameters
    ----------
    adam : the optimizer's numbers (`algorithms.training.adam.Adam`)
    """
    first = adam.beta1 * moments[0] + (1 - adam.beta1) * g
    second = adam.beta2 * moments[1] + (1 - adam.beta2) * g**2
    mean = first / (1 - adam.beta1 ** (step + 1))
    spread = second / (1 - adam.beta2 ** (step + 1))
    return value - adam.rate * (mean / (np.sqrt(spread) + adam.epsilon) + adam.decay * value), first, second


def train(
    parameters: Mapping[str, Array],
    loss_of: Callable[[Mapping[str, Array], int], tuple[float, Matrices]],
    steps: int,
    adam: Any,
) -> tuple[list[float], Matrices, Matrices]:
    """Losses of so many Adam steps, the parameters at their end and the gradients of the last.

    Parameters
    ----------
    loss_of : loss and gradients at some parameters in step 0, 1, …
    adam : the optimizer's numbers (`algorithms.training.adam.Adam`)
    """
    held = {name: np.array(value, np.float64) for name, value in parameters.items()}
    means = {name: (np.zeros_like(value), np.zeros_like(value)) for name, value in held.items()}
    losses: list[float] = []
    gradients: Matrices = {}
    for step in range(steps):
        loss, gradients = loss_of(held, step)
        losses.append(loss)
        gradients = clipped(gradients, adam.clip)
        for name, g in gradients.items():
            held[name], *after = adam_step(held[name], means[name], g, step, adam)
            means[name] = (after[0], after[1])
    return losses, held, gradients


def layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
    """γ (x - mean) / √(variance + 1e-5) + β, row by row."""
    found: Array = _standard(x)[0] * gamma + beta
    return found


def _standard(x: Array) -> tuple[Array, Array]:
    """Rows of mean 0 and variance 1, and what they were divided by."""
    deviation = np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    return (x - x.mean(axis=1, keepdims=True)) / deviation, deviation


def layer_norm_gradients(x: Array, gamma: Array, g: Array) -> tuple[Array, Array, Array]:
    """Gradients of x, γ and β."""
    hat, deviation = _standard(x)
    scaled = g * gamma
    mean, along = scaled.mean(axis=1, keepdims=True), (scaled * hat).mean(axis=1, keepdims=True)
    return (scaled - mean - hat * along) / deviation, (g * hat).sum(0, keepdims=True), g.sum(0, keepdims=True)


def _weights(q: Array, k: Array) -> Array:
    """Softmax of q kᵀ / √head over the tokens up to each."""
    scores = q @ k.T / np.sqrt(q.shape[1])
    scores = np.where(np.tril(np.ones_like(scores)) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: Array = weights / weights.sum(axis=1, keepdims=True)
    return found


def attention(qkv: Array, sequence: int, heads: int) -> Array:
    """Causal attention, one head of one sequence after the other; a head's columns are its q, k and v."""
    head = qkv.shape[1] // (3 * heads)
    found = np.empty((qkv.shape[0], heads * head))
    for start in range(0, qkv.shape[0], sequence):
        rows = slice(start, start + sequence)
        for j in range(heads):
            q, k, v = np.split(qkv[rows, 3 * j * head : 3 * (j + 1) * head], 3, axis=1)
            found[rows, j * head : (j + 1) * head] = _weights(q, k) @ v
    return found


def attention_gradient(qkv: Array, sequence: int, heads: int, g: Array) -> Array:
    """Gradient of the columns of q, k and v."""
    head = qkv.shape[1] // (3 * heads)
    found = np.empty_like(qkv)
    for start in range(0, qkv.shape[0], sequence):
        rows = slice(start, start + sequence)
        for j in range(heads):
            columns = slice(3 * j * head, 3 * (j + 1) * head)
            q, k, v = np.split(qkv[rows, columns], 3, axis=1)
            weights, out = _weights(q, k), g[rows, j * head : (j + 1) * head]
            towards = out @ v.T
            scores = weights * (towards - (weights * towards).sum(axis=1, keepdims=True)) / np.sqrt(head)
            found[rows, columns] = np.hstack([scores @ k, scores.T @ q, weights.T @ out])
    return found


def gpt_loss(
    parameters: Mapping[str, Array], tokens: NDArray[Any], targets: NDArray[Any], layers: int, heads: int
) -> tuple[float, Matrices]:
    """Loss and gradients of a transformer; `tokens` and `targets` are sequences × positions."""
    batch, sequence = tokens.shape
    p = parameters
    gradients: Matrices = {name: np.zeros_like(value) for name, value in p.items()}
    x = p["table"][tokens.ravel()] + np.tile(p["positions"], (batch, 1))
    saved = []
    for layer in range(layers):
        of = {name: p[f"{name} layer {layer}"] for name in LAYER_PARAMETERS}
        n1 = layer_norm(x, of["norm1 γ"], of["norm1 β"])
        qkv = n1 @ of["QKV W"] + of["QKV b"]
        a = attention(qkv, sequence, heads)
        x2 = x + a @ of["project W"] + of["project b"]
        n2 = layer_norm(x2, of["norm2 γ"], of["norm2 β"])
        u = n2 @ of["up W"] + of["up b"]
        saved.append((x, n1, qkv, a, x2, n2, u))
        x = x2 + gelu(u) @ of["down W"] + of["down b"]
    last = layer_norm(x, p["last γ"], p["last β"])
    logits = last @ p["table"].T
    shifted = logits - logits.max(axis=1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    rows = np.arange(tokens.size)
    loss = float(-logarithms[rows, targets.ravel()].mean())
    g = np.exp(logarithms)
    g[rows, targets.ravel()] -= 1
    g /= tokens.size
    gradients["table"] += g.T @ last
    g, gradients["last γ"], gradients["last β"] = layer_norm_gradients(x, p["last γ"], g @ p["table"])
    for layer in reversed(range(layers)):
        g = _layer_gradient(p, gradients, layer, saved[layer], g, (sequence, heads))
    np.add.at(gradients["table"], tokens.ravel(), g)
    gradients["positions"] = g.reshape(batch, sequence, -1).sum(axis=0)
    return loss, gradients


LAYER_PARAMETERS = (
    *("norm1 γ", "norm1 β", "QKV W", "QKV b", "project W", "project b"),
    *("norm2 γ", "norm2 β", "up W", "up b", "down W", "down b"),
)


def _layer_gradient(
    p: Mapping[str, Array],
    gradients: Matrices,
    layer: int,
    saved: tuple[Array, ...],
    g: Array,
    shape: tuple[int, int],
) -> Array:
    """Gradient of a layer's input, from that of its output; fills in those of its parameters."""
    x, n1, qkv, a, x2, n2, u = saved
    of = {name: p[f"{name} layer {layer}"] for name in LAYER_PARAMETERS}
    found: Matrices = {"down W": gelu(u).T @ g, "down b": g.sum(0, keepdims=True)}
    towards_u = (g @ of["down W"].T) * gelu_slope(u)
    found |= {"up W": n2.T @ towards_u, "up b": towards_u.sum(0, keepdims=True)}
    part, found["norm2 γ"], found["norm2 β"] = layer_norm_gradients(x2, of["norm2 γ"], towards_u @ of["up W"].T)
    g = g + part
    found |= {"project W": a.T @ g, "project b": g.sum(0, keepdims=True)}
    towards_qkv = attention_gradient(qkv, shape[0], shape[1], g @ of["project W"].T)
    found |= {"QKV W": n1.T @ towards_qkv, "QKV b": towards_qkv.sum(0, keepdims=True)}
    part, found["norm1 γ"], found["norm1 β"] = layer_norm_gradients(x, of["norm1 γ"], towards_qkv @ of["QKV W"].T)
    for name, value in found.items():
        gradients[f"{name} layer {layer}"] += value
    return g + part
