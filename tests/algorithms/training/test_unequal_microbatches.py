"""A last microbatch that is smaller than the others: equal to the serial reference, and counted, on every way."""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.adam import is_moment
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.microbatches import Microbatches, microbatches
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.offload import Offload
from quadrille.algorithms.training.scheme_catalogue import SCHEMES
from tests.support.pairs import pairs
from tests.support.pruned_trainings import check_equal
from tests.support.trainings import assembled, check_training, schedule_of, total_flops, trained, whole_matrices

ORDERS = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "message-driven"]


def gpt(layers=4, batch=5, micro_batch=2, **given):
    return Gpt(layers, 6, 3, 4, 12, batch, **{"dtype": "float64", "micro_batch": micro_batch, **given})


def mlp(rows=17, micro_batch=3, **given):
    return Mlp((7, 11, 5, 13, 3), rows, **{"dtype": "float64", "micro_batch": micro_batch, **given})


@pytest.mark.parametrize(
    ("batch", "micro_batch", "grid", "parts"),
    [
        (10, 4, Grid(), (3, 4, 2)),
        (10, 4, Grid(data=2), (2, 8, 2)),
        (9, 2, Grid(data=2), (3, 4, 1)),
        (8, 4, Grid(), (2, 4, 4)),
        (3, 2, Grid(data=2), (1, 3, 3)),
    ],
    ids=str,
)
def test_the_last_microbatch_has_what_remains(batch, micro_batch, grid, parts):
    assert microbatches(batch, micro_batch, grid) == Microbatches(*parts)


@pytest.mark.parametrize(
    ("problem", "grid"),
    [
        (gpt(steps=2), Grid()),
        (gpt(batch=10), Grid(data=2)),
        (gpt(batch=11), Grid(data=2)),
        (gpt(batch=16), Grid(data=2, z=2, x=3)),
        (gpt(batch=10, zero=1), Grid(data=2)),
        (gpt(batch=10, zero=2), Grid(data=2, x=3)),
        (gpt(batch=10, zero=3), Grid(data=2)),
        (gpt(gathered="keep", batch=10), Grid(z=2)),
        (gpt(recompute="full", dropout=0.3), Grid(x=3)),
        (gpt(attention="unfused", recompute="selective", dropout=0.2), Grid(y=2)),
        (mlp(steps=2), Grid()),
        (mlp(), Grid(data=2, z=2, x=2)),
        (mlp(zero=2), Grid(data=3, y=2)),
    ],
    ids=str,
)
def test_accumulation_equals_the_whole_batch(problem, grid):
    check_training(problem, grid)


@pytest.mark.parametrize(
    ("scheme", "grid"),
    [
        ("megatron", Grid(data=2, x=3)),
        ("optimus", Grid(z=2, x=3)),
        ("tesseract", Grid(y=2, z=2, x=3)),
        ("bian", Grid(z=2, y=2, x=3)),
    ],
)
def test_every_scheme_equals_the_whole_batch(scheme, grid):
    problem = gpt(2, 18 if scheme == "bian" else 10, micro_batch=6 if scheme == "bian" else 3)
    check_training(problem, grid, SCHEMES[scheme])


@pytest.mark.parametrize(("order", "stages", "count"), pairs(ORDERS, [2, 3], [2, 3, 6]))
def test_every_pipeline_schedule_equals_the_whole_batch(order, stages, count):
    chunks = {"interleave": 2} if order == "interleaved" else {}
    layers = 2 * stages if order in ("interleaved", "zb-v") else stages + 1
    check_training(gpt(layers, 2 * count - 1, pipeline_schedule=order, **chunks), Grid(pipeline=stages))


@pytest.mark.parametrize("order", ["gpipe", "1f1b", "zb-h1", "message-driven"])
def test_a_pipeline_of_linear_layers_equals_the_whole_batch(order):
    check_training(mlp(pipeline_schedule=order), Grid(pipeline=2, data=2))


@pytest.mark.parametrize(
    ("problem", "grid", "scheme"),
    [
        (gpt(batch=10, zero=2), Grid(pipeline=2, data=2), "4d"),
        (gpt(batch=10, recompute="full", stages=(1, 3)), Grid(pipeline=2, z=2), "4d"),
        (gpt(pipeline_schedule="zb-h1", recompute="full"), Grid(pipeline=2, x=3), "megatron"),
        (gpt(pipeline_schedule="zb-v", attention="unfused", recompute="selective"), Grid(pipeline=2, y=2), "4d"),
        (gpt(batch=10, pipeline_schedule="message-driven", pipeline_limit=1), Grid(pipeline=3, z=2), "4d"),
    ],
    ids=str,
)
def test_pipelines_with_other_options_equal_the_whole_batch(problem, grid, scheme):
    check_training(problem, grid, SCHEMES[scheme])


@pytest.mark.parametrize(
    ("order", "grid"),
    [
        ("1f1b", Grid(data=2, x=3)),
        ("1f1b", Grid(pipeline=2, z=2, x=3)),
        ("zb-h1", Grid(pipeline=2, z=2)),
        ("message-driven", Grid(pipeline=2, z=2)),
    ],
    ids=str,
)
def test_overlaps_change_nothing(order, grid):
    check_training(gpt(2, 10, pipeline_schedule=order), grid, overlaps=("oar", "ors", "oag"))


@pytest.mark.parametrize("order", ["1f1b", "message-driven"])
@pytest.mark.parametrize("problem", [gpt, mlp])
def test_state_on_the_host_changes_no_bit(problem, order):
    plain = schedule_of(problem(pipeline_schedule=order), Grid(pipeline=2))
    offloaded = schedule_of(problem(pipeline_schedule=order, offload=Offload(31)), Grid(pipeline=2))
    drawn = whole_matrices(offloaded, 12)
    matrices = {name: 0 * matrix if is_moment(name) else matrix for name, matrix in drawn.items()}
    expected, execution = trained(plain, matrices), trained(offloaded, matrices)
    for name in plain.outputs:
        before, after = assembled(plain, name, expected.outputs), assembled(offloaded, name, execution.outputs)
        assert before.keys() == after.keys()
        for copy, matrix in before.items():
            np.testing.assert_array_equal(after[copy], matrix, err_msg=copy)
    for rank in range(2):
        predicted = storage(offloaded, offloaded.coordinates(rank), Choices())
        assert execution.allocated_bytes[rank] == predicted.bytes


@pytest.mark.parametrize("order", ["1f1b", "zb-h1"])
def test_compressed_states_of_pruned_matrices_equal_dense_ones(order):
    problem = Gpt(2, 48, 6, 8, 256, 10, steps=2, sparsity=0.8, dtype="float32", micro_batch=2, pipeline_schedule=order)
    check_equal(problem, Grid(data=2, pipeline=2))


def test_compressed_states_of_pruned_linear_layers_equal_dense_ones():
    check_equal(Mlp((70, 81, 50, 30), rows=23, sparsity=0.7, micro_batch=3, dtype="float64"), Grid(data=2))


@pytest.mark.parametrize("order", ORDERS)
def test_buffers_have_the_size_of_the_largest_microbatch(order):
    chunks = {"interleave": 2} if order == "interleaved" else {}
    problem, grid = gpt(8, 7, pipeline_schedule=order, **chunks), Grid(pipeline=2, x=3)
    unequal, equal = (schedule_of(each, grid) for each in (problem, replace(problem, batch=8)))
    for rank in range(grid.size):
        of_unequal, of_equal = (storage(each, each.coordinates(rank), Choices()) for each in (unequal, equal))
        assert of_unequal == of_equal


@pytest.mark.parametrize("grid", [Grid(), Grid(data=2, x=3), Grid(pipeline=2, z=2)], ids=str)
def test_products_are_those_of_the_whole_batch(grid):
    unequal, whole = (schedule_of(gpt(batch=22, micro_batch=size), grid) for size in (4, None))
    assert total_flops(unequal) == total_flops(whole)


def test_bytes_between_stages_are_those_of_the_whole_batch():
    unequal, whole = (schedule_of(gpt(batch=7, micro_batch=size), Grid(pipeline=3)) for size in (3, None))
    by_op = [volumes(schedule, Choices()).by_op for schedule in (unequal, whole)]
    assert by_op[0]["send X"].sent_total == by_op[1]["send X"].sent_total > 0
    assert by_op[0]["send dX"].sent_total == by_op[1]["send dX"].sent_total > 0


@pytest.mark.parametrize(
    ("problem", "grid", "message"),
    [
        (gpt(batch=9), Grid(data=2), "last microbatch of 1: at least data=2 times z=1, 2 sequences, are needed"),
        (mlp(rows=13), Grid(data=2, z=2), "last microbatch of 1: at least "),
        (gpt(batch=4, micro_batch=3), Grid(data=2), "micro-batch 3: at most 2 is accepted, the share of batch 4"),
        (gpt(batch=4, micro_batch=1), Grid(data=4, z=2), "batch 4: at least "),
    ],
    ids=str,
)
def test_a_last_microbatch_without_rows_for_each_part_is_refused(problem, grid, message):
    with pytest.raises(InputError, match=message):
        schedule_of(problem, grid)
