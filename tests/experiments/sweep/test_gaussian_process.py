"""A Gaussian process agrees with its formulas, and improvements with an integral."""

import numpy as np
import pytest

from quadrille.experiments.sweep.gaussian_process import (
    NOISE,
    GaussianProcess,
    Similarity,
    ValueDistances,
    expected_improvement,
)
from quadrille.experiments.sweep.varied_key import VariedKey

KEYS = (VariedKey("grid", ("x=8", "x=4,y=2", "y=8")), VariedKey("bands", ("4", "1", "2")), VariedKey("c", ("a", "b")))


@pytest.fixture
def process():
    similarity = Similarity(KEYS)
    answered, candidates = similarity.numbers([0, 3, 7, 11, 16]), similarity.numbers([1, 5, 8, 17])
    return similarity, answered, candidates, np.array([1.0, 4.0, 2.0, 0.5, 3.0])


def posterior(similarity, answered, candidates, values, parameters):
    """The mean and the variance by the inverse of the similarities."""
    inverse = np.linalg.inv(similarity.between(answered, answered, parameters) + NOISE * np.eye(len(answered)))
    across = similarity.between(candidates, answered, parameters)
    mean = values.mean() + across @ inverse @ (values - values.mean())
    residuals = values - values.mean()
    amplitude = residuals @ inverse @ residuals / len(values)
    return mean, amplitude * (1 - np.sum(across @ inverse * across, axis=1)), amplitude


def test_mean_and_deviation_are_those_of_the_inverse_matrix(process):
    similarity, answered, candidates, values = process
    fitted = GaussianProcess(similarity, answered, values, candidates)
    mean, variance, _ = posterior(similarity, answered, candidates, values, fitted.parameters)
    assert fitted.mean == pytest.approx(mean) and fitted.deviation**2 == pytest.approx(variance)


def test_a_believed_candidate_changes_deviations_as_an_answer_does(process):
    similarity, answered, candidates, values = process
    fitted = GaussianProcess(similarity, answered, values, candidates)
    _, _, amplitude = posterior(similarity, answered, candidates, values, fitted.parameters)
    fitted.believe(2)
    more = np.vstack([answered, candidates[2:3]])
    inverse = np.linalg.inv(similarity.between(more, more, fitted.parameters) + NOISE * np.eye(len(more)))
    across = similarity.between(candidates, more, fitted.parameters)
    expected = amplitude * (1 - np.sum(across @ inverse * across, axis=1))
    assert fitted.deviation**2 == pytest.approx(expected, rel=1e-6)


def test_distances_of_values():
    assert ValueDistances.of(KEYS[0]).total.tolist() == [[0, 2, 6], [2, 0, 4], [6, 4, 0]]
    assert ValueDistances.of(KEYS[1]).total.tolist() == [[0, 2, 1], [2, 0, 1], [1, 1, 0]]
    overlaps = ValueDistances.of(VariedKey("overlap", ("oag", "oag,oar", "none")))
    assert overlaps.total.tolist() == [[0, 0.5, 1], [0.5, 0, 1.5], [1, 1.5, 0]]


@pytest.mark.parametrize("least", [-1.0, 0.5, 3.0])
def test_expected_improvement_is_the_integral_of_the_decrease(least):
    values = np.linspace(-9, 11, 200001)
    density = np.exp(-((values - 1) ** 2) / 2 / 1.5**2) / 1.5 / np.sqrt(2 * np.pi)
    integral = np.sum(np.maximum(least - values, 0) * density) * (values[1] - values[0])
    assert expected_improvement(np.array([1.0]), np.array([1.5]), least)[0] == pytest.approx(integral, rel=1e-4)
