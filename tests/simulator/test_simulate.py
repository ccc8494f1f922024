"""The simulator against closed forms, bounds, and the other interpreter."""

from collections import defaultdict
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.analysis import alpha_beta
from quadrille.algorithms.analysis.axonn import layer_cost
from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.analysis.volumes import bytes_sent, flops
from quadrille.algorithms.collectives.collective_choices import Choices, parse_choices
from quadrille.algorithms.collectives.lowering import chunks
from quadrille.algorithms.errors import Deadlock, InputError
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import OVERLAPS, overlap, parse_overlap
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.algorithms.schedule.ops import Receive, Send, lane
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Role
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.simulator.simulate import simulate
from quadrille.simulator.uncertainty import uncertainty
from quadrille.topologies.machines.machine import Fit, Host, Machine
from tests.support.simulated_lanes import simulated_spans
from tests.support.toy_machines import (
    BANDWIDTH,
    FREE,
    LATENCY,
    PEAK,
    collective,
    device,
    leaf_spine,
    memory_row,
    one_host,
    products,
    program_of,
    star,
    transfer_row,
)

HOP = alpha_beta.AlphaBetaLink(latency=2 * LATENCY, bandwidth=BANDWIDTH)
"""A message between two hosts of a star: up one cable, down another."""

ANY_GROUP = [
    ("ring", "all_gather", lambda p, n: alpha_beta.ring_all_gather(p, n / p, HOP)),
    ("ring", "reduce_scatter", lambda p, n: alpha_beta.ring_reduce_scatter(p, n / p, HOP)),
    ("ring", "all_reduce", lambda p, n: alpha_beta.ring_all_reduce(p, n, HOP)),
    ("ring", "broadcast", lambda p, n: alpha_beta.pipelined_broadcast(p, n, HOP, chunks=chunks(p, n))),
    ("ring", "reduce", lambda p, n: alpha_beta.pipelined_reduce(p, n, HOP, chunks=chunks(p, n))),
    ("ring", "all_to_all", lambda p, n: alpha_beta.pairwise_all_to_all(p, n / p / p, HOP)),
    ("ring", "barrier", lambda p, n: (p - 1).bit_length() * HOP.latency),
    ("doubling", "all_reduce", lambda p, n: alpha_beta.recursive_doubling_all_reduce(p, n, HOP)),
    ("doubling", "broadcast", lambda p, n: alpha_beta.binomial_broadcast(p, n, HOP)),
    ("doubling", "reduce", lambda p, n: alpha_beta.binomial_reduce(p, n, HOP)),
]
POWERS_OF_TWO = [
    ("doubling", "all_gather", lambda p, n: alpha_beta.doubling_all_gather(p, n / p, HOP)),
    ("doubling", "reduce_scatter", lambda p, n: alpha_beta.halving_reduce_scatter(p, n / p, HOP)),
    ("halving_doubling", "all_reduce", lambda p, n: alpha_beta.halving_doubling_all_reduce(p, n, HOP)),
]
COLLECTIVES = [(p, *case) for case in ANY_GROUP for p in (2, 3, 5, 8)]
COLLECTIVES += [(p, *case) for case in POWERS_OF_TWO for p in (2, 4, 8, 16)]

CASES = [
    ("1d-column", Grid(x=3)),
    ("1d-row", Grid(y=3)),
    ("cannon", Grid(z=3, x=3)),
    ("summa", Grid(z=2, x=3)),
    ("2.5d", Grid(z=2, x=2, y=2)),
    ("3d", Grid(z=2, y=3, x=2)),
    ("4d", Grid(data=2, z=3, y=1, x=2)),
    ("4d", Grid(data=2, z=2, y=2, x=2, order=("z", "y", "data", "x"))),
]
OVERLAP_CASES = [case for case in CASES if case[0] in ("3d", "4d")]
SUBSETS = [",".join(name for i, name in enumerate(OVERLAPS) if bits >> i & 1) or "none" for bits in range(8)]

grids_of_3d_and_4d = st.one_of(
    st.tuples(
        st.just("3d"),
        st.builds(Grid, z=st.integers(1, 3), y=st.integers(1, 3), x=st.integers(1, 3)),
        st.sampled_from(["none", "a", "b"]),
    ),
    st.tuples(
        st.just("4d"),
        st.builds(Grid, data=st.integers(1, 2), **dict.fromkeys("zyx", st.integers(1, 3))),
        st.just("none"),
    ),
)


def scheduled(algorithm, grid, overlaps="none", *, sizes=(13, 17, 11), passes="training", panel=3, transposed="none"):
    problem = Matmul(*sizes, "float64", passes, panel=panel, transposed=transposed)
    return overlap(matmul_schedule(problem, algorithm, grid), parse_overlap(overlaps))


def makespan(schedule, machine, **options):
    return simulate(schedule, machine, **options).timeline.makespan


def order_in_lanes(timeline):
    """The instances of ops of every rank and lane, in the order of the spans."""
    lanes = defaultdict(list)
    for span in timeline.spans:
        lanes[span.rank, span.lane].append((span.op, span.index))
    return dict(lanes)


def executed(schedule):
    """The timeline of a run of all ranks in this process."""
    sizes = schedule.sizes
    shapes = {"A": (sizes["m"], sizes["k"]), "B": (sizes["k"], sizes["n"]), "dC": (sizes["m"], sizes["n"])}
    matrices = {name: np.zeros(shapes[name], schedule.dtype) for name in schedule.inputs}
    (timeline,) = execute(schedule, matrices, InProcess(schedule.grid.size)).timelines
    return timeline


def moments_ready(schedule, timeline):
    """When all that each instance of an op depends on had ended, by rank, op and index."""
    ends = {(span.rank, span.op, span.index): span.end for span in timeline.spans}
    found = {}
    for rank in range(schedule.grid.size):
        dependencies, place, counts = Dependencies(schedule), schedule.coordinates(rank), defaultdict(int)
        for op, moment in walk(schedule.program(place), place):
            key = rank, op.name, counts[op.name]
            counts[op.name] += 1
            found[key] = max((ends[need] for need in dependencies.enter(op, moment, key)), default=0.0)
    return found


def longest_chain(schedule, timeline):
    """Seconds of the longest chain of ops that one rank must do one after the other, waiting left out."""
    seconds = {(span.rank, span.op, span.index): span.seconds for span in timeline.spans}
    longest = 0.0
    for rank in range(schedule.grid.size):
        dependencies, place = Dependencies(schedule), schedule.coordinates(rank)
        counts, lane_ends = defaultdict(int), defaultdict(float)
        for op, moment in walk(schedule.program(place), place):
            end = []
            begin = max([lane_ends[lane(op)], *(need[0] for need in dependencies.enter(op, moment, end))])
            end.append(begin + seconds[rank, op.name, counts[op.name]])
            counts[op.name] += 1
            lane_ends[lane(op)] = end[0]
            longest = max(longest, end[0])
    return longest


# Closed forms


@pytest.mark.parametrize(("members", "set_name", "kind", "closed_form"), COLLECTIVES)
def test_a_collective_on_idle_links_takes_its_closed_form(members, set_name, kind, closed_form):
    size = members * members << 20
    found = simulate(collective(kind, members, size), star(members), choices=Choices("own", set_name))
    assert found.timeline.makespan == pytest.approx(closed_form(members, size), rel=1e-9)


@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
@pytest.mark.parametrize("set_name", ["ring", "doubling"])
def test_the_root_of_a_broadcast_or_reduce_does_not_matter(kind, set_name):
    times = {
        makespan(collective(kind, 5, 8 << 20, root=root), star(5), choices=Choices("own", set_name))
        for root in range(5)
    }
    assert max(times) == pytest.approx(min(times), rel=1e-12)


def test_pieces_that_are_empty_cost_no_message():
    machine, one_row = star(5, latency=1.0), 8
    assert makespan(collective("broadcast", 5, 0), machine) == 0
    assert makespan(collective("all_gather", 5, one_row), machine) == pytest.approx(4 * 2.0, rel=1e-6)


def test_a_barrier_costs_its_empty_messages():
    assert makespan(collective("barrier", 5, 0), star(5, latency=1.0)) == 3 * 2.0


@settings(max_examples=25)
@given(grid=st.builds(Grid, **dict.fromkeys(("data", "z", "y", "x"), st.sampled_from([1, 2, 3]))))
def test_a_4d_layer_on_idle_links_takes_the_sum_of_its_closed_forms(grid):
    m, k, n = 216, 72, 108
    rates = dict.fromkeys(AXES, BANDWIDTH)
    cost = layer_cost(m / grid.data, k, n, grid.lengths, rates, element_bytes=8, gradient_bytes=8)
    machine = star(grid.size, latency=0.0, peak=FREE)
    assert makespan(scheduled("4d", grid, sizes=(m, k, n)), machine) == pytest.approx(cost.training, rel=1e-9)
    forward = scheduled("4d", grid, sizes=(m, k, n), passes="forward")
    assert makespan(forward, machine) == pytest.approx(cost.forward, rel=1e-9)


def test_a_send_and_its_receive_take_one_message():
    whole = Tensor("S", Part("m"), Part("m"))
    roles = (
        Role((Send(name="hand over", axis="x", to=1, source="S"),), axis="x", stop=1),
        Role((Receive(name="take", axis="x", sender=0, into="S"),), axis="x", start=1),
    )
    schedule = program_of(Grid(x=2), [whole], roles=roles, m=100)
    assert makespan(schedule, star(2)) == pytest.approx(HOP.seconds(8 * 100 * 100), rel=1e-9)


def test_reductions_and_copies_take_the_time_of_memory():
    free, slow = (makespan(collective("reduce_scatter", 4, 4 << 20), star(4, memory=rate)) for rate in (FREE, 1e9))
    assert slow - free == pytest.approx(3 * 3 * (1 << 20) / 1e9, rel=1e-9)
    free, slow = (makespan(collective("all_gather", 4, 4 << 20), star(4, memory=rate)) for rate in (FREE, 1e9))
    assert slow - free == pytest.approx(2 * (1 << 20) / 1e9, rel=1e-9)


def test_the_root_of_a_reduce_adds_and_then_puts_the_sum_in_its_place():
    free, slow = (makespan(collective("reduce", 2, 1 << 20), star(2, memory=rate)) for rate in (FREE, 1e9))
    assert slow - free == pytest.approx((3 + 2) * (1 << 20) / 1e9, rel=1e-9)


def test_an_op_of_a_group_costs_the_overhead_once_and_alone_nothing():
    plain, more = (makespan(collective("all_reduce", 4, 1 << 20), star(4, overhead=seconds)) for seconds in (0.0, 1e-3))
    assert more - plain == pytest.approx(1e-3, rel=1e-9)
    assert makespan(collective("all_reduce", 1, 1 << 20), star(1, overhead=1e-3)) == 0


@pytest.mark.parametrize(
    ("kind", "members", "patterns"),
    [
        ("all_gather", 2, ["exchange"]),
        ("all_gather", 3, ["shift", "shift"]),
        ("broadcast", 2, ["one_way"]),
        ("all_to_all", 4, ["shift", "exchange", "shift"]),
    ],
)
def test_each_step_takes_the_seconds_measured_of_its_pattern(kind, members, patterns):
    seconds = {"shift": 1.0, "exchange": 5.0, "one_way": 7.0}
    rows = [transfer_row(1 << 20, time, pattern=name) for name, time in seconds.items()]
    found = makespan(collective(kind, members, members << 10), one_host(members, transfer=rows))
    assert found == pytest.approx(sum(seconds[pattern] for pattern in patterns), rel=1e-9)


# Contention


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
def test_two_groups_over_one_uplink_take_twice_as_long(kind):
    schedule = collective(kind, 2, 8 << 20, grid=Grid(x=2, y=2), axis="y")
    shared, apart = leaf_spine(2, 2, latency=0.0), leaf_spine(2, 2, spines=2, latency=0.0)
    assert makespan(schedule, shared) == pytest.approx(2 * makespan(schedule, apart), rel=1e-9)


def test_groups_under_their_own_leaves_do_not_disturb_each_other():
    schedule = collective("all_reduce", 2, 8 << 20, grid=Grid(x=2, y=2), axis="x")
    alone = collective("all_reduce", 2, 8 << 20)
    assert makespan(schedule, leaf_spine(2, 2)) == pytest.approx(makespan(alone, leaf_spine(2, 2)), rel=1e-12)


# Bounds


@settings(max_examples=40)
@given(case=grids_of_3d_and_4d, overlaps=st.sampled_from(SUBSETS), sizes=st.tuples(*[st.integers(1, 400)] * 3))
def test_no_schedule_beats_its_chains_its_flop_or_its_links(case, overlaps, sizes):
    algorithm, grid, transposed = case
    schedule = scheduled(algorithm, grid, overlaps, sizes=sizes, transposed=transposed)
    timeline = simulate(schedule, star(grid.size, memory=1e10, overhead=1e-6)).timeline
    seconds, ranks = timeline.makespan * (1 + 1e-9), range(grid.size)
    assert seconds >= longest_chain(schedule, timeline)
    assert seconds >= max(flops(schedule, schedule.coordinates(rank)) for rank in ranks) / PEAK
    assert seconds >= max(bytes_sent(schedule, rank, Choices()) for rank in ranks) / BANDWIDTH


@settings(max_examples=40)
@given(case=grids_of_3d_and_4d, overlaps=st.sampled_from(SUBSETS), sizes=st.tuples(*[st.integers(1, 400)] * 3))
def test_the_critical_path_explains_the_makespan_without_a_gap(case, overlaps, sizes):
    algorithm, grid, transposed = case
    schedule = scheduled(algorithm, grid, overlaps, sizes=sizes, transposed=transposed)
    timeline = simulate(schedule, star(grid.size, memory=1e10, overhead=1e-6)).timeline
    path = timeline.critical_path()
    assert path[0].start == pytest.approx(timeline.start, abs=1e-9 * timeline.makespan)
    assert path[-1].end == timeline.end
    assert all(after.start <= before.end * (1 + 1e-9) for before, after in pairwise(path))


@pytest.mark.parametrize(("algorithm", "grid"), CASES, ids=str)
def test_ops_of_ranks_without_overlap_add_up_to_their_ends(algorithm, grid):
    found = simulate(scheduled(algorithm, grid, sizes=(130, 170, 110)), star(grid.size, memory=1e10))
    ends = defaultdict(float)
    for span in found.timeline.spans:
        ends[span.rank] = max(ends[span.rank], span.end)
    times = found.timeline.op_times().values()
    total = sum(op.seconds + op.waiting_seconds for op in times)
    assert total == pytest.approx(sum(ends.values()) / grid.size, rel=1e-9)


@pytest.mark.parametrize(("algorithm", "grid"), CASES, ids=str)
def test_the_parts_of_an_op_add_up_to_its_seconds_and_waiting(algorithm, grid):
    found = simulate(scheduled(algorithm, grid), star(grid.size, memory=1e10, overhead=1e-6))
    times = found.timeline.op_times()
    assert found.parts.keys() == times.keys()
    for name, parts in found.parts.items():
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == pytest.approx(times[name].seconds + times[name].waiting_seconds, rel=1e-9)


def test_the_parts_of_a_ring_are_its_latencies_its_sums_and_its_transfer():
    found = simulate(collective("reduce_scatter", 4, 4 << 20), star(4, memory=1e9))
    expected = {
        "latency": 3 * HOP.latency,
        "compute": 3 * 3 * (1 << 20) / 1e9,
        "transfer": 3 * (1 << 20) / BANDWIDTH,
        "waiting": 0.0,
    }
    assert found.parts["reduce_scatter"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("overlaps", ["none", "oar", "oar,ors,oag"])
@pytest.mark.parametrize(("algorithm", "grid"), OVERLAP_CASES, ids=str)
def test_an_op_is_ready_when_all_it_depends_on_has_ended_and_then_waits_for_its_lane_only(algorithm, grid, overlaps):
    schedule = scheduled(algorithm, grid, overlaps, sizes=(130, 170, 110))
    timeline = simulate(schedule, star(grid.size, memory=1e10)).timeline
    ready = moments_ready(schedule, timeline)
    lane_free = defaultdict(float)
    for span in timeline.spans:
        assert span.ready == ready[span.rank, span.op, span.index]
        assert span.start == max(span.ready, lane_free[span.rank, span.lane])
        lane_free[span.rank, span.lane] = span.end


# A host and its cores


@pytest.mark.parametrize(("ranks", "cores", "times"), [(2, 1, 2), (2, 2, 1), (8, 2, 4), (3, 2, 1.5), (5, 7, 1)])
def test_ranks_share_the_cores_of_their_host(ranks, cores, times):
    alone = makespan(products(1, 60, 70, 80), one_host(1))
    assert makespan(products(ranks, 60, 70, 80), one_host(cores)) == pytest.approx(times * alone, rel=1e-9)


@pytest.mark.parametrize(("threads", "times"), [(1, 1), (2, 2), (7, 2)])
def test_ranks_that_each_thread_over_all_cores_share_them(threads, times):
    alone = makespan(products(1, 60, 70, 80), one_host(2))
    shared = makespan(products(2, 60, 70, 80), one_host(2), threads=threads)
    assert shared == pytest.approx(times * alone, rel=1e-9)


def test_ranks_on_hosts_of_their_own_share_nothing():
    assert makespan(products(5, 60, 70, 80), star(5)) == makespan(products(1, 60, 70, 80), star(5))


def test_messages_between_ranks_of_a_host_take_cores_but_their_latency_does_not():
    rows = [transfer_row(8, 1e-6, pattern="exchange"), transfer_row(8 << 20, 5e-3, pattern="exchange")]
    schedule = collective("all_gather", 2, 2 * (8 << 20))
    assert makespan(schedule, one_host(2, transfer=rows)) == pytest.approx(5e-3, rel=1e-9)
    crowded = collective("all_gather", 4, 4 * (8 << 20))
    assert makespan(crowded, one_host(2, transfer=rows)) == pytest.approx(3 * (1e-6 + 2 * (5e-3 - 1e-6)), rel=1e-9)


def test_steps_measured_on_more_ranks_than_cores_have_shared_them_already():
    rows = [transfer_row(8, 1e-6), transfer_row(8 << 20, 5e-3)]
    schedule = collective("all_gather", 2, 2 * (8 << 20))
    assert makespan(schedule, one_host(1, transfer=rows)) == pytest.approx(5e-3, rel=1e-9)


def test_memory_is_shared_by_the_ranks_of_a_host_and_caches_are_not():
    rows = [memory_row("copy", 8 << 20, 1e-3), memory_row("copy", 1 << 10, 1e-9)]
    for size, times in ((8 << 20, 2.0), (1 << 10, 1.0)):
        schedule = collective("all_to_all", 1, size, grid=Grid(y=4))
        machine = one_host(4, memory_rows=rows)
        bandwidth = 2 * 2 * (8 << 20) / 1e-3  # of two ranks that copy
        shared = msgspec.structs.replace(
            machine, host=msgspec.structs.replace(machine.host, memory_bytes_per_second=bandwidth)
        )
        assert makespan(schedule, shared) == pytest.approx(times * makespan(schedule, machine), rel=1e-9)


def test_ranks_share_a_gpu_when_the_machine_says_so():
    machine = Machine(name="one-gpu", topology={"family": "perlmutter", "gpus": 1}, device=device())
    shared = msgspec.structs.replace(machine, host=Host(cores=1, ranks=2))
    alone = makespan(products(1, 60, 70, 80), machine)
    assert makespan(products(2, 60, 70, 80), shared) == pytest.approx(2 * alone)
    with pytest.raises(InputError, match="3 ranks: one-gpu has 1 GPUs; at most 2 ranks a GPU"):
        makespan(products(3, 60, 70, 80), shared)


def test_local_work_bound_by_memory_shares_the_cores_too():
    rows = [memory_row("copy", 8 << 20, 1.0)]
    schedule = collective("all_to_all", 1, 8 << 20, grid=Grid(y=2))
    assert makespan(schedule, one_host(2, memory_rows=rows)) == pytest.approx(1.0)
    assert makespan(schedule, one_host(1, memory_rows=rows)) == pytest.approx(2.0)


# Both interpreters


@pytest.mark.parametrize("passes", ["forward", "training"])
@pytest.mark.parametrize(("algorithm", "grid"), CASES, ids=str)
def test_both_interpreters_run_every_lane_in_the_same_order(algorithm, grid, passes):
    schedule = scheduled(algorithm, grid, passes=passes)
    predicted = order_in_lanes(simulate(schedule, star(grid.size, memory=1e10)).timeline)
    assert predicted == order_in_lanes(executed(schedule))


@pytest.mark.parametrize("overlaps", SUBSETS)
@pytest.mark.parametrize(("algorithm", "grid"), OVERLAP_CASES, ids=str)
def test_both_interpreters_run_every_lane_in_the_same_order_with_overlap(algorithm, grid, overlaps):
    schedule = scheduled(algorithm, grid, overlaps)
    for machine in (star(grid.size, memory=1e10), one_host(2, memory=1e10)):
        assert order_in_lanes(simulate(schedule, machine).timeline) == order_in_lanes(executed(schedule))


def crossed_sends():
    """Two ranks that each wait for the other to take what they send."""
    program = (
        Send(name="hand over", axis="x", to=1, source="S"),
        Receive(name="take", axis="x", sender=1, into="T"),
    )
    mirrored = (
        Send(name="hand back", axis="x", to=0, source="S"),
        Receive(name="take back", axis="x", sender=0, into="T"),
    )
    roles = (Role(program, axis="x", stop=1), Role(mirrored, axis="x", start=1))
    tensors = [Tensor("S", Part("m"), Part("m")), Tensor("T", Part("m"), Part("m"))]
    return program_of(Grid(x=2), tensors, roles=roles, m=3)


def test_both_interpreters_name_the_ranks_and_ops_of_a_deadlock():
    with pytest.raises(Deadlock) as predicted:
        simulate(crossed_sends(), star(2))
    assert str(predicted.value) == (
        "deadlock: rank 0 in 'hand over' waits for rank 1, which is in 'hand back'; "
        "rank 1 in 'hand back' waits for rank 0, which is in 'hand over'"
    )
    with pytest.raises(Deadlock, match="rank 0 in 'hand over', rank 1 in 'hand back'"):
        execute(crossed_sends(), {}, InProcess(2))


def test_a_send_without_a_receive_is_a_deadlock_of_that_rank_alone():
    whole = Tensor("S", Part("m"), Part("m"))
    roles = (Role((Send(name="hand over", axis="x", to=1, source="S"),), axis="x", stop=1), Role((), axis="x", start=1))
    with pytest.raises(Deadlock, match=r"^deadlock: rank 0 in 'hand over' waits for rank 1, which has ended$") as found:
        simulate(program_of(Grid(x=3), [whole], roles=roles, m=3), star(3))
    assert found.value.exit_status == 1


# Overlap


@settings(max_examples=60)
@given(
    case=grids_of_3d_and_4d,
    overlaps=st.sampled_from(SUBSETS),
    sizes=st.tuples(*[st.integers(1, 12).map(lambda units: 36 * units)] * 3),
    peak=st.sampled_from([1e9, 1e10, 1e11, 1e12]),
)
def test_overlap_does_not_slow_down_even_blocks_on_idle_links(case, overlaps, sizes, peak):
    algorithm, grid, transposed = case
    machine = star(grid.size, peak=peak)
    plain, hidden = (
        makespan(scheduled(algorithm, grid, names, sizes=sizes, transposed=transposed), machine)
        for names in ("none", overlaps)
    )
    assert hidden <= plain * (1 + 1e-9)


@pytest.mark.parametrize("peak", [1e9, 1e10, 1e11, 1e12, 1e13])
def test_oar_hides_the_smaller_of_the_sum_of_da_and_the_product_of_db(peak):
    machine, grid = star(2, peak=peak), Grid(x=2)
    found = simulate(scheduled("4d", grid, sizes=(256, 128, 192)), machine)
    seconds = {name: times.seconds for name, times in found.timeline.op_times().items()}
    hidden = makespan(scheduled("4d", grid, "oar", sizes=(256, 128, 192)), machine)
    saved = min(seconds["sum dA"], seconds["multiply dB"])
    assert saved > 0
    assert hidden == pytest.approx(found.timeline.makespan - saved, rel=1e-9)


# Choices, uncertainty, extrapolation


@pytest.mark.parametrize(("algorithm", "grid"), CASES, ids=str)
def test_library_collectives_are_predicted_as_the_named_guess(algorithm, grid):
    schedule, machine, library = scheduled(algorithm, grid), star(grid.size), parse_choices("library")
    assert simulate(schedule, machine, choices=library) == simulate(
        schedule, machine, choices=parse_choices("own:ring")
    )
    assert library.label("all_reduce") == "library (as ring)"


def test_products_without_measured_rows_are_flagged_and_communication_is_not():
    found = simulate(scheduled("4d", Grid(z=2, x=2)), star(4))
    assert found.extrapolated == {"multiply C", "multiply dA", "multiply dB"}


def test_uncertainty_is_the_machines():
    schedule = products(1, 8, 8, 8)
    fitted = msgspec.structs.replace(star(1), fit=Fit(residuals={"gemm": 0.02}))
    assert simulate(schedule, fitted).uncertainty == uncertainty(fitted, 1.0, None) != uncertainty(star(1), 1.0, None)


# The run itself


@pytest.mark.parametrize(("algorithm", "grid"), CASES, ids=str)
def test_the_same_simulation_gives_the_same_timeline(algorithm, grid):
    machine = leaf_spine(grid.size, 1, memory=1e10, overhead=1e-6)
    assert simulate(scheduled(algorithm, grid), machine) == simulate(scheduled(algorithm, grid), machine)


def test_how_far_ops_are_handed_ahead_changes_nothing():
    schedule, machine = scheduled("summa", Grid(z=2, x=2), sizes=(20, 150, 20), panel=1), star(4, memory=1e10)
    assert simulated_spans(schedule, machine, lookahead=1) == simulated_spans(schedule, machine)


def test_4d_training_on_64_ranks_is_predicted_from_one_class_of_ranks_in_few_events():
    machine = leaf_spine(8, 8, spines=4, memory=1e10)
    schedule = scheduled("4d", Grid(data=2, z=4, y=4, x=2), "oar,ors,oag", sizes=(4096, 4096, 4096))
    extent = simulate(schedule, machine).extent
    assert (extent.rank_classes, extent.folded) == (1, True) and extent.events < 100
