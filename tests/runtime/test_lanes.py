"""Lanes of a rank: how much of a communication went on beside local work."""

from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from algorithms.ops import AllGather
from runtime.lanes import Lanes, Task
from runtime.streams import Step, Stream, cut

GATHER = AllGather(name="gather", axis="z", source="part", into="whole", concurrent=True)


class Told:
    """A request that ends when the test says so."""

    def __init__(self):
        self.over = False

    def done(self):
        return self.over


def under_way(*steps):
    """Lanes with a gather of these steps under way, and its task."""
    transfers = SimpleNamespace(communicate=lambda *_: iter(steps))
    lanes = Lanes({"z": None}, transfers, now=count().__next__, watcher=None)
    task = Task(GATHER, None, 0)
    lanes.add("z", task)
    return lanes, task


def test_of_whole_steps_those_that_end_beside_local_work_are_counted():
    steps = [Told() for _ in range(4)]
    lanes, task = under_way(*([one] for one in steps))
    with lanes.noted_beside():
        steps[0].over = True
        lanes.advance()
    for one in steps[1:]:
        one.over = True
    lanes.advance()
    assert task.ended and task.share_beside == pytest.approx(1 / 4)


def test_of_chunks_those_that_end_beside_local_work_are_counted():
    requests = []

    def begun(*_):
        requests.append(Told())
        return requests[-1]

    room = np.zeros(8)
    chunks = cut([Step(((room, 1),), (), ())], 2 * room.itemsize)
    stream = Stream(chunks, SimpleNamespace(receive=begun, send=begun), np.add)
    lanes, task = under_way([stream])
    with lanes.noted_beside():
        requests[0].over = requests[1].over = requests[2].over = True
        lanes.advance()
    assert not task.ended
    requests[3].over = True
    lanes.advance()
    assert task.ended and task.share_beside == pytest.approx(3 / 4)


def test_what_ends_only_when_local_work_is_done_went_on_in_vain_beside_it():
    step = Told()
    lanes, task = under_way([step])
    with lanes.noted_beside():
        step.over = True
    lanes.advance()
    assert task.ended and task.share_beside == 0
