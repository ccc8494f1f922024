"""`auto` gives up an exact simulation that exceeds its wall time, and computes bounds instead."""

import pytest

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.simulator import simulate
from quadrille.simulator.loops import restore
from quadrille.simulator.ranks.lane_simulation import OP_WALL_SECONDS, TOO_LONG, LaneSimulation
from quadrille.simulator.simulate import Limits, Shortcuts, Simulator
from quadrille.topologies.find_machine import find_machine


@pytest.fixture(scope="module")
def schedule():
    return gpt_schedule(Gpt(4, 24, 4, 6, 34, 12), parse_grid("data=2,z=3,y=2,x=2"), Scheme4D())


def simulation(schedule, granularity, **limits):
    return Simulator(
        schedule,
        find_machine("perlmutter"),
        choices=Choices(),
        threads=None,
        placement="packed",
        shortcuts=Shortcuts(),
        granularity=granularity,
        limits=Limits(**limits),
    )


def test_a_simulation_beyond_its_budget_becomes_a_bound_around_the_exact_answer(schedule):
    exact = simulation(schedule, "exact").run()
    short = simulation(schedule, "auto", wall_seconds=50 * OP_WALL_SECONDS)
    assert short.granularity == "exact"
    prediction = short.run()
    assert (short.granularity, short.not_folded_reason) == ("collective", TOO_LONG)
    assert prediction.bound.low <= exact.timeline.makespan * (1 + 1e-9)
    assert exact.timeline.makespan <= prediction.bound.high * (1 + 1e-9)


def test_tries_that_came_before_count(monkeypatch):
    turns, left = 100, []
    summa = matmul_schedule(Matmul(256, 64 * turns, 256, panel=64), "summa", parse_grid("z=2,x=2"))

    class Noted(LaneSimulation):
        def __init__(self, *arguments, most_wall_seconds, **shortcuts):
            left.append(most_wall_seconds)
            super().__init__(*arguments, most_wall_seconds=most_wall_seconds, **shortcuts)

    monkeypatch.setattr(simulate, "LaneSimulation", Noted)
    monkeypatch.setattr(restore, "period_window", lambda *_: None)
    simulation(summa, "auto").run()
    most, then = left
    assert most == simulate.LIMITS.wall_seconds and then <= most - 10 * OP_WALL_SECONDS


def test_a_simulation_that_must_be_exact_has_no_budget(schedule):
    usual = simulation(schedule, "auto").run()
    asked = simulation(schedule, "exact", wall_seconds=0.0).run()
    assert asked.bound is None
    assert asked.timeline.makespan == usual.timeline.makespan
