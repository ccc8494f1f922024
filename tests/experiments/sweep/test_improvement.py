"""Points of the largest improvement are accepted ones, of many answers and of memory that has no single limit."""

from itertools import product
from random import Random

import pytest

from quadrille.experiments.sweep.gaussian_process import Similarity
from quadrille.experiments.sweep.improvement import MOST_CONDITIONED, ImprovementChoice
from quadrille.experiments.sweep.point_search import SearchOptions, best_places, search_points
from quadrille.experiments.sweep.sweep_result import SweepAnswer
from quadrille.experiments.sweep.varied_key import VariedKey

KEYS = [VariedKey(key, tuple(map(str, range(8)))) for key in ("a", "b", "c")]
POINTS = list(product(range(8), repeat=3))


def sums(limit):
    """Answers whose time falls with the sum of a point's values, and whose memory rises; `limit` is that of a point."""
    return [
        SweepAnswer(seconds=30.0 - total, peak_bytes_per_rank_max=100 + total, fits=total <= limit(point))
        for point in POINTS
        for total in (sum(point),)
    ]


@pytest.mark.parametrize("limit", [lambda point: 12, lambda point: 6 + point[0]])
def test_chosen_points_improve_and_fit(limit):
    """The second limit is that of a varied memory. Points of a sum above 9 that fit are unknown."""
    table = sums(limit)
    options = SearchOptions()
    slow = [place for place, point in enumerate(POINTS) if sum(point) <= 9 or not table[place].fits]
    answers = {place: table[place] for place in Random(0).sample(slow, 100)}
    choice = ImprovementChoice(Similarity(KEYS), options.accepts, options.allows, Random(0))
    losses = {place: answer.seconds for place, answer in answers.items()}
    unknown = [place for place in range(len(table)) if place not in answers]
    chosen = choice.places(answers, losses, unknown, 6)
    least = min(answer.seconds for answer in answers.values() if answer.fits)
    improving = [place for place in chosen if table[place].fits and table[place].seconds < least]
    assert len(set(chosen)) == 6 and len(improving) >= 5


def test_few_possible_answers_among_more_than_are_conditioned():
    options = SearchOptions()
    answers = {place: SweepAnswer(reason="none") for place in range(3 * MOST_CONDITIONED)}
    answers |= {place: SweepAnswer(seconds=1.0 + place) for place in (5, 6)}
    choice = ImprovementChoice(Similarity(KEYS), options.accepts, options.allows, Random(0))
    losses = {5: 1.0, 6: 2.0}
    assert set(losses) <= set(choice._conditioned(answers, losses))
    assert len(choice.places(answers, losses, range(400, 500), 6)) == 6


@pytest.mark.parametrize(
    "answer", [SweepAnswer(reason="none"), SweepAnswer(seconds=1.0), SweepAnswer(seconds=1.0, fits=False)]
)
def test_a_search_of_equal_answers_ends_with_its_budget(answer):
    options = SearchOptions(points=40)
    keys = [*KEYS, VariedKey("only", ("value",))]
    answers = search_points(keys, lambda places: [answer] * len(places), options)
    assert len(answers) == 40 and bool(best_places(answers, options)) == options.accepts(answer)
