"""Slots of a pipeline in time: bubbles of each order, uneven stages, what messages change, and the printed grid."""

import itertools

import pytest

from quadrille.algorithms.training.pipeline import Stages
from quadrille.experiments.predict.pipeline_grid import pipeline_grid
from quadrille.experiments.predict.pipeline_slots import SlotSeconds, slots_in_time, stage_ends


def idle_share(stages):
    slots = slots_in_time(stages, SlotSeconds([1] * stages.count * stages.chunks, [2] * stages.count * stages.chunks))
    whole = stages.count * max(slot.end for slot in slots)
    return 1 - sum(slot.end - slot.start for slot in slots) / whole


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "message-driven"])
@pytest.mark.parametrize(("count", "microbatches"), [(2, 3), (4, 8), (5, 7)])
def test_the_bubble_of_equal_stages_is_that_of_the_closed_form(schedule, count, microbatches):
    stages = Stages(count, 10, microbatches, schedule=schedule)
    assert idle_share(stages) == pytest.approx((count - 1) / (microbatches + count - 1))


@pytest.mark.parametrize(("forward", "backward", "weights"), [(1, 1, 1), (2, 3, 1), (3, 2, 1)])
@pytest.mark.parametrize(("count", "microbatches"), [(2, 3), (4, 8), (5, 7), (6, 6)])
def test_zero_bubbles_leave_the_bubble_of_the_paper(count, microbatches, forward, backward, weights):
    def bubble(schedule, times):
        end = max(stage_ends(Stages(count, 12, microbatches, schedule=schedule), times))
        return end - microbatches * (forward + backward + weights)

    split = SlotSeconds([forward] * count, [backward] * count, weights=[weights] * count)
    whole = SlotSeconds([forward] * count, [backward + weights] * count)
    assert bubble("zb-h1", split) == (count - 1) * (forward + backward - weights)
    assert bubble("1f1b", whole) == (count - 1) * (forward + backward + weights)


def test_a_pass_of_weights_follows_its_backward_pass_and_sends_nothing():
    stages = Stages(3, 9, 5, schedule="zb-h1")
    slots = slots_in_time(stages, SlotSeconds([1.0, 3.0, 0.5], [2.0, 1.0, 4.0], 0.25, [1.0, 2.0, 0.5]))
    by_pass = {(slot.kind, slot.stage, slot.microbatch): slot for slot in slots}
    assert len(by_pass) == len(slots) == 45
    for stage in range(3):
        own = [slot for slot in slots if slot.stage == stage]
        for earlier, later in itertools.pairwise(own):
            assert later.start >= earlier.end + (0.25 if sends(earlier) else 0)
        assert all(by_pass["W", stage, slot.microbatch].start >= slot.end for slot in own if slot.kind == "B")


def sends(slot):
    """Whether a slot of the three stages ends with a message."""
    return (slot.kind, slot.stage) in {("F", 0), ("F", 1), ("B", 1), ("B", 2)}


def test_chunks_divide_the_bubble():
    assert idle_share(Stages(4, 16, 8, 2)) == pytest.approx((3 / 2) / (8 + 3 / 2))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "message-driven"])
def test_each_pass_runs_once_after_its_input_and_alone_on_its_stage(schedule):
    stages = Stages(3, 9, 5, schedule=schedule)
    slots = slots_in_time(stages, SlotSeconds([1.0, 3.0, 0.5], [2.0, 1.0, 4.0], 0.25))
    assert len({(slot.stage, slot.kind, slot.microbatch) for slot in slots}) == len(slots) == 30
    by_pass = {(slot.kind, slot.stage, slot.microbatch): slot for slot in slots}
    for slot in slots:
        before = ("F", slot.stage - 1) if slot.kind == "F" else ("B", slot.stage + 1)
        if (*before, slot.microbatch) in by_pass:
            assert slot.start >= by_pass[*before, slot.microbatch].end + 0.25
        if slot.kind == "B":
            assert slot.start >= by_pass["F", slot.stage, slot.microbatch].end
    for stage in range(3):
        own = [slot for slot in slots if slot.stage == stage]
        assert all(earlier.end <= later.start for earlier, later in itertools.pairwise(own))


def test_messages_that_drive_a_pipeline_hide_their_travel():
    times = SlotSeconds([1.0] * 4, [2.0] * 4, 0.5)
    waits, driven = (
        max(stage_ends(Stages(4, 4, 16, schedule=schedule, limit=limit), times))
        for schedule, limit in (("1f1b", 0), ("message-driven", 8))
    )
    assert driven < waits


def test_the_grid_of_zero_bubbles_shows_passes_of_weights():
    title, *lines = pipeline_grid(Stages(2, 2, 3, schedule="zb-h1"))
    assert title == (
        "pipeline: zb-h1, 2 stages, 3 microbatches; a backward pass (B) and a pass of weight gradients (W) take 1 slot "
        "each, 10 % of the slots are idle (.)"
    )
    assert lines == ["stage 0  F0 F1 .  B0 W0 F2 B1 W1 B2 W2", "stage 1  .  F0 B0 F1 B1 W0 F2 B2 W1 W2"]


def test_a_long_grid_is_cut_at_the_width_of_a_terminal():
    lines = pipeline_grid(Stages(4, 12, 64, 3))
    assert max(map(len, lines[1:])) <= 120
    assert lines[-1].startswith("and ")
    assert lines[0].startswith("pipeline: interleaved, 4 stages, 3 chunks of layers each, 64 microbatches")
