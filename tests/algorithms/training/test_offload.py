"""Tests of the optimizer state in host memory: equal results, buckets, memory, order of copies, bad input."""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.adam import Adam, is_moment
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.offload import Offload
from tests.support.trainings import assembled, schedule_of, trained, whole_matrices

ADAM = Adam(rate=0.03, decay=0.1, clip=0.05)
SIZE = {"layers": 2, "hidden": 6, "heads": 3, "sequence": 3, "vocabulary": 11, "batch": 12, "steps": 2, "adam": ADAM}


def gpt(**given):
    return Gpt(**SIZE | {"dtype": "float32"} | given)


def mlp(**given):
    return Mlp((7, 11, 5, 13), **{"rows": 12, "dtype": "float32", "steps": 2, "adam": ADAM} | given)


CASES = [
    (Grid(), {}),
    (Grid(data=2), {}),
    (Grid(data=2), {"zero": 1}),
    (Grid(data=2), {"zero": 2, "micro_batch": 1}),
    (Grid(data=3), {"zero": 3}),
    (Grid(data=2, z=2), {"zero": 1, "micro_batch": 1}),
    (Grid(z=2, x=3), {}),
    (Grid(pipeline=2, data=2), {"zero": 1, "micro_batch": 2}),
    (Grid(data=2), {"adam": replace(ADAM, clip=0.0)}),
]
"""A grid, and options of the problem."""


def name_of(value):
    return str(value) if isinstance(value, Grid) else None


@pytest.mark.parametrize("bucket", [0, 31, 16], ids="bucket {}".format)
@pytest.mark.parametrize(("grid", "options"), CASES, ids=name_of)
@pytest.mark.parametrize("problem", [gpt, mlp])
def test_a_step_with_state_on_the_host_equals_one_without_bit_for_bit(problem, grid, options, bucket):
    plain = schedule_of(problem(**options), grid)
    offloaded = schedule_of(problem(**options, offload=Offload(bucket)), grid)
    matrices = whole_matrices(plain, SIZE["vocabulary"]) | moments_of_zero(offloaded)
    expected, execution = trained(plain, matrices), trained(offloaded, matrices)
    for name in plain.outputs:
        before, after = (
            assembled(schedule, name, run.outputs) for schedule, run in ((plain, expected), (offloaded, execution))
        )
        assert before.keys() == after.keys()
        for copy, matrix in before.items():
            np.testing.assert_array_equal(after[copy], matrix, err_msg=copy)
    assert sum(execution.bytes_sent.values()) == sum(expected.bytes_sent.values())


def moments_of_zero(schedule):
    """Moments of zero for all parameters of the state."""
    drawn = whole_matrices(schedule, SIZE["vocabulary"])
    return {name: np.zeros_like(matrix) for name, matrix in drawn.items() if is_moment(name)}
