"""Ranks that behave alike, simulated as one: the same answer as every rank by itself, to the last span."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import Deadlock, InputError
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import overlap, parse_overlap
from quadrille.algorithms.schedule.grid import Grid, parse_grid
from quadrille.algorithms.schedule.ops import Barrier, Receive, Send
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Role
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.simulator.machine.placement import place_ranks
from quadrille.simulator.ranks.simulated_ranks import strides
from quadrille.simulator.simulate import Shortcuts, simulate
from quadrille.simulator.symmetry.patterns import patterns
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.what_if import with_faults
from tests.support.draws import examples
from tests.support.pairs import pairs
from tests.support.predictions import check_same_spans, span_key
from tests.support.toy_machines import device, leaf_spine, one_host, program_of, star

APART = Shortcuts(fold=False)
FEW = {"memory": 1e10, "overhead": 1e-6}


def dgx(ranks, family="h100-superpod"):
    return Machine(name=family, topology={"family": family, "gpus": ranks}, device=device(memory=1e12))


MACHINES = {
    "star": lambda n: star(n, **FEW),
    "star of hosts with two cores": lambda n: star(-(-n // 2), cores=2, **FEW),
    "leaves": lambda n: leaf_spine(-(-n // 4), 4, spines=2, **FEW),
    "a crowded host": lambda n: one_host(3, memory=1e10),
    "superpod": dgx,
    "a slow host": lambda n: with_faults(star(n, **FEW), slow=["host:1=0.5"]),
    "a slow link": lambda n: with_faults(leaf_spine(-(-n // 4), 4, spines=2, **FEW), degrade=["leaf:0-spine:1=0.3"]),
    "a failed link": lambda n: with_faults(leaf_spine(-(-n // 4), 4, spines=2, **FEW), fail=["leaf:0-spine:1"]),
}
CASES = [
    ("4d", "data=2,z=4,y=2,x=2", "none"),
    ("4d", "data=2,z=3,y=2,x=2", "oar,ors,oag"),
    ("3d", "z=2,y=2,x=2", "none"),
    ("3d", "z=2,y=3,x=2", "oar,oag"),
    ("summa", "z=2,x=4", "none"),
    ("cannon", "z=3,x=3", "none"),
    ("2.5d", "z=2,x=2,y=4", "none"),
    ("1d-column", "x=8", "none"),
    ("1d-row", "y=7", "none"),
]
SIZES = [(64, 64, 64), (130, 171, 110)]
"""Sizes that every grid divides, and sizes that no grid divides."""


def scheduled(algorithm, grid, overlaps="none", sizes=(64, 64, 64), panel=9, transposed="none"):
    problem = Matmul(*sizes, "float64", "training", panel=panel, transposed=transposed)
    return overlap(matmul_schedule(problem, algorithm, parse_grid(grid)), parse_overlap(overlaps))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("algorithm", "grid", "overlaps"), CASES)
def test_the_answer_is_that_of_every_rank_by_itself(algorithm, grid, overlaps, machine):
    """Each case on each machine; sizes and collectives change from one machine to the next."""
    turn = CASES.index((algorithm, grid, overlaps)) + list(MACHINES).index(machine)
    sizes, choices = SIZES[turn % 2], parse_choices(("own", "own:doubling")[turn // 2 % 2])
    given_ = scheduled(algorithm, grid, overlaps, sizes), MACHINES[machine](parse_grid(grid).size)
    check_same_spans(simulate(*given_, choices=choices), simulate(*given_, choices=choices, shortcuts=APART))


@pytest.mark.parametrize(
    ("case", "transposed", "machine", "sizes"),
    pairs([case for case in CASES if case[0] in ("3d", "summa")], "ab", ["star", "leaves", "a slow host"], SIZES),
    ids=str,
)
def test_the_answer_is_that_of_every_rank_where_operands_are_transposed(case, transposed, machine, sizes):
    schedule = scheduled(*case, sizes, transposed=transposed)
    on = MACHINES[machine](schedule.grid.size)
    check_same_spans(simulate(schedule, on), simulate(schedule, on, shortcuts=APART))


@settings(max_examples=examples(40))
@given(
    lengths=st.tuples(*[st.integers(1, 3)] * 4),
    sizes=st.tuples(*[st.integers(1, 90)] * 3),
    machine=st.sampled_from(sorted(MACHINES)),
    collectives=st.sampled_from(["own", "own:doubling", "own:halving_doubling", "own:double_binary_tree"]),
    placement=st.sampled_from(["packed", "scattered", "axes:z,data"]),
    overlaps=st.sampled_from(["none", "oar", "oar,ors,oag"]),
)
def test_the_answer_is_the_same_on_any_grid_machine_and_placement(
    lengths, sizes, machine, collectives, placement, overlaps
):
    grid = Grid(*lengths)
    schedule = scheduled("4d", str(grid), overlaps, sizes)
    more = {"choices": parse_choices(collectives), "placement": placement}
    wide = MACHINES[machine](max(4, grid.size))
    check_same_spans(simulate(schedule, wide, **more), simulate(schedule, wide, **more, shortcuts=APART))


@pytest.mark.parametrize("routing", ["shortest", "spray", "ecmp:3"])
def test_the_answer_is_the_same_with_every_routing(routing):
    machine = leaf_spine(4, 4, spines=3, **FEW)
    routed = Machine(name="routed", topology=machine.topology, device=machine.device, routing=routing)
    schedule = scheduled("4d", "data=2,z=4,x=2")
    check_same_spans(simulate(schedule, routed), simulate(schedule, routed, shortcuts=APART))


@pytest.mark.parametrize("name", ["memory", "local"])
def test_the_other_switches_change_nothing_either(name):
    schedule, machine = scheduled("4d", "data=2,z=3,y=2", "oar", (70, 50, 30)), leaf_spine(3, 4, **FEW)
    check_same_spans(simulate(schedule, machine), simulate(schedule, machine, shortcuts=Shortcuts(**{name: False})))


# How much is simulated


@pytest.mark.parametrize(("ranks", "grid"), [(256, "z=16,y=2,x=8"), (4096, "data=4,z=64,y=2,x=8")])
def test_the_classes_of_an_even_schedule_do_not_grow_with_its_ranks(ranks, grid):
    found = simulate(scheduled("4d", grid, sizes=(1 << 14, 1 << 12, 1 << 12)), dgx(ranks))
    assert found.extent.folded
    assert found.extent.rank_classes <= 16
    assert not found.extent.not_folded_reason


def test_what_breaks_the_symmetry_is_named():
    slow = with_faults(star(6), slow=["host:4=0.5"])
    found = simulate(scheduled("1d-column", "x=6"), slow).extent
    assert (found.folded, found.rank_classes) == (False, 6)
    assert "rank 4 differs in speed" in found.not_folded_reason


def test_a_timeline_of_many_ranks_has_those_that_stand_for_all_and_gives_any_other_when_asked():
    schedule, machine = scheduled("4d", "z=6,y=4,x=4", sizes=(96, 96, 96)), leaf_spine(24, 4, **FEW)
    folded, apart = simulate(schedule, machine), simulate(schedule, machine, shortcuts=APART)
    kinds = folded.extent.rank_classes
    assert kinds < 96
    assert len({span.rank for span in folded.timeline.spans}) == kinds
    assert sum(folded.timeline.copies.values()) == 96
    asked = folded.timeline.expanded(schedule.grid, [5, 17, 95]).spans
    exact = [span for span in apart.timeline.spans if span.rank in (5, 17, 95)]
    for span, twin in zip(sorted(asked, key=span_key), sorted(exact, key=span_key), strict=True):
        assert (span_key(span), span.group) == (span_key(twin), twin.group)
        assert span.end == pytest.approx(twin.end, rel=1e-9)
    for name, times in apart.timeline.op_times().items():
        mine = folded.timeline.op_times()[name]
        assert (mine.seconds, mine.exposed_seconds) == pytest.approx((times.seconds, times.exposed_seconds), abs=1e-12)
    assert folded.timeline.exposed() == pytest.approx(apart.timeline.exposed(), abs=1e-12)
    path = [span.op for span in apart.timeline.critical_path()]
    assert [span.op for span in folded.timeline.critical_path()] == path


@settings(max_examples=60)
@given(st.sets(st.integers(0, 60)))
def test_ranges_hold_exactly_the_ranks_that_they_were_made_of(ranks):
    found = strides(np.array(sorted(ranks), dtype=np.int64))
    assert [rank for one in found for rank in one] == sorted(ranks)


def test_the_busiest_links_of_one_class_are_those_of_every_rank():
    schedule, machine = scheduled("4d", "z=4,y=2"), leaf_spine(2, 4, **FEW)
    folded, apart = (simulate(schedule, machine, shortcuts=one).links for one in (Shortcuts(), APART))
    by_name = {load.link: load for load in apart}
    assert folded[0].utilisation == pytest.approx(apart[0].utilisation, rel=1e-9)
    for load in folded:
        if load.link in by_name:
            twin = by_name[load.link]
            assert (load.bytes, load.busy_s) == pytest.approx((twin.bytes, twin.busy_s), rel=1e-9)


# Colours


def test_ranks_of_one_colour_do_the_same_with_the_same_sizes():
    schedule = scheduled("4d", "data=2,z=5,y=2,x=3", sizes=(101, 103, 107))
    found = patterns(schedule, parse_choices("own"), lambda op: ())
    blocks = [
        tuple(tensor.block(schedule.coordinates(rank)).shape for tensor in schedule.tensors.values())
        for rank in range(schedule.grid.size)
    ]
    assert 1 < len(np.unique(found.labels)) < schedule.grid.size
    for colour in np.unique(found.labels):
        assert len({blocks[rank] for rank in np.flatnonzero(found.labels == colour)}) == 1


@pytest.mark.parametrize(("algorithm", "grid", "overlaps"), CASES)
def test_no_two_channels_of_a_sender_or_receiver_have_one_label(algorithm, grid, overlaps):
    found = patterns(scheduled(algorithm, grid, overlaps), parse_choices("own:doubling"), lambda op: ())
    for ends in (found.sender, found.receiver):
        pairs = list(zip(ends.tolist(), found.label.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)


# Placement and faults


def test_a_scattered_rank_lives_on_another_node():
    machine = dgx(32)
    assert place_ranks(machine, 16, "packed").of_rank.tolist() == list(range(16))
    assert place_ranks(machine, 16, "scattered").of_rank.tolist() == [half for i in range(8) for half in (i, 8 + i)]


def test_a_slow_gpu_computes_slower_by_its_share():
    schedule = scheduled("1d-column", "x=2", sizes=(64, 64, 64))
    ends = {
        share: simulate(schedule, with_faults(star(2, latency=0.0, bandwidth=1e20), slow=[f"host:1={share}"]))
        for share in (1.0, 0.25)
    }
    assert ends[0.25].timeline.makespan == pytest.approx(4 * ends[1.0].timeline.makespan, rel=1e-6)


def test_a_fault_that_cuts_the_network_in_two_is_said_to():
    machine = with_faults(leaf_spine(2, 4), fail=["leaf:0-spine:0"])
    for shortcuts in (Shortcuts(), APART):
        with pytest.raises(InputError, match="cut"):
            simulate(scheduled("1d-column", "x=8"), machine, shortcuts=shortcuts)


# Deadlocks


def absent_from_a_barrier(ranks, axis_length):
    """A barrier that one rank of each group does not come to, because it waits for a message that nobody sends."""
    whole = Tensor("S", Part("m"), Part("m"))
    come = (Barrier(name="meet", axis="x"),)
    stay = (Receive(name="wish", axis="x", sender=0, into="S"), *come)
    roles = (Role(come, axis="x", stop=axis_length - 1), Role(stay, axis="x", start=axis_length - 1))
    return program_of(Grid(x=axis_length, y=ranks // axis_length), [whole], roles=roles, m=3)


def test_a_rank_that_never_arrives_is_named_with_those_who_wait_for_it():
    with pytest.raises(Deadlock) as found:
        simulate(absent_from_a_barrier(4, 4), star(4))
    said = str(found.value)
    assert "rank 3 in 'wish' waits for rank 0, which is in 'meet'" in said
    assert "rank 2 in 'meet' step 1 waits for rank 3, which is in 'wish'" in said
    assert found.value.exit_status == 1


@pytest.mark.parametrize("shortcuts", [Shortcuts(), APART])
def test_a_deadlock_of_many_ranks_is_one_line_with_a_count(shortcuts):
    with pytest.raises(Deadlock) as found:
        simulate(absent_from_a_barrier(1024, 16), star(1024), shortcuts=shortcuts)
    said = str(found.value)
    assert "\n" not in said
    assert said.count(" waits for ") == 8
    assert " more" in said


def test_a_send_that_nobody_takes_does_not_keep_others_from_being_folded():
    whole = Tensor("S", Part("m"), Part("m"))
    roles = (Role((Send(name="offer", axis="x", to=1, source="S"),), axis="x", stop=1), Role((), axis="x", start=1))
    with pytest.raises(Deadlock, match=r"^deadlock: rank 0 in 'offer' waits for rank 1, which has ended$"):
        simulate(program_of(Grid(x=2, y=50), [whole], roles=roles, m=3), star(100))
