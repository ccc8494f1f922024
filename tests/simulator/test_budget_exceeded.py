"""`auto` gives up an exact simulation that exceeds its wall time, and computes bounds instead."""

import pytest

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.simulator import simulate
from quadrille.simulator.engine.engine import CHARGED_EVENTS, EVENT_WALL_SECONDS
from quadrille.simulator.loops import restore
from quadrille.simulator.ranks.lane_simulation import OP_WALL_SECONDS, LaneSimulation
from quadrille.simulator.simulate import Limits, Shortcuts, Simulator
from quadrille.simulator.work_budget import CLOCK_FACTOR, TOO_LONG, BudgetExceeded, WorkBudget
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
    turns, spent = 100, []
    summa = matmul_schedule(Matmul(256, 64 * turns, 256, panel=64), "summa", parse_grid("z=2,x=2"))

    class Noted(LaneSimulation):
        def __init__(self, *arguments, budget, **shortcuts):
            spent.append((budget, budget.spent))
            super().__init__(*arguments, budget=budget, **shortcuts)

    monkeypatch.setattr(simulate, "LaneSimulation", Noted)
    monkeypatch.setattr(restore, "period_window", lambda *_: None)
    simulation(summa, "auto").run()
    (first, nothing), (second, before) = spent
    assert first is second and first.seconds == simulate.LIMITS.wall_seconds
    assert nothing == 0.0 and before >= 10 * OP_WALL_SECONDS


def test_a_simulation_that_must_be_exact_has_no_budget(schedule):
    usual = simulation(schedule, "auto").run()
    asked = simulation(schedule, "exact", wall_seconds=0.0).run()
    assert asked.bound is None
    assert asked.timeline.makespan == usual.timeline.makespan


def test_the_count_of_work_is_that_of_ops_and_events(schedule):
    budget = WorkBudget(1e9, clock=lambda: 0.0)
    exact = simulation(schedule, "exact")
    lanes = LaneSimulation(exact._inputs, exact._detector(set()), budget=budget)
    lanes.run()
    assert budget.spent == pytest.approx(len(lanes.spans) * OP_WALL_SECONDS + lanes.engine.events * EVENT_WALL_SECONDS)


def test_a_count_that_is_too_low_is_corrected_by_the_clock():
    now = iter([0.0, CLOCK_FACTOR * 20.0, CLOCK_FACTOR * 20.0 + 1e-6])
    budget = WorkBudget(20.0, clock=lambda: next(now))
    budget.charge(0.0)
    with pytest.raises(BudgetExceeded, match=TOO_LONG):
        budget.charge(0.0)


def test_events_alone_exceed_a_budget_although_no_op_ends(monkeypatch):
    charged = []

    class Noted(WorkBudget):
        def charge(self, seconds):
            charged.append(seconds)
            super().charge(seconds)

    ring = matmul_schedule(Matmul(999, 999, 997), "3d", parse_grid("z=4,y=4,x=4"))
    exact = simulation(ring, "exact")
    lanes = LaneSimulation(exact._inputs, exact._detector(set()), memory=False, plain_events=0, budget=Noted())
    monkeypatch.setattr("quadrille.simulator.engine.engine.CHARGED_EVENTS", 16)
    lanes.run()
    assert lanes.engine.events > CHARGED_EVENTS // 64
    assert max(seconds for seconds in charged if seconds != OP_WALL_SECONDS) <= (16 + 64) * EVENT_WALL_SECONDS
