"""A bounds walk analyses and costs each op once, however often the op repeats, and its vector clocks are exact."""

from collections import Counter, defaultdict

import pytest

from quadrille.algorithms.analysis.coordinate_dependence import dependence
from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import OVERLAPS, overlap
from quadrille.algorithms.schedule.grid import Grid, parse_grid
from quadrille.algorithms.schedule.ops import Shift, lane
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.simulator.bounds import group_work
from quadrille.simulator.bounds.concurrency import concurrency_of
from quadrille.simulator.bounds.group_work import ScheduleWork
from quadrille.simulator.simulate import Shortcuts, simulate
from quadrille.topologies.find_machine import find_machine


def pipeline(microbatches):
    return gpt_schedule(
        Gpt(4, 24, 4, 6, 34, 2 * microbatches, micro_batch=1), parse_grid("pipeline=2,data=2,x=2"), Scheme4D()
    )


def calls(monkeypatch, owner, name, action):
    """The number of calls of a function while an action runs."""
    count, function = Counter(), getattr(owner, name)

    def counted(*arguments, **options):
        count[name] += 1
        return function(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, counted)
        action()
    return count[name]


def test_more_microbatches_cost_no_more_collectives_of_nccl(monkeypatch):
    def predict(schedule):
        simulate(schedule, find_machine("h100-node"), choices=parse_choices("nccl"), granularity="collective")

    few, many = (
        calls(monkeypatch, ScheduleWork, "buffer_bytes", lambda count=count: predict(pipeline(count)))
        for count in (4, 16)
    )
    assert 0 < many == few


def test_a_shift_of_even_blocks_is_analysed_once_for_all_iterations(monkeypatch):
    def predict(size):
        schedule = matmul_schedule(Matmul(size, size, size), "cannon", Grid(z=8, x=8))
        return lambda: simulate(schedule, find_machine("frontier"), granularity="collective")

    even, uneven = (calls(monkeypatch, group_work, "traffic", predict(size)) for size in (64, 65))
    analyses_of_a_skew = 8 * 8
    assert even < 3 * analyses_of_a_skew < uneven / 4


@pytest.mark.parametrize(("size", "loops"), [(12, False), (13, True)])
def test_a_rotated_block_depends_on_the_iteration_if_it_is_cut_unevenly(size, loops):
    schedule = matmul_schedule(Matmul(size, size, size), "cannon", Grid(z=3, x=3))
    in_loop = [dependence(op, schedule) for op in all_ops(schedule) if isinstance(op, Shift) and op.distance == -1]
    assert in_loop
    assert {bool(result.loops) for result in in_loop} == {loops}


@pytest.mark.parametrize("size", [48, 50])
def test_skipped_iterations_of_cannon_change_no_time(size):
    schedule = matmul_schedule(Matmul(size, size, size), "cannon", Grid(z=12, x=12))
    whole, skipped = (
        simulate(schedule, find_machine("frontier"), granularity="collective", shortcuts=Shortcuts(fold_time=fold))
        for fold in (False, True)
    )
    assert skipped.timeline.makespan == pytest.approx(whole.timeline.makespan, rel=1e-9)
    assert (skipped.bound.low, skipped.bound.high) == pytest.approx((whole.bound.low, whole.bound.high), rel=1e-9)


def concurrent_instances(schedule, start):
    """Largest number of instances of each op that are unordered with one instance of an op on another lane."""
    dependencies, last, instances, before = Dependencies(schedule), {}, [], {}
    for number, (op, coordinates) in enumerate(walk(schedule.program(start), start)):
        needs = {*dependencies.enter(op, coordinates, number), *last.get(lane(op), ())}
        before[number] = needs.union(*(before[need] for need in needs))
        last[lane(op)] = [number]
        instances.append((number, op.name, lane(op)))
    most = defaultdict(Counter)
    for number, name, own in instances:
        beside = Counter(
            other_name
            for other, other_name, other_lane in instances
            if other_lane != own and other not in before[number] and number not in before[other]
        )
        most[name] |= beside
    return {name: dict(counts) for name, counts in most.items() if counts}


@pytest.mark.parametrize("overlaps", [(), OVERLAPS])
def test_overlaps_are_those_of_the_transitive_closure_of_dependencies(overlaps):
    schedule = overlap(gpt_schedule(Gpt(3, 12, 4, 5, 17, 6), Grid(z=2, y=2, x=2), Scheme4D()), overlaps)
    start = schedule.coordinates(0)
    result = concurrency_of(schedule, [start]).overlaps
    assert {name: dict(counts) for name, counts in result.items() if counts} == concurrent_instances(schedule, start)


def test_a_walk_of_too_many_ops_is_refused_before_it_begins():
    problem = Gpt(64, 32, 4, 16, 256, 32, steps=10_000, micro_batch=2)
    schedule = gpt_schedule(problem, Grid(pipeline=2, data=2), Scheme4D())
    with pytest.raises(InputError, match=r"at most 5000000 are accepted: fewer steps, microbatches or layers"):
        simulate(schedule, find_machine("perlmutter"), granularity="collective")
