"""Op plans: the plan of a kind of coordinates is the plan of each rank of that kind."""

import pytest

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


def comparable(moved, copied, steps):
    """The plan of a communication op as values that compare; a lowered collective has functions, which do not."""
    if moved is None:
        return None, copied, list(steps)
    lowered = moved.lowered
    sizes = (moved.member, moved.edges, moved.receive_edges, moved.item_bytes, moved.root)
    return (*sizes, lowered.algorithm, lowered.members, lowered.pieces, lowered.steps), copied, list(steps)


@pytest.mark.parametrize("shards", ["exact", "even"])
@pytest.mark.parametrize("collectives", ["own:ring", "own:doubling", "own:double_binary_tree"])
@pytest.mark.parametrize(("algorithm", "grid"), CASES)
def test_ranks_of_one_kind_have_one_plan(algorithm, grid, collectives, shards):
    schedule, choices = schedule_of(algorithm, grid), parse_choices(collectives)
    schedule = with_even_shards(schedule) if shards == "even" else schedule
    check_plans(OpPlans(schedule, choices), schedule, choices)


def check_plans(op_plans, schedule, choices):
    """Compares the plan of every op on every rank with the traffic and the copies of that op on that rank."""
    for rank in range(schedule.grid.size):
        start = schedule.coordinates(rank)
        for op, coordinates in walk(schedule.program(start), start):
            if not isinstance(op, Communication):
                assert op_plans.local(op, coordinates) == OpPlans(schedule, choices).local(op, coordinates)
                continue
            moved = traffic(op, schedule, coordinates, choices)
            steps = plan_steps(moved) if moved is not None else ()
            comm_plan = op_plans.communication(op, coordinates)
            expected = comparable(moved, local_copies(op, schedule, coordinates, moved), steps)
            assert comparable(comm_plan.traffic, comm_plan.copied, comm_plan.steps()) == expected


def test_many_ranks_share_few_plans():
    schedule, choices = schedule_of("4d", "data=2,z=2,y=2,x=4", (64, 64, 64)), parse_choices("own:ring")
    op_plans, op = OpPlans(schedule, choices), next(iter(schedule.program(schedule.coordinates(0))))
    distinct = {id(op_plans.communication(op, schedule.coordinates(rank))) for rank in range(schedule.grid.size)}
    assert len(distinct) == schedule.grid.length(op.axis)


@pytest.mark.parametrize("limit", [{"most_kinds": 2}, {"most_steps": 3}])
def test_a_small_cache_changes_no_plan(limit):
    schedule, choices = schedule_of("cannon", "z=3,x=3"), parse_choices("own:ring")
    check_plans(OpPlans(schedule, choices, **limit), schedule, choices)
