"""Collective granularity against the exact simulation: its bound holds, and where nothing contends it is exact."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from quadrille.algorithms.analysis.volumes import bytes_sent
from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.collectives.group_stages import group_stages
from quadrille.algorithms.collectives.lowering import SETS, lower
from quadrille.algorithms.formats.measured_rows import Faults
from quadrille.algorithms.matmuls.catalogue import find_algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import OVERLAPS, overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.records.path_segments import path_segments
from quadrille.simulator.bounds import group_step_costs, message_times
from quadrille.simulator.bounds.bounds_prediction import bounds_prediction
from quadrille.simulator.bounds.concurrency import concurrency_of
from quadrille.simulator.bounds.makespan_bounds import bound_schedule
from quadrille.simulator.bounds.message_times import equivalent_groups
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.simulate import Limits, Shortcuts, Simulator, simulate
from quadrille.simulator.symmetry.even_shards import with_even_shards
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from tests.support.toy_machines import device, leaf_spine, memory_row, one_host, star, transfer_row

GRIDS = [
    ("4d", Grid(data=2, z=3, y=1, x=2)),
    ("4d", Grid(data=2, z=2, y=2, x=2, order=("z", "y", "data", "x"))),
    ("4d", Grid(z=4, y=2, x=3)),
    ("4d", Grid(data=3, y=4)),
    ("3d", Grid(z=2, y=3, x=2)),
    ("summa", Grid(z=2, x=3)),
    ("cannon", Grid(z=3, x=3)),
    ("2.5d", Grid(z=2, x=2, y=2)),
    ("1d-row", Grid(y=5)),
]
ROUNDING = 1e-9


def machines(ranks):
    """Networks with room for so many ranks, on which messages share links in different ways."""
    cables = {"bandwidth_bytes_per_second": 1e9, "latency_seconds": 1e-6}
    torus = {"family": "torus", "dims": f"{-(-ranks // 3)}x3", **cables}
    dragonfly = {
        "family": "dragonfly",
        "groups": 3,
        "routers": 2,
        "hosts_per_router": -(-ranks // 6),
        "global_links": 1,
        **cables,
    }
    built = [Machine(name=one["family"], topology=one, device=device(memory=1e10)) for one in (torus, dragonfly)]
    leaves = -(-ranks // 4)
    return [
        star(ranks, memory=1e10, overhead=1e-6),
        leaf_spine(leaves, 4, memory=1e10),
        leaf_spine(leaves, 4, spines=2, memory=1e10, overhead=2e-6),
        *built,
        one_host(2, memory=1e10),
        one_host(3, transfer=[transfer_row(n, 1e-6 + n / 1e9, ranks=k) for n in (1, 10**6) for k in (2, 4)]),
        star(
            ranks,
            memory=1e10,
            network=[transfer_row(n, 2e-6 + n / 8e8, pattern=p) for n in (1, 10**6) for p in ("shift", "exchange")],
            memory_rows=[memory_row("add", n, 1e-7 + n / 1e9) for n in (8, 10**6)],
        ),
    ]


@st.composite
def experiments(draw):
    """A schedule, a machine, and who carries out the collectives."""
    algorithm, grid = draw(st.sampled_from(GRIDS))
    sizes = draw(st.tuples(*(st.sampled_from([7, 13, 17, 64, 130, 600]) for _ in "mkn")))
    passes, panel = draw(st.sampled_from(["forward", "training"])), draw(st.sampled_from([5, 64]))
    transposed = draw(st.sampled_from(["none", "a", "b"])) if find_algorithm(algorithm).any_form else "none"
    problem = Matmul(*sizes, "float64", passes, panel=panel, transposed=transposed)
    overlaps = draw(st.sets(st.sampled_from(OVERLAPS))) if algorithm in ("3d", "4d") else set()
    machine = draw(st.sampled_from(machines(grid.size)))
    choices = parse_choices("own:" + draw(st.sampled_from(sorted(SETS))))
    places = 0 if machine.topology["family"] == "host" else 3
    slow = draw(st.dictionaries(st.integers(0, places).map("host:{}".format), st.sampled_from([0.3, 0.8]), max_size=2))
    if machine.topology["family"] == "leaf-spine":
        degrade = draw(st.sampled_from([{}, {"leaf:0-spine:0": 0.25}]))
    else:
        degrade = {}
    schedule = overlap(matmul_schedule(problem, algorithm, grid), frozenset(overlaps))
    return schedule, msgspec.structs.replace(machine, faults=Faults(degrade=degrade, slow=slow)), choices


@given(experiments())
@settings(max_examples=50, deadline=None)
def test_the_exact_makespan_lies_within_the_bound_and_so_does_the_estimate(drawn):
    schedule, machine, choices = drawn
    found = bound_schedule(schedule, machine, choices, place_ranks(machine, schedule.grid.size))
    exact = simulate(schedule, machine, choices=choices).timeline.makespan
    note(f"{schedule.name} {schedule.grid} {schedule.sizes} {schedule.overlap} {choices} {machine}")
    assert found.low <= exact * (1 + ROUNDING)
    assert exact <= found.high * (1 + ROUNDING)
    assert found.low <= found.seconds * (1 + ROUNDING) and found.seconds <= found.high * (1 + ROUNDING)


NOTHING_SHARED = [("4d", Grid(z=4, y=2, x=3)), ("3d", Grid(z=2, y=3, x=2)), ("cannon", Grid(z=3, x=3))]


@pytest.mark.parametrize(("algorithm", "grid"), NOTHING_SHARED)
def test_where_nothing_contends_the_bound_is_closed_and_all_ops_take_what_they_take_exactly(algorithm, grid):
    schedule = matmul_schedule(Matmul(130, 600, 64, "float64", "training"), algorithm, grid)
    machine = star(grid.size, memory=1e10, overhead=1e-6)
    slow = msgspec.structs.replace(machine, faults=Faults(slow={"host:1": 0.5}))
    found, exact = (simulate(schedule, slow, granularity=how) for how in ("collective", "exact"))
    makespan = exact.timeline.makespan
    assert (found.bound.low, found.bound.high) == pytest.approx((makespan, makespan), rel=1e-9)
    assert found.timeline.makespan == pytest.approx(makespan, rel=1e-9)
    assert list(found.op_times()) == list(exact.op_times())
    for name, times in exact.op_times().items():
        own = found.op_times()[name]
        assert (own.kind, own.axis, own.count) == (times.kind, times.axis, times.count)
        assert own.seconds == pytest.approx(times.seconds, rel=1e-9, abs=1e-15)
        assert own.waiting_seconds == pytest.approx(times.waiting_seconds, rel=1e-9, abs=1e-15)
        assert own.exposed_seconds == pytest.approx(times.exposed_seconds, rel=1e-9, abs=1e-15)
        assert found.parts[name] == pytest.approx(exact.parts[name], rel=1e-9, abs=1e-15)


def test_overlapped_ops_are_exposed_as_far_as_in_the_exact_simulation():
    schedule = matmul_schedule(Matmul(130, 600, 64, "float64", "training"), "4d", Grid(z=2, y=2, x=2))
    overlapped = overlap(schedule, frozenset(OVERLAPS))
    machine = star(8, memory=1e30, peak=1e9)
    found, exact = (simulate(overlapped, machine, granularity=how) for how in ("collective", "exact"))
    assert found.bound.low == pytest.approx(exact.timeline.makespan, rel=1e-9)
    assert any(
        0 < times.exposed_seconds < times.seconds or not times.exposed_seconds for times in exact.op_times().values()
    )
    for name, times in exact.op_times().items():
        assert found.op_times()[name].exposed_seconds == pytest.approx(times.exposed_seconds, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("set_name", sorted(SETS))
@pytest.mark.parametrize("members", [2, 3, 8, 12])
def test_stages_move_what_the_steps_of_each_member_move(set_name, members):
    for kind, algorithm in SETS[set_name].items():
        lowered = lower(kind, algorithm, members, root=0, size_bytes=1 << 22, per_node=2 if members % 2 == 0 else 1)
        moved = [
            (int(one), int(to), int(first), int(count), move.spacing, bool(adds))
            for stage in group_stages(lowered)
            for k in range(stage.times)
            for move in stage.moves
            for one, to, first, count, adds in zip(
                move.sender, move.receiver, move.first_pieces(k, lowered.pieces), move.count, move.adds, strict=True
            )
        ]
        steps = [
            (member, step.send_to, step.send.first, step.send.count, step.send.spacing)
            for member in range(members)
            for step in lowered.program(member)
            if step.send_to is not None
        ]
        assert sorted(row[:5] for row in moved) == sorted(steps)
        received = sum(step.reduce for member in range(members) for step in lowered.program(member))
        assert sum(row[5] for row in moved) == received


def test_equal_steps_may_be_left_out(monkeypatch):
    schedule = with_even_shards(matmul_schedule(Matmul(1300, 700, 900, "float64", "training"), "4d", Grid(z=24, x=2)))
    machine = leaf_spine(12, 4, memory=1e10)
    placement = place_ranks(machine, 48)
    short = bound_schedule(schedule, machine, parse_choices("own"), placement)
    monkeypatch.setattr(message_times, "EQUAL_ADVANCES", -1.0)
    long = bound_schedule(schedule, machine, parse_choices("own"), placement)
    assert short.walk.carried.messages < long.walk.carried.messages / 2
    assert (short.low, short.seconds, short.high) == pytest.approx((long.low, long.seconds, long.high), rel=1e-9)
    assert short.low <= long.low * (1 + ROUNDING) and long.high <= short.high * (1 + ROUNDING)
    assert short.walk.link_bytes() == pytest.approx(long.walk.link_bytes(), rel=1e-9)


def test_of_groups_that_do_the_same_one_is_walked(monkeypatch):
    schedule = matmul_schedule(Matmul(1200, 720, 960, "float64", "training"), "4d", Grid(z=12, x=4))
    machine = msgspec.structs.replace(leaf_spine(12, 4, memory=1e10), faults=Faults(slow={"host:1": 0.5}))
    placement = place_ranks(machine, 48)
    short = bound_schedule(schedule, machine, parse_choices("own"), placement)
    monkeypatch.setattr(message_times, "SEARCH_FROM", 1 << 62)
    long = bound_schedule(schedule, machine, parse_choices("own"), placement)
    assert short.walk.carried.messages < long.walk.carried.messages
    assert short.walk.ends == pytest.approx(long.walk.ends, rel=1e-11)


def test_groups_are_equivalent_where_they_cost_the_same_and_begin_with_the_same_offsets():
    times = np.array([[0.0, 1.0, 5.0, 6.0, 7.0, 8.5, 2.0, 3.0]])
    assert equivalent_groups(times, np.array([[0, 0, 0, 0]])).tolist() == [[0, 0, 2, 0]]
    assert equivalent_groups(times, np.array([[0, 1, 0, 1]])).tolist() == [[0, 1, 2, 1]]


@pytest.mark.parametrize("kept", [0, 1 << 21])
def test_compiled_steps_and_steps_that_are_not_kept_are_the_plain_ones(monkeypatch, kept):
    schedule = overlap(matmul_schedule(Matmul(130, 600, 64, "float64", "training"), "4d", Grid(z=4, x=3)), {"oar"})
    placement, machine = place_ranks(leaf_spine(3, 4), 12), leaf_spine(3, 4, memory=1e10)
    plain = bound_schedule(schedule, machine, parse_choices("own"), placement)
    monkeypatch.setattr(group_step_costs, "COMPILED", 1)
    monkeypatch.setattr(group_step_costs, "CACHED_STEP_NUMBERS", kept)
    found = bound_schedule(schedule, machine, parse_choices("own"), placement)
    assert (found.low, found.seconds, found.high) == (plain.low, plain.seconds, plain.high)
    assert (found.walk.ends == plain.walk.ends).all()


def test_what_ranks_send_is_what_goes_over_the_links():
    schedule = matmul_schedule(Matmul(13, 17, 11, "float64", "training"), "4d", Grid(data=2, z=3, x=2))
    choices = parse_choices("own")
    found = bound_schedule(schedule, star(12), choices, place_ranks(star(12), 12))
    sent = sum(bytes_sent(schedule, rank, choices) for rank in range(12))
    assert found.walk.link_bytes().sum() == pytest.approx(2 * sent)  # up one cable, down another


def test_lanes_are_together_where_an_overlap_says_so():
    schedule = matmul_schedule(Matmul(8, 8, 8, "float64", "training"), "4d", Grid(z=2, y=2, x=2))
    apart = concurrency_of(schedule, [schedule.coordinates(0)])
    assert all(len(one) == 1 for one in apart.sets) and not apart.overlaps
    released = concurrency_of(overlap(schedule, frozenset({"oar"})), [schedule.coordinates(0)])
    assert frozenset({"compute", "x"}) in released.sets
    assert released.overlaps["multiply dB"] == {"sum dA": 1}
    assert released.overlaps["sum dA"] == {"multiply dB": 1, "scatter dB": 1, "sum dB": 1}


@pytest.mark.parametrize("kept", [0, 1 << 30])
def test_the_critical_path_adds_up_whether_all_spans_are_kept_or_few(kept):
    schedule = matmul_schedule(Matmul(130, 600, 64, "float64", "training"), "4d", Grid(z=4, y=2, x=3))
    machine = msgspec.structs.replace(leaf_spine(6, 4, memory=1e10), faults=Faults(slow={"host:5": 0.3}))
    placement, choices = place_ranks(machine, 24), parse_choices("own")
    bounds = bound_schedule(schedule, machine, choices, placement, most_span_bytes=kept)
    found = bounds_prediction(
        bounds, machine, placement, schedule.name, schedule.grid, wanted=(), links=1, not_folded_reason=""
    )
    assert sum(one.seconds for one in path_segments(found.timeline, found.parts_of)) == pytest.approx(
        found.timeline.makespan, rel=1e-9
    )
    for span in found.timeline.spans:
        assert sum(found.parts_of(span).values()) == pytest.approx(span.end - span.start, rel=1e-9, abs=1e-15)
    whole = bound_schedule(schedule, machine, choices, placement)
    assert found.timeline.makespan == pytest.approx(whole.seconds, rel=1e-12)


def test_with_all_spans_the_critical_path_goes_over_to_the_straggler():
    schedule = matmul_schedule(Matmul(1300, 600, 640, "float64", "training"), "4d", Grid(z=4, y=2, x=3))
    machine = msgspec.structs.replace(star(24, memory=1e10), faults=Faults(slow={"host:17": 0.3}))
    found = simulate(schedule, machine, granularity="collective")
    path = found.timeline.critical_path()
    assert 17 in {span.rank for span in path if span.lane == "compute"}


def test_ranks_that_are_wanted_are_in_the_timeline():
    schedule = matmul_schedule(Matmul(130, 600, 64), "4d", Grid(z=4, y=2, x=3))
    placement = place_ranks(star(24), 24)
    found = Simulator(
        schedule,
        star(24),
        choices=parse_choices("own"),
        threads=None,
        placement="packed",
        shortcuts=Shortcuts(),
        granularity="collective",
    ).run((20, 21))
    assert placement.net.endpoint_count == 24
    assert {20, 21} <= {span.rank for span in found.timeline.spans}


def test_what_would_take_long_is_predicted_at_the_granularity_of_collectives():
    schedule = matmul_schedule(Matmul(130, 600, 64), "4d", Grid(z=4, y=2, x=3))
    no_time = Limits(long_seconds=0.0)
    assert simulate(schedule, star(24), granularity="auto").bound is None
    assert simulate(schedule, star(24), granularity="auto", limits=no_time).bound is not None
    assert simulate(schedule, star(24), limits=no_time).bound is None


@pytest.mark.parametrize("collectives", ["own", "nccl"])
def test_links_without_bandwidth_that_nobody_uses_cost_nothing(collectives):
    """1e-320 B/s is so little that a rate calculated from it is 0."""
    schedule = matmul_schedule(Matmul(64, 64, 64), "4d", Grid(z=2))
    usual, dead = (
        simulate(
            schedule,
            find_machine("perlmutter", changes, gpus=4),
            choices=parse_choices(collectives),
            granularity="collective",
        )
        for changes in ([], ["topology.pcie_bandwidth_bytes_per_second=1e-320"])
    )
    assert (dead.seconds, dead.links) == (usual.seconds, usual.links)
