"""Which configurations of a ranking are simulated: the best variant of each layout, then variants of the fastest."""

from dataclasses import replace
from itertools import product

import pytest

from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.experiments.rank.configuration_evaluator import Configuration
from quadrille.experiments.rank.layout_variants import best_of_layouts, first_simulated, further_variants, layout
from tests.support.rank_questions import question, ranked

GRIDS = ("data=8", "data=4,z=2", "data=2,z=4", "z=8", "x=8")


@pytest.fixture
def configurations():
    """Five layouts with four variants each, as the closed form orders them: grid by grid, in equal times."""
    training = question().training
    step = TrainingStep(seconds=1.0, compute=1.0, transfer=0.0, hidden=0.0, waiting=0.0, exposed_seconds_by_axis={})
    return [
        Configuration(
            replace(training, grid=parse_grid(grid), problem=replace(training.problem, zero=zero, gathered=gathered)),
            step,
            peak_bytes=1,
        )
        for grid, zero, gathered in product(GRIDS, (1, 2), ("again", "keep"))
    ]


def grids(chosen):
    return [str(configuration.experiment.grid) for configuration in chosen]


def test_each_layout_is_simulated_before_a_second_variant_of_any(configurations):
    assert grids(best_of_layouts(configurations, 9)) == [*GRIDS]
    assert best_of_layouts(configurations, 2) == [configurations[0], configurations[4]]
    assert grids(first_simulated(configurations, 4)) == [*GRIDS[:3]]
    assert grids(first_simulated(configurations, 1)) == [GRIDS[0]]
    assert grids(first_simulated(configurations, 8)) == [*GRIDS]


def test_further_variants_are_those_of_the_layouts_that_were_simulated_fastest(configurations):
    fastest_first = [configurations[place].experiment for place in (8, 0, 4)]
    assert further_variants(configurations, fastest_first, 4) == [*configurations[9:12], configurations[1]]
    assert further_variants(configurations, fastest_first, 99)[-1] == configurations[7]
    assert further_variants(configurations, fastest_first, 0) == []


@pytest.mark.parametrize(
    "change", [{"micro_batch": 2}, {"pipeline_schedule": "gpipe"}, {"interleave": 2}, {"stages": (1, 3)}]
)
def test_a_layout_has_its_microbatch_and_its_order_of_passes(change):
    training = replace(question().training, grid=parse_grid("pipeline=2"))
    training = replace(training, problem=replace(training.problem, micro_batch=1))
    changed = replace(training, problem=replace(training.problem, **change))
    assert layout(changed) != layout(training)
    other_order = replace(training, grid=replace(training.grid, order=tuple(reversed(training.grid.order))))
    assert layout(other_order) == layout(training)


def test_a_ranking_simulates_more_layouts_than_its_first_places_have():
    """The first four places by the closed form are variants of fewer layouts."""
    fixed = {"pipeline": "1", "scheme": "4d", "order": "x,y,z,data", "micro_batch": "1"}
    answer = ranked(search="", gpus="4", batch="8", top="4", **fixed)
    by_model, simulated = (
        {tuple(entry.grid.items()) for entry in entries} for entries in (answer.analytical[:4], answer.simulated)
    )
    assert len(answer.simulated) == 4
    assert len(by_model) < len(simulated) == 3
