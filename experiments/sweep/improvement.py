"""`ImprovementChoice`: the points of a sweep with the largest expected improvement over the best accepted answer.

The expected improvement is multiplied by the probability that a point is possible and that its memory fits. Where all
answers that fit need less memory than those that do not, the logarithm of the memory is expected, and the limit lies
between; else the probability is that of a Gaussian process of 0 and 1.

Source: Schonlau, Welch, Jones, "Global versus local search in constrained optimization of computer models", 1998
(product with the probability of acceptance).
"""

from collections.abc import Callable, Mapping, Sequence
from math import log
from random import Random

import numpy as np
from threadpoolctl import ThreadpoolController

from quadrille.experiments.sweep.gaussian_process import (
    Floats,
    GaussianProcess,
    Hyperparameters,
    Integers,
    Similarity,
    expected_improvement,
    probability_below,
)
from quadrille.experiments.sweep.sweep_result import SweepAnswer

MOST_CONDITIONED = 128
"""Most answers of which a Gaussian process is conditioned: half of them are the best, half are drawn."""
REFIT_GROWTH = 1.25
"""Growth of the number of answers after which hyperparameters are fitted again."""
LEAST_PROBABILITY = 1e-6
LEAST_SCORE = 1e-300
DIGITS = 9
"""Decimals of the logarithm of a score: points that differ by rounding are equal, and the first is taken."""
LEAST_DEVIATIONS = {"memory": 0.01, "possible": 0.05, "accepted": 0.05}
"""Least standard deviations of probabilities: of the logarithm of bytes, and of 0 and 1."""

Accepts = Callable[[SweepAnswer], bool]


class ImprovementChoice:
    """The choice of points to ask, with the hyperparameters of its last fits.

    Parameters
    ----------
    accepts, allows : whether an answer is accepted, and whether it is but for its memory
    """

    def __init__(self, similarity: Similarity, accepts: Accepts, allows: Accepts, draw: Random) -> None:
        self._similarity, self._accepts, self._allows, self._draw = similarity, accepts, allows, draw
        self._parameters: dict[str, Hyperparameters] = {}
        self._fitted, self._refit = 0, True
        self._threads = ThreadpoolController()

    def places(
        self, answers: Mapping[int, SweepAnswer], losses: Mapping[int, float], candidates: Sequence[int], count: int
    ) -> list[int]:
        """The places of candidates, each chosen as if the former had their expected loss.

        Its matrices are small: more threads than one would only wait for each other.

        Parameters
        ----------
        losses : what is to be small, of answers with a time
        """
        if not candidates:
            return []
        with self._threads.limit(limits=1, user_api="blas"):
            return self._places(answers, losses, candidates, count)

    def _places(
        self, answers: Mapping[int, SweepAnswer], losses: Mapping[int, float], candidates: Sequence[int], count: int
    ) -> list[int]:
        self._refit = len(answers) >= REFIT_GROWTH * self._fitted
        if self._refit:
            self._fitted = len(answers)
        conditioned = self._conditioned(answers, losses)
        timed = [place for place in conditioned if place in losses]
        numbers = self._similarity.numbers(candidates)
        accepted = np.log(self._probability(answers, conditioned, timed, numbers))
        loss = self._process("loss", timed, [losses[place] for place in timed], numbers)
        least = min((losses[place] for place in timed if self._accepts(answers[place])), default=None)
        chosen: list[int] = []
        for _ in range(min(count, len(candidates))):
            score = accepted.copy()
            if least is not None:
                improvement = expected_improvement(loss.mean, loss.deviation, least)
                score += np.log(np.maximum(improvement, LEAST_SCORE))
            score[chosen] = -np.inf
            chosen.append(int(np.argmax(score.round(DIGITS))))
            loss.believe(chosen[-1])
        return [candidates[number] for number in chosen]

    def _conditioned(self, answers: Mapping[int, SweepAnswer], losses: Mapping[int, float]) -> list[int]:
        """The places of the answers of which the processes are conditioned."""
        if len(answers) <= MOST_CONDITIONED:
            return list(answers)
        ranked = sorted(losses, key=lambda place: (not self._accepts(answers[place]), losses[place], place))
        best = ranked[: MOST_CONDITIONED // 2]
        rest = sorted(set(answers) - set(best))
        return best + self._draw.sample(rest, MOST_CONDITIONED - len(best))

    def _process(
        self, name: str, places: Sequence[int], values: Sequence[float], candidates: Integers
    ) -> GaussianProcess:
        process = GaussianProcess(
            self._similarity,
            self._similarity.numbers(places),
            values,
            candidates,
            self._parameters.get(name),
            refit=self._refit,
        )
        self._parameters[name] = process.parameters
        return process

    def _probability(
        self, answers: Mapping[int, SweepAnswer], conditioned: Sequence[int], timed: Sequence[int], candidates: Integers
    ) -> Floats:
        """The probability that a candidate is accepted [candidates]."""
        peaks = {place: log(peak) for place in timed if (peak := answers[place].peak_bytes_per_rank_max)}
        large = [peak for place, peak in peaks.items() if answers[place].fits is False]
        small = [peak for place, peak in peaks.items() if answers[place].fits is not False]
        if large and max(small, default=min(large)) > min(large):
            return self._share(
                "accepted", [(place, self._accepts(answers[place])) for place in conditioned], candidates
            )
        probability = self._share(
            "possible", [(place, self._allows(answers[place])) for place in conditioned], candidates
        )
        if not large:
            return probability
        memory = self._process("memory", list(peaks), list(peaks.values()), candidates)
        limit = (min(large) + max(small, default=min(large))) / 2
        return probability * _probability(limit - memory.mean, memory.deviation, LEAST_DEVIATIONS["memory"])

    def _share(self, name: str, answers: Sequence[tuple[int, bool]], candidates: Integers) -> Floats:
        """The probability that a property of some answers is one of a candidate [candidates]."""
        values = [float(value) for _, value in answers]
        if min(values) == max(values):
            return np.ones(len(candidates))
        process = self._process(name, [place for place, _ in answers], values, candidates)
        return _probability(process.mean - 0.5, process.deviation, LEAST_DEVIATIONS[name])


def _probability(margin: Floats, deviation: Floats, least_deviation: float) -> Floats:
    return np.maximum(probability_below(margin / np.maximum(deviation, least_deviation)), LEAST_PROBABILITY)
