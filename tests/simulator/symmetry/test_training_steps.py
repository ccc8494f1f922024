"""Whole training steps, folded in space and time: the same answer as rank by rank, turn by turn and step by step."""

from dataclasses import replace

import pytest

from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import parse_grid
from quadrille.algorithms.training.architecture import LLAMA
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.simulator.simulate import Limits, Shortcuts, Simulator, simulate
from quadrille.topologies.find_machine import find_machine
from tests.support.predictions import check_same_op_times
from tests.support.toy_trainings import EACH_SHORTCUT_OFF, MACHINES, scheduled

CASES = [
    ("data=2,z=2,y=2,x=2", "none", {}),
    ("data=2,z=2,y=2,x=2", "oar,ors,oag", {}),
    ("z=3,x=2", "oag", {}),
    ("data=5", "ors", {"steps": 2, "batch": 10}),
    ("data=2,y=2", "oar", {"micro_batch": 1, "layers": 3, "batch": 36}),
    ("z=2,x=2", "none", {"recompute": "full"}),
    ("pipeline=2,z=2", "none", {"micro_batch": 1, "layers": 4}),
    ("pipeline=3", "none", {"micro_batch": 1, "layers": 3, "batch": 26}),
    ("z=2,x=2", "oar,ors,oag", {"architecture": replace(LLAMA, key_heads=2), "inner": 14}),
    ("pipeline=2,x=2", "none", {"micro_batch": 1, "layers": 4, "batch": 16, "interleave": 2}),
    ("data=2,y=2", "oar", {"micro_batch": 2, "layers": 2, "batch": 58}),
    ("data=3", "none", {"micro_batch": 2, "layers": 2, "batch": 88}),
    ("pipeline=2,data=2", "none", {"micro_batch": 2, "layers": 4, "batch": 19, "pipeline_schedule": "zb-v"}),
]
ON = list(zip(CASES, ["star", "perlmutter", "a slow host"] * 4, strict=False))
"""Every case on a machine, in turns."""
PIPELINES = [
    ("pipeline=4,x=2", "perlmutter", {"layers": 5, "batch": 26}),
    ("pipeline=3,z=2", "leaves", {"layers": 3, "batch": 52}),
    ("pipeline=2,z=2", "star", {"layers": 3, "batch": 40, "recompute": "full"}),
    ("pipeline=2,data=2", "star", {"layers": 3, "batch": 79, "micro_batch": 2}),
]
"""Many more microbatches than stages, which share the layers unevenly; the last may be smaller."""


@pytest.mark.parametrize(("case", "machine"), ON, ids=str)
def test_the_answer_is_the_same_with_and_without_folding_over_time(case, machine):
    grid, overlaps, options = case
    schedule = scheduled(grid, overlaps, **options)
    given = schedule, MACHINES[machine](schedule.grid.size)
    short, long = simulate(*given), simulate(*given, shortcuts=Shortcuts(fold_time=False))
    assert short.extent.iterations_skipped > 0 or "pipeline" in grid or machine == "a slow host"
    check_same_op_times(short, long)


@pytest.mark.parametrize(("grid", "machine", "options"), PIPELINES, ids=str)
def test_skipped_slots_of_a_pipeline_do_not_change_the_answer(grid, machine, options):
    schedule = scheduled(grid, **{"micro_batch": 1, **options})
    given = schedule, MACHINES[machine](schedule.grid.size)
    short, long = simulate(*given), simulate(*given, shortcuts=Shortcuts(fold_time=False))
    assert short.extent.iterations_skipped > 0
    check_same_op_times(short, long)


@pytest.mark.parametrize(("machine", "overlaps"), [("leaves", "none"), ("perlmutter", "oar,ors,oag")])
def test_the_answer_is_the_same_with_and_without_each_switch(machine, overlaps):
    schedule = scheduled("z=3,y=2,x=2", overlaps)
    given = schedule, MACHINES[machine](schedule.grid.size)
    with_all = simulate(*given)
    for off in EACH_SHORTCUT_OFF:
        check_same_op_times(with_all, simulate(*given, shortcuts=Shortcuts(**off)))


STRADDLING = [
    ("perlmutter", "data=2,z=2,x=3", "oar,ors,oag", {"heads": 6}),
    ("frontier", "z=2,x=5", "oag", {"heads": 5, "hidden": 40}),
    ("alps", "data=6,z=3", "ors", {"heads": 6, "batch": 18}),
]
"""Grids whose inner axes do not divide the 4 or 8 GPUs of a node, and sums over members that are no power of 2."""


@pytest.mark.parametrize(("machine", "grid", "overlaps", "options"), STRADDLING, ids=str)
def test_the_answer_is_that_of_every_rank_where_groups_straddle_nodes(machine, grid, overlaps, options):
    sizes = {"hidden": 24, "batch": 24, **options}
    problem = Gpt(4, sizes["hidden"], sizes["heads"], 6, 34, sizes["batch"])
    schedule = overlap(gpt_schedule(problem, parse_grid(grid), Scheme4D()), set(overlaps.split(",")))
    given = schedule, find_machine(machine)
    check_same_op_times(simulate(*given), simulate(*given, shortcuts=Shortcuts(fold=False, fold_time=False)))


def test_a_timeline_of_too_many_spans_is_run_length_encoded():
    schedule = scheduled("z=2,x=2", layers=12)
    given = schedule, find_machine("perlmutter")
    whole = simulate(*given)
    short = simulate(*given, limits=Limits(expanded_spans=len(whole.timeline.spans) - 1))
    assert len(short.timeline.spans) < len(whole.timeline.spans)
    assert short.timeline.expanded(schedule.grid).spans == whole.timeline.spans
    assert short.times is not None
    for name, times in whole.timeline.op_times().items():
        assert short.times[name].count == times.count
        assert short.times[name].seconds == pytest.approx(times.seconds, rel=1e-9)


def test_sums_of_one_element_leave_ranks_equivalent():
    problem = Gpt(2, 128, 4, 8, 128, 64)
    schedule = gpt_schedule(problem, parse_grid("data=4,z=8,y=2,x=2"), Scheme4D())
    perlmutter = find_machine("perlmutter")
    asked = {"choices": Choices(), "threads": None, "placement": "packed"}
    simulation = Simulator(schedule, perlmutter, shortcuts=Shortcuts(), **asked)
    assert simulation.simulated_ranks <= 4
    found = volumes(schedule, Choices()).by_op
    assert found["sum loss over z"].algorithm == "doubling"
    assert found["sum loss over z"].sent_per_rank_max == 3 * 4  # three exchanges among eight members, of four bytes
    assert found["QKV gather W"].algorithm == "ring"


def test_many_microbatches_take_no_more_events_than_few():
    machine = find_machine("perlmutter")
    few, many = (simulate(scheduled("pipeline=4,x=2", micro_batch=1, batch=batch), machine) for batch in (30, 50))
    assert many.extent.events == few.extent.events
    assert many.extent.iterations_skipped == few.extent.iterations_skipped + 50 - 30


@pytest.mark.parametrize("grid", ["pipeline=2,x=2", "z=2,x=2"])
def test_many_microbatches_of_which_the_last_is_smaller_take_no_more_events_than_few(grid):
    machine = find_machine("perlmutter")
    few, many = (simulate(scheduled(grid, micro_batch=4, batch=batch), machine) for batch in (4 * 30 + 2, 4 * 50 + 2))
    assert many.extent.events == few.extent.events
    assert many.extent.iterations_skipped > few.extent.iterations_skipped


def test_a_deep_model_takes_hardly_more_events_than_a_shallow_one():
    machine = find_machine("perlmutter")
    shallow, deep = (simulate(scheduled("data=2,z=2,y=2,x=2", layers=layers), machine) for layers in (16, 68))
    assert deep.extent.events <= 1.05 * shallow.extent.events
    assert deep.extent.iterations_skipped > shallow.extent.iterations_skipped
