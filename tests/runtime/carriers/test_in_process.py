import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.volumes import bytes_sent
from quadrille.algorithms.collectives.collective_choices import Choices, parse_choices
from quadrille.algorithms.errors import Deadlock
from quadrille.algorithms.schedule.expressions import Affine
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Gemm,
    Pointwise,
    Receive,
    Reduce,
    ReduceScatter,
    Send,
    Shift,
)
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Repeat
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.runtime.carriers.communicators import DONE, Wait
from quadrille.runtime.carriers.in_process import InProcess, InProcessCommunicator
from quadrille.runtime.execution.execute import execute
from tests.support.mpi_cases import CUSTOM, MODES, custom, pipeline


def run(schedule, inputs, collectives="own:ring", repeats=1, chunk_bytes=0):
    choices, carrier = parse_choices(collectives), InProcess(schedule.grid.size, chunk_bytes=chunk_bytes)
    execution = execute(schedule, inputs, carrier, choices=choices, repeats=repeats)
    for rank in range(schedule.grid.size):
        assert execution.bytes_sent[rank] == bytes_sent(schedule, rank, choices)
        assert execution.allocated_bytes[rank] == storage(schedule, schedule.coordinates(rank), choices).bytes
    return execution


def block_of(schedule, name, rank, matrix):
    block = schedule.tensors[name].block(schedule.coordinates(rank))
    return matrix[slice(*block.rows), slice(*block.columns)]


def square(name, **layout):
    return Tensor(name, Part("n"), Part("n"), **layout)


def roles(*programs, axis="x", tensors=(), grid=None, outputs=()):
    """A schedule in which each coordinate of an axis has a program of its own; A is an input, B is room."""
    declared = declare(square("A"), square("B"), square("P", sharded_over="x"), *tensors)
    told = tuple(Role(program, axis, i, i + 1) for i, program in enumerate(programs))
    grid = grid or Grid(**{axis: len(programs)})
    return Schedule("roles", {"n": 4}, grid, "float64", declared, ("A",), outputs, told)


A = np.arange(16.0).reshape(4, 4)


def deadlock(schedule, collectives="own:ring", chunk_bytes=0):
    with pytest.raises(Deadlock) as found:
        run(schedule, {"A": A}, collectives, chunk_bytes=chunk_bytes)
    assert found.value.exit_status == 1
    assert "\n" not in str(found.value)
    return str(found.value)


# Between runs


def test_ranks_that_meet_between_runs_do_not_block(monkeypatch):
    """Who has ended must not take a core from who has not by looking for him."""
    asked, meets = [], InProcessCommunicator.barrier

    def barrier(group, *, blocking):
        if group.size > 1:
            asked.append(blocking)
        return meets(group, blocking=blocking)

    monkeypatch.setattr(InProcessCommunicator, "barrier", barrier)
    write = (Pointwise(name="write", function="zero", into="B"),)
    run(roles(write, write), {"A": A}, repeats=3)
    assert asked == [False] * 2 * (3 + 3), "before each run, and after it"


def test_no_rank_works_before_the_next_run_until_all_have_ended_this_one(monkeypatch):
    """On cores that ranks share it would take time from those that have not."""
    events, meets = [], InProcessCommunicator.barrier

    def barrier(group, *, blocking):
        if group.size > 1:
            events.append(("meets", group.member))
        return meets(group, blocking=blocking)

    monkeypatch.setattr(InProcessCommunicator, "barrier", barrier)
    write = (Pointwise(name="write", function="zero", into="B"),)
    execute(roles(write, write), {"A": A}, InProcess(2), repeats=3, between=lambda rank: events.append(("works", rank)))
    for rank in (0, 1):
        works = [place for place, event in enumerate(events) if event == ("works", rank)]
        assert len(works) == 3
        for runs, place in enumerate(works):
            assert events[:place].count(("meets", 1 - rank)) >= 2 * runs


# Schedules of every kind of op


@pytest.mark.parametrize("collectives", MODES)
@pytest.mark.parametrize(
    ("build", "ranks"),
    [(build, ranks) for build in CUSTOM for ranks in (1, 2, 3, 4, 5, 7) if (build, ranks) != (pipeline, 1)],
)
def test_schedules_of_our_own_give_numpy_s_results(build, ranks, collectives):
    schedule, inputs, outputs = custom(build, ranks)
    execution = run(schedule, inputs, collectives, repeats=2)
    for name, matrix in outputs.items():
        for rank in range(ranks):
            np.testing.assert_array_equal(execution.outputs[rank][name], block_of(schedule, name, rank, matrix))


@settings(max_examples=30)
@given(
    m=st.integers(1, 12),
    n=st.integers(1, 12),
    grid=st.sampled_from([Grid(x=3), Grid(x=4, y=2), Grid(z=2, x=5)]),
    by_rows_first=st.booleans(),
    collectives=st.sampled_from(["own", "own:pairwise", "library"]),
)
def test_an_all_to_all_turns_either_cut_into_the_other(m, n, grid, by_rows_first, collectives):
    rows, columns = (("x",), ()) if by_rows_first else ((), ("x",))
    tensors = declare(
        Tensor("A", Part("m", rows), Part("n", columns)), Tensor("B", Part("m", columns), Part("n", rows))
    )
    program = (AllToAll(name="turn", axis="x", source="A", into="B"),)
    schedule = Schedule("turn", {"m": m, "n": n}, grid, "float32", tensors, ("A",), ("B",), (Role(program),))
    a = np.arange(m * n, dtype="float32").reshape(m, n)
    execution = run(schedule, {"A": a}, collectives)
    for rank in range(grid.size):
        np.testing.assert_array_equal(execution.outputs[rank]["B"], block_of(schedule, "B", rank, a))


@pytest.mark.parametrize(("collectives", "together"), [("own", 3), ("own:pairwise", 1)])
def test_an_all_to_all_posts_all_its_messages_before_it_waits_for_any(collectives, together):
    """The most sends that a rank has posted between two waits: of all its messages, or of one round."""

    class Noting(InProcess):
        def communicator(self, *asked):
            group, posted = super().communicator(*asked), []
            send, receive = group.send, group.receive

            def noting_send(buffer, receiver, **given):
                posted.append("send")
                return send(buffer, receiver, **given)

            def noting_receive(buffer, sender, **given):
                if posted and posted[-1] == "send":  # a step posts its receives first
                    steps.append(posted.count("send"))
                    posted.clear()
                posted.append("receive")
                return receive(buffer, sender, **given)

            group.send, group.receive = noting_send, noting_receive
            last.append(posted)
            return group

    steps, last = [], []
    tensors = declare(Tensor("A", Part("m", ("x",)), Part("n", ())), Tensor("B", Part("m", ()), Part("n", ("x",))))
    program = (AllToAll(name="turn", axis="x", source="A", into="B"),)
    schedule = Schedule("turn", {"m": 8, "n": 8}, Grid(x=4), "float32", tensors, ("A",), ("B",), (Role(program),))
    a = np.arange(64, dtype="float32").reshape(8, 8)
    execution = execute(schedule, {"A": a}, Noting(4), choices=parse_choices(collectives))
    for rank in range(4):
        np.testing.assert_array_equal(execution.outputs[rank]["B"], block_of(schedule, "B", rank, a))
    assert {*steps, *(posted.count("send") for posted in last if posted)} == {together}


@pytest.mark.parametrize(
    ("chunk_bytes", "beside", "blocks"), [(0, True, True), (16, False, True), (16, True, False), (0, False, True)]
)
def test_the_library_holds_no_rank_up_while_chunks_may_be_under_way(chunk_bytes, beside, blocks):
    """A rank in a blocking collective looks after no chunks, for which the other members may wait first."""

    class Noting(InProcess):
        def communicator(self, *asked):
            group = super().communicator(*asked)
            group.all_reduce = lambda buffer, _, blocking: noted.append(blocking) or DONE
            return group

    noted, tensors = [], declare(square("A"), square("B"), square("C"))
    program = (
        AllReduce(name="own", axis="z", buffer="B", concurrent=beside),
        AllReduce(name="library's", axis="x", buffer="C"),
    )
    schedule = Schedule("both", {"n": 4}, Grid(x=2, z=2), "float64", tensors, ("B", "C"), (), (Role(program),))
    choices = Choices(by_op=(("library's", parse_choices("library")),))
    execute(schedule, {"B": A, "C": A}, Noting(4, chunk_bytes=chunk_bytes), choices=choices)
    assert noted == [blocks] * 4


@pytest.mark.parametrize(("size", "expected"), [(4, ["vector", "regular"]), (3, ["vector", "vector"])])
def test_each_op_asks_for_the_calls_that_were_chosen_for_it_and_unequal_shards_for_vector_calls(size, expected):
    class Noting(InProcess):
        def communicator(self, *asked):
            group = super().communicator(*asked)
            for verb in ("all_gather", "reduce_scatter"):
                setattr(group, verb, lambda *given, blocking, calls: noted.append(calls) or DONE)
            return group

    noted, cut = [], Part("n", ("z",))
    tensors = declare(square("whole"), square("other"), Tensor("A", cut, Part("n")), Tensor("sum", cut, Part("n")))
    program = (
        AllGather(name="gather", axis="z", source="A", into="whole"),
        ReduceScatter(name="scatter", axis="z", source="other", into="sum"),
    )
    schedule = Schedule("both", {"n": size}, Grid(z=2), "float64", tensors, ("A", "other"), (), (Role(program),))
    by_op = (("gather", parse_choices("library:vector")), ("scatter", parse_choices("library")))
    whole = np.zeros((size, size))
    execute(schedule, {"A": whole, "other": whole}, Noting(2), choices=Choices(by_op=by_op))
    assert sorted(noted) == sorted(expected * 2)


@pytest.mark.parametrize("collectives", MODES)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_two_lanes_of_an_axis_carry_collectives_at_once(ranks, collectives):
    tensors = declare(
        Tensor("A", Part("n", ("z",)), Part("n")),
        square("whole A"),
        square("C"),
        square("D"),
        square("P", sharded_over="z"),
    )
    program = (
        AllGather(name="gather", axis="z", source="A", into="whole A"),
        Gemm(name="one", a="whole A", b="whole A", c="C"),
        AllReduce(name="sum one", axis="z", buffer="C", concurrent=True),
        Gemm(name="other", a="whole A", b="whole A", c="D", layout="NT"),
        ReduceScatter(name="sum other", axis="z", lane=1, source="D", into="P", concurrent=True),
    )
    schedule = Schedule("lanes", {"n": 7}, Grid(z=ranks), "float64", tensors, ("A",), ("C", "P"), (Role(program),))
    a = np.arange(49.0).reshape(7, 7)
    execution = run(schedule, {"A": a}, collectives)
    for rank in range(ranks):
        np.testing.assert_array_equal(execution.outputs[rank]["C"], ranks * (a @ a))
        piece = slice(*schedule.tensors["P"].block(schedule.coordinates(rank)).flat_range)
        np.testing.assert_array_equal(execution.outputs[rank]["P"], ranks * (a @ a.T).reshape(-1)[piece])


@pytest.mark.parametrize("collectives", MODES)
def test_a_barrier_lets_nobody_go_on_before_all_have_come(collectives):
    schedule = roles(*[(Barrier(name="meet", axis="x"),)] * 5)
    timeline = run(schedule, {"A": A}, collectives).timelines[0]
    assert len(timeline.spans) == 5
    assert min(span.end for span in timeline.spans) >= max(span.start for span in timeline.spans)


@pytest.mark.parametrize("chunk_bytes", [0, 16])
@pytest.mark.parametrize("collectives", MODES)
def test_a_barrier_waits_for_ranks_that_a_rank_says_nothing_to(collectives, chunk_bytes):
    """In three rounds 0 hears from 7, 6 and 4 and tells 1, 2 and 4; 5 comes only after 0 has left, so never."""
    meet = Barrier(name="meet", axis="x")
    then = Send(name="then", axis="x", lane=1, to=5, source="A", after=("meet",))
    first = Receive(name="first", axis="x", lane=1, sender=0, into="B")
    programs = [(meet,)] * 8
    programs[0], programs[5] = (meet, then), (first, Barrier(name="meet", axis="x", after=("first",)))
    assert "rank 5 in 'first'" in deadlock(roles(*programs), collectives, chunk_bytes)


def test_several_messages_to_one_peer_arrive_in_the_order_of_their_sends():
    tensors = [square("C")]
    send = (Send(name="one", axis="x", to=1, source="A"), Send(name="two", axis="x", to=1, source="B"))
    zero = Pointwise(name="zero", function="zero", into="B")
    into = (Receive(name="a", axis="x", sender=0, into="B"), Receive(name="b", axis="x", sender=0, into="C"))
    schedule = roles((zero, *send), into, tensors=tensors, outputs=("B", "C"))
    outputs = run(schedule, {"A": A}).outputs[1]
    np.testing.assert_array_equal(outputs["B"], A)
    np.testing.assert_array_equal(outputs["C"], np.zeros((4, 4)))


def test_messages_on_two_lanes_may_cross():
    tensors = [square("C")]
    zero = Pointwise(name="zero", function="zero", into="B")
    first, second = Send(name="one", axis="x", to=1, source="A"), Send(name="two", axis="x", lane=1, to=1, source="B")
    into = (
        Receive(name="b", axis="x", lane=1, sender=0, into="C"),
        Receive(name="a", axis="x", sender=0, into="B", after=("b",)),
    )
    outputs = run(roles((zero, first, second), into, tensors=tensors, outputs=("B", "C")), {"A": A}).outputs[1]
    np.testing.assert_array_equal(outputs["B"], A)
    np.testing.assert_array_equal(outputs["C"], np.zeros((4, 4)))


# Deadlocks


def test_a_receive_that_nobody_sends_is_found_and_named():
    said = deadlock(
        roles(
            (Pointwise(name="work", function="zero", into="B"),), (Receive(name="wish", axis="x", sender=0, into="B"),)
        )
    )
    assert said == "deadlock: rank 0 in 'barrier after the run', rank 1 in 'wish'; each waits for another"


def test_a_send_that_nobody_receives_is_found_and_named():
    said = deadlock(roles((Send(name="offer", axis="x", to=1, source="A"),), ()))
    assert said == "deadlock: rank 0 in 'offer', rank 1 in 'barrier after the run'; each waits for another"


def test_two_ranks_that_each_receive_first_are_named_with_their_ops():
    def program(other):
        return (
            Receive(name=f"from {other}", axis="x", sender=other, into="B"),
            Send(name=f"to {other}", axis="x", to=other, source="A", after=(f"from {other}",)),
        )

    assert deadlock(roles(program(1), program(0))) == (
        "deadlock: rank 0 in 'from 1', rank 1 in 'from 0'; each waits for another"
    )


@pytest.mark.parametrize("collectives", ["own:ring", "own:doubling", "library"])
@pytest.mark.parametrize(
    "other",
    [
        AllGather(name="gather", axis="x", source="P", into="B"),
        Broadcast(name="tell", axis="x", root=1, source="A", into="B"),
        Barrier(name="meet", axis="x"),
    ],
)
def test_ranks_in_different_collectives_of_a_group_are_named_with_their_ops(other, collectives):
    fill = Pointwise(name="fill", function="copy", into="C", sources=("A",))
    total = (fill, AllReduce(name="sum", axis="x", buffer="C"))
    shard = Tensor("Q", Part("n", ("x",)), Part("n"))
    program = (Pointwise(name="zero", function="zero", into="P"), other)
    said = deadlock(roles(total, program, total, tensors=[square("C"), shard]), collectives)
    assert "rank 0 in 'sum'" in said or "rank 2 in 'sum'" in said
    assert f"rank 1 in {other.name!r}" in said


@pytest.mark.parametrize("collectives", MODES)
def test_collectives_in_another_order_on_two_lanes_are_named(collectives):
    def program(*order):
        fill = tuple(Pointwise(name=f"fill {name}", function="copy", into=name, sources=("A",)) for name in "CD")
        lanes = {"C": 0, "D": 1}
        first, second = (AllReduce(name=f"sum {name}", axis="x", lane=lanes[name], buffer=name) for name in order)
        return (*fill, first, replace(second, after=(first.name,)))

    schedule = roles(program("C", "D"), program("D", "C"), tensors=[square("C"), square("D")])
    assert deadlock(schedule, collectives) == ("deadlock: rank 0 in 'sum C', rank 1 in 'sum D'; each waits for another")


def test_a_message_that_does_not_fit_says_how_long_it_is_and_how_much_room_there_is():
    short = Tensor("S", Part("n", ("x",)), Part("n"))
    into = Receive(name="take", axis="x", sender=0, into="S")
    said = deadlock(roles((Send(name="give", axis="x", to=1, source="A"),), (into,), tensors=[short]))
    assert said == "deadlock: rank 0 in 'give', rank 1 in 'take' (sent 16 elements, room for 8); each waits for another"


def test_a_loop_that_one_rank_leaves_early_is_found():
    turn = Shift(name="turn", axis="x", distance=1, source="A", into="B")
    said = deadlock(roles((Repeat("t", 3, (turn,)),), (Repeat("t", 2, (turn,)),)))
    assert said == "deadlock: rank 0 in 'turn', rank 1 in 'barrier after the run'; each waits for another"


def test_the_carrier_can_be_used_again_after_a_deadlock():
    carrier = InProcess(2)
    with pytest.raises(Deadlock):
        execute(roles((Send(name="offer", axis="x", to=1, source="A"),), ()), {"A": A}, carrier)
    schedule = roles(*[(Shift(name="turn", axis="x", distance=1, source="A", into="B"),)] * 2, outputs=("B",))
    np.testing.assert_array_equal(execute(schedule, {"A": A}, carrier).outputs[0]["B"], A)


# The carrier itself


@pytest.mark.parametrize("verb", ["reduce_scatter", "all_reduce", "broadcast", "reduce", "all_gather", "all_to_all"])
def test_a_library_collective_ends_when_the_last_member_has_come(verb):
    carrier, done = InProcess(3), []

    def course(rank):
        group = carrier.communicator(Grid(y=3), rank, "y", 0)
        buffer, piece = np.full(3, rank + 1.0), np.zeros(1)
        request = {
            "reduce_scatter": lambda: group.reduce_scatter(buffer, (0, 1, 2, 3), piece, blocking=False),
            "all_reduce": lambda: group.all_reduce(buffer, blocking=False),
            "broadcast": lambda: group.broadcast(buffer, 2, blocking=False),
            "reduce": lambda: group.reduce(buffer, 1, blocking=False),
            "all_gather": lambda: group.all_gather(buffer, (0, 1, 2, 3), blocking=False),
            "all_to_all": lambda: group.all_to_all(buffer.copy(), (0, 1, 2, 3), buffer, (0, 1, 2, 3), blocking=False),
        }[verb]()
        done.append(request.done())
        yield Wait((request,), (verb,))
        return (piece if verb == "reduce_scatter" else buffer).tolist()

    results = carrier.run(course)
    assert done == [False, False, True]
    assert (
        results
        == {
            "reduce_scatter": {rank: [6.0] for rank in range(3)},
            "all_reduce": {rank: [6.0] * 3 for rank in range(3)},
            "broadcast": {rank: [3.0] * 3 for rank in range(3)},
            "reduce": {0: [1.0] * 3, 1: [6.0] * 3, 2: [3.0] * 3},
            "all_gather": {rank: [1.0, 2.0, 3.0] for rank in range(3)},
            "all_to_all": {rank: [1.0, 2.0, 3.0] for rank in range(3)},
        }[verb]
    )


def test_a_rank_waits_for_every_request_or_for_one():
    carrier = InProcess(2)

    def course(rank):
        group = carrier.communicator(Grid(x=2), rank, "x", 0)
        if rank == 1:
            first = group.send(np.ones(2), 0)
            yield Wait((first,), ("first",))
            yield Wait((group.send(np.full(2, 2.0), 0),), ("second",))
            return None
        rooms = np.zeros(2), np.zeros(2)
        requests = [group.receive(room, 1) for room in rooms]
        yield Wait(requests, ("any",))
        seen = [room.tolist() for room in rooms]
        yield Wait(requests, ("all",), every=True)
        return seen, [room.tolist() for room in rooms]

    any_of_them, all_of_them = carrier.run(course)[0]
    assert any_of_them == [[1.0, 1.0], [0.0, 0.0]]
    assert all_of_them == [[1.0, 1.0], [2.0, 2.0]]


def test_a_group_of_one_meets_nobody():
    group = InProcess(2).communicator(Grid(x=2), 1, "z", 0)
    assert (group.member, group.size) == (0, 1)
    assert group.barrier(blocking=True).done()


def test_a_reduce_to_a_root_that_depends_on_the_place_goes_there():
    tensors = declare(Tensor("A", Part("n", ("z",)), Part("n")), *[square(name) for name in ("B", "C", "whole")])
    program = (
        AllGather(name="gather", axis="z", source="A", into="whole"),
        Gemm(name="multiply", a="whole", b="whole", c="B"),
        Pointwise(name="zero", function="zero", into="C"),
        Reduce(name="sum", axis="x", root=Affine("z"), source="B", into="C"),
    )
    schedule = Schedule("root", {"n": 5}, Grid(z=2, x=2), "float64", tensors, ("A",), ("C",), (Role(program),))
    a = np.arange(25.0).reshape(5, 5)
    for collectives in MODES:
        outputs = run(schedule, {"A": a}, collectives).outputs
        for rank in range(4):
            place = schedule.coordinates(rank).along
            expected = 2 * a @ a if place["x"] == place["z"] else 0 * a
            np.testing.assert_array_equal(outputs[rank]["C"], expected)


@pytest.mark.parametrize("members", [2, 3])
def test_a_library_collective_that_is_over_keeps_no_buffer(members):
    carrier = InProcess(members)
    ends = [carrier.communicator(Grid(x=members), rank, "x", 0) for rank in range(members)]
    for _ in range(2):
        buffers = [np.full(3, rank + 1.0) for rank in range(members)]
        requests = [end.all_reduce(buffer, blocking=True) for end, buffer in zip(ends, buffers, strict=True)]
        assert all(request.done() for request in requests)
        assert {float(buffer[0]) for buffer in buffers} == {members * (members + 1) / 2}
        kept = [weakref.ref(buffer) for buffer in buffers]
        del buffers
        assert [reference() for reference in kept] == [None] * members
