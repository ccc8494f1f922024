"""Predictions of pruned training steps: folded as unfolded, even shards within their bound, kernels by their bytes."""

import json

import pytest

from quadrille.algorithms.analysis.volumes import kernel_work
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import Kernel
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.mlp import Mlp
from quadrille.simulator.symmetry.even_shards import even_bound
from tests.support.quadrille import called
from tests.support.trainings import schedule_of

MODEL = "layers=2,hidden=360,heads=6,sequence=64,vocabulary=250"
GRIDS = ["data=3,z=2", "data=2,pipeline=2,x=3", "z=5,y=2"]


def predicted(capsys, grid, *more):
    words = ["simulate", "--gpt", MODEL, "--batch", "30", "--micro-batch", "1", "--grid", grid]
    words += ["--machine", "perlmutter", "--sparsity", "0.9", "--sparse-states", "--json", "-", *more]
    ended = called(capsys, *words)
    assert ended.status == 0, ended.err
    return json.loads(ended.out)


@pytest.mark.parametrize("grid", GRIDS)
def test_a_pruned_step_takes_as_long_folded_as_unfolded(capsys, grid):
    folded, unfolded = predicted(capsys, grid), predicted(capsys, grid, "--no-fold")
    assert folded["seconds"] == pytest.approx(unfolded["seconds"], rel=1e-9)
    assert folded["memory_bytes_by_kind"] == unfolded["memory_bytes_by_kind"]


@pytest.mark.parametrize("grid", [Grid(data=3, z=2, x=3), Grid(data=2, z=5, y=2)], ids=str)
def test_even_shards_of_compressed_vectors_are_within_their_bound(grid):
    """The bound covers the room to spare of blocks that cut tiles."""
    uneven = Mlp((360, 1024, 360), 60, sparsity=0.9, sparse_states=True)
    whole = Mlp((1024, 1024, 1024), 64, sparsity=0.9, sparse_states=True)
    assert even_bound(schedule_of(uneven, grid), Choices()) > 0.1
    assert even_bound(schedule_of(whole, Grid(data=2, z=2, x=2)), Choices()) < 1e-2


def test_kernels_of_compressed_vectors_read_the_dense_block_and_the_index():
    problem = Mlp((1024, 1024), 8, "bfloat16", sparsity=0.9, sparse_states=True)
    schedule = schedule_of(problem, Grid())
    place = schedule.coordinates(0)
    works = {
        op.function: kernel_work(op, schedule, place).touched
        for op in all_ops(schedule)
        if isinstance(op, Kernel) and op.name.endswith(" W")
    }
    elements, kept = 1024**2, 1024 * 102
    assert works["compress"] == 2 * elements + (4 + 4) * kept
    assert works["expand"] == 2 * elements + (4 + 4) * kept
    assert works["adam"] == (4 + 3 * 8) * kept
