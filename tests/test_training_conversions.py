"""Conversions between layouts: they carry every element over, and between the layers of any scheme there are none."""

from itertools import permutations

import numpy as np
import pytest

from algorithms.collectives.choices import Choices
from algorithms.costs.volumes import volumes
from algorithms.grid import Grid
from algorithms.parts import Part
from algorithms.schedule import Role, Schedule, declare, in_sequence
from algorithms.training.conversions import conversion
from algorithms.training.mlp import Mlp, layout_of, orientation
from algorithms.training.scheme import Layout, sides
from algorithms.training.schemes import SCHEMES, SEQUENCE_PARALLEL
from algorithms.validate import validate
from runtime.execute import execute
from runtime.in_process import InProcess
from tests.trainings import assembled

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
ROWS, COLUMNS = Part("sequences", each=3), Part("columns")


def converting(before, after, grid):
    found = conversion("X", "Y", ROWS, COLUMNS, before, after)
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
    found = conversion("X", "Y", ROWS, COLUMNS, LAYOUTS[layout], LAYOUTS[layout])
    assert (found.tensors, found.program) == ((), ())


@pytest.mark.parametrize("scheme", [*SCHEMES.values(), *SEQUENCE_PARALLEL.values()], ids=lambda scheme: scheme.name)
def test_nothing_is_redistributed_between_the_layers_of_a_stack(scheme):
    layers = Mlp((8, 16, 8, 4, 2), 8).layers
    for layer in range(1, layers):
        after_one, before_next = sides(scheme, orientation(layer - 1))[1], sides(scheme, orientation(layer))[0]
        assert conversion("O", "I", ROWS, COLUMNS, after_one, before_next).program == ()
        assert layout_of(scheme, layer) == before_next


@pytest.mark.parametrize("scheme", [*SCHEMES.values(), *SEQUENCE_PARALLEL.values()], ids=lambda scheme: scheme.name)
def test_nothing_is_redistributed_in_a_transformer_layer_or_between_two(scheme):
    orientations = ["normal", "transposed", "normal", "transposed"]  # QKV, project, up, down
    for one, following in zip(orientations, [*orientations[1:], orientations[0]], strict=True):
        after_one, before_next = sides(scheme, one)[1], sides(scheme, following)[0]
        assert conversion("O", "I", ROWS, COLUMNS, after_one, before_next).program == ()


def test_the_4d_layouts_would_have_to_be_exchanged_without_transposed_layers():
    scheme = SCHEMES["4d"]
    wanted = conversion("O", "I", ROWS, COLUMNS, scheme.inner, scheme.stream)
    assert [op.name for op in wanted.program] == ["exchange O over x", "gather O over x", "zero I", "cut I"]
