"""Local copies as predicted against the copies that the executor makes."""

import numpy as np
import pytest

from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.analysis.storage import (
    NONE,
    LocalCopies,
    gathered_in_place,
    is_gathered_in_place,
    local_copies,
    storage,
    views,
)
from quadrille.algorithms.analysis.traffic import traffic
from quadrille.algorithms.collectives.collective_choices import Choices, parse_choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import overlap, parse_overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Communication
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.mlp import Mlp
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from tests.support.mpi_cases import SIZES, bucket
from tests.support.toy_machines import collective
from tests.support.trainings import schedule_of

CASES = [
    ("1d-column", Grid(x=3)),
    ("cannon", Grid(z=2, x=2)),
    ("summa", Grid(z=2, x=3)),
    ("2.5d", Grid(z=2, x=2, y=2)),
    ("2.5d", Grid(y=3)),
    ("3d", Grid(z=2, y=1, x=3)),
    ("3d", Grid()),
    ("4d", Grid(data=2, z=3, y=2)),
    ("4d", Grid(z=5)),
]
KINDS = ["all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "all_to_all", "barrier"]


class CountingLibrary(NumpyLibrary):
    """NumPy, and how many bytes were copied."""

    def __init__(self):
        self.copied = 0

    def empty(self, size, dtype):
        """An array without the NaN that uninitialised memory may hold: sums of it would warn."""
        array = super().empty(size, dtype)
        array[...] = 0
        return array

    def copy(self, into, source):
        self.copied += into.nbytes
        super().copy(into, source)


def bytes_copied(schedule, choices):
    """What all ranks copy when the schedule is really executed."""
    library = CountingLibrary()
    shapes = {
        name: (schedule.sizes[tensor.rows.dimension], schedule.sizes[tensor.columns.dimension])
        for name, tensor in schedule.tensors.items()
    }
    matrices = {name: np.zeros(shapes[name], schedule.dtype) for name in schedule.inputs}
    execute(schedule, matrices, InProcess(schedule.grid.size), choices=choices, library=library)
    return library.copied


def bytes_predicted(schedule, choices):
    """What all ranks copy as the simulator has it."""
    total = 0
    for rank in range(schedule.grid.size):
        place = schedule.coordinates(rank)
        for op, moment in walk(schedule.program(place), place):
            if isinstance(op, Communication):
                found = local_copies(op, schedule, moment, traffic(op, schedule, moment, choices))
                total += found.before + found.after
    return total


def copies_of(kind, members, member, block_bytes):
    """The copies of one member in one collective."""
    schedule = collective(kind, members, block_bytes)
    (op,) = all_ops(schedule)
    place = schedule.coordinates(member)
    return local_copies(op, schedule, place, traffic(op, schedule, place, parse_choices("own")))


@pytest.mark.parametrize("collectives", ["own:ring", "own:doubling", "library"])
@pytest.mark.parametrize(("algorithm", "grid"), CASES, ids=str)
def test_the_executor_copies_just_what_is_predicted(algorithm, grid, collectives):
    choices = parse_choices(collectives)
    for overlaps in ("none", "oar,ors,oag"):
        if overlaps == "none" or algorithm in ("3d", "4d"):
            problem = Matmul(13, 17, 11, "float64", "training", panel=3)
            schedule = overlap(matmul_schedule(problem, algorithm, grid), parse_overlap(overlaps))
            assert bytes_predicted(schedule, choices) == bytes_copied(schedule, choices)


@pytest.mark.parametrize("members", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_one_collective_copies_just_what_is_predicted(kind, members):
    schedule = collective(kind, members, 8 * 7 * 30)
    choices = parse_choices("own")
    assert bytes_predicted(schedule, choices) == bytes_copied(schedule, choices)


@pytest.mark.parametrize("collectives", ["own:ring", "library"])
@pytest.mark.parametrize("members", [1, 2, 5])
def test_a_bucket_is_packed_and_unpacked(collectives, members):
    schedule, choices = bucket(members), parse_choices(collectives)
    both = 8 * SIZES["m"] * (SIZES["l"] + SIZES["n"])
    assert bytes_predicted(schedule, choices) == (2 * members * both if members > 1 else 0)
    assert bytes_predicted(schedule, choices) == bytes_copied(schedule, choices)


def test_a_gather_copies_the_member_s_own_part_however_unequal():
    assert [copies_of("all_gather", 3, member, 8 * 7).before for member in range(3)] == [24, 16, 16]


@pytest.mark.parametrize(
    ("algorithm", "grid", "overlaps", "lives_in"),
    [
        ("1d-column", Grid(x=3), "none", {}),
        ("3d", Grid(z=2), "none", {"B": "B whole"}),
        ("4d", Grid(z=2, x=2), "oag", {"B": "B whole"}),
        ("summa", Grid(z=2, x=2), "none", {}),
    ],
    ids=str,
)
def test_an_operand_lives_in_its_place_of_the_one_buffer_into_which_it_is_gathered(algorithm, grid, overlaps, lives_in):
    plain = matmul_schedule(Matmul(12, 12, 12, "float64", "training"), algorithm, grid)
    schedule = overlap(plain, parse_overlap(overlaps))
    assert {name: gather.into for name, gather in schedule.cached(gathered_in_place).items()} == lives_in


def test_a_weight_is_copied_into_what_it_is_gathered_into_since_it_changes():
    schedule = schedule_of(Mlp((8, 8, 8), rows=8), Grid(z=2))
    assert schedule.cached(gathered_in_place) == {}


def test_only_the_root_copies_in_a_broadcast_and_in_a_reduce():
    assert [copies_of("broadcast", 3, member, 80) for member in range(3)] == [LocalCopies(before=80), NONE, NONE]
    assert [copies_of("reduce", 3, member, 80) for member in range(3)] == [LocalCopies(after=80), NONE, NONE]


@pytest.mark.parametrize("kind", ["reduce_scatter", "all_reduce", "barrier"])
def test_sums_in_place_and_barriers_copy_nothing(kind):
    assert copies_of(kind, 3, 1, 8 * 7) == NONE


def test_an_all_to_all_packs_its_source_keeps_its_own_piece_and_unpacks():
    part, piece = 4 * 3 * 8, 4 * 1 * 8
    assert copies_of("all_to_all", 3, 0, 12 * 3 * 8) == LocalCopies(before=part + piece, after=part)


def test_a_group_of_one_renames_what_it_would_gather():
    assert copies_of("all_gather", 1, 0, 80) == NONE
    assert copies_of("broadcast", 1, 0, 80) == NONE
    assert copies_of("all_to_all", 1, 0, 80) == LocalCopies(before=80)


def sharded(zero, dtype):
    return schedule_of(Mlp((8, 8, 8), rows=8, zero=zero, dtype=dtype), Grid(data=4))


@pytest.mark.parametrize(
    ("zero", "dtype", "shards"),
    [
        (1, "bfloat16", {"L1 W cast": "L1 W held", "dL1 W": "dL1 W held"}),
        (1, "float32", {"L1 W": "L1 W held", "dL1 W": "dL1 W held"}),
        (2, "bfloat16", {"L1 W cast": "L1 W held"}),
        (3, "bfloat16", {}),
    ],
)
def test_the_shards_of_a_sharded_step_are_stored_in_the_whole_tensors(zero, dtype, shards):
    schedule = sharded(zero, dtype)
    stored_in = {
        name: owner for name, owner in schedule.cached(views).items() if name in ("L1 W", "L1 W cast", "dL1 W")
    }
    assert stored_in == shards
    for rank in range(4):
        assert not shards.keys() & storage(schedule, schedule.coordinates(rank), Choices()).tensors.keys()
    gathers = [op for op in all_ops(schedule) if op.name == "gather L1 W held"]
    assert [is_gathered_in_place(schedule, op) for op in gathers] == [zero < 3]


@pytest.mark.parametrize("zero", [1, 2])
def test_an_op_waits_for_the_readers_of_a_shard_before_it_writes_the_whole_tensor(zero):
    schedule = sharded(zero, "float32")
    update = next(op for op in all_ops(schedule) if op.name == "update L1 W")
    gather = next(op for op in all_ops(schedule) if op.name == "gather L1 W held")
    dependencies = Dependencies(schedule)
    dependencies.enter(update, schedule.coordinates(0), "update")
    assert dependencies.enter(gather, schedule.coordinates(0), "gather") == ["update", "update"]
