from itertools import islice

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllReduce, Gemm, Pointwise, lane
from quadrille.algorithms.schedule.parts import Coordinates, Panel, Part
from quadrille.algorithms.schedule.program import Repeat, in_sequence, ops, walk
from quadrille.algorithms.schedule.schedule import Role, Schedule, all_ops, declare
from quadrille.algorithms.schedule.tensors import Tensor
from tests.support.mpi_cases import CUSTOM, SIZES, bucket, custom, lanes, pipeline


def zero(name, after=()):
    return Pointwise(name=name, function="zero", into="A", after=after)


PLACE = Coordinates(Grid(x=2), {"k": 7}, Grid(x=2).coordinates(1))


def test_what_repeats_is_written_once_and_walked_each_time():
    program = (zero("a"), Repeat("i", 2, (zero("b"), Repeat("j", 3, (zero("c"),)))), zero("d"))
    walked = [(op.name, dict(place.indices)) for op, place in walk(program, PLACE)]
    assert [name for name, _ in walked] == ["a", "b", "c", "c", "c", "b", "c", "c", "c", "d"]
    assert [indices for name, indices in walked if name == "c"] == [{"i": i, "j": j} for i in (0, 1) for j in (0, 1, 2)]
    assert walked[-1] == ("d", {})
    assert [op.name for op in ops(program)] == ["a", "b", "c", "d"]


def test_a_repeat_counts_from_its_first_index_and_may_be_empty():
    def walked(entry):
        return [place.indices["t"] for _, place in walk((entry,), PLACE)]

    assert walked(Repeat("t", 2, (zero("a"),), first=3)) == [3, 4]
    assert walked(Repeat("t", 0, (zero("a"),))) == []


def test_a_repeat_over_panels_takes_those_of_its_rank():
    panel = Panel("k", 2, ("x",), loop="p")
    assert panel.edges(PLACE.grid, 7) == (0, 2, 4, 6, 7)
    assert [place.indices["p"] for _, place in walk((Repeat("p", panel, (zero("a"),)),), PLACE)] == [0, 1, 2, 3]
    shared = Panel("k", 2, (), loop="p", shared_over="x")
    windows = [shared.bounds(place) for _, place in walk((Repeat("p", shared, (zero("a"),)),), PLACE)]
    assert windows == [(4, 6), (6, 7)]


def test_a_walk_is_one_step_at_a_time_however_long_the_loops():
    endless = (Repeat("layer", 10**12, (Repeat("microbatch", 10**12, (zero("a"),)),)),)
    assert len(list(islice(walk(endless, PLACE), 5))) == 5


def test_each_coordinate_gets_the_program_of_its_role():
    schedule = custom(pipeline, 5)[0]
    firsts = [
        next(walk(schedule.program(schedule.coordinates(rank)), schedule.coordinates(rank)))[0].name
        for rank in range(5)
    ]
    assert firsts == ["take", "receive", "receive", "receive", "receive"]
    products = [
        op.name for rank in range(5) for op in ops(schedule.program(schedule.coordinates(rank))) if isinstance(op, Gemm)
    ]
    assert products == ["first", "middle", "middle", "middle", "last"]


def test_a_rank_without_a_role_is_named():
    schedule = custom(lanes, 3)[0]
    roles = (Role(schedule.roles[0].program, "y", 0, 2),)
    lonely = Schedule("lonely", SIZES, schedule.grid, "float64", schedule.tensors, (), (), roles)
    with pytest.raises(InputError, match=r"lonely: no role includes coordinates .*'y': 2"):
        lonely.program(lonely.coordinates(2))


def test_a_name_stands_for_one_tensor():
    with pytest.raises(InputError, match="tensors A are declared twice"):
        declare(Tensor("A", Part("m"), Part("k")), Tensor("A", Part("k"), Part("n")))


def test_in_sequence_orders_each_op_after_the_one_before_around_loops_too():
    program = in_sequence((zero("a"), Repeat("i", 2, (zero("b"), zero("c"))), Repeat("j", 1, (zero("d"),)), zero("e")))
    after = {op.name: set(op.after) for op in ops(program)}
    assert after == {"a": set(), "b": {"a", "c"}, "c": {"b"}, "d": {"a", "c", "d"}, "e": {"a", "c", "d"}}


def test_in_sequence_keeps_the_edges_that_are_there():
    program = in_sequence((zero("a"), zero("b"), zero("c", after=("a",))))
    assert program[2].after == ("a", "b")


def test_a_schedule_does_not_grow_with_ranks_or_panels():
    few = matmul_schedule(Matmul(64, 64, 64, panel=32), "2.5d", Grid(z=2, x=2, y=2))
    many = matmul_schedule(Matmul(1 << 20, 1 << 20, 1 << 20, panel=1), "2.5d", Grid(z=256, x=256, y=64))
    assert len(list(all_ops(few))) == len(list(all_ops(many)))


@pytest.mark.parametrize("build", CUSTOM)
def test_a_schedule_prints_every_op_in_the_column_of_its_lane(build):
    schedule = custom(build, 4)[0]
    lines = str(schedule).splitlines()
    for role in schedule.roles:
        heads = [line for line in lines if line.split()[:1] == ["compute"] and lane_heads(role) <= set(line.split())]
        assert heads
    for op in all_ops(schedule):
        assert any(line.strip().startswith(f"{op.name} ") for line in lines)
    for tensor in schedule.tensors.values():
        assert any(line.endswith(str(tensor)) for line in lines)


def lane_heads(role):
    return {lane(op) for op in ops(role.program)}


def test_the_printed_schedule_reads_as_lanes_and_ops():
    schedule = matmul_schedule(Matmul(13, 17, 11), "4d", Grid(z=2, y=3))
    assert str(schedule).splitlines() == [
        "4d on z=2,y=3: m=13, k=17, n=11, float32",
        "  input  A (m/data/z × k/y)",
        "  input  B (k/y × n/x) sharded over z",
        "  output C (m/data/z × n/x)",
        "         B whole (k/y × n/x)",
        "            compute              z                        y",
        "gather B                         all_gather: B → B whole",
        "multiply C  gemm: A+B whole → C",
        "sum C                                                     all_reduce: C → C",
    ]


def test_a_bucket_is_printed_as_what_it_begins_with():
    assert "all_reduce: AU and 1 more → AU and 1 more" in str(custom(bucket, 3)[0])


def test_the_ends_of_a_pipeline_s_messages_are_printed():
    text = str(custom(pipeline, 3)[0])
    assert "send: out → x=x+1" in text
    assert "receive: x=x-1 → in" in text
    assert "role x=1..1" in text
    assert "repeat i, panels of m" in text


def test_ops_released_by_an_overlap_are_marked():
    assert "all_gather ∥: A → A whole" in str(custom(lanes, 2)[0])
    reduction = AllReduce(name="sum", axis="x", buffer="A")
    assert not reduction.concurrent
