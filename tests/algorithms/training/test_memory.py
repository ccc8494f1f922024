"""Memory by kind against the table of ZeRO, and of a run that goes on from a checkpoint."""

from dataclasses import replace

import pytest

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.gpt import Gpt, gpt_schedule
from quadrille.algorithms.training.memory import memory_bytes_by_kind
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.algorithms.training.resume import resume_schedule
from quadrille.algorithms.training.scheme_4d import Scheme4D

SHARDS = 4
PROBLEM = Gpt(layers=3, hidden=32, heads=4, sequence=8, vocabulary=64, batch=8)
PARAMETERS = ModelShape("small", 3, 32, 4, 8, 64).parameters


def kinds_of(problem, begin=None):
    schedule = gpt_schedule(problem, Grid(data=SHARDS), Scheme4D())
    if begin is not None:
        schedule = resume_schedule(schedule, begin)
    return memory_bytes_by_kind(schedule, schedule.coordinates(0), Choices())


@pytest.mark.parametrize(
    ("dtype", "zero", "parameters", "optimizer"),
    [
        ("bfloat16", 0, 2, 12),
        ("bfloat16", 1, 2, 12 / SHARDS),
        ("bfloat16", 2, 2, 12 / SHARDS),
        ("bfloat16", 3, 2 / SHARDS, 12 / SHARDS),
        ("float32", 0, 4, 8),
        ("float32", 1, 4, 8 / SHARDS),  # the optimizer's shard of the weights is stored inside the weights
        ("float32", 3, 4 / SHARDS, 8 / SHARDS),
    ],
)
def test_states_are_those_of_the_table(dtype, zero, parameters, optimizer):
    kinds = kinds_of(replace(PROBLEM, dtype=dtype, zero=zero))
    assert kinds["parameters"] == parameters * PARAMETERS
    assert kinds["optimizer"] == optimizer * PARAMETERS


def test_what_zero_3_gathers_is_gathered_weights():
    """The table, the positions, the last norm, and the weights of one layer, all whole."""
    layer = 12 * 32 * 32 + 13 * 32
    assert kinds_of(replace(PROBLEM, zero=3))["gathered weights"] == 4 * (64 * 32 + 8 * 32 + 2 * 32 + layer)
    assert kinds_of(replace(PROBLEM, zero=2))["gathered weights"] == 0


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_a_run_that_goes_on_keeps_what_one_from_the_start_keeps(zero):
    problem = replace(PROBLEM, zero=zero)
    assert kinds_of(problem, begin=5) == kinds_of(problem)
