"""`search_points`: the best points of a sweep from a few answers; by a full product if it fits the budget.

A search asks in groups of `LEAST_TOGETHER` to `TOGETHER` points, and learns from the answers of a group before it asks
the next. Its points therefore depend on the seed, not on the number of processes. Optuna draws the first points. Then
three quarters of a group are the points with the largest expected improvement under a Gaussian process of the answers,
times the probability that a point is accepted (`improvement.py`). `NEIGHBOURS` points differ from a best point in one
key, by the nearest value. Optuna proposes the rest. With several objectives, each group has drawn weights of them.

Source: Jones, Schonlau, Welch, "Efficient global optimization of expensive black-box functions", J. Global Optimization
13, 1998; Knowles, "ParEGO", IEEE Trans. Evolutionary Computation 10(1), 2006 (weights of objectives); Akiba et al.,
"Optuna: a next-generation hyperparameter optimization framework", KDD 2019.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, log
from random import Random
from typing import TYPE_CHECKING, Literal

import numpy as np

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.optional_packages import check_installed
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.output.pareto import pareto_front
from quadrille.experiments.sweep.gaussian_process import Similarity
from quadrille.experiments.sweep.improvement import ImprovementChoice
from quadrille.experiments.sweep.main_effects import Floats, MainEffects
from quadrille.experiments.sweep.sweep_result import SweepAnswer
from quadrille.experiments.sweep.varied_key import VariedKey

if TYPE_CHECKING:
    import optuna
    from optuna.trial import Trial

Objective = Literal["time", "memory", "gpus"]
TOGETHER = 8
"""Most points that are answered before the search learns from them."""
FIRST_POINTS = TOGETHER
"""Number of points that are drawn before the search proposes points."""
LEAST_TOGETHER = 4
"""Least number of points of a group."""
NEIGHBOURS = 1
"""Number of points of a group that are neighbours of the best points."""
GROUPS = 16
"""Number of groups of a small budget; of a larger one, groups have `TOGETHER` points."""
MOST_CANDIDATES = 1024
"""Most points for which the improvement is expected; of more points those with the least expected objective."""
MOST_EXPECTED = 1 << 15
"""Most points for which the objective is expected; of more points so many are drawn."""
REPEATS = 10
"""Number of proposals of points that are known, after which an unknown point is drawn."""
MOST_STORED_ANSWERS = 1000
"""Most answers of a store that optuna begins with; the time of a proposal grows with their number."""
IMPOSSIBLE = 1e3
"""The logarithm of the objective at a point that is not possible."""
TOO_LARGE = 10.0
"""What is added to the expected logarithm of the objective of a point for each factor e of memory above the limit."""
VIOLATION = "violation"
MOST_SEED = 2**32 - 1
"""Largest seed that optuna's generator takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """A search for the best points of a sweep.

    Parameters
    ----------
    objectives : what is to be small; with several, no point of the result is worse than another in all
    points : largest number of points that are answered
    seconds : time after which no more points are asked [s]
    most_gpus : largest number of GPUs of an accepted point; None for no limit
    seed : seed of the search
    """

    objectives: tuple[Objective, ...] = ("time",)
    points: float = inf
    seconds: float = inf
    most_gpus: int | None = None
    seed: int = 0

    def check(self) -> None:
        """Raises InputError if the package of the search is not installed."""
        try:
            check_installed("optuna")
        except InputError as error:
            raise InputError(f"--search {error}") from None

    def accepts(self, answer: SweepAnswer) -> bool:
        """Whether an answer is one: its memory fits, and it has few enough GPUs."""
        return self.allows(answer) and answer.fits is not False

    def allows(self, answer: SweepAnswer) -> bool:
        """Whether an answer has a time and few enough GPUs, whatever its memory."""
        return bool(answer.seconds) and (self.most_gpus is None or (answer.ranks or 0) <= self.most_gpus)

    def values(self, answer: SweepAnswer) -> tuple[float, ...]:
        """The objectives of an answer, in seconds, bytes and GPUs."""
        amounts = {"time": answer.seconds, "memory": answer.peak_bytes_per_rank_max, "gpus": answer.ranks}
        return tuple(float(amounts[objective] or 0.0) for objective in self.objectives)

    def words(self, answer: SweepAnswer) -> str:
        """The objectives of an answer as text."""
        formats: dict[Objective, Callable[[float], str]] = {
            "time": format_seconds,
            "memory": format_bytes,
            "gpus": "{:.0f} GPUs".format,
        }
        return ", ".join(
            formats[objective](value) for objective, value in zip(self.objectives, self.values(answer), strict=True)
        )


AnswerPlaces = Callable[[Sequence[int]], Sequence[SweepAnswer]]
"""A function that answers the points at some places, in their order."""


def search_points(
    varied: Sequence[VariedKey],
    answer: AnswerPlaces,
    options: SearchOptions,
    stored: Mapping[int, SweepAnswer] | None = None,
) -> dict[int, SweepAnswer]:
    """The answers that a search asked for, and those it began with, by the place of the point in the full product.

    >>> keys = [VariedKey("gpus", ("1", "2", "4"))]
    >>> answers = search_points(keys, lambda places: [SweepAnswer(seconds=4 - n) for n in places], SearchOptions())
    >>> best_places(answers, SearchOptions())
    [2]

    Parameters
    ----------
    varied : varied keys with their values; the last key changes fastest
    stored : answers from which the search learns first; they count as points of the budget
    """
    search = _Search(varied, answer, options, stored or {})
    search.run()
    return search.answers


def best_places(answers: dict[int, SweepAnswer], options: SearchOptions) -> list[int]:
    """The places of accepted answers to which no other is better in all objectives, the least first objective first."""
    accepted = {place: options.values(answer) for place, answer in answers.items() if options.accepts(answer)}
    places = list(accepted)
    front = [places[number] for number in pareto_front(list(accepted.values()))]
    return sorted(front, key=lambda place: (accepted[place], place))


class _Search:
    """The state of a search: the answers so far, and the time since its begin."""

    def __init__(
        self,
        varied: Sequence[VariedKey],
        answer: AnswerPlaces,
        options: SearchOptions,
        stored: Mapping[int, SweepAnswer],
    ) -> None:
        self._varied, self._answer, self._options = varied, answer, options
        self._orders = [_order(key) for key in varied]
        self._count, self._begin = 1, time.monotonic()
        for key in varied:
            self._count *= len(key.values)
        self._draw, self.answers, self._stored = Random(options.seed), dict(stored), len(stored)
        drawn = None if self._count <= MOST_EXPECTED else self._draw.sample(range(self._count), MOST_EXPECTED)
        self._effects = MainEffects([len(key.values) for key in varied], drawn)
        self._similarity = Similarity(varied)
        self._improvement = ImprovementChoice(self._similarity, options.accepts, options.allows, self._draw)

    def run(self) -> None:
        """Ask until the budget is used; ask everything if it fits the budget."""
        if self._count > self._options.points or self._options.seconds < inf:
            self._ask_groups()
        else:
            self._ask_rest()

    def _ask_rest(self) -> None:
        rest = [place for place in range(self._count) if place not in self.answers]
        together = TOGETHER if self._options.seconds < inf else max(1, len(rest))
        for begin in range(0, len(rest), together):
            if not self._has_time():
                return
            self._ask(rest[begin : begin + together])

    def _ask(self, places: Sequence[int]) -> None:
        self.answers.update(zip(places, self._answer(places), strict=True))

    def _has_time(self) -> bool:
        return not self._asked or time.monotonic() - self._begin < self._options.seconds

    @property
    def _asked(self) -> int:
        """The number of points that were asked."""
        return len(self.answers) - self._stored

    @property
    def _together(self) -> int:
        """The number of points of a group."""
        return int(min(TOGETHER, max(LEAST_TOGETHER, self._options.points // GROUPS)))

    def _fits_time(self) -> bool:
        """Whether all points fit the time, at the mean time of the asked points so far."""
        spent, count = time.monotonic() - self._begin, self._count - self._stored
        return self._options.points >= self._count and spent / self._asked * count < self._options.seconds

    def _ask_groups(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(
            directions=["minimize"] * len(self._options.objectives), sampler=_sampler(self._options.seed)
        )
        self._tell_stored(study)
        while (left := min(self._options.points, self._count) - len(self.answers)) > 0 and self._has_time():
            trials = self._proposals(study, int(min(left, self._together)))
            self._ask(list(trials))
            for place, trial in trials.items():
                self._tell(study, trial, place)
            if self._fits_time():
                self._ask_rest()
                return

    def _tell_stored(self, study: "optuna.Study") -> None:
        """Tell optuna the answers that the search began with, or `MOST_STORED_ANSWERS` drawn ones of them."""
        places = sorted(self.answers)
        for place in places if len(places) <= MOST_STORED_ANSWERS else self._draw.sample(places, MOST_STORED_ANSWERS):
            study.enqueue_trial(self._parameters(place))
            trial = study.ask()
            self._tell(study, trial, self._place(trial))

    def _proposals(self, study: "optuna.Study", count: int) -> "dict[int, Trial]":
        """Trials of points that are not known, by place."""
        trials: dict[int, Trial] = {}
        places = self._most_improving(max(1, count * 3 // 4))
        neighbours = (place for place in self._neighbours() if place not in places)
        for place in (places + list(islice(neighbours, NEIGHBOURS)))[:count]:
            study.enqueue_trial(self._parameters(place))
            trials[place] = study.ask()
            self._place(trials[place])
        repeats = 0
        while len(trials) < count:
            if repeats >= REPEATS:
                study.enqueue_trial(self._unknown(trials))
                repeats = 0
            trial = study.ask()
            place = self._place(trial)
            if place in self.answers or place in trials:
                repeats += 1
                if place in self.answers:
                    self._tell(study, trial, place)
            else:
                trials[place] = trial
        return trials

    def _place(self, trial: "Trial") -> int:
        """The place of the point that a trial proposes."""
        place = 0
        for key, order in zip(self._varied, self._orders, strict=True):
            last = len(order) - 1
            number = (
                trial.suggest_int(key.key, 0, last)
                if key.numbers is not None
                else trial.suggest_categorical(key.key, range(last + 1))
            )
            place = place * len(order) + order[int(number)]
        return place

    def _most_improving(self, count: int) -> list[int]:
        """The places of unknown points with the largest expected improvement, each as if the former had their mean."""
        timed = [place for place, answer in self.answers.items() if answer.seconds]
        if len(self.answers) < FIRST_POINTS or len(timed) < 2:
            return []
        losses = self._losses(timed)
        return self._improvement.places(self.answers, losses, self._candidates(timed, losses), count)

    def _losses(self, timed: Sequence[int]) -> dict[int, float]:
        """What is to be small, by place: the logarithm of the objective.

        With several objectives it is the largest of their weighted logarithms and a twentieth of their sum, with drawn
        weights. A logarithm is 0 at the least objective so far, and 1 at the largest.
        """
        rows = np.array([self._options.values(self.answers[place]) for place in timed])
        logarithms = np.log(np.where(rows > 0, rows, 1.0))
        if logarithms.shape[1] > 1:
            drawn = np.array([self._draw.expovariate(1.0) for _ in self._options.objectives])
            spread = np.ptp(logarithms, axis=0)
            scaled = (logarithms - logarithms.min(axis=0)) / np.where(spread > 0, spread, 1.0) * drawn / drawn.sum()
            logarithms = (scaled.max(axis=1) + scaled.sum(axis=1) / 20)[:, None]
        return dict(zip(timed, logarithms[:, 0].tolist(), strict=True))

    def _candidates(self, timed: Sequence[int], losses: Mapping[int, float]) -> list[int]:
        """The places of unknown points among which the search chooses."""
        effects = self._effects
        if self._count <= MOST_CANDIDATES:
            return [place for place in range(self._count) if place not in self.answers]
        expected = effects.expected(timed, [losses[place] for place in timed]) + self._expected_refusal(timed)
        expected[np.isin(effects.places, list(self.answers))] = inf
        least = np.argsort(expected, kind="stable")[: min(MOST_CANDIDATES, self._count - len(self.answers))]
        places = [int(place) for place in effects.places[least] if int(place) not in self.answers]
        return list(dict.fromkeys([*self._neighbours(), *places]))[:MOST_CANDIDATES]

    def _expected_refusal(self, timed: Sequence[int]) -> Floats:
        """The expected penalties of points, added to the logarithm of the objective [points].

        A point that is expected to be impossible or to have too many GPUs has a large penalty. The penalty of a point
        of too much memory grows with its memory.
        """
        answers, effects = self.answers, self._effects
        refused = [float(not self._options.allows(answer)) for answer in answers.values()]
        penalty = np.where(effects.expected(list(answers), refused) > 0.5, IMPOSSIBLE, 0.0)
        peaks = {place: log(peak) for place in timed if (peak := answers[place].peak_bytes_per_rank_max)}
        too_large = [peaks[place] for place in timed if answers[place].fits is False and place in peaks]
        if too_large:
            excess = effects.expected(list(peaks), list(peaks.values())) - min(too_large)
            penalty += np.where(excess >= 0, TOO_LARGE * (1 + excess), 0.0)
        return penalty

    def _parameters(self, place: int) -> dict[str, int]:
        """The parameters of the point at a place."""
        return {key.key: value for key, value in zip(self._varied, self._numbers(place), strict=True)}

    def _numbers(self, place: int) -> list[int]:
        """The numbers of the values of the point at a place."""
        numbers: list[int] = []
        for order in reversed(self._orders):
            place, digit = divmod(place, len(order))
            numbers.insert(0, order.index(digit))
        return numbers

    def _neighbours(self) -> list[int]:
        """The places of unknown points that differ from one of the best points in one key.

        Those whose value is the nearest come first, of these the neighbours of the best point with the least first
        objective.
        """
        best = best_places(self.answers, self._options)
        if len(self.answers) < FIRST_POINTS:
            return []
        ranked = [
            (steps, rank, place)
            for rank, own in enumerate(best)
            for place, steps in self._similarity.changed_in_one_key(own)
            if place not in self.answers
        ]
        return list(dict.fromkeys(place for _, _, place in sorted(ranked)))

    def _place_of(self, numbers: Sequence[int]) -> int:
        """The place of the point with these numbers of values."""
        place = 0
        for number, order in zip(numbers, self._orders, strict=True):
            place = place * len(order) + order[number]
        return place

    def _unknown(self, proposed: "dict[int, Trial]") -> dict[str, int]:
        """The parameters of a point that is not known, drawn."""
        while True:
            numbers = [self._draw.randrange(len(order)) for order in self._orders]
            place = self._place_of(numbers)
            if place not in self.answers and place not in proposed:
                return {key.key: number for key, number in zip(self._varied, numbers, strict=True)}

    def _tell(self, study: "optuna.Study", trial: "Trial", place: int) -> None:
        answer, options = self.answers[place], self._options
        trial.set_constraint(VIOLATION, 0.0 if options.accepts(answer) else 1.0)
        values = options.values(answer) if answer.seconds else ()
        study.tell(
            trial, [log(value) if value > 0 else 0.0 for value in values] or [IMPOSSIBLE] * len(options.objectives)
        )


def _sampler(seed: int) -> "optuna.samplers.BaseSampler":
    """The sampler of a search."""
    import optuna

    return optuna.samplers.TPESampler(seed=seed, n_startup_trials=FIRST_POINTS)


def _order(key: VariedKey) -> list[int]:
    """The places of a key's values, the smallest number first; as listed if they are no numbers."""
    numbers = key.numbers
    return list(range(len(key.values))) if numbers is None else sorted(range(len(key.values)), key=numbers.__getitem__)
