from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.alike import alike
from algorithms.catalogue import matmul_schedule
from algorithms.choices import Choices, parse_choices
from algorithms.grid import AXES, Grid
from algorithms.matmul import Matmul
from algorithms.ops import Communication, reads, writes
from algorithms.schedule import walk
from algorithms.storage import storage
from algorithms.traffic import traffic
from tests.mpi_cases import CUSTOM, chosen_grids, custom

CASES = [case for ranks in (1, 2, 3, 5, 8, 12) for case in chosen_grids(ranks)]
CASES += [("4d", Grid(data=5, z=3, y=2, x=4)), ("3d", Grid(z=7, y=3, x=5))]


def behaviour(schedule, place, choices):
    """All that a rank does: the shapes it works on and the sizes it sends and receives, op by op."""
    return (
        storage(schedule, place, choices).bytes,
        *(
            (op.name, *(schedule.tensors[name].block(moment).shape for name in (*reads(op), *writes(op))), *messages)
            for op, moment in walk(schedule.program(place), place)
            for moved in [traffic(op, schedule, moment, choices) if isinstance(op, Communication) else None]
            for messages in [sorted((step.sent, step.received) for step in moved.exchanges()) if moved else ()]
        ),
    )


def check(schedule, choices):
    classes = alike(schedule, choices)
    each = Counter(behaviour(schedule, schedule.place(rank), choices) for rank in range(schedule.grid.size))
    stand_ins = Counter()
    for one in classes:
        stand_ins[behaviour(schedule, one.place, choices)] += one.count
        assert schedule.grid.coordinates(one.rank) == dict(one.place.coordinates)
    assert stand_ins == each


@settings(max_examples=60)
@given(st.sampled_from(CASES), st.tuples(*[st.integers(1, 40)] * 3), st.sampled_from(["own", "own:doubling"]))
def test_each_class_does_what_its_representative_does(case, sizes, collectives):
    algorithm, grid = case
    schedule = matmul_schedule(Matmul(*sizes, "float32", "training", panel=5), algorithm, grid)
    check(schedule, parse_choices(collectives))


@pytest.mark.parametrize("build", CUSTOM)
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_ranks_of_schedules_with_roles_peers_and_turns_are_told_apart(build, ranks):
    check(custom(build, ranks)[0], Choices())


def test_even_cuts_leave_few_classes_however_many_ranks():
    def classes(length):
        grid = Grid(data=length, z=length, y=length, x=length)
        sizes = (length**2 * 4, length**2 * 8, length**2 * 2)
        return len(alike(matmul_schedule(Matmul(*sizes, passes="training"), "4d", grid), Choices()))

    assert classes(16) == classes(4) <= 3 ** len(AXES)


def test_classes_cover_all_ranks_whatever_the_order_of_ranks():
    grid = Grid(data=2, z=3, y=2, x=5, order=("z", "x", "data", "y"))
    check(matmul_schedule(Matmul(13, 17, 11, passes="training"), "4d", grid), Choices())
