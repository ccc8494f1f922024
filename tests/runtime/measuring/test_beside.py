"""What messages come to beside products: a gather beside products, and each alone."""

import json

import pytest

from algorithms.schedule import all_ops
from runtime.measuring.beside import gather_beside_products
from tests.launched import launched

PROGRAM = """
import json
from dataclasses import astuple
from mpi4py import MPI
from runtime.delivery import WHOLE
from runtime.measuring import beside
beside.SIZE, beside.PRODUCTS, beside.REPEATS, beside.CARRIED_SECONDS = 64, 2, 3, 0.01
found = MPI.COMM_WORLD.gather(astuple(beside.measure_beside(MPI.COMM_WORLD, 2, 1e8, WHOLE)))
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps(found))
"""


def test_so_many_bytes_are_gathered_beside_so_many_products():
    schedule = gather_beside_products(4, 1 << 20, 3)
    assert schedule.tensors["whole"].block(schedule.place(0)).elements * schedule.item_bytes("whole") == 1 << 20
    assert [op.name for op in all_ops(schedule)] == ["write", "gather", "multiply 1", "multiply 2", "multiply 3"]
    assert [op.name for op in all_ops(gather_beside_products(4, 0, 1))] == ["write", "multiply 1"]
    pairs = gather_beside_products(4, 1 << 20, 3, members=2, gathers=2)
    assert [op.name for op in all_ops(pairs)][1:4] == ["gather", "gather 2", "multiply 1"]
    assert (pairs.grid.length("x"), pairs.grid.size) == (2, 4)
    assert pairs.tensors["part"].block(pairs.place(0)).elements * pairs.item_bytes("part") == 1 << 19


@pytest.mark.mpi
def test_ranks_agree_on_what_messages_come_to():
    ended = launched(2, "-c", PROGRAM)
    assert (ended.status, ended.err) == (0, "")
    one, other = json.loads(ended.out)
    assert one == other
    cost, late, following = one
    assert 0 <= cost <= 2 / (2 * 1e8) and late >= 0 and 0 < following < 1
