"""Plans that are kept, and those that are made anew since too many would have to be kept."""

import pytest

from quadrille.runtime.execution import op_executor
from tests.support.training_jobs import SMALL, ended, verdict


@pytest.mark.parametrize("kept", [0, 20, 50, 100, 150, 200, 400])
@pytest.mark.parametrize("gathered", ["again", "keep"])
def test_a_program_of_more_moments_than_are_kept_gives_the_same(monkeypatch, kept, gathered):
    """In groups of one, what a gather makes is a view: of other weights in every layer, by one name."""
    monkeypatch.setattr(op_executor, "MAX_CACHED_PLANS", kept)
    found = verdict(ended(gpt=SMALL, batch="2", grid="x=1", steps="2", gathered=gathered, dtype="float32", warmups=1))
    assert found.ok, found


def test_plans_that_are_kept_are_made_once(monkeypatch):
    made = []
    true = op_executor.CommunicationPlanner.plan
    monkeypatch.setattr(
        op_executor.CommunicationPlanner,
        "plan",
        lambda planner, op, *rest: made.append(op.name) or true(planner, op, *rest),
    )
    ended(gpt=SMALL, batch="2", grid="x=1", steps="1", dtype="float32")
    once = len(made)
    made.clear()
    ended(gpt=SMALL, batch="2", grid="x=1", steps="1", dtype="float32", warmups=3)
    assert len(made) == once > 0
