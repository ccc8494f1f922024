"""The serial reference of sharded training, in float64: loss and gradients of linear layers, Adam, gradient clipping.

Nothing here is shared with the schedules or their kernels. Parameters are dictionaries of matrices under the names of
the schedules; a gradient has the name of its parameter. The tests check the formulas by finite differences, and against
PyTorch where it is installed.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Matrices = dict[str, Array]
LossOf = Callable[[Mapping[str, Array], int], tuple[float, Matrices]]
"""A function of the parameters and the step (from 0) that returns the loss and the gradients."""
NO_MOMENTS: Mapping[str, tuple[Array, Array]] = MappingProxyType({})


def gelu(x: Array) -> Array:
    """The tanh form of GELU: x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2."""
    activated: Array = x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2
    return activated


def gelu_slope(x: Array) -> Array:
    """The derivative of `gelu`."""
    t = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    slope: Array = (1 + t) / 2 + x * (1 - t**2) / 2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return slope


def mlp_loss(parameters: Mapping[str, Array], x: Array, target: Array) -> tuple[float, Matrices]:
    """The mean square error and its gradients for a stack of linear layers `L1`, `L2`, … with GELU between them.

    Parameters
    ----------
    parameters : weights and biases by name, such as "L1 W" and "L1 b"
    x, target : inputs and targets, rows × columns
    """
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
    """The gradients, scaled so that their joint norm is at most the limit (0: no limit)."""
    if not limit:
        return gradients
    norm = np.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
    return {name: g * min(1.0, limit / (norm + 1e-6)) for name, g in gradients.items()}


def adam_step(value: Array, moments: tuple[Array, Array], g: Array, step: int, adam: Any) -> tuple[Array, Array, Array]:
    """A parameter and its two moments after one Adam step with decoupled weight decay; steps count from 0.

    Parameters
    ----------
    value : parameter
    moments : means of the gradient and of its square
    g : gradient
    step : index of the step
    adam : settings of the optimizer (`quadrille.algorithms.training.adam.Adam`)
    """
    first = adam.beta1 * moments[0] + (1 - adam.beta1) * g
    second = adam.beta2 * moments[1] + (1 - adam.beta2) * g**2
    mean = first / (1 - adam.beta1 ** (step + 1))
    spread = second / (1 - adam.beta2 ** (step + 1))
    return value - adam.rate * (mean / (np.sqrt(spread) + adam.epsilon) + adam.decay * value), first, second


def train(
    parameters: Mapping[str, Array],
    loss_of: LossOf,
    steps: range,
    adam: Any,
    moments: Mapping[str, tuple[Array, Array]] = NO_MOMENTS,
) -> tuple[list[float], Matrices, Matrices]:
    """The losses of some Adam steps, the final parameters, and the gradients of the last step.

    Parameters
    ----------
    parameters : initial parameters by name
    loss_of : function that returns the loss and the gradients
    steps : indices of the steps
    adam : settings of the optimizer (`quadrille.algorithms.training.adam.Adam`)
    moments : moments of a resumed run; zeros if there are none
    """
    current = {name: np.array(value, np.float64) for name, value in parameters.items()}
    means = {name: moments.get(name, (np.zeros_like(value), np.zeros_like(value))) for name, value in current.items()}
    losses: list[float] = []
    gradients: Matrices = {}
    for step in steps:
        loss, gradients = loss_of(current, step)
        losses.append(loss)
        gradients = clipped(gradients, adam.clip)
        for name, g in gradients.items():
            current[name], *new_moments = adam_step(current[name], means[name], g, step, adam)
            means[name] = (new_moments[0], new_moments[1])
    return losses, current, gradients
