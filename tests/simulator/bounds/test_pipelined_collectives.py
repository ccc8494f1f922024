"""Collective granularity of pipelines: messages of single ranks, against the exact simulation."""

from dataclasses import replace

import msgspec
import pytest

from quadrille.algorithms.analysis.volumes import bytes_sent
from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import Deadlock, InputError
from quadrille.algorithms.formats.measured_rows import Faults
from quadrille.algorithms.passes.overlap import OVERLAPS, overlap
from quadrille.algorithms.schedule.expressions import Affine
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Receive, Send
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Role
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.gpt import Gpt
from quadrille.experiments.records.path_segments import joined_by_op, path_seconds_by_cause, path_segments
from quadrille.simulator.bounds.makespan_bounds import bound_schedule
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.simulate import Limits, simulate
from tests.support.toy_machines import FREE, leaf_spine, program_of, star
from tests.support.trainings import schedule_of

CASES = [
    (Grid(pipeline=2), 1, ()),
    (Grid(pipeline=3), 1, ()),
    (Grid(pipeline=2), 2, ()),
    (Grid(pipeline=2, z=2, x=2), 1, OVERLAPS),
    (Grid(pipeline=3, data=2, y=2), 1, ("oar",)),
    (Grid(pipeline=2, data=2, x=2, order=("pipeline", "x", "y", "z", "data")), 2, ("oag", "ors")),
]


def pipeline(grid, chunks, overlaps, microbatches=4):
    layers, batch = chunks * grid.pipeline, microbatches * grid.data * grid.z
    problem = Gpt(layers, 24, 2, 8, 30, batch, micro_batch=1, interleave=chunks, dtype="float64")
    schedule = schedule_of(problem, grid)
    assert any(isinstance(op, Send) for role in schedule.roles for op in _ops(role.program))
    return overlap(schedule, frozenset(overlaps))


def _ops(program):
    for entry in program:
        yield from _ops(entry.body) if hasattr(entry, "body") else (entry,)


def machines(ranks):
    slow = Faults(slow={"host:1": 0.5})
    networks = [star(ranks, memory=1e10, overhead=1e-6), leaf_spine(-(-ranks // 4), 4, memory=1e10)]
    return [*networks, msgspec.structs.replace(networks[0], faults=slow)]


def close(one):
    return pytest.approx(one, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize(("grid", "chunks", "overlaps"), CASES)
def test_the_exact_makespan_of_a_pipeline_lies_within_the_bound(grid, chunks, overlaps, turn):
    """Each pipeline on two of the three machines."""
    number = (CASES.index((grid, chunks, overlaps)) + turn) % 3
    schedule, machine = pipeline(grid, chunks, overlaps), machines(grid.size)[number]
    found = bound_schedule(schedule, machine, parse_choices("own"), place_ranks(machine, grid.size))
    exact = simulate(schedule, machine).timeline.makespan
    assert found.low <= exact * (1 + 1e-9)
    assert exact <= found.high * (1 + 1e-9)
    assert found.low * (1 - 1e-9) <= found.seconds <= found.high * (1 + 1e-9)


@pytest.mark.parametrize(("grid", "chunks", "overlaps"), CASES)
def test_where_no_message_waits_for_bandwidth_the_bound_is_closed_and_ops_take_what_they_take_exactly(
    grid, chunks, overlaps
):
    schedule = pipeline(grid, chunks, overlaps)
    machine = star(grid.size, bandwidth=FREE, overhead=1e-6)
    found, exact = (simulate(schedule, machine, granularity=how) for how in ("collective", "exact"))
    makespan = exact.timeline.makespan
    assert (found.bound.low, found.timeline.makespan, found.bound.high) == close((makespan, makespan, makespan))
    assert found.op_times().keys() == exact.op_times().keys()
    for name, times in exact.op_times().items():
        own = found.op_times()[name]
        assert (own.kind, own.axis, own.count) == (times.kind, times.axis, times.count)
        assert (own.seconds, own.waiting_seconds) == close((times.seconds, times.waiting_seconds))
    exposed = [sum(times.exposed_seconds for times in one.op_times().values()) for one in (found, exact)]
    assert exposed[0] == close(exposed[1])


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 3), (2, 5), (4, 6)])
def test_interleaved_stages_whose_rounds_are_longer_than_the_stages_end(stages, microbatches):
    """A lane of messages waits for the stage after it while its rank goes on with other lanes."""
    problem = Gpt(2 * stages, 24, 2, 8, 30, microbatches, micro_batch=1, interleave=2, dtype="float64")
    schedule, machine = schedule_of(problem, Grid(pipeline=stages)), star(stages, bandwidth=FREE, overhead=1e-6)
    found, exact = (simulate(schedule, machine, granularity=how) for how in ("collective", "exact"))
    makespan = exact.timeline.makespan
    assert (found.bound.low, found.timeline.makespan, found.bound.high) == close((makespan, makespan, makespan))


def test_what_stages_send_goes_over_their_links():
    schedule, machine, choices = pipeline(Grid(pipeline=3, data=2), 1, ()), star(6, memory=1e10), parse_choices("own")
    found = bound_schedule(schedule, machine, choices, place_ranks(machine, 6))
    sent = sum(bytes_sent(schedule, rank, choices) for rank in range(6))
    assert found.walk.link_bytes().sum() == close(2 * sent)  # up one cable, down another


def test_the_critical_path_goes_through_the_stages_and_adds_up():
    schedule, machine = pipeline(Grid(pipeline=3, x=2), 1, ()), star(6, memory=1e10, overhead=1e-6)
    found = simulate(schedule, machine, granularity="collective")
    path = path_segments(found.timeline, found.parts_of)
    assert sum(one.seconds for one in path) == close(found.timeline.makespan)
    for span in found.timeline.spans:
        assert sum(found.parts_of(span).values()) == close(span.end - span.start)


@pytest.mark.parametrize("granularity", ["exact", "collective"])
def test_the_critical_path_stays_on_a_slow_stage(granularity):
    schedule = pipeline(Grid(pipeline=2), 1, (), microbatches=6)
    machine = msgspec.structs.replace(star(2, memory=1e10, overhead=1e-6), faults=Faults(slow={"host:1": 0.01}))
    found = simulate(schedule, machine, granularity=granularity)
    computing = [span for span in found.timeline.critical_path() if span.lane == "compute"]
    assert sum(span.seconds for span in computing if span.rank == 1) > 0.97 * found.timeline.makespan
    assert {span.rank for span in computing} == {0, 1}
    waiting = path_seconds_by_cause(path_segments(found.timeline, found.parts_of))["waiting"]
    assert waiting < 1e-9 * found.timeline.makespan


def test_the_critical_path_through_stages_is_that_of_every_iteration():
    problem = Gpt(2, 8, 1, 4, 10, 48, micro_batch=1, dtype="float64")
    found = simulate(
        schedule_of(problem, Grid(pipeline=2)),
        star(2, memory=1e10, overhead=1e-6),
        limits=Limits(expanded_spans=0),
    )
    assert any("send X" in repeated.per_iteration for repeated in found.timeline.repeated)
    encoded, whole, shortened = (
        {one.op: one.seconds for one in joined_by_op(path_segments(timeline, lambda _: {}))}
        for timeline in (found.timeline, found.timeline.unrolled(), found.timeline.without_repeats())
    )
    assert encoded == close(whole)
    assert shortened.keys() == whole.keys()


def pair(*rank_groups, peer=1):
    """Two ranks that send and receive alone."""
    rows = Part("m")
    tensors = [Tensor(name, rows, rows) for name in ("a", "b")]
    ops = {
        "send": Send(name="send", axis="x", to=peer, source="a"),
        "back": Send(name="back", axis="x", to=0, source="a"),
        "receive": Receive(name="receive", axis="x", sender=0, into="b"),
        "receive back": Receive(name="receive back", axis="x", sender=1, into="b"),
    }
    roles = [
        Role(tuple(ops[name] for name in names), "x", at, at + 1 if at == 0 else None)
        for at, names in enumerate(rank_groups)
    ]
    return program_of(Grid(x=2), tensors, roles=tuple(roles), m=1000)


def test_a_message_takes_its_latency_and_its_bytes_after_both_ends_are_there():
    found = simulate(pair(("send",), ("receive",)), star(2), granularity="collective")
    assert (found.bound.low, found.bound.high) == close((2e-6 + 8e6 / 1e9,) * 2)


def test_ends_that_wait_for_each_other_are_named():
    schedule = pair(("receive back", "send"), ("receive", "back"))
    with pytest.raises(Deadlock, match="'receive back', 'receive'"):
        simulate(schedule, star(2), granularity="collective")


def test_ranks_of_one_program_that_send_to_different_members_are_left_to_the_exact_simulation():
    schedule = replace(pair(("send",), ("receive",), peer=Affine("y", 1, 1)), grid=Grid(x=3, y=2))
    with pytest.raises(InputError, match="op 'send' goes to one rank or another by the coordinate of y"):
        simulate(schedule, star(6), granularity="collective")
