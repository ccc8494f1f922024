"""Lanes of a rank: the order in which they begin, and how much of a communication went on beside local work."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from quadrille.algorithms.schedule.ops import AllGather
from quadrille.runtime.carriers.pipelined_steps import PipelinedTransfer, PipelineStep, split_into_chunks
from quadrille.runtime.execution.lanes import LaneScheduler, OpTask

GATHER = AllGather(name="gather", axis="z", source="part", into="whole", concurrent=True)
FREE, ORDERED = SimpleNamespace(begins_in_order=False), SimpleNamespace(begins_in_order=True)


class Told:
    """A request that ends when the test says so."""

    def __init__(self):
        self.over = False

    def done(self):
        return self.over


def under_way(*steps):
    """Lanes with a gather of these steps under way, and its task."""
    op_executor = SimpleNamespace(communication_steps=lambda *_: iter(steps))
    lanes = LaneScheduler({"z": FREE}, op_executor, now=count().__next__, reporter=None, host_streams={})
    task = OpTask(GATHER, None, 0)
    lanes.add("z", task)
    return lanes, task


def test_whole_steps_that_end_during_local_work_are_counted():
    steps = [Told() for _ in range(4)]
    lanes, task = under_way(*([one] for one in steps))
    with lanes.recording_overlap():
        steps[0].over = True
        lanes.advance()
    for one in steps[1:]:
        one.over = True
    lanes.advance()
    assert task.ended and task.overlap_fraction == pytest.approx(1 / 4)


def test_chunks_that_end_during_local_work_are_counted():
    requests = []

    def begun(*_):
        requests.append(Told())
        return requests[-1]

    room = np.zeros(8)
    chunks = split_into_chunks([PipelineStep(((room, 1),), (), ())], 2 * room.itemsize)
    stream = PipelinedTransfer(chunks, SimpleNamespace(receive=begun, send=begun, max_outstanding=(32, 16)), np.add)
    lanes, task = under_way([stream])
    with lanes.recording_overlap():
        requests[0].over = requests[1].over = requests[2].over = True
        lanes.advance()
    assert not task.ended
    requests[3].over = True
    lanes.advance()
    assert task.ended and task.overlap_fraction == pytest.approx(3 / 4)


def test_steps_that_end_only_after_local_work_did_not_overlap_it():
    step = Told()
    lanes, task = under_way([step])
    with lanes.recording_overlap():
        step.over = True
    lanes.advance()
    assert task.ended and task.overlap_fraction == 0


@pytest.mark.parametrize(("group", "begun"), [(FREE, ["second"]), (ORDERED, [])])
def test_ops_of_nccl_begin_in_the_program_s_order_on_all_lanes_though_a_later_one_is_ready_before(group, begun):
    order = []

    def communicate(op, *_):
        order.append(op.name)
        return iter(())

    lanes = LaneScheduler(
        {"x": group, "z": group},
        SimpleNamespace(communication_steps=communicate),
        now=count().__next__,
        reporter=None,
        host_streams={},
    )
    product = OpTask(None, None, 0)
    first = OpTask(replace(GATHER, name="first", axis="x"), None, 0, needs=[product])
    second, third = (OpTask(replace(GATHER, name=name), None, 0) for name in ("second", "third"))
    lanes.add("x", first)
    lanes.add("z", second)
    assert order == begun
    product.ended = True
    lanes.add("x", third)
    while lanes.advance():
        pass
    assert sorted(order) == ["first", "second", "third"] and all(task.ended for task in (first, second, third))
    assert group is FREE or order == ["first", "second", "third"]
