"""Conversions between layouts: they carry every element over, and between the layers of any scheme there are none."""

from dataclasses import dataclass, replace
from itertools import pairwise, permutations

import numpy as np
import pytest

from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllGather, Broadcast, Gemm, Reduce, ReduceScatter
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import in_sequence
from quadrille.algorithms.schedule.schedule import Role, Schedule, all_ops, declare
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.mlp import Mlp, mlp_schedule
from quadrille.algorithms.training.scheme import Layout, Scheme
from quadrille.algorithms.training.scheme_catalogue import SCHEMES, SEQUENCE_PARALLEL
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from tests.support.resharding import reshard
from tests.support.trainings import assembled

LAYOUTS = {
    "4d stream": Layout(("data", "z"), "y"),
    "4d inner": Layout(("data", "z"), "x"),
    "rows scattered": Layout(("data", "z"), "y", finer=("x",)),
    "rows scattered twice": Layout(("data", "z"), "x", finer=("y",)),
    "bian stream": Layout(("data", "z", "x"), "y"),
    "bian inner": Layout(("data", "z", "y"), "x"),
    "mesh": Layout(("data", "y", "z"), "x"),
    "upright mesh": Layout(("data",), "z"),
}
SIZES = {"sequences": 13, "columns": 11}
ROWS, COLUMNS = Part("sequences", unit=3), Part("columns")


def converting(before, after, grid):
    found = reshard("X", "Y", ROWS, COLUMNS, before, after)
    tensors = declare(before.tensor("X", ROWS, COLUMNS), *found.tensors)
    role = Role(in_sequence(found.program))
    return validate(Schedule("conversion", SIZES, grid, "float64", tensors, ("X",), ("Y",), (role,)))


@pytest.mark.parametrize(("before", "after"), list(permutations(LAYOUTS, 2)))
def test_a_conversion_carries_every_element_over(before, after):
    matrix = np.arange(39.0 * 11).reshape(39, 11)
    for grid in (Grid(z=2, y=3, x=2), Grid(data=2, y=2, x=3), Grid(x=4)):
        schedule = converting(LAYOUTS[before], LAYOUTS[after], grid)
        execution = execute(schedule, {"X": matrix}, InProcess(grid.size))
        np.testing.assert_array_equal(assembled(schedule, "Y", execution.outputs)["Y"], matrix, err_msg=str(grid))
        assert sum(execution.bytes_sent.values()) == volumes(schedule, Choices()).sent_total, grid


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_layout_is_converted_to_itself_by_nothing(layout):
    found = reshard("X", "Y", ROWS, COLUMNS, LAYOUTS[layout], LAYOUTS[layout])
    assert (found.tensors, found.program) == ((), ())


# Between the products of a schedule

EVERY_SCHEME = [*SCHEMES.values(), *SEQUENCE_PARALLEL.values()]
STACK, MODEL = Mlp((8, 16, 8, 4, 2), 8), Gpt(2, 16, 4, 4, 8, 8)
OF_A_STACK = [
    *((f"L{one} multiply", (f"Z{one}", f"H{one}"), f"L{one + 1} multiply") for one in (1, 2, 3)),
    *((f"L{one + 1} multiply dI", (f"dH{one}", f"dZ{one}"), f"L{one} multiply dI") for one in (3, 2)),
]
"""A product, the activations after it, and the product that takes the last of them."""
OF_A_LAYER = [
    ("QKV multiply", ("QKV", "A"), "project multiply"),
    ("project multiply", ("D", "X2", "N2"), "up multiply"),
    ("up multiply", ("U", "G"), "down multiply"),
    ("down multiply", ("E", "X", "N1"), "QKV multiply"),  # of the next layer
    ("down multiply dI", ("dG", "dU"), "up multiply dI"),
    ("up multiply dI", ("dN2", "dbranch", "dX"), "project multiply dI"),
    ("project multiply dI", ("dA", "dQKV"), "QKV multiply dI"),
    ("QKV multiply dI", ("dN1", "dbranch", "dX"), "down multiply dI"),  # of the layer before
]


@dataclass(frozen=True)
class Sides:
    """A product's activation and its result, by name, and the layouts that it takes the one and leaves the other in."""

    source: str
    needed: Layout
    result: str
    left: Layout


def sides_of(schedule, product):
    """The sides of a product, read off its operands.

    The columns of its activation are cut as the dimension of the weight over which is summed, or where they
    come in panels over the axis that these go along; its rows as those of the result, and on over the axis
    over which they are gathered.  The other way around for its result.
    """
    gemm = the_op(schedule, Gemm, name=product)
    weight, used, partial = (schedule.tensors[name] for name in (gemm.b, gemm.a, gemm.c))
    summed, made = (weight.columns, weight.rows) if gemm.layout == "NT" else (weight.rows, weight.columns)
    fetch = the_op(schedule, AllGather | Broadcast, into=gemm.a)
    give = the_op(schedule, ReduceScatter | Reduce, source=gemm.c)
    source, result = fetch.source if fetch else gemm.a, give.into if give else gemm.c
    needed = Layout(partial.rows.axes, axis_of(summed, fetch, Broadcast), partial.rows.finer)
    left = Layout(used.rows.axes, axis_of(made, give, Reduce), used.rows.finer)
    if isinstance(fetch, AllGather):
        needed = scattered(needed, fetch.axis, schedule.tensors[source])
    if isinstance(give, ReduceScatter):
        left = scattered(left, give.axis, schedule.tensors[result])
    return Sides(source, needed, result, left)


def the_op(schedule, kinds, **operands):
    """The first op of these kinds with these operands, or None."""
    return next(
        (
            op
            for op in all_ops(schedule)
            if isinstance(op, kinds) and all(getattr(op, name) == value for name, value in operands.items())
        ),
        None,
    )


def axis_of(part, moved, by_panels):
    """The axis that cuts a dimension of columns."""
    if isinstance(moved, by_panels):
        return moved.axis
    (axis,) = part.axes
    return axis


def scattered(layout, axis, tensor):
    """The layout with rows cut over one more axis, through units if the tensor has it so."""
    if axis in tensor.rows.finer:
        return replace(layout, finer=(*layout.finer, axis))
    return replace(layout, rows=(*layout.rows, axis))


def on_axes(layout, axes):
    """The layout whose rows are scattered over these axes only."""
    return replace(layout, finer=tuple(axis for axis in layout.finer if axis in axes))


def redistributed(schedule, scheme, one, passed, following):
    """Ops that would carry an activation from what a product leaves, through `passed`, to what the next one needs.

    Rows that are scattered over an axis that the scheme does not have are whole: the axis is one rank long.
    """
    before, after = sides_of(schedule, one), sides_of(schedule, following)
    assert (before.result, after.source) == (passed[0], passed[-1])
    tensors = (schedule.tensors[name] for name in passed)
    written = [Layout(one.rows.axes, axis_of(one.columns, None, Reduce), one.rows.finer) for one in tensors]
    way = pairwise([on_axes(layout, scheme.axes) for layout in (before.left, *written, after.needed)])
    return [op.name for one, other in way for op in reshard("O", "I", ROWS, COLUMNS, one, other).program]


@pytest.mark.parametrize("scheme", EVERY_SCHEME, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize(("one", "passed", "following"), OF_A_STACK)
def test_nothing_is_redistributed_between_the_layers_of_a_stack(scheme, one, passed, following):
    assert redistributed(mlp_schedule(STACK, Grid(), scheme), scheme, one, passed, following) == []


@pytest.mark.parametrize("scheme", EVERY_SCHEME, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize(("one", "passed", "following"), OF_A_LAYER)
def test_nothing_is_redistributed_in_a_transformer_layer_or_between_two(scheme, one, passed, following):
    assert redistributed(gpt_schedule(MODEL, Grid(), scheme), scheme, one, passed, following) == []


@dataclass(frozen=True)
class Straight:
    """A wrong scheme: its products are all normal, whatever orientation is asked for."""

    scheme: Scheme

    def __getattr__(self, name):
        return getattr(self.scheme, name)

    def on_context(self, ranks):
        return Straight(self.scheme.on_context(ranks))

    def linear(self, linear):
        return self.scheme.linear(replace(linear, orientation="normal"))


TURNING = [scheme for scheme in EVERY_SCHEME if scheme.stream != scheme.inner]


@pytest.mark.parametrize("scheme", TURNING, ids=lambda scheme: scheme.name)
def test_a_scheme_whose_products_do_not_alternate_would_redistribute_after_each(scheme):
    straight = Straight(scheme)
    stack, model = mlp_schedule(STACK, Grid(), straight), gpt_schedule(MODEL, Grid(), straight)
    assert all(redistributed(stack, scheme, *between) for between in OF_A_STACK)
    assert all(redistributed(model, scheme, *between) for between in OF_A_LAYER)


@pytest.mark.parametrize("scheme", EVERY_SCHEME, ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("name", ["H2", "dH2"])
def test_one_activation_that_lies_otherwise_would_be_redistributed(scheme, name):
    schedule = mlp_schedule(STACK, Grid(), scheme)
    tensor = schedule.tensors[name]
    for wrong in (
        replace(tensor, rows=replace(tensor.rows, axes=tensor.rows.axes[::-1])),
        replace(tensor, columns=replace(tensor.columns, axes=("data",))),
    ):
        changed = replace(schedule, tensors=schedule.tensors | {name: wrong})
        (between,) = [one for one in OF_A_STACK if name in one[1]]
        assert redistributed(changed, scheme, *between)


def test_the_4d_layouts_would_have_to_be_exchanged_without_transposed_layers():
    scheme = SCHEMES["4d"]
    wanted = reshard("O", "I", ROWS, COLUMNS, scheme.inner, scheme.stream)
    assert [op.name for op in wanted.program] == ["exchange O over x", "gather O over x", "zero I", "cut I"]
