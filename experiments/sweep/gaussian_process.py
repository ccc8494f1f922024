"""`GaussianProcess`: the expected quantity and its standard deviation at points of a sweep, from answered points.

Two points are similar as far as their values of each key are. A key has a share of its similarity that depends on the
distance of two values, and a length of that distance; both are those of the largest likelihood, with a weak prior.

| values | distance |
|---|---|
| numbers | difference of their ranks; the similarity is of Matérn 3/2 |
| lists, as `data=8,x=2` | log2 of the quotient of named numbers (Matérn 3/2); half the words of one list only |
| all others | 1 |

Source: Rasmussen, Williams, "Gaussian processes for machine learning", MIT Press 2006, algorithm 2.1, equations 4.17
(Matérn) and 5.8 (marginal likelihood).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from math import erf, log, log2, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from quadrille.experiments.sweep.varied_key import VariedKey

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
NOISE = 1e-4
"""Variance of an answer, as a share of the variance of a point without answer."""
WEIGHTS = (0.3, 1.0, 4.0, 16.0)
"""First weights of the similarity of values, against a similarity of all values alike."""
LENGTHS = (1.0, 2.0)
"""First lengths of distances."""
WEIGHT_BOUNDS = (1 / 64, 256.0)
LENGTH_BOUNDS = (0.4, 16.0)
CHANGES = ((0.25, 1.0), (4.0, 1.0), (1.0, 0.6), (1.0, 1.6))
"""Factors of a weight and a length, which a fit tries for each key."""
USUAL_LENGTH = 1.5
WEIGHT_PRIOR, LENGTH_PRIOR = 0.05, 0.1
"""Costs of a squared logarithm of a weight and of a length, in logarithms of the likelihood."""
LEAST_VARIANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """The weight and the length of each key's similarity."""

    weights: tuple[float, ...]
    lengths: tuple[float, ...]

    def changed(self, key: int, weight_factor: float, length_factor: float) -> "Hyperparameters":
        """The hyperparameters with another weight and length of a key, within their bounds."""
        return Hyperparameters(
            _multiplied(self.weights, key, weight_factor, WEIGHT_BOUNDS),
            _multiplied(self.lengths, key, length_factor, LENGTH_BOUNDS),
        )

    @property
    def cost(self) -> float:
        """The negative logarithm of the prior."""
        return WEIGHT_PRIOR * sum(log(weight) ** 2 for weight in self.weights) + LENGTH_PRIOR * sum(
            log(length / USUAL_LENGTH) ** 2 for length in self.lengths
        )


def _multiplied(
    values: tuple[float, ...], number: int, factor: float, bounds: tuple[float, float]
) -> tuple[float, ...]:
    value = min(bounds[1], max(bounds[0], values[number] * factor))
    return (*values[:number], value, *values[number + 1 :])


@dataclass(frozen=True)
class ValueDistances:
    """The distances of the values of a key.

    >>> grids = ValueDistances.of(VariedKey("grid", ("data=8", "data=4,x=2", "x=8")))
    >>> grids.total[0]
    array([0., 2., 6.])
    >>> ValueDistances.of(VariedKey("dtype", ("float32", "float64"))).total[0]
    array([0., 1.])

    Parameters
    ----------
    axes : distances of numbers, for each name [values, values]
    words : distances of words [values, values]
    """

    axes: tuple[Floats, ...]
    words: Floats

    @classmethod
    def of(cls, key: VariedKey) -> "ValueDistances":
        """The distances of the values of a key."""
        none = np.zeros((len(key.values), len(key.values)))
        if key.numbers is not None:
            return cls((_differences(np.argsort(np.argsort(key.numbers))),), none)
        lists = [_named_numbers(value) for value in key.values]
        names = sorted({name for numbers, _ in lists for name in numbers})
        axes = tuple(_differences([numbers.get(name, 0.0) for numbers, _ in lists]) for name in names)
        words = np.array([[len(row ^ column) / 2 for _, column in lists] for _, row in lists])
        alike = sum(axes, none) + words == 0
        np.fill_diagonal(alike, False)
        return cls(axes, words + alike)

    @cached_property
    def total(self) -> Floats:
        """The sum of all distances [values, values]."""
        return np.asarray(sum(self.axes, self.words))

    def similarity(self, length: float) -> Floats:
        """The similarities of values, from 0 to 1 [values, values]."""
        similarity = np.exp(-self.words / length)
        for axis in self.axes:
            similarity = similarity * (1 + axis / length) * np.exp(-axis / length)
        return np.asarray(similarity)


def _differences(values: Sequence[float] | Integers) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    return np.abs(numbers[:, None] - numbers)


def _named_numbers(value: str) -> tuple[dict[str, float], frozenset[str]]:
    """The logarithms to base 2 of the named numbers of a list, and its words.

    >>> _named_numbers("data=8,x=2,packed")
    ({'data': 3.0, 'x': 1.0}, frozenset({'packed'}))
    """
    numbers: dict[str, float] = {}
    words: list[str] = []
    for part in value.split(","):
        name, _, text = part.partition("=")
        if text.isdecimal() and int(text) > 0:
            numbers[name] = log2(int(text))
        else:
            words.append(part)
    return numbers, frozenset(words)


class Similarity:
    """The similarity of points of a full product, the last key fastest.

    >>> points = Similarity([VariedKey("zero", ("0", "1")), VariedKey("bands", ("1", "2", "4"))])
    >>> points.numbers([0, 5])
    array([[0, 0],
           [1, 2]])
    """

    def __init__(self, varied: Sequence[VariedKey]) -> None:
        self._lengths = tuple(len(key.values) for key in varied)
        self._distances = [ValueDistances.of(key) for key in varied]

    def numbers(self, places: Sequence[int]) -> Integers:
        """The number of the value of each key at each place [points, keys]."""
        return np.stack(np.unravel_index(np.asarray(places, dtype=np.int64), self._lengths), axis=1)

    def changed_in_one_key(self, place: int) -> Iterator[tuple[int, int]]:
        """The places of the points that differ from a point in one key, with the number of steps of its value.

        The nearest values are one step away; all values of a category are.

        >>> points = Similarity([VariedKey("zero", ("0", "1")), VariedKey("bands", ("1", "2", "4"))])
        >>> list(points.changed_in_one_key(0))
        [(3, 1), (1, 1), (2, 2)]
        """
        stride = int(np.prod(self._lengths, dtype=np.int64))
        for length, distances in zip(self._lengths, self._distances, strict=True):
            stride //= length
            own = place // stride % length
            steps = np.unique(distances.total[own], return_inverse=True)[1]
            for number in range(length):
                if number != own:
                    yield place + (number - own) * stride, int(steps[number])

    def between(self, rows: Integers, columns: Integers, parameters: Hyperparameters) -> Floats:
        """The similarities of points, given by the numbers of their values [rows, columns]."""
        similarities = np.ones((len(rows), len(columns)))
        for key, distances in enumerate(self._distances):
            weight = parameters.weights[key]
            similarity = (1 + weight * distances.similarity(parameters.lengths[key])) / (1 + weight)
            similarities *= similarity[rows[:, key][:, None], columns[:, key]]
        return similarities

    def first_parameters(self) -> list[Hyperparameters]:
        """The hyperparameters of which the first fit takes the most likely."""
        keys = len(self._lengths)
        return [Hyperparameters((weight,) * keys, (length,) * keys) for weight in WEIGHTS for length in LENGTHS]


@dataclass(frozen=True, slots=True)
class _Conditioned:
    """Answered points under some hyperparameters.

    Parameters
    ----------
    cost : negative logarithm of the posterior density of the hyperparameters, but for a constant
    variance : variance of a point without answer, as a share of the variance of the answers
    factor : lower Cholesky factor of the similarities [points, points]
    weights : factor⁻¹ of the standardised answers [points]
    """

    cost: float
    variance: float
    factor: Floats
    weights: Floats


class GaussianProcess:
    """The expected quantity at candidates, and its standard deviation.

    >>> points = Similarity([VariedKey("bands", ("1", "2", "4", "8"))])
    >>> process = GaussianProcess(points, points.numbers([0, 1, 3]), [1.0, 2.0, 4.0], points.numbers([1, 2]))
    >>> [round(float(mean), 1) for mean in process.mean]
    [2.0, 3.2]
    >>> bool(process.deviation[0] < process.deviation[1])
    True

    Parameters
    ----------
    answered, values : answered points [points, keys] and their values [points]
    candidates : points whose value is expected [candidates, keys]
    parameters : hyperparameters of an earlier fit; the first fit tries several
    refit : whether the likelihood is raised by changing one hyperparameter after another
    """

    def __init__(
        self,
        similarity: Similarity,
        answered: Integers,
        values: Sequence[float],
        candidates: Integers,
        parameters: Hyperparameters | None = None,
        *,
        refit: bool = True,
    ) -> None:
        observed = np.asarray(values, dtype=np.float64)
        center, scale = observed.mean(), observed.std() or 1.0
        self._similarity, self._candidates = similarity, candidates
        fit = _fit(similarity, answered, (observed - center) / scale)
        starts = similarity.first_parameters() if parameters is None else [parameters]
        self.parameters = min(starts, key=lambda start: fit(start).cost) if len(starts) > 1 else starts[0]
        if refit or parameters is None:
            self._raise_likelihood(fit)
        conditioned = fit(self.parameters)
        across = similarity.between(answered, candidates, self.parameters)
        self._explained = np.linalg.solve(conditioned.factor, across)
        self.mean: Floats = center + scale * (conditioned.weights @ self._explained)
        self._amplitude = scale**2 * conditioned.variance
        self._set_variance(1 - (self._explained**2).sum(axis=0))

    def _raise_likelihood(self, fit: Callable[[Hyperparameters], _Conditioned]) -> None:
        for key, factors in product(range(len(self.parameters.weights)), CHANGES):
            changed = self.parameters.changed(key, *factors)
            if fit(changed).cost < fit(self.parameters).cost:
                self.parameters = changed

    def _set_variance(self, variance: Floats) -> None:
        self._variance = np.maximum(variance, LEAST_VARIANCE)

    @property
    def deviation(self) -> Floats:
        """The standard deviation at each candidate [candidates]."""
        return np.asarray(np.sqrt(self._amplitude * self._variance))

    def believe(self, number: int) -> None:
        """Take the mean of a candidate for its answer: deviations become smaller, means stay.

        Source: Ginsbourger, Le Riche, Carraro, "Kriging is well-suited to parallelize optimization", 2010, section 3.2
        (kriging believer).
        """
        own = self._candidates[number : number + 1]
        covariance = self._similarity.between(own, self._candidates, self.parameters)[0]
        covariance = covariance - self._explained.T @ self._explained[:, number]
        row = covariance / sqrt(self._variance[number] + NOISE)
        self._explained = np.vstack([self._explained, row])
        self._set_variance(self._variance - row**2)


def _fit(similarity: Similarity, answered: Integers, standard: Floats) -> Callable[[Hyperparameters], _Conditioned]:
    """The function that conditions standardised answers on hyperparameters, and computes each only once."""

    @cache
    def conditioned(parameters: Hyperparameters) -> _Conditioned:
        count = len(standard)
        matrix = similarity.between(answered, answered, parameters) + NOISE * np.eye(count)
        factor: Floats = np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)
        weights: Floats = np.asarray(np.linalg.solve(factor, standard), dtype=np.float64)
        variance = max(float(weights @ weights) / count, 1e-6)
        cost = count / 2 * log(variance) + float(np.log(np.diag(factor)).sum()) + parameters.cost
        return _Conditioned(cost, variance, factor, weights)

    return conditioned


def probability_below(deviations: Floats) -> Floats:
    """The probability that a normal variable is below a number of standard deviations.

    >>> probability_below(np.array([0.0, 1.0])).round(3)
    array([0.5  , 0.841])
    """
    return np.array([(1 + erf(deviation / sqrt(2))) / 2 for deviation in deviations])


def expected_improvement(mean: Floats, deviation: Floats, least: float) -> Floats:
    """The expected decrease of the least value, if a candidate is answered [candidates].

    Source: Jones, Schonlau, Welch, "Efficient global optimization of expensive black-box functions", J. Global
    Optimization 13, 1998, equation 15.
    """
    deviations = (least - mean) / deviation
    density = np.exp(-(deviations**2) / 2) / sqrt(2 * pi)
    return np.maximum(deviation * (deviations * probability_below(deviations) + density), 0.0)
