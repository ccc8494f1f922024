"""The rounds of a wide search: bounds below closed-form times, the best of all configurations, and where rounds end."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.experiments.rank import search_rounds
from quadrille.experiments.rank.configuration_evaluator import Evaluator, speed_key
from quadrille.experiments.rank.configurations import configurations
from quadrille.experiments.rank.search_rounds import fastest_fitting
from quadrille.experiments.rank.work_sharing import WorkSharing
from quadrille.experiments.workloads.no_grid import ExcludedGrids
from tests.support.draws import examples
from tests.support.rank_questions import question, space

ROUNDING = 1e-9
"""Bounds are rounded to ten digits."""


@settings(max_examples=examples(25), deadline=None)
@given(
    st.sampled_from(["pipeline=2", "pipeline=2,data=2", "pipeline=4", "data=2", "z=2,x=2", "x=2,pipeline=2"]),
    st.sampled_from([("1f1b", 1), ("gpipe", 1), ("zb-h1", 1), ("zb-v", 2), ("interleaved", 2)]),
    st.sampled_from(["none", "full"]),
    st.sampled_from(["none", "oar,ors,oag", "oar,ors,oag,ogr,opg"]),
    st.sampled_from([0, 1]),
    st.integers(1, 3),
    st.integers(4, 11),
)
def test_the_bound_is_at_most_the_closed_form_of_a_step(grid, order, recompute, overlap, zero, micro, batch):
    """Also with a smaller last microbatch, which the bound leaves out."""
    lengths = parse_grid(grid)
    shards = lengths.data * lengths.z
    schedule, chunks = order if lengths.pipeline == 2 or (lengths.pipeline == 4 and order[1] == 1) else ("1f1b", 1)
    asked = question(gpus=str(lengths.size), batch=str(batch * shards), recompute=recompute, overlap=overlap)
    change = {"micro_batch": micro, "pipeline_schedule": schedule, "interleave": chunks, "zero": zero}
    if schedule == "interleaved":
        batch -= batch % (micro * lengths.pipeline)
    problem = replace(asked.problem, **change, batch=max(batch, micro * lengths.pipeline) * shards)
    step = replace(asked.training, grid=lengths, problem=problem)
    evaluator = Evaluator(asked, {})
    bound, seconds = evaluator.least_seconds([step]), evaluator.modelled([step]).seconds
    assert 0 < bound <= seconds * (1 + ROUNDING)
    if not step.microbatches.smaller_last and lengths.pipeline == 1:
        assert bound == pytest.approx(seconds, rel=ROUNDING)


def test_a_smaller_last_microbatch_is_left_out_of_the_bound():
    asked = question(gpus="2", batch="14")
    evaluator = Evaluator(asked, {})
    bounds, times = {}, {}
    for batch in (12, 14, 16):
        problem = replace(asked.problem, micro_batch=2, batch=batch)
        step = replace(asked.training, grid=parse_grid("data=2"), problem=problem)
        assert step.microbatches.smaller_last == (batch == 14)
        bounds[batch], times[batch] = evaluator.least_seconds([step]), evaluator.modelled([step]).seconds
    assert bounds[14] == pytest.approx(bounds[12], rel=ROUNDING)
    assert bounds[14] < times[14] < times[16]


WIDE = {"search": "zero,recompute,gathered", "gpus": "4", "batch": "8", "order": "x,y,z,data", "attention": "unfused"}


@cache
def wide_question():
    """A question with all its configurations, the shortest bound first, and an evaluator that keeps their costs."""
    asked = question(**WIDE)
    every, _ = configurations(asked, space(**WIDE))
    evaluator = Evaluator(asked, {}, every)
    return asked, sorted(every, key=lambda step: evaluator.least_seconds([step])), evaluator


@pytest.fixture
def searched(monkeypatch):
    """A function that searches in rounds of some size, and returns the best times, the rounds and what is left out."""

    def search(size, *, top):
        asked, every, evaluator = wide_question()
        asked, excluded = replace(asked, top=top), ExcludedGrids()
        rounds = []
        carry_out = search_rounds._round

        def counted(*arguments):
            rounds.append(carry_out(*arguments))
            return rounds[-1]

        with monkeypatch.context() as changed:
            changed.setattr(search_rounds, "ROUND", size)
            changed.setattr(search_rounds, "MOST_ROUNDS", len(every))
            changed.setattr(search_rounds, "FITTING_KEPT", top)
            changed.setattr(search_rounds, "_round", counted)
            groups = [[(step,) for step in every]]
            best = fastest_fitting(asked, evaluator, groups, excluded, WorkSharing())
        times = sorted(speed_key(evaluator.modelled([step])) for step in every)
        return [speed_key(each.step) for each in best[:top]], rounds, excluded, times

    return search


@pytest.mark.parametrize("size", [3, 1000])
def test_the_best_of_rounds_are_the_best_of_all_configurations(searched, size):
    best, rounds, excluded, times = searched(size, top=5)
    assert [seconds for seconds, _ in best] == pytest.approx([seconds for seconds, _ in times[:5]], rel=ROUNDING)
    assert len(times) > 20 * 3 and (len(rounds) > 1) == (size == 3)
    assert sum(excluded.counts.values()) + sum(map(len, rounds)) == len(times)


def test_rounds_end_with_the_first_that_adds_nothing_to_the_best(searched):
    best, rounds, excluded, times = searched(3, top=2)
    assert 3 * len(rounds) < len(times)
    assert excluded.counts[search_rounds.SLOWER] == len(times) - 3 * len(rounds)
    slowest_of_best = best[-1]
    *_, last = rounds
    assert all(speed_key(configuration.step) >= slowest_of_best for configuration in last)
    before = [speed_key(configuration.step) for of_round in rounds[:-1] for configuration in of_round]
    assert sorted(before)[:2] == best
