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


def test_a_long_grid_is_cut_at_the_width_of_a_terminal():
    lines = pipeline_grid(Stages(4, 12, 64, 3))
    assert max(map(len, lines[1:])) <= 120
    assert lines[-1].startswith("and ")
    assert lines[0].startswith("pipeline: interleaved, 4 stages, 3 chunks of layers each, 64 microbatches")
