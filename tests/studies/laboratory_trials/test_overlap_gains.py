"""What the trial of overlaps counts as possible: its names are ops of the step that it runs, its sums theirs."""

import pytest
from msgspec.structs import replace

from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.experiments.predict.predict import predict_record_and_timeline
from quadrille.studies.laboratory_trials.overlap_gains import (
    ALL,
    DEFAULT_ORDER_TEXT,
    GRIDS,
    HIDDEN,
    LIBRARY,
    NO_OVERLAP,
    VECTOR,
    X_OUTSIDE,
    StepVariant,
    possible_gain,
    step_variants,
)
from tests.support.toy_machines import star

CASES = [(grid, overlap) for grid, overlaps in GRIDS.items() for overlap in overlaps]


def step(grid, variant=NO_OVERLAP):
    """The record of a step that is predicted on a machine of slow links."""
    experiment = variant.case(grid, "unused.json").experiment
    return predict_record_and_timeline(experiment, star(parse_grid(grid).size, bandwidth=25e6, memory=1e10))[0]


@pytest.mark.parametrize(("grid", "overlap"), CASES)
def test_an_overlap_can_gain_the_smaller_of_what_it_hides_and_of_what_it_hides_that_behind(grid, overlap):
    plain = step(grid)
    seconds = {op.name: op.seconds for op in plain.ops if op.axis is None or op.bytes_sent_total}
    hidden, work = HIDDEN[overlap]
    assert set(hidden) <= set(seconds), "what is hidden is sent in this step"
    expected = min(sum(seconds[name] for name in hidden), sum(seconds[name] for name in work if name in seconds))
    assert possible_gain([plain], overlap) == pytest.approx(expected)
    assert expected > 0
    assert step(grid, StepVariant(overlap)).seconds <= plain.seconds


@pytest.mark.parametrize("grid", GRIDS)
def test_all_overlaps_together_can_gain_what_each_can(grid):
    plain = step(grid)
    together = possible_gain([plain], ALL)
    assert together == pytest.approx(sum(possible_gain([plain], overlap) for overlap in GRIDS[grid]))
    assert possible_gain([plain], "none") == 0


def test_what_is_possible_is_of_the_median_run():
    plain = step("y=2,x=2")
    slow = replace(plain, ops=tuple(replace(op, seconds=100 * op.seconds) for op in plain.ops))
    assert possible_gain([plain, slow, plain], "oar") == possible_gain([plain], "oar")


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("one_switch", [True, False])
def test_every_variant_is_run_once_and_the_first_and_the_last_are_what_others_are_compared_with(grid, one_switch):
    variants = step_variants(grid, one_switch=one_switch)
    assert len(set(variants)) == len(variants)
    assert (variants[0], *variants[-2:]) == (NO_OVERLAP, LIBRARY, VECTOR)
    assert {variant.order for variant in variants} == (
        {DEFAULT_ORDER_TEXT} if one_switch else {DEFAULT_ORDER_TEXT, X_OUTSIDE}
    )


@pytest.mark.parametrize("grid", GRIDS)
def test_in_the_second_order_groups_along_x_are_those_between_leaves(grid):
    found = StepVariant(order=X_OUTSIDE).case(grid, "unused.json").experiment.grid
    leaf = range(found.size // 2)
    assert len(leaf) > 1
    for rank in leaf:
        assert [member in leaf for member in found.group(rank, "x")].count(False) == 1
        assert all(member in leaf for axis in "yz" for member in found.group(rank, axis))
