"""Layer normalisation from two sums: as far from a mean of zero as `normalisation.py` says, and no farther."""

import numpy as np
import pytest

from quadrille.algorithms.training.normalisation import EPSILON
from quadrille.runtime.kernels.layer_kernels import KERNELS, KernelArguments
from quadrille.runtime.training.serial_transformer import layer_norm

ROWS, COLUMNS = 64, 512
EPS = 2.0**-23


def normalised(x):
    """Rows of mean 0 and variance 1, from sums in the dtype of x."""
    scalars = {"columns": float(COLUMNS), "epsilon": EPSILON}
    moments, found = np.empty((ROWS, 2), x.dtype), np.empty_like(x)
    ones, zeros = np.ones((1, COLUMNS), x.dtype), np.zeros((1, COLUMNS), x.dtype)
    KERNELS["row_moments"](given((moments,), (x,), scalars))
    KERNELS["normalise"](given((found,), (x, moments, ones, zeros), scalars))
    return found


def given(into, sources, scalars):
    return KernelArguments(np, into, (), sources, (), scalars, 0)


def serial(x):
    x = x.astype(np.float64)
    return layer_norm(x, np.ones((1, COLUMNS)), np.zeros((1, COLUMNS)))


@pytest.mark.parametrize("distance", [0, 1, 10, 100])
def test_rounding_grows_with_the_square_of_the_distance_from_zero(distance):
    x = (np.random.default_rng(5).standard_normal((ROWS, COLUMNS)) + distance).astype(np.float32)
    error = np.abs(normalised(x) - serial(x)).max() / np.abs(serial(x)).max()
    assert error < 4 * EPS * (1 + distance**2)


def test_float64_of_the_same_rows_is_as_good_as_the_serial_one():
    x = np.random.default_rng(5).standard_normal((ROWS, COLUMNS)) + 100
    assert np.abs(normalised(x) - serial(x)).max() < 1e-10
