"""What messages come to beside products: a gather beside products, and each alone."""

import json

import pytest

from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.runtime.measuring.overlap_interference import (
    GATHERS_IN_ROW,
    gathers_in_a_row,
    overlapped_gather,
    row_seconds,
)
from tests.support.launched import launched

PROGRAM = """
import json
from dataclasses import astuple
from mpi4py import MPI
from quadrille.runtime.carriers.message_options import WHOLE_MESSAGES
from quadrille.runtime.measuring.overlap_interference import measure_overlap_cost
from tests.support.calibrations import SMALL
found = MPI.COMM_WORLD.gather(astuple(measure_overlap_cost(MPI.COMM_WORLD, 2, 1e8, WHOLE_MESSAGES, SMALL)))
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps(found))
"""


def test_so_many_bytes_are_gathered_beside_so_many_products():
    schedule = overlapped_gather(4, 1 << 20, 3)
    assert schedule.tensors["whole"].block(schedule.coordinates(0)).elements * schedule.item_bytes("whole") == 1 << 20
    assert [op.name for op in all_ops(schedule)] == ["write", "gather", "multiply 1", "multiply 2", "multiply 3"]
    assert [op.name for op in all_ops(overlapped_gather(4, 0, 1))] == ["write", "multiply 1"]
    pairs = overlapped_gather(4, 1 << 20, 3, members=2, gathers=2)
    assert [op.name for op in all_ops(pairs)][1:4] == ["gather", "gather 2", "multiply 1"]
    assert (pairs.grid.length("x"), pairs.grid.size) == (2, 4)
    assert pairs.tensors["part"].block(pairs.coordinates(0)).elements * pairs.item_bytes("part") == 1 << 19


def test_little_is_gathered_again_and_again_and_nobody_computes_between():
    schedule = gathers_in_a_row(4, 4 << 10)
    assert schedule.tensors["part"].block(schedule.coordinates(0)).elements * schedule.item_bytes("part") == 1 << 10
    steps = walk(schedule.program(schedule.coordinates(0)), schedule.coordinates(0))
    assert [op.name for op, _ in steps] == ["write", *["gather"] * GATHERS_IN_ROW]


def test_a_gather_in_a_row_takes_what_lies_between_two_ends_of_the_mean_rank():
    def gathers(rank, ends):
        return [Span(rank, "gather", "all_gather", "x", 0, 0, 0, end, index=index) for index, end in enumerate(ends)]

    timeline = Timeline((*gathers(0, (5.0, 6.0, 9.0)), *gathers(1, (4.0, 8.0, 12.0))), "measured", ranks=2)
    assert row_seconds(timeline) == (4.0 / 2 + 8.0 / 2) / 2


@pytest.mark.mpi
def test_ranks_agree_on_what_messages_come_to():
    ended = launched(2, "-c", PROGRAM)
    assert (ended.status, ended.err) == (0, "")
    one, other = json.loads(ended.out)
    assert one == other
    cost, late, following = one
    assert 0 <= cost <= 2 / (2 * 1e8) and late >= 0 and 0 < following < 1
