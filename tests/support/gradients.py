"""Checks of gradients against slopes of the loss by central differences."""

import numpy as np
import pytest


def slope(loss, parameters, name, direction, step=1e-5):
    """Central difference of a loss along a direction of one parameter."""
    ends = [loss({**parameters, name: parameters[name] + sign * step * direction}) for sign in (1, -1)]
    return (ends[0] - ends[1]) / (2 * step)


def check_gradients(loss_of, parameters):
    """Compares gradients and slopes along a random direction of every parameter."""
    random = np.random.default_rng(5)
    _, gradients = loss_of(parameters)
    assert set(gradients) == set(parameters)
    for name, gradient in gradients.items():
        direction = random.standard_normal(gradient.shape)
        expected = slope(lambda held: loss_of(held)[0], parameters, name, direction)
        assert float((gradient * direction).sum()) == pytest.approx(expected, rel=2e-6, abs=2e-9), name
