"""What an op comes to on a rank: that of its kind of place is that of the place itself."""

import pytest

from quadrille.algorithms.analysis import op_plans as op_plans
from quadrille.algorithms.analysis.op_plans import OpPlans, plan_steps
from quadrille.algorithms.analysis.storage import local_copies
from quadrille.algorithms.analysis.traffic import traffic
from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.algorithms.schedule.ops import Communication
from quadrille.algorithms.schedule.program import walk
from quadrille.simulator.symmetry.even_shards import with_even_shards

CASES = [
    ("1d-column", "x=5"),
    ("1d-row", "y=3"),
    ("cannon", "z=3,x=3"),
    ("summa", "z=2,x=3"),
    ("2.5d", "z=2,x=2,y=2"),
    ("3d", "z=2,y=3,x=2"),
    ("4d", "data=2,z=3,y=2,x=2"),
]


def schedule_of(algorithm, grid, sizes=(13, 11, 17)):
    return matmul_schedule(Matmul(*sizes, passes="training"), algorithm, parse_grid(grid))


def as_found(moved, copied, steps):
    """All that is said of a communication op; a lowered collective has functions, which cannot be compared."""
    if moved is None:
        return None, copied, list(steps)
    lowered = moved.lowered
    said = (moved.member, moved.edges, moved.receive_edges, moved.item_bytes, moved.root)
    return (*said, lowered.algorithm, lowered.members, lowered.pieces, lowered.steps), copied, list(steps)


@pytest.mark.parametrize("shards", ["exact", "even"])
@pytest.mark.parametrize("collectives", ["own:ring", "own:doubling", "own:double_binary_tree"])
@pytest.mark.parametrize(("algorithm", "grid"), CASES)
def test_ranks_of_one_kind_have_one_plan(algorithm, grid, collectives, shards):
    schedule, choices = schedule_of(algorithm, grid), parse_choices(collectives)
    schedule = with_even_shards(schedule) if shards == "even" else schedule
    found = OpPlans(schedule, choices)
    for rank in range(schedule.grid.size):
        place = schedule.coordinates(rank)
        for op, moment in walk(schedule.program(place), place):
            if not isinstance(op, Communication):
                assert found.local(op, moment) == OpPlans(schedule, choices).local(op, moment)
                continue
            moved = traffic(op, schedule, moment, choices)
            steps = plan_steps(moved) if moved is not None else ()
            comm_plan = found.communication(op, moment)
            expected = as_found(moved, local_copies(op, schedule, moment, moved), steps)
            assert as_found(comm_plan.traffic, comm_plan.copied, comm_plan.steps()) == expected


def test_many_ranks_share_few_duties():
    schedule, choices = schedule_of("4d", "data=2,z=2,y=2,x=4", (64, 64, 64)), parse_choices("own:ring")
    found, op = OpPlans(schedule, choices), next(iter(schedule.program(schedule.coordinates(0))))
    distinct = {id(found.communication(op, schedule.coordinates(rank))) for rank in range(schedule.grid.size)}
    assert len(distinct) == schedule.grid.length(op.axis)


@pytest.mark.parametrize("kept", [{"MOST_KINDS": 2}, {"MOST_STEPS": 3}])
def test_what_is_forgotten_is_found_again(monkeypatch, kept):
    for name, value in kept.items():
        monkeypatch.setattr(op_plans, name, value)
    test_ranks_of_one_kind_have_one_plan("cannon", "z=3,x=3", "own:ring", "exact")
