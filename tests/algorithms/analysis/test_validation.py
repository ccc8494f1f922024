from dataclasses import replace

import pytest

from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllReduce, Broadcast, Gemm, Pointwise, Receive, ReduceScatter, Shift
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Repeat, ops
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.mlp import Mlp
from tests.support.mpi_cases import CUSTOM, bucket, chosen_grids, custom, pipeline
from tests.support.trainings import schedule_of

GRID = Grid(data=2, z=2, y=3, x=2)


def plain(passes="training", algorithm="4d", grid=GRID):
    return matmul_schedule(Matmul(13, 17, 11, "float32", passes, panel=4), algorithm, grid)


def changed(schedule, name, **changes):
    """The schedule with the op of that name changed, left out (None) or followed by others (then=...)."""

    def change(program):
        return tuple(new for entry in program for new in changed_entry(entry))

    def changed_entry(entry):
        if isinstance(entry, Repeat):
            return [replace(entry, body=change(entry.body))]
        if entry.name != name:
            return [replace(entry, after=tuple(other for other in entry.after if other != name))]
        if changes.get("gone"):
            return []
        then = changes.get("then", ())
        return [replace(entry, **{key: value for key, value in changes.items() if key != "then"}), *then]

    return schedule.with_program(change)


def refusal(schedule):
    with pytest.raises(InputError) as refused:
        validate(schedule)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("passes", ["forward", "training"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 6, 12])
def test_every_algorithm_is_valid_on_every_grid(ranks, passes):
    for algorithm, grid in chosen_grids(ranks):
        schedule = plain(passes, algorithm, grid)
        assert validate(schedule) is schedule


@pytest.mark.parametrize("build", CUSTOM)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_schedules_of_other_ops_are_valid(build, ranks):
    validate(custom(build, ranks)[0])


def test_an_undeclared_tensor_is_named_with_its_op():
    assert refusal(changed(plain(), "multiply C", b="E")) == "op 'multiply C': tensor 'E' is not declared"


def test_what_is_read_before_it_is_written_is_named():
    wrong = changed(plain(), "gather B", gone=True)
    assert refusal(wrong) == "op 'multiply C' reads 'B whole', which nothing has written before"


@pytest.mark.parametrize(
    ("op", "name"),
    [
        (Pointwise(name="spoil", function="zero", into="A"), "A"),
        (AllReduce(name="spoil", axis="x", buffer="B"), "B"),
        (ReduceScatter(name="spoil", axis="z", source="dC", into="C"), "dC"),
    ],
)
def test_writing_to_or_using_up_an_input_is_refused(op, name):
    wrong = changed(plain(), "multiply C", then=(op,))
    assert refusal(wrong) == f"op 'spoil' would write or use up {name!r}, which is an input"


def test_an_edge_from_an_op_that_is_not_there_is_named():
    wrong = changed(plain(), "sum C", after=("multiply D",))
    assert refusal(wrong) == "op 'sum C' is after 'multiply D', which is no op of its program"


@pytest.mark.parametrize(
    "changes",
    [{"layout": "NT"}, {"layout": "TN"}, {"a": "B whole", "b": "A"}],
)
def test_a_product_of_the_wrong_shape_is_named_with_its_operands(changes):
    said = refusal(changed(plain(), "multiply C", **changes))
    assert said.startswith("op 'multiply C':")
    assert "does not give" in said


def test_a_product_that_is_wrong_on_the_last_rank_only_is_found():
    """m = 4 over z = 3 gives 2, 1, 1: rows of A and of C agree on the first rank and not on the last."""
    schedule = matmul_schedule(Matmul(4, 5, 6), "3d", Grid(z=3, x=2))
    tensors = dict(schedule.tensors)
    tensors["A whole"] = replace(tensors["A whole"], rows=Part("m", ("x",)))
    said = refusal(replace(schedule, tensors=tensors))
    assert said.startswith("op 'gather A': A (m/z/x × k/y) is not A whole (m/x × k/y)")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shard_of": "dL0 W"}, "is a shard of 'dL0 W', which is not declared"),
        ({"dtype": "float32"}, "is no shard of"),
        ({"sharded_over": None}, "is no shard of"),
        ({"copies": (("step", 2),)}, "is no shard of"),
        ({"rows": Part("rows")}, "is no shard of"),
    ],
)
def test_a_tensor_stored_in_another_one_is_a_shard_of_it(changes, said):
    schedule = schedule_of(Mlp((8, 8, 8), rows=8, zero=1, dtype="bfloat16", gradient_bytes=2), Grid(data=2))
    tensor = replace(schedule.tensors["dL1 W"], **changes)
    assert said in refusal(replace(schedule, tensors={**schedule.tensors, "dL1 W": tensor}))


def test_a_sum_made_twice_is_refused():
    wrong = changed(plain(), "sum C", then=(AllReduce(name="sum C twice", axis="y", buffer="C"),))
    assert refusal(wrong).startswith("op 'sum C twice': all_reduce of 'C' over y, over which it is no partial sum")


def test_a_sum_over_an_axis_that_repeats_is_refused():
    assert "over x, over which it is no partial sum" in refusal(changed(plain(), "sum C", axis="x"))


@pytest.mark.parametrize(
    ("name", "left"), [("sum C", "C is never summed over y"), ("sum dA", "dA is never summed over x")]
)
def test_a_sum_never_made_is_refused(name, left):
    assert refusal(changed(plain(), name, gone=True)) == f"schedule 4d: {left}"


def test_a_bucket_sums_each_of_its_buffers_and_only_buffers_of_one_dtype():
    schedule = bucket(3)
    assert refusal(changed(schedule, "sum both", more=())) == "schedule bucket: AV is never summed over y"
    halves = {"AU": "float16", "AV": "bfloat16"}
    mixed = {name: replace(one, dtype=halves.get(name)) for name, one in schedule.tensors.items()}
    for wrong in (replace(schedule, tensors=mixed), changed(schedule, "sum both", more=("AU",))):
        assert "together: buffers of one dtype are accepted, each once" in refusal(wrong)


def test_the_sum_over_data_is_asked_for_as_well():
    assert "dB is never summed over data" in refusal(changed(plain(), "sum dB", gone=True))


def test_a_sum_in_a_group_of_one_may_be_left_out():
    validate(changed(plain(grid=Grid(z=2, y=3)), "sum dA", gone=True))


def test_the_sum_over_the_layers_of_2_5d_is_asked_for():
    schedule = plain("forward", "2.5d", Grid(z=2, y=2, x=2))
    copied = Pointwise(name="copy C", function="copy", into="C", sources=("C layer",))
    wrong = changed(schedule, "sum C", then=(copied,), axis="data")
    assert "op 'sum C'" in refusal(replace(wrong, grid=Grid(data=2, z=2, y=2, x=2)))
    assert refusal(wrong).startswith("op 'sum C': C layer (m/z × n/x)")
    copied = Pointwise(name="copy C", function="copy", into="C", sources=("C layer",))
    without = changed(plain("forward", "2.5d", Grid(z=2, y=2, x=2)), "sum C", gone=True)
    whole = replace(without.tensors["C"], held_at=None)
    program = (*without.roles[0].program, copied)
    unsummed = replace(without, tensors={**without.tensors, "C": whole}, roles=(Role(program),))
    assert refusal(unsummed) == "schedule 2.5d: C is never summed over y"


def test_an_output_that_nobody_writes_is_named():
    wrong = changed(plain("forward"), "multiply C", gone=True)
    assert refusal(changed(wrong, "sum C", gone=True)) == "schedule 4d: output 'C' is written by no op"


def test_each_role_is_checked():
    schedule = custom(pipeline, 4)[0]
    for name in ("first", "middle", "last"):
        assert refusal(changed(schedule, name, b="X")) == f"op {name!r}: tensor 'X' is not declared"
        assert refusal(changed(schedule, name, layout="TN")).startswith(f"op {name!r}: TN of")


def test_a_role_that_no_rank_plays_needs_no_shapes():
    schedule = custom(pipeline, 2)[0]
    assert any("middle" in [op.name for op in ops(role.program)] for role in schedule.roles)
    validate(changed(schedule, "middle", layout="TN"))


def test_what_is_received_counts_as_written():
    schedule = custom(pipeline, 3)[0]
    program = tuple(op for op in ops(schedule.roles[1].program) if not isinstance(op, Receive))
    wrong = replace(schedule, roles=(Role(program, "x", 2),))
    assert refusal(wrong) == "op 'last' reads 'in', which nothing has written before"


def test_the_gemm_of_a_panel_is_looked_at_inside_its_loop():
    said = refusal(changed(plain("forward", "summa", Grid(z=2, x=3)), "multiply C", layout="NT"))
    assert said.startswith("op 'multiply C': NT of A panel (m/z × k[p])")
    assert isinstance(next(op for op in ops(plain().roles[0].program) if op.name == "multiply C"), Gemm)


def one_op(op, *tensors, grid=GRID, inputs=("A",), outputs=(), **sizes):
    """A schedule of a single op."""
    return Schedule("one", sizes, grid, "float64", declare(*tensors), inputs, outputs, (Role((op,)),))


GRID_4 = Grid(z=2, x=2)
M, K, N = Part("m"), Part("k"), Part("n")


def test_an_axis_swapped_on_a_square_grid_is_found_on_the_ranks_in_between():
    tensors = Tensor("A", M, Part("k", ("x",))), Tensor("B", Part("k", ("z",)), N), Tensor("C", M, N)
    op = Gemm(name="multiply", a="A", b="B", c="C")
    wrong = one_op(op, *tensors, grid=GRID_4, inputs=("A", "B"), outputs=("C",), m=4, k=6, n=4)
    assert refusal(wrong).startswith("op 'multiply': NN of A (m × k/x) and B (k/z × n) does not give C")


@pytest.mark.parametrize(
    ("op", "into", "said"),
    [
        (Pointwise(name="copy", function="copy", into="C", sources=("A",)), (K, M), "differ in size"),
        (Pointwise(name="add", function="add", into="C", sources=("A",)), (M, K), "add takes 2 sources, not 1"),
        (Broadcast(name="send", axis="x", root=5, source="A", into="C"), (M, K), "root 5 is not among the 2"),
        (Broadcast(name="send", axis="x", root=1, source="A", into="C"), (M, N), "is no region of"),
        (Shift(name="turn", axis="x", distance=1, source="A", into="C"), (M, N), "does not fill"),
    ],
)
def test_tensors_that_do_not_fit_their_op_are_named(op, into, said):
    wrong = one_op(op, Tensor("A", M, K), Tensor("C", *into), grid=GRID_4, outputs=("C",), m=3, k=5, n=7)
    assert refusal(wrong).startswith(f"op {op.name!r}") and said in refusal(wrong)
