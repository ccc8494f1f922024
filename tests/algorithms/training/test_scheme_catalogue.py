"""Every scheme trains as the serial reference does, moves the bytes that its paper says, and redistributes nothing."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from quadrille.algorithms.analysis.storage import is_view
from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllGather, AllReduce, Gemm, ReduceScatter
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.algorithms.training.scheme_mesh import SchemeMesh
from tests.support.trainings import assembled, check_training, schedule_of, trained, whole_matrices

WIDTHS, ROWS = (7, 11, 5, 13), 17
GRIDS = {
    "4d": [Grid(data=2, y=2, x=3)],
    "megatron": [Grid(x=5), Grid(data=2, x=3)],
    "optimus": [Grid(z=3), Grid(z=3, x=2), Grid(data=2, z=2, x=3)],
    "tesseract": [Grid(y=3), Grid(z=3, y=2, x=2), Grid(data=2, y=2, x=3)],
    "bian": [
        *(Grid(z=3), Grid(y=2, x=3), Grid(y=3, x=2)),
        *(Grid(data=2, z=2, y=2, x=2), Grid(z=3, y=2, x=2, order=("z", "x", "y"))),
    ],
}
CASES = [(name, grid) for name, grids in GRIDS.items() for grid in grids]


def names(case):
    return case if isinstance(case, str) else str(case)


@pytest.mark.parametrize(("name", "grid"), CASES, ids=names)
def test_a_stack_of_layers_trains_as_the_reference_does(name, grid):
    problem = Mlp(WIDTHS, ROWS, dtype="float64", steps=2, adam=Adam(rate=0.01, decay=0.1, clip=0.3))
    check_training(problem, grid, find_scheme(name))


@pytest.mark.parametrize("grid", [Grid(x=3), Grid(data=2, x=2)], ids=str)
def test_scattered_rows_train_a_stack_too(grid):
    problem = Mlp(WIDTHS, ROWS, dtype="float64", steps=2, adam=Adam(rate=0.01, decay=0.1, clip=0.3))
    check_training(problem, grid, find_scheme("megatron", sequence_parallel=True))


@pytest.mark.parametrize(("name", "grid"), CASES, ids=names)
def test_a_transformer_trains_as_the_reference_does(name, grid):
    heads = 30 if 5 in grid.lengths.values() else 6
    problem = Gpt(2, 2 * heads, heads, 3, 19, 13, dtype="float64", adam=Adam(rate=0.01, clip=0.3))
    check_training(problem, grid, find_scheme(name))


@pytest.mark.parametrize(
    ("name", "grids"), list(GRIDS.items()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_transformer_trains_with_the_librarys_collectives_too(name, grids):
    problem = Gpt(1, 12, 6, 3, 19, 13, dtype="float64", adam=Adam(clip=0.3))
    check_training(problem, grids[-1], find_scheme(name), "library")


@pytest.mark.parametrize(
    "options",
    [{"micro_batch": 4, "zero": 1}, {"recompute": "full", "zero": 2}, {"gathered": "keep", "zero": 3}],
    ids=str,
)
@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("megatron", Grid(data=2, x=3)),
        ("optimus", Grid(data=2, z=2, x=2)),
        ("tesseract", Grid(data=2, y=2, x=2)),
        ("bian", Grid(data=2, y=2, x=2)),
    ],
    ids=names,
)
def test_schemes_go_together_with_what_else_a_step_may_be(name, grid, options):
    problem = Gpt(2, 12, 6, 3, 19, 16, dtype="float64", adam=Adam(clip=0.3), **options)
    check_training(problem, grid, find_scheme(name))


@pytest.mark.parametrize("name", ["megatron", "optimus", "tesseract", "bian"])
def test_every_scheme_fits_inside_the_stages_of_a_pipeline(name):
    grid = Grid(pipeline=2, x=2) if name == "megatron" else Grid(pipeline=2, z=2, x=2)
    problem = Gpt(3, 12, 6, 3, 19, 6 * grid.z, dtype="float64", micro_batch=2, adam=Adam(clip=0.3))
    check_training(problem, grid, find_scheme(name))


# Bytes on the wire, summed over all ranks, against the formulas of the papers: words of one float64 each.

MODEL = Gpt(3, 48, 12, 4, 36, 36, dtype="float64")
LINEARS = {"QKV": (1, 3), "project": (1, 1), "up": (1, 4), "down": (4, 1)}
"""Inputs and outputs of each product of a layer, in hidden sizes."""


def words(problem, grid, scheme):
    """Words that all ranks together send, by op."""
    schedule = schedule_of(problem, grid, scheme)
    return {name: volume.sent_total / 8 for name, volume in volumes(schedule, Choices()).by_op.items()}


def of_linears(sent, *verbs):
    """Words of the ops of products that do one of these things."""
    return sum(sent.get(f"{linear} {verb}", 0) for linear in LINEARS for verb in verbs)


@pytest.mark.parametrize("grid", [Grid(x=3), Grid(data=2, x=4), Grid(data=3, x=2)], ids=str)
@pytest.mark.parametrize("problem", [MODEL, Mlp((24, 48, 12), 36)], ids=["gpt", "mlp"])
def test_megatron_is_the_4d_algorithm_on_x_alone(problem, grid):
    megatron, general = find_scheme("megatron"), find_scheme("4d")
    assert volumes(schedule_of(problem, grid, megatron), Choices()) == volumes(
        schedule_of(problem, grid, general), Choices()
    )
    assert sum(words(problem, grid, megatron).values()) > 0


@pytest.mark.parametrize(
    ("scheme", "axes"),
    [
        ("4d", ["z", "data"]),
        ("megatron", ["data"]),
        ("optimus", ["data"]),
        ("tesseract", ["y", "data"]),
        ("bian", ["data"]),
    ],
)
def test_the_gradients_of_a_layer_s_vectors_are_summed_together_and_matrices_alone(scheme, axes):
    grid = Grid(x=2, data=2) if scheme == "megatron" else Grid(z=2, y=2, x=2, data=2)
    grid = replace(grid, y=1) if scheme in ("4d", "optimus") else grid
    schedule = schedule_of(MODEL, grid, find_scheme(scheme))
    sums = [op for op in all_ops(schedule) if isinstance(op, AllReduce) and op.name.startswith("sum dnorm1 γ")]
    vectors = ("norm1 γ", "norm1 β", "QKV b", "project b", "norm2 γ", "norm2 β", "up b", "down b")
    gradients = tuple(f"d{one}" for one in vectors)
    assert [(op.axis, op.buffers) for op in sums if grid.length(op.axis) > 1] == [(axis, gradients) for axis in axes]
    alone = {op.buffer for op in all_ops(schedule) if isinstance(op, AllReduce) and op.axis == "data" and not op.more}
    assert alone >= {"dQKV W", "dproject W", "dup W", "ddown W"}


@pytest.mark.parametrize("grid", [Grid(x=3), Grid(x=4, data=2)], ids=str)
def test_megatron_sums_four_activations_a_layer(grid):
    """Baselines: two all-reduces forward and two backward, each of batch · sequence · hidden words, 2 (t - 1) / t."""
    sent = words(MODEL, grid, find_scheme("megatron"))
    activation = MODEL.tokens * MODEL.hidden
    one = 2 * (grid.x - 1) * activation * MODEL.layers
    assert [sent[name] for name in ("project sum O", "down sum O", "QKV sum dI", "up sum dI")] == [one] * 4
    assert of_linears(sent, "sum O", "sum dI") == 4 * one
    assert of_linears(sent, "gather W", "gather W again", "scatter dW") == 0


def test_scattered_rows_send_forward_what_repeated_ones_do():
    """Baselines: an all-reduce is a reduce-scatter and an all-gather; backward, the inputs are gathered once more."""
    grid = Grid(x=4, data=3)
    repeated = words(MODEL, grid, find_scheme("megatron"))
    scattered = words(MODEL, grid, find_scheme("megatron", sequence_parallel=True))
    assert of_linears(scattered, "gather I", "scatter O") == of_linears(repeated, "sum O") > 0
    assert of_linears(scattered, "gather dO", "scatter dI") == of_linears(repeated, "sum dI") > 0
    assert of_linears(scattered, "gather I again") == of_linears(repeated, "sum O") / 2


@pytest.mark.parametrize("gathered", ["again", "keep"])
def test_sequence_parallelism_copies_nothing_along_an_axis_that_it_does_not_have(gathered):
    """A column-parallel product has no sum over ranks, so it writes its output where the output is stored."""
    problem = replace(MODEL, gathered=gathered)
    schedule = schedule_of(problem, Grid(x=3), find_scheme("megatron", sequence_parallel=True))
    alone = [op for op in all_ops(schedule) if isinstance(op, AllGather | ReduceScatter) and op.axis != "x"]
    copied = {op.name for op in alone if not is_view(schedule, op.into)}
    assert {"project gather I", "up gather dO"} <= {op.name for op in alone}
    assert not copied & {f"{linear} {verb}" for linear in LINEARS for verb in ("gather I", "scatter O", "gather dO")}
    assert {op.c for op in all_ops(schedule) if isinstance(op, Gemm)} >= {"QKV", "U"}


@pytest.mark.parametrize("grid", [Grid(z=2, x=2), Grid(z=3, x=3), Grid(z=4, x=2), Grid(z=2, x=3, data=3)], ids=str)
def test_optimus_moves_inputs_and_weights_three_times(grid):
    """Baselines: (q - 1) / q² of what moves, a rank; 7 b s h + 12 h² forward, twice that backward."""
    sent = words(MODEL, grid, find_scheme("optimus"))
    tokens, hidden, layers = MODEL.tokens, MODEL.hidden, MODEL.layers
    for linear, (inputs, outputs) in LINEARS.items():
        activation = (grid.x - 1) * tokens * inputs * hidden * layers
        weight = (grid.z - 1) * inputs * outputs * hidden * hidden * layers * grid.data
        assert sent[f"{linear} send I panel"] == sent[f"{linear} sum dI panel"] == activation
        assert sent[f"{linear} send I panel again"] == activation
        assert sent[f"{linear} send W panel"] == sent[f"{linear} sum dW panel"] == weight
        assert sent[f"{linear} send W panel again"] == weight
    forward = of_linears(sent, "send I panel", "send W panel")
    if grid.z == grid.x and grid.data == 1:
        assert forward == (grid.x - 1) * (7 * tokens * hidden + 12 * hidden**2) * layers
    backward = of_linears(sent, "send I panel again", "send W panel again", "sum dI panel", "sum dW panel")
    assert backward == 2 * forward


def test_tesseract_with_one_mesh_is_optimus():
    for problem in (MODEL, Mlp((24, 48, 12), 36)):
        one, other = (schedule_of(problem, Grid(z=2, x=3), find_scheme(name)) for name in ("optimus", "tesseract"))
        assert replace(one, name="") == replace(other, name="")


@pytest.mark.parametrize("depth", [2, 3])
def test_tesseract_divides_the_rows_and_sums_the_weights_gradients(depth):
    """Baselines: each of d meshes works on its m / d rows; gradients of weights are summed over the meshes."""
    flat = words(MODEL, Grid(z=2, x=2), find_scheme("tesseract"))
    deep = words(MODEL, Grid(z=2, x=2, y=depth), find_scheme("tesseract"))
    for linear, (inputs, outputs) in LINEARS.items():
        assert deep[f"{linear} send I panel"] == flat[f"{linear} send I panel"]
        assert deep[f"{linear} send W panel"] == depth * flat[f"{linear} send W panel"]
        weight = inputs * outputs * MODEL.hidden**2 * MODEL.layers
        assert deep[f"sum d{linear} W over y"] == 2 * (depth - 1) * weight


@pytest.mark.parametrize(("gathered", "again"), [("again", 1), ("keep", 0)])
@pytest.mark.parametrize("p", [2, 3])
def test_bian_gathers_and_scatters_each_matrix_along_its_own_axis(p, gathered, again):
    """Baselines: (p - 1) / p³ (mk + kn + mn) a rank and product, forward; as much backward if gathered ones are kept.

    Gathered again, I and W add to it; the gradient of O is gathered once for both of its products.
    """
    problem = replace(MODEL, gathered=gathered)
    sent = words(problem, Grid(z=p, y=p, x=p), find_scheme("bian"))
    tokens, hidden, layers = MODEL.tokens, MODEL.hidden, MODEL.layers
    for linear, (inputs, outputs) in LINEARS.items():
        mk, mn = tokens * inputs * hidden, tokens * outputs * hidden
        kn = inputs * outputs * hidden**2
        forward = [sent[f"{linear} {verb}"] for verb in ("gather I", "gather W", "scatter O")]
        assert forward == [(p - 1) * layers * one for one in (mk, kn, mn)]
        backward = [sent[f"{linear} {verb}"] for verb in ("gather dO", "scatter dI", "scatter dW")]
        assert backward == [(p - 1) * layers * one for one in (mn, mk, kn)]
        gathers = [sent.get(f"{linear} {verb}", 0) for verb in ("gather I again", "gather W again")]
        assert gathers == [(p - 1) * layers * again * one for one in (mk, kn)]
    assert of_linears(sent, "gather I", "gather W", "scatter O") == (
        (p - 1) * (16 * tokens * hidden + 12 * hidden**2) * layers
    )


# Vectors where the papers store them.


def holders(schedule, name):
    """Ranks that hold some of a tensor, and its elements on all of them."""
    blocks = {rank: schedule.tensors[name].block(schedule.coordinates(rank)) for rank in range(schedule.grid.size)}
    return {rank for rank, block in blocks.items() if block.elements}, sum(block.elements for block in blocks.values())


@pytest.mark.parametrize(("p", "name"), [(2, "QKV b"), (3, "QKV b"), (2, "norm1 γ"), (3, "norm1 γ")])
def test_bians_vectors_are_stored_once_on_a_diagonal(p, name):
    schedule = schedule_of(MODEL, Grid(z=p, y=p, x=p), find_scheme("bian"))
    diagonal = {
        rank
        for rank in range(p**3)
        if (schedule.coordinates(rank).along["x"] + schedule.coordinates(rank).along["y"]) % p == 0
    }
    length = (3 if name == "QKV b" else 1) * MODEL.hidden
    assert holders(schedule, name) == (diagonal, length)
    assert holders(schedule, f"d{name}") == (diagonal, length)
    assert len(diagonal) == p**2


@pytest.mark.parametrize("grid", [Grid(y=2, x=3, z=2), Grid(y=3, x=2), Grid(y=4, x=1)], ids=str)
def test_where_its_axes_differ_the_diagonal_wraps_around(grid):
    schedule = schedule_of(MODEL, grid, find_scheme("bian"))
    for name, length in (("QKV b", 3 * MODEL.hidden), ("norm2 β", MODEL.hidden), ("down b", MODEL.hidden)):
        assert holders(schedule, name)[1] == length


def test_bian_moves_a_vector_down_the_diagonals_columns_and_gathers_it_over_z():
    """Baselines: pieces of n / p² are broadcast, then gathered to n / p; backward the other way around."""
    p, n, layers = 3, 3 * MODEL.hidden, MODEL.layers
    sent = words(MODEL, Grid(z=p, y=p, x=p), find_scheme("bian"))
    assert sent["send QKV b"] == sent["collect dQKV b"] == (p - 1) * n * layers
    assert sent["gather QKV b"] == sent["scatter dQKV b"] == p * (p - 1) * n * layers


def test_optimus_keeps_vectors_on_the_meshs_first_row():
    schedule = schedule_of(MODEL, Grid(z=2, x=3), find_scheme("optimus"))
    first_row = {rank for rank in range(6) if schedule.coordinates(rank).along["z"] == 0}
    assert holders(schedule, "up b") == (first_row, 4 * MODEL.hidden)
    assert holders(schedule, "norm1 γ") == (first_row, MODEL.hidden)


def test_all_a_mesh_or_a_cube_holds_is_held_once():
    """No weight, position or vector is repeated inside the mesh, or the cube: balanced storage."""
    for name, grid in (("optimus", Grid(z=2, x=3)), ("bian", Grid(z=2, y=2, x=2)), ("bian", Grid(z=3, y=3, x=3))):
        schedule = schedule_of(MODEL, grid, find_scheme(name))
        assert {"table", "positions", "up W", "up b"} <= set(schedule.state)
        for state in schedule.state:
            tensor = schedule.tensors[state]
            whole = prod(schedule.sizes[part.dimension] * part.unit for part in (tensor.rows, tensor.columns))
            assert holders(schedule, state)[1] == whole, state


# Panels sent ahead.

TINY = Gpt(2, 12, 6, 3, 19, 13, dtype="float32", adam=Adam(clip=0.3))


WIDEST = 1 << 62
EACH = [("oag",), ("oar",), ("ors",), ("oar", "ors", "oag")]


@pytest.mark.parametrize(
    ("grid", "problem", "panel", "sets"),
    [
        (Grid(z=2, x=3), TINY, 5, [("oag",), ("oar", "ors", "oag")]),
        *((grid, TINY, WIDEST, EACH[-1:]) for grid in (Grid(y=2, x=3), Grid(x=2), Grid(z=2))),
        (Grid(z=2, x=3), Mlp(WIDTHS, ROWS), 2, EACH),
        (Grid(data=2, z=2, y=2, x=2), Mlp(WIDTHS, ROWS), 2, EACH[-1:]),
    ],
    ids=lambda value: str(value) if isinstance(value, Grid | int) else type(value).__name__.lower(),
)
def test_a_second_buffer_changes_no_bit(grid, problem, panel, sets):
    plain = schedule_of(problem, grid, SchemeMesh("tesseract", ("data", "z", "y", "x"), panel))
    matrices = whole_matrices(plain, 19)
    expected = trained(plain, matrices)
    for names in sets:
        ahead = validate(overlap(plain, names))
        found = trained(ahead, matrices)
        assert "loss" in plain.outputs
        for name in plain.outputs:
            one, other = (assembled(plain, name, execution.outputs) for execution in (expected, found))
            assert one.keys() == other.keys()
            assert all(np.array_equal(one[copy], other[copy]) for copy in one), (names, name)
        assert found.bytes_sent == expected.bytes_sent, names
        predicted = volumes(ahead, Choices())
        assert sum(found.bytes_sent.values()) == predicted.sent_total, names
        assert max(found.allocated_bytes.values()) == predicted.peak_bytes_per_rank_max, names


def test_the_next_panel_is_sent_before_this_one_is_multiplied():
    plain = schedule_of(Mlp((6, 9), 8), Grid(z=3, x=3), find_scheme("optimus"))
    ahead = overlap(plain, ("oag",))
    place = ahead.coordinates(0)
    order = [
        (op.name, moment.indices["L1 panel"])
        for op, moment in walk(ahead.program(place), place)
        if op.name in ("L1 send I panel", "L1 multiply")
    ]
    send, multiply = "L1 send I panel", "L1 multiply"
    assert order == [(send, 0), (send, 1), (multiply, 0), (send, 2), (multiply, 1), (multiply, 2)]
    panels = [ahead.tensors[name].copies for name in ("L1 I panel", "L1 W panel", "L1 dW panel")]
    assert panels == [(("L1 panel", 2),), (("L1 panel", 2),), ()]


# What is refused.


@pytest.mark.parametrize(
    ("name", "grid", "message"),
    [
        (
            "megatron",
            Grid(z=2, x=2),
            "scheme megatron has no axis z, which grid z=2,x=2 makes 2 long: accepted are data, context, x",
        ),
        (
            "megatron",
            Grid(y=3),
            "scheme megatron has no axis y, which grid y=3 makes 3 long: accepted are data, context, x",
        ),
        (
            "optimus",
            Grid(y=2, x=2),
            "scheme optimus has no axis y, which grid y=2,x=2 makes 2 long: accepted are data, z",
        ),
    ],
)
def test_an_axis_that_the_scheme_does_not_have_is_refused(name, grid, message):
    with pytest.raises(InputError) as refused:
        find_scheme(name).check(grid)
    assert str(refused.value).startswith(message)
    find_scheme("tesseract").check(grid)
    find_scheme("bian").check(grid)


def test_a_scheme_that_is_not_there_is_refused_by_name():
    with pytest.raises(InputError, match="scheme '3d': accepted are 4d, megatron, optimus, tesseract, bian"):
        find_scheme("3d")


@pytest.mark.parametrize("name", ["4d", "optimus", "tesseract", "bian"])
def test_rows_are_scattered_by_megatron_only(name):
    with pytest.raises(InputError, match=f"--sequence-parallel with scheme {name}: it is accepted with megatron"):
        find_scheme(name, sequence_parallel=True)
