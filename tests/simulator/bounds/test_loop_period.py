"""At the granularity of collectives, passing over turns that repeat and waves in one pass change no answer."""

from math import inf

import msgspec
import numpy as np
import pytest

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.formats.measured_rows import Faults
from quadrille.algorithms.passes.overlap import OVERLAPS, PRODUCT_OVERLAPS, overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.experiments.records.path_segments import PARTS, joined_by_op, path_segments
from quadrille.simulator.bounds import group_step_costs, loop_period
from quadrille.simulator.bounds.loop_period import SKIP_MULTIPLE, WALKED_FIRST
from quadrille.simulator.bounds.makespan_bounds import bound_schedule as walked
from quadrille.simulator.loops.skipped_iterations import MIN_TAIL
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.simulate import Shortcuts, simulate
from quadrille.topologies.find_machine import find_machine
from tests.support.toy_machines import leaf_spine, star

CASES = [
    ("optimus", Grid(z=2, x=3), ()),
    ("tesseract", Grid(z=2, y=2, x=2), ("oag",)),
    ("bian", Grid(z=2, y=2, x=2), ()),
    ("4d", Grid(data=2, z=2, y=2, x=1), PRODUCT_OVERLAPS),
    ("4d", Grid(z=4, x=2), ("oag",)),
]


def model(scheme, grid, overlaps=(), layers=14):
    problem = Gpt(layers=layers, hidden=36, heads=6, sequence=8, vocabulary=30, batch=8, micro_batch=None)
    return overlap(gpt_schedule(problem, grid, find_scheme(scheme)), frozenset(overlaps))


def machines(ranks):
    return [star(ranks, memory=1e9, overhead=1e-6), leaf_spine(-(-ranks // 4), 4, memory=1e10)]


def close(one):
    return pytest.approx(one, rel=1e-9, abs=1e-15)


def short_and_long(schedule, machine):
    """The walk that passes over turns, and the one that takes them all."""
    placement = place_ranks(machine, schedule.grid.size)
    return [walked(schedule, machine, parse_choices("own"), placement, fold_time=fold) for fold in (True, False)]


def check_the_same(short, long):
    assert short.walk.skipped_iterations > 0 == long.walk.skipped_iterations
    assert (short.low, short.seconds, short.high) == close((long.low, long.seconds, long.high))
    assert short.walk.link_bytes() == close(long.walk.link_bytes())
    few, all_of_them = short.tally.times(), long.tally.times()
    assert list(few) == list(all_of_them)
    for name, times in all_of_them.items():
        own = few[name]
        assert own.count == times.count
        assert own.seconds == close(times.seconds)
        assert own.waiting_seconds == close(times.waiting_seconds)
        assert own.exposed_seconds == close(times.exposed_seconds)


@pytest.mark.parametrize(("scheme", "grid", "overlaps"), CASES)
def test_skipped_iterations_change_no_answer(scheme, grid, overlaps):
    """The cases in turns on one machine and on the other."""
    machine = machines(grid.size)[CASES.index((scheme, grid, overlaps)) % 2]
    check_the_same(*short_and_long(model(scheme, grid, overlaps), machine))


@pytest.mark.parametrize(
    ("grid", "overlaps", "which"), [(Grid(data=2, z=3, x=2), PRODUCT_OVERLAPS, 0), (Grid(data=3, y=2), (), 1)]
)
def test_iterations_before_a_smaller_last_microbatch_are_skipped(grid, overlaps, which):
    """So many microbatches that the loop over them has the skipped iterations."""
    problem = Gpt(2, 36, 6, 8, 30, batch=3 * 6 * 15 + 6, micro_batch=3)
    schedule = overlap(gpt_schedule(problem, grid, find_scheme("4d")), frozenset(overlaps))
    short, long = short_and_long(schedule, machines(grid.size)[which])
    check_the_same(short, long)
    assert short.walk.skipped_iterations > 15 - WALKED_FIRST - MIN_TAIL - SKIP_MULTIPLE


def apart(ranks):
    """A machine whose second host is slow, so that replicas of a model go at a pace of their own."""
    return msgspec.structs.replace(leaf_spine(-(-ranks // 4), 4, memory=1e10), faults=Faults(slow={"host:1": 0.5}))


@pytest.mark.parametrize(("grid", "overlaps"), [(Grid(data=3, z=2, x=2), PRODUCT_OVERLAPS), (Grid(data=2, y=3), ())])
def test_parts_that_do_not_meet_in_a_loop_each_skip_iterations_at_their_own_pace(grid, overlaps):
    schedule = model("4d", grid, overlaps)
    short, long = short_and_long(schedule, apart(grid.size))
    check_the_same(short, long)
    assert not short.tally.repeats  # of unlike seconds, which are said one by one
    told, each = (
        {(span.rank, span.op, span.index): span for one in found.tally.instances for span, _ in one.spans(ranks, 1)}
        for found, ranks in ((short, np.arange(grid.size)), (long, np.arange(grid.size)))
    )
    assert told.keys() == each.keys()
    for key, span in each.items():
        assert (told[key].ready, told[key].start, told[key].end) == close((span.ready, span.start, span.end))


def test_loops_in_which_the_next_layer_is_gathered_and_the_last_one_scattered_are_passed_over():
    """As of overlaps, where a loop of one turn in the loop begins at the next layer: no op asks which."""
    layers, machine = 24, star(4, memory=1e9, overhead=1e-6)
    found = walked(
        model("4d", Grid(z=2, x=2), PRODUCT_OVERLAPS, layers), machine, parse_choices("own"), place_ranks(machine, 4)
    )
    loops_over_layers = 5  # zeroed moments, forward, backward, sums, updates
    assert found.walk.skipped_iterations > loops_over_layers * (layers - 10)


@pytest.mark.parametrize("slack", [0.0, inf])
@pytest.mark.parametrize("grid", [Grid(data=2, z=3), Grid(data=3, y=2), Grid(z=3, x=2)])
def test_bounds_hold_where_skipped_iterations_do_not_quite_repeat(monkeypatch, grid, slack):
    monkeypatch.setattr(loop_period, "LARGE", 0)
    monkeypatch.setattr(loop_period, "SLACKS", ((0, slack),))
    schedule, machine = model("4d", grid, ("oar", "oag"), layers=9), apart(grid.size)
    found = walked(schedule, machine, parse_choices("own"), place_ranks(machine, grid.size))
    exact = simulate(schedule, machine).timeline.makespan
    assert found.walk.skipped_iterations > 0
    assert found.low <= exact * (1 + 1e-9) and exact <= found.high * (1 + 1e-9)
    assert found.low * (1 - 1e-9) <= found.seconds <= found.high * (1 + 1e-9)


def test_loops_whose_iterations_differ_are_walked_to_the_end():
    schedule, machine = model("optimus", Grid(z=2, x=3), layers=2), star(6)
    found = walked(schedule, machine, parse_choices("own"), place_ranks(machine, 6))
    assert found.walk.skipped_iterations == 0


@pytest.mark.parametrize(("scheme", "grid", "overlaps"), CASES[:2])
def test_waves_in_one_pass_are_the_steps_one_by_one(monkeypatch, scheme, grid, overlaps):
    schedule, machine, choices = model(scheme, grid, overlaps, layers=2), machines(grid.size)[1], parse_choices("own")
    placement = place_ranks(machine, grid.size)
    found = [walked(schedule, machine, choices, placement)]
    monkeypatch.setattr("quadrille.simulator.bounds.pipelined_collectives.LARGE", 1 << 62)
    found.append(walked(schedule, machine, choices, placement))
    monkeypatch.setattr(group_step_costs, "message_table", lambda group_stages, members: None)
    steps = walked(schedule, machine, choices, placement)
    for waves in found:
        assert (waves.low, waves.seconds, waves.high) == close((steps.low, steps.seconds, steps.high))
        assert waves.walk.carried.messages == steps.walk.carried.messages
        assert waves.walk.link_bytes() == close(steps.walk.link_bytes())
        assert waves.walk.carried.seconds == close(steps.walk.carried.seconds)
        for name, sums in steps.tally.seconds_by_cause().items():
            assert waves.tally.seconds_by_cause()[name] == close(sums)


@pytest.mark.parametrize(("scheme", "grid", "overlaps"), CASES[1:4])
def test_the_run_length_encoded_timeline_is_that_of_all_iterations(scheme, grid, overlaps):
    schedule, machine = model(scheme, grid, overlaps), machines(grid.size)[1]
    short = simulate(schedule, machine, granularity="collective")
    long = simulate(schedule, machine, granularity="collective", shortcuts=Shortcuts(fold_time=False))
    assert short.timeline.repeated and not long.timeline.repeated
    assert short.extent.iterations_skipped > 0 == long.extent.iterations_skipped
    ranks = {span.rank for span in short.timeline.spans} & {span.rank for span in long.timeline.spans}
    told, each = (
        {(s.rank, s.op, s.index): s for s in one.timeline.unrolled().spans if s.rank in ranks} for one in (short, long)
    )
    assert told.keys() == each.keys()
    for key, span in each.items():
        assert (told[key].start, told[key].end) == close((span.start, span.end))
    path = path_segments(short.timeline, short.parts_of)
    assert sum(one.seconds for one in path) == close(short.timeline.makespan)
    whole = path_segments(short.timeline.unrolled(), short.parts_of)
    least = 1e-9 * short.timeline.makespan
    assert [one.op for one in path if one.seconds > least] == [one.op for one in whole if one.seconds > least]
    for one, other in zip(joined_by_op(path), joined_by_op(whole), strict=True):
        assert (one.op, one.rank, one.count) == (other.op, other.rank, other.count)
        assert one.seconds == pytest.approx(other.seconds, rel=1e-9, abs=least)
        for part in PARTS:
            seconds = other.seconds_by_part.get(part, 0.0)
            assert one.seconds_by_part.get(part, 0.0) == pytest.approx(seconds, rel=1e-6, abs=least)


@pytest.mark.parametrize(
    ("scheme", "grid", "microbatches", "layers"),
    [
        ("4d", Grid(data=2, z=2, y=2), 1, 14),
        ("megatron", Grid(data=2, x=2), 16, 4),
        ("megatron", Grid(data=4), 1, 20),
    ],
)
@pytest.mark.parametrize(("overlaps", "zero"), [(OVERLAPS, 1), (("ogr",), 0), (("opg",), 1)])
def test_iterations_that_are_not_beside_sums_and_gathers_over_data_are_skipped(
    scheme, grid, microbatches, layers, overlaps, zero
):
    each = grid.data * grid.z
    problem = Gpt(layers, 36, 6, 8, 30, batch=each * microbatches, micro_batch=1, zero=zero)
    schedule = overlap(gpt_schedule(problem, grid, find_scheme(scheme)), overlaps)
    for machine in machines(grid.size):
        check_the_same(*short_and_long(schedule, machine))


def test_loops_beside_sums_and_after_them_are_walked_in_full():
    problem = Gpt(30, 36, 6, 8, 30, batch=4 * 2, micro_batch=2)
    found = {}
    for names in ((), ("ogr",)):
        schedule = overlap(gpt_schedule(problem, Grid(data=4), find_scheme("megatron")), names)
        found[names] = short_and_long(schedule, machines(4)[0])[0].walk.skipped_iterations
    assert 0 < found["ogr",] < found[()]


def test_sums_beside_the_backward_pass_delay_no_op_by_all_sums_of_all_layers():
    """A sum over data may run beside each later layer, but one sum at a time: a layer has the same bound."""
    machine = find_machine("h100-node", gpus=4)
    placement, ratios = place_ranks(machine, 4), []
    for layers in (4, 16):
        schedule = model("megatron", Grid(data=2, x=2), ("oar", "ogr"), layers)
        result = walked(schedule, machine, parse_choices("nccl"), placement)
        assert result.low <= result.seconds < result.high
        ratios.append(result.high / result.seconds)
    assert ratios[1] == pytest.approx(ratios[0], rel=0.1)
    assert ratios[1] < 3
