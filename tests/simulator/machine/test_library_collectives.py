"""The MPI library's collectives: as they were measured where they were, else as rings."""

import msgspec
import pytest
from msgspec import UNSET

from quadrille.algorithms.collectives.collective_choices import Choices, parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.measured_rows import LibraryRow
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import VECTOR_CALL_KINDS, AllGather, Pointwise, ReduceScatter
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Repeat
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.simulator.machine.library_collectives import IDENTIFIED, MEASURED, curve_of
from quadrille.simulator.simulate import ALL_SHORTCUTS, Limits, Shortcuts, simulate
from quadrille.simulator.uncertainty import NO_MESSAGES, Uncertainty
from quadrille.topologies.machines.machine import NetworkCosts
from tests.support.toy_laboratories import laboratory, with_messages
from tests.support.toy_machines import star

GATHERED = 512 * 512 * 4
"""Bytes of B in float32, which groups of four gather."""


def row(kind, ranks, apart, size, seconds, of=4, calls="regular"):
    calls = calls if kind in VECTOR_CALL_KINDS else UNSET
    return LibraryRow(kind=kind, ranks=ranks, stride=apart, world_size=of, bytes=size, calls=calls, seconds=seconds)


def machine(*rows):
    found = laboratory(None)
    return msgspec.structs.replace(found, network=msgspec.structs.replace(found.network, library=rows))


def predicted(found, choices, shortcuts=ALL_SHORTCUTS, size=512):
    schedule = matmul_schedule(Matmul(size, size, size, dtype="float32"), "4d", Grid(z=4))
    return simulate(schedule, found, choices=choices, shortcuts=shortcuts)


def test_a_collective_takes_what_it_was_measured_to_take_and_says_so():
    found = machine(row("all_gather", 4, 1, GATHERED, 0.25))
    for shortcuts in (Shortcuts(), Shortcuts(fold=False, memory=False)):
        said = predicted(found, parse_choices("library"), shortcuts)
        gather = said.op_times()["gather B"]
        assert (gather.seconds, said.labels) == (pytest.approx(0.25), {"gather B": f"library {MEASURED}"})
        assert said.parts["gather B"]["transfer"] == pytest.approx(0.25)


def test_those_that_follow_the_first_take_what_was_measured_of_such():
    """Of a training product on z=4 the library gathers B first, then scatters dB."""
    rows = [row(kind, 4, 1, GATHERED, 0.25) for kind in ("all_gather", "reduce_scatter")]
    rows = [msgspec.structs.replace(one, back_to_back_seconds=0.5) for one in rows]
    schedule = matmul_schedule(Matmul(512, 512, 512, "float32", "training"), "4d", Grid(z=4))
    found = simulate(schedule, machine(*rows), choices=parse_choices("library")).op_times()
    assert found["gather B"].seconds == pytest.approx(0.25)
    assert [found[name].seconds for name in found if name.startswith("scatter")] == [pytest.approx(0.5)]
    following = curve_of(rows, "all_gather", 4, 1, of=4, calls="regular", member=0, first=False)
    assert following.by_size.seconds(GATHERED) == 0.5


def test_the_first_is_that_of_the_first_iteration_of_a_loop():
    """Three gathers, turn after turn."""
    one = msgspec.structs.replace(row("all_gather", 4, 1, GATHERED, 0.25), back_to_back_seconds=0.5)
    whole = Part("e")
    tensors = declare(Tensor("part", Part("e", ("z",)), Part("one")), Tensor("whole", whole, Part("one")))
    gather = AllGather(name="gather", axis="z", source="part", into="whole")
    program = Repeat("t", 3, (gather, Pointwise(name="write", function="zero", into="part")))
    sizes = {"e": GATHERED // 4, "one": 1}
    schedule = Schedule("gathers", sizes, Grid(z=4), "float32", tensors, ("part",), ("whole",), (Role((program,)),))
    for shortcuts in (ALL_SHORTCUTS, Shortcuts(fold=False, fold_time=False)):
        said = simulate(schedule, machine(one), choices=parse_choices("library"), shortcuts=shortcuts)
        assert said.timeline.makespan == pytest.approx(0.25 + 2 * 0.5, rel=1e-2)


@pytest.mark.parametrize(("first", "ends"), [(True, (2.0, 4.0)), (False, (4.0, 8.0))])
def test_members_end_apart_the_last_or_the_mean_of_them_as_was_measured(first, ends):
    """At the size between two rows, of which one has no shares: there they end together."""
    rows = [
        msgspec.structs.replace(row("all_reduce", 2, 1, 100, 4.0), back_to_back_seconds=6.0, member_shares=(0.5, 1.0)),
        msgspec.structs.replace(row("all_reduce", 2, 1, 300, 8.0), back_to_back_seconds=8.0),
    ]
    found = [curve_of(rows, "all_reduce", 2, 1, of=4, member=member, first=first).by_size for member in (0, 1)]
    assert tuple(one.seconds(100) for one in found) == pytest.approx(ends)
    assert [one.seconds(300) for one in found] == [8.0, 8.0]
    assert found[0].seconds(200) == pytest.approx((ends[0] + 8.0) / 2)


THREE_BY_TWO = Grid(y=3, x=2)


def members_apart():
    """Six hosts whose library ends scatters over y in the order of members: after 1, 2 and 4 s; gathers take 1 s."""
    gathers = [row("all_gather", n, apart, GATHERED, 1.0, of=6) for n, apart in ((3, 2), (2, 1))]
    scatters = [
        msgspec.structs.replace(row("reduce_scatter", n, apart, GATHERED, 4.0, of=6), member_shares=shares)
        for n, apart, shares in ((3, 2, (0.25, 0.5, 1.0)), (2, 1, (0.75, 1.0)))
    ]
    found = apart_from_laboratories(*gathers, *scatters)
    return msgspec.structs.replace(found, topology=found.topology | {"hosts": 6})


def scattered_then_gathered(shortcuts):
    """A buffer of all ranks is scattered over y, and the parts gathered there, three times."""
    one = Part("one")
    tensors = declare(Tensor("whole", Part("e"), one), Tensor("part", Part("e", ("y",)), one))
    body = (
        Pointwise(name="write", function="zero", into="whole"),
        ReduceScatter(name="scatter", axis="y", source="whole", into="part"),
        AllGather(name="gather", axis="y", source="part", into="whole"),
    )
    sizes = {"e": GATHERED // 4, "one": 1}
    roles = (Role((Repeat("t", 3, body),)),)
    schedule = Schedule("apart", sizes, THREE_BY_TWO, "float32", tensors, ("part",), ("whole",), roles)
    return simulate(schedule, members_apart(), choices=parse_choices("library"), shortcuts=shortcuts)


@pytest.mark.parametrize("shortcuts", [ALL_SHORTCUTS, Shortcuts(fold=False), Shortcuts(fold_time=False)])
def test_whoever_is_ahead_waits_for_the_last_member_in_what_comes_next(shortcuts):
    said = scattered_then_gathered(shortcuts)
    spans = {(span.op, span.rank, span.index): span for span in said.timeline.expanded(THREE_BY_TWO).spans}
    for index in range(3):
        for rank in range(6):
            ends, late = (1.0, 2.0, 4.0)[rank // 2], 4.0
            assert spans["scatter", rank, index].seconds == pytest.approx(ends, rel=1e-3)
            assert spans["gather", rank, index].waiting_seconds == pytest.approx(late - ends, abs=1e-2)
    assert said.timeline.makespan == pytest.approx(3 * (4.0 + 1.0), rel=1e-2)


def test_ranks_that_are_the_same_members_are_folded_and_no_others():
    assert scattered_then_gathered(ALL_SHORTCUTS).extent.rank_classes == 3


def test_what_was_not_measured_goes_as_a_ring_and_so_do_our_own():
    other = machine(row("all_gather", 2, 1, GATHERED, 0.25), row("broadcast", 4, 1, GATHERED, 0.25))
    for found, choices in (
        (other, parse_choices("library")),
        (machine(), parse_choices("library")),
        (other, Choices()),
    ):
        said = predicted(found, choices)
        assert said.labels == {}
        assert said.op_times()["gather B"].seconds < 0.25


def test_what_leaves_nothing_to_choose_shares_links_as_a_message_does():
    schedule = matmul_schedule(Matmul(512, 512, 512, panel=512, dtype="float32"), "summa", Grid(z=2, x=2))
    rows = [row(kind, 2, apart, GATHERED, 0.25) for kind in ("broadcast", "reduce") for apart in (1, 2)]
    for word in ("library", "library:vector"):
        found = simulate(schedule, machine(*rows), choices=parse_choices(word))
        assert set(found.labels.values()) == {f"{word} {IDENTIFIED}"}
        assert found.timeline.makespan < 0.25


def test_the_most_similar_groups_are_taken_and_sizes_between_are_interpolated():
    rows = [row("reduce", 2, 1, 100, 1.0), row("reduce", 2, 1, 300, 3.0), row("reduce", 2, 4, 100, 9.0, of=8)]
    assert curve_of(rows, "reduce", 2, 2, of=4, member=0).by_size.seconds(200) == 2.0
    assert curve_of(rows, "reduce", 2, 2, of=8, member=0).by_size.seconds(100) == 9.0
    assert curve_of(rows, "reduce", 3, 1, of=4, member=0) is None


@pytest.mark.parametrize(("apart", "of", "beyond"), [(1, 4, False), (2, 4, True), (1, 8, True)])
def test_groups_that_lie_otherwise_than_those_measured_are_beyond_what_was_measured(apart, of, beyond):
    said = predicted(machine(row("all_gather", 4, apart, GATHERED, 0.25, of=of)), parse_choices("library"))
    assert said.labels == {"gather B": f"library {MEASURED}"}
    assert ("gather B" in said.extrapolated) == beyond


REGULAR = row("all_gather", 4, 1, GATHERED, 0.25)
VECTOR = row("all_gather", 4, 1, GATHERED, 0.5, calls="vector")
OLD = msgspec.structs.replace(VECTOR, calls=UNSET)


@pytest.mark.parametrize(
    ("rows", "word", "seconds", "told"),
    [
        ((REGULAR, VECTOR), "library", 0.25, MEASURED),
        ((REGULAR, VECTOR), "library:vector", 0.5, MEASURED),
        ((REGULAR, OLD), "library:vector", 0.5, MEASURED),
        ((OLD,), "library", 0.5, "(as vector calls)"),
        ((REGULAR,), "library:vector", 0.25, "(as regular calls)"),
    ],
)
def test_each_word_is_predicted_from_the_rows_of_its_calls_and_from_the_others_where_it_has_none(
    rows, word, seconds, told
):
    said = predicted(machine(*rows), parse_choices(word))
    assert said.op_times()["gather B"].seconds == pytest.approx(seconds)
    assert said.labels == {"gather B": f"{word} {told}"}
    assert ("gather B" in said.extrapolated) == (told != MEASURED)


@pytest.mark.parametrize("word", ["library", "library:vector"])
def test_unequal_shards_go_by_vector_calls_whatever_was_chosen(word):
    said = predicted(machine(REGULAR, VECTOR), parse_choices(word), size=511)
    assert said.op_times()["gather B"].seconds == pytest.approx(0.5, rel=0.01)
    assert said.labels == {"gather B": f"{word} {MEASURED}"} and "gather B" not in said.extrapolated


def test_what_mpi_has_one_call_for_takes_the_same_by_either_word():
    schedule = matmul_schedule(Matmul(512, 512, 512, panel=128, dtype="float32"), "summa", Grid(z=4))
    found = machine(row("broadcast", 4, 1, 128 * 512 * 4, 5.0))
    one, other = (simulate(schedule, found, choices=parse_choices(word)) for word in ("library", "library:vector"))
    assert one.timeline.makespan == other.timeline.makespan
    assert one.extrapolated == other.extrapolated


def test_collectives_whose_roots_turn_take_one_after_the_other_what_a_round_s_steps_were_measured_to_take():
    schedule = matmul_schedule(Matmul(512, 512, 512, panel=128, dtype="float32"), "summa", Grid(z=4))
    size = 128 * 512 * 4
    found = simulate(schedule, machine(row("broadcast", 4, 1, size, 5.0)), choices=parse_choices("library"))
    assert set(found.labels.values()) == {f"library {MEASURED}"}
    assert found.timeline.makespan == pytest.approx(4 * 5.0, rel=0.01)


def apart_from_laboratories(*rows):
    """Four hosts of a star, by links as fast as a laboratory's, with the library's collectives as measured."""
    return msgspec.structs.replace(star(4, bandwidth=1e9, memory=1e10), network=NetworkCosts(library=rows))


@pytest.mark.parametrize("asked", ["collective", "auto"])
def test_what_the_library_was_measured_to_take_is_simulated_exactly_or_not_at_all(asked):
    options = {"granularity": asked, "limits": Limits(long_seconds=0.0)}
    schedule = matmul_schedule(Matmul(512, 512, 512, dtype="float32"), "4d", Grid(z=4))
    measured = apart_from_laboratories(row("all_gather", 4, 1, GATHERED, 0.25))
    for found, choices in ((measured, Choices()), (apart_from_laboratories(), parse_choices("library"))):
        assert simulate(schedule, found, choices=choices, **options).bound is not None
    if asked == "collective":
        with pytest.raises(InputError, match="'gather B' takes what the MPI library was measured to take"):
            simulate(schedule, measured, choices=parse_choices("library"), **options)
        return
    said = simulate(schedule, measured, choices=parse_choices("library"), **options)
    assert (said.bound, said.op_times()["gather B"].seconds) == (None, pytest.approx(0.25))


@pytest.mark.parametrize("rows", [(), (row("all_gather", 4, 1, GATHERED, 0.25),)], ids=["guessed", "measured"])
def test_intervals_are_wider_where_the_library_carries_out_collectives(rows):
    found = with_messages(machine(*rows))
    own, library = (predicted(found, choices).uncertainty for choices in (Choices(), parse_choices("library")))
    assert 0 < own.less < library.less
    assert 0 < own.more < library.more
    assert predicted(machine(), Choices()).uncertainty == Uncertainty(0, 0)


def test_messages_make_a_prediction_uncertain_where_any_are_sent_and_also_those_that_are_known():
    found = with_messages(machine(*(row(kind, 2, 1, GATHERED, 0.25) for kind in ("broadcast", "reduce"))))
    schedule = matmul_schedule(Matmul(512, 512, 512, panel=512, dtype="float32"), "summa", Grid(z=2, x=2))
    own, library = (simulate(schedule, found, choices=choices) for choices in (Choices(), parse_choices("library")))
    assert set(library.labels.values()) == {f"library {IDENTIFIED}"}
    assert library.uncertainty.more > own.uncertainty.more
    alone = matmul_schedule(Matmul(512, 512, 512, dtype="float32"), "4d", Grid())
    nothing = simulate(alone, found)
    assert nothing.uncertainty == Uncertainty(0, pytest.approx(NO_MESSAGES.late / nothing.timeline.makespan)), (
        "late at most"
    )
