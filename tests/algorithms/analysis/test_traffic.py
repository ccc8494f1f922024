from collections import Counter, defaultdict
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.analysis.shard_ranges import range_in, shared_rectangle
from quadrille.algorithms.analysis.traffic import Traffic, _amount_of_sections, _amount_of_steps, ranges, traffic
from quadrille.algorithms.analysis.volumes import bytes_sent, volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.collectives.lowering import SETS, lower
from quadrille.algorithms.collectives.run_length_programs import PieceRange
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid, parse_grid
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Communication,
    Receive,
    ReduceScatter,
    Send,
)
from quadrille.algorithms.schedule.parts import Part, boundaries
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Role, Schedule, all_ops, declare
from quadrille.algorithms.schedule.tensors import Block, Tensor
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.simulator.symmetry.even_shards import with_even_shards
from tests.support.mpi_cases import CUSTOM, chosen_grids, custom

sizes = st.integers(1, 12)


def exchanges_by_group(schedule, choices):
    """Elements sent and received between two ranks, for each op and instance of it."""
    sent, received = defaultdict(list), defaultdict(list)
    for rank in range(schedule.grid.size):
        place, count = schedule.coordinates(rank), Counter()
        for op, moment in walk(schedule.program(place), place):
            moved = traffic(op, schedule, moment, choices) if isinstance(op, Communication) else None
            group = schedule.grid.group(rank, op.axis) if isinstance(op, Communication) else ()
            instance = "" if isinstance(op, Send | Receive) else (op.name, count[op.name])
            count[op.name] += 1
            for exchange in moved.exchanges() if moved else ():
                if exchange.send_to is not None:
                    sent[instance, rank, group[exchange.send_to]].append(exchange.sent)
                if exchange.receive_from is not None:
                    received[instance, group[exchange.receive_from], rank].append(exchange.received)
    return sent, received


@pytest.mark.parametrize("set_name", SETS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
def test_what_one_rank_sends_another_receives_in_the_same_order(ranks, set_name):
    choices = Choices("own", set_name)
    for algorithm, grid in chosen_grids(ranks):
        schedule = matmul_schedule(Matmul(7, 5, 11, "float32", "training", panel=3), algorithm, grid)
        sent, received = exchanges_by_group(schedule, choices)
        assert sent == received
        assert sent
        total = sum(bytes_sent(schedule, rank, choices) for rank in range(grid.size))
        assert total == 4 * sum(map(sum, sent.values()))


@pytest.mark.parametrize("build", CUSTOM)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_messages_of_other_ops_meet_too(build, ranks):
    sent, received = exchanges_by_group(custom(build, ranks)[0], Choices())
    assert sent == received
    assert sent


def one_op(op, *tensors, grid, **dimensions):
    return Schedule("one", dimensions, grid, "float64", declare(*tensors), (), (), (Role((op,)),))


@given(sizes, sizes, st.integers(2, 5))
def test_a_ring_all_gather_sends_all_but_one_piece(m, k, length):
    gather = AllGather(name="gather", axis="x", source="A", into="whole")
    tensors = Tensor("A", Part("m"), Part("k"), sharded_over="x"), Tensor("whole", Part("m"), Part("k"))
    schedule = one_op(gather, *tensors, grid=Grid(x=length), m=m, k=k)
    for rank in range(length):
        shard = schedule.tensors["A"].block(schedule.coordinates((rank + 1) % length)).elements
        assert bytes_sent(schedule, rank, Choices()) == 8 * (m * k - shard)


@given(sizes, st.integers(2, 7))
def test_a_ring_all_reduce_sends_every_piece_twice_but_for_two(m, length):
    reduction = AllReduce(name="sum", axis="x", buffer="C")
    schedule = one_op(reduction, Tensor("C", Part("m"), Part("n")), grid=Grid(x=length), m=m, n=7)
    total = sum(bytes_sent(schedule, rank, Choices()) for rank in range(length))
    assert total == 2 * (length - 1) * 7 * m * 8


@pytest.mark.parametrize(("length", "sent"), [(2, [1]), (4, [2]), (8, [3]), (3, [1, 2]), (12, [1, 3, 4])])
def test_a_sum_of_fewer_elements_than_members_goes_by_doubling(length, sent):
    reduction = AllReduce(name="sum", axis="x", buffer="C")
    schedule = one_op(reduction, Tensor("C", Part("m"), Part("n")), grid=Grid(x=length), m=1, n=1)
    assert sorted({bytes_sent(schedule, rank, Choices()) // 8 for rank in range(length)}) == sent
    found = volumes(schedule, Choices())
    assert found.by_op["sum"].algorithm == "doubling"
    assert found.sent_total == sum(bytes_sent(schedule, rank, Choices()) for rank in range(length))


@given(sizes, sizes, st.integers(1, 5))
def test_an_all_to_all_sends_what_changes_hands(m, n, length):
    turn = AllToAll(name="turn", axis="x", source="A", into="B")
    tensors = Tensor("A", Part("m", ("x",)), Part("n")), Tensor("B", Part("m"), Part("n", ("x",)))
    schedule = one_op(turn, *tensors, grid=Grid(x=length), m=m, n=n)
    for rank in range(length):
        place = schedule.coordinates(rank)
        a, b = (schedule.tensors[name].block(place) for name in "AB")
        assert bytes_sent(schedule, rank, Choices()) == 8 * (a.elements - shared_rectangle(a, b).elements)


def test_nothing_goes_over_a_wire_in_a_group_of_one():
    schedule = matmul_schedule(Matmul(7, 5, 3, passes="training"), "4d", Grid())
    steps = list(walk(schedule.program(schedule.coordinates(0)), schedule.coordinates(0)))
    messages = [traffic(op, schedule, moment, Choices()) for op, moment in steps if isinstance(op, Communication)]
    assert messages
    assert set(messages) == {None}


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        (Tensor("A", Part("m"), Part("k", ("x",))), Tensor("W", Part("m"), Part("k"))),
        (Tensor("A", Part("m", ("x",)), Part("k")), Tensor("W", Part("m"), Part("m"))),
        (Tensor("A", Part("m"), Part("k")), Tensor("W", Part("m"), Part("k"))),
        (Tensor("A", Part("m", ("x",), rotated_by=("t",)), Part("k")), Tensor("W", Part("k"), Part("k"))),
    ],
)
def test_a_gather_of_parts_that_are_not_rows_or_pieces_in_order_names_the_op(part, whole):
    gather = AllGather(name="gather A", axis="x", source="A", into="W")
    schedule = one_op(gather, part, whole, grid=Grid(x=2), m=7, k=5)
    with pytest.raises(InputError, match=r"op 'gather A': A .* is not W .* cut over x in whole rows or contiguous"):
        traffic(gather, schedule, schedule.coordinates(0), Choices())


def test_an_all_to_all_that_loses_elements_names_the_op():
    turn = AllToAll(name="turn", axis="x", source="A", into="B")
    tensors = Tensor("A", Part("m", ("x",)), Part("n")), Tensor("B", Part("m"), Part("n", ("z",)))
    schedule = one_op(turn, *tensors, grid=Grid(x=2, z=2), m=7, n=5)
    with pytest.raises(InputError, match=r"op 'turn': B .* along x does not hold just what A"):
        traffic(turn, schedule, schedule.coordinates(0), Choices())


@pytest.mark.parametrize("peer", [-1, 3, 0])
def test_a_peer_outside_the_group_names_the_op(peer):
    for op in (Send(name="pass", axis="x", to=peer, source="A"), Receive(name="pass", axis="x", sender=peer, into="A")):
        schedule = one_op(op, Tensor("A", Part("m"), Part("k")), grid=Grid(x=3), m=2, k=2)
        with pytest.raises(InputError, match=f"op .pass. of member 0: member {peer} is no other one"):
            traffic(op, schedule, schedule.coordinates(0), Choices())


def test_runs_go_around_the_end_and_leave_empty_ranges_out():
    edges = (0, 4, 8, 8, 9)
    assert ranges(None, edges) == ()
    assert ranges(PieceRange(0, 4), edges) == ((0, 9),)
    assert ranges(PieceRange(3, 2), edges) == ((8, 9), (0, 4))
    assert ranges(PieceRange(2, 1), edges) == ()


def test_pieces_are_full_rows_or_contiguous_elements():
    whole = Block((2, 6), (3, 6))
    assert range_in(whole, Block((2, 4), (3, 6))) == (0, 6)
    assert range_in(whole, Block((2, 6), (3, 6), flat_range=(5, 9))) == (5, 9)
    assert range_in(whole, Block((2, 6), (3, 5))) == (-1, -1)


def test_rectangles_overlap_in_a_rectangle_or_in_nothing():
    assert shared_rectangle(Block((0, 4), (2, 8)), Block((3, 9), (0, 5))) == Block((3, 4), (2, 5))
    assert shared_rectangle(Block((0, 4), (0, 4)), Block((4, 8), (0, 4))).elements == 0
    assert shared_rectangle(Block((0, 4), (0, 4)), Block((6, 8), (5, 9))).elements == 0


STEPS = [
    ("data=2,z=3,y=2,x=2", find_scheme("4d")),
    ("data=2,x=4", find_scheme("megatron", sequence_parallel=True)),
    ("z=2,y=2,x=2", find_scheme("bian")),
]


@pytest.mark.parametrize("even", [False, True], ids=["exact", "even"])
@pytest.mark.parametrize(("lengths", "scheme"), STEPS, ids=str)
def test_pieces_of_members_begin_where_their_blocks_do(lengths, scheme, even):
    schedule = gpt_schedule(Gpt(2, 24, 4, 6, 34, 12), parse_grid(lengths), scheme)
    schedule = with_even_shards(schedule) if even else schedule
    compared = 0
    for rank in range(schedule.grid.size):
        place = schedule.coordinates(rank)
        for op in all_ops(schedule):
            if not isinstance(op, AllGather | ReduceScatter) or schedule.grid.length(op.axis) == 1:
                continue
            names = (op.source, op.into) if isinstance(op, AllGather) else (op.into, op.source)
            part, whole = (schedule.tensors[name] for name in names)
            members = [place.at(op.axis, member) for member in range(schedule.grid.length(op.axis))]
            pieces = [range_in(whole.block(place), part.block(member)) for member in members]
            edges = traffic(op, schedule, place, Choices()).edges
            assert list(pairwise(edges)) == pieces
            compared += 1
    assert compared


@pytest.mark.parametrize("count", [53, 4, Fraction(107, 2)], ids=["whole", "empty pieces", "mean"])
@pytest.mark.parametrize(("members", "per_node", "root"), [(2, 1, 1), (6, 2, 4), (8, 4, 0), (12, 3, 5)])
@pytest.mark.parametrize(("kind", "algorithm"), sorted({pair for every in SETS.values() for pair in every.items()}))
def test_sections_send_and_add_what_their_steps_do(kind, algorithm, members, per_node, root, count):
    """Amounts of many steps come from sections; the steps one by one are the oracle."""
    lowered = lower(kind, algorithm, members, root=root, size_bytes=212, per_node=per_node, chunk_bytes=16)
    edges = tuple(boundaries(count, lowered.pieces))
    for member in range(members):
        messages = Traffic(member, lowered, edges, edges, 4)
        assert _amount_of_sections(messages) == _amount_of_steps(messages), member
