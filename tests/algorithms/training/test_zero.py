"""ZeRO 1, 2 and 3, mixed precision: equal to the serial reference, words and bytes a parameter as the papers say."""

import re
from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.volumes import volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.memory import memory_bytes_by_kind
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.scheme_4d import Scheme4D
from quadrille.runtime.kernels.layer_kernels import KernelArguments, carry_out
from tests.support.pairs import pairs
from tests.support.trainings import assembled, check_training, reference, schedule_of, trained, whole_matrices

BIG = Adam(rate=0.03, decay=0.1, clip=0.05)


def gpt(**given):
    return Gpt(
        **{"layers": 2, "hidden": 6, "heads": 3, "sequence": 3, "vocabulary": 11, "batch": 12, **COMMON, **given}
    )


def mlp(**given):
    return Mlp((7, 11, 5, 13), **{"rows": 12, **COMMON, **given})


COMMON = {"dtype": "float64", "steps": 2, "adam": BIG}


def name_of(value):
    return str(value) if isinstance(value, Grid) else None


CASES = [
    (Grid(data=3), None),
    (Grid(data=3), 1),
    (Grid(data=2, z=2), 1),
    (Grid(data=2, x=3), None),
    (Grid(data=3, z=2, order=("data", "z")), None),
]
"""A grid, and sequences or rows of a microbatch."""


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize(("grid", "micro_batch"), CASES, ids=name_of)
def test_a_sharded_step_equals_serial(grid, micro_batch, zero):
    check_training(gpt(zero=zero, micro_batch=micro_batch), grid)
    check_training(mlp(zero=zero, micro_batch=micro_batch), grid)


SETTINGS = [
    ("again", "fused", "full"),
    ("keep", "unfused", "none"),
    ("keep", "unfused", "full"),
    ("keep", "fused", "full"),
]
"""Whether gathered weights are kept, the kind of attention, and what is recomputed."""
FORMS = [(Grid(data=2, z=2), "repeated"), (Grid(data=2, x=3), "sequences scattered")]


@pytest.mark.parametrize(("zero", "form", "setting"), pairs([1, 3], FORMS, SETTINGS), ids=str)
def test_other_settings_of_a_sharded_gpt_equal_serial(zero, form, setting):
    (grid, activations), (gathered, attention, recompute) = form, setting
    problem = gpt(zero=zero, gathered=gathered, attention=attention, recompute=recompute, steps=1)
    check_training(problem, grid, Scheme4D(activations=activations))


def test_where_nothing_is_to_be_sharded_zero_changes_nothing():
    for problem in (gpt(micro_batch=1), mlp(micro_batch=1)):
        plain = schedule_of(problem, Grid(z=2))
        assert all(schedule_of(replace(problem, zero=zero), Grid(z=2)) == plain for zero in (1, 2, 3))


@pytest.mark.parametrize(("zero", "chunks"), [(1, 2), (2, 1), (2, 2)])
def test_a_sharded_pipeline_equals_serial(zero, chunks):
    check_training(gpt(layers=4, zero=zero, micro_batch=3, interleave=chunks, batch=12), Grid(pipeline=2, data=2))


def test_the_library_carries_shards_too():
    check_training(gpt(zero=3), Grid(data=2, z=2), collectives="library")


def data_words(problem, grid):
    """Elements that every rank sends along data, gradients and weights only, and the parameters of a replica."""
    schedule = schedule_of(problem, grid)
    sent = volumes(schedule, Choices()).by_op
    named = [name for name in sent if re.search(r"over data$|held|^sum d.* over data$", name)]
    words = sum(sent[name].sent_total for name in named if "loss" not in name or "held" in name) / 8 / grid.size
    parameters = sum(
        sum(tensor.block(moment).elements for moment in tensor.copy_coordinates(schedule.coordinates(0)))
        for tensor in (schedule_of(replace(problem, zero=0), Grid()).tensors[name] for name in schedule.state)
    )
    return words, parameters


@pytest.mark.parametrize("data", [2, 3, 4])
@pytest.mark.parametrize(("zero", "words"), [(0, 2), (1, 2), (2, 2)])
def test_words_of_a_step(zero, words, data):
    """All-reduce, or reduce-scatter and all-gather: 2 (d-1)/d of the parameters."""
    sent, parameters = data_words(gpt(steps=1, zero=zero, adam=Adam()), Grid(data=data))
    assert sent == pytest.approx(words * (data - 1) / data * parameters)


@pytest.mark.parametrize("data", [2, 3, 4])
def test_words_of_a_step_with_everything_sharded(data):
    """3 (d-1)/d of the parameters, but for those that only the forward pass reads; both ends read the table."""
    problem = gpt(steps=1, zero=3, adam=Adam())
    sent, parameters = data_words(problem, Grid(data=data))
    share = (data - 1) / data
    assert sent == pytest.approx(share * (3 * parameters - once_read(problem)))


def once_read(problem):
    """Parameters that only the forward pass reads: positions, biases and β."""
    schedule = schedule_of(replace(problem, zero=0), Grid())
    return sum(
        tensor.rows.bounds(schedule.coordinates(0))[1]
        * tensor.columns.bounds(schedule.coordinates(0))[1]
        * max(1, copies)
        for name, tensor in schedule.tensors.items()
        if name in schedule.state and (name == "positions" or name.endswith((" b", " β")))
        for copies in [tensor.copy_count(schedule.coordinates(0))]
    )


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("zero", "of_gathers", "of_scatters"), [(1, 0, 0), (2, 0, 1), (3, 1, 1)])
def test_words_with_microbatches(zero, of_gathers, of_scatters, count):
    """ZeRO 1 talks once a step; ZeRO 2 scatters, and ZeRO 3 gathers too, once a microbatch."""
    one, _ = data_words(mlp(steps=1, zero=zero, adam=Adam(), rows=6, micro_batch=3), Grid(data=2))
    many, parameters = data_words(mlp(steps=1, zero=zero, adam=Adam(), rows=6 * count, micro_batch=3), Grid(data=2))
    more = (count - 1) * (one if of_gathers else of_scatters * parameters / 2)
    assert many == pytest.approx(one + more)


def kept_bytes(problem, grid):
    """Bytes of weights, gradients and optimizer states that rank 0 keeps from step to step, without transients."""
    schedule = schedule_of(problem, grid)
    stored = storage(schedule, schedule.coordinates(0), Choices())
    kinds = ("{}", "{} held", "d{}", "d{} held", "mean of {}", "square of {}", "{} cast")
    names = [kind.format(name) for kind in kinds for name in schedule.state]
    kept = [name for name in names if name in stored.tensors and not _transient(schedule, name)]
    return sum(stored.tensors[name] * stored.copies[name] * stored.item_bytes[name] for name in kept)


def _transient(schedule, name):
    """Whether one buffer serves all layers in turn."""
    base = re.sub(r" (held|cast)$", "", re.sub(r"^(mean of |square of |d)", "", name))
    copies = schedule.tensors[base].copies if base in schedule.tensors else ()
    return bool(copies) and not schedule.tensors[name].copies


@pytest.mark.parametrize(
    ("dtype", "gradient_bytes", "expected"),
    [("bfloat16", 4, 18), ("bfloat16", 2, 16), ("float16", 4, 18), ("float32", 4, 16), ("float64", 4, 32)],
)
def test_bytes_of_a_parameter(dtype, gradient_bytes, expected):
    problem = gpt(dtype=dtype, gradient_bytes=gradient_bytes, adam=Adam())
    parameters = kept_bytes(gpt(adam=Adam()), Grid()) / 32
    assert kept_bytes(problem, Grid()) == expected * parameters


SIZE = {"layers": 8, "hidden": 16, "heads": 2, "vocabulary": 16, "sequence": 16}
"""A model whose parameters are multiples of 8, so that every shard has the same size."""


@pytest.mark.parametrize("data", [2, 4, 8])
@pytest.mark.parametrize("micro_batch", [None, 1])
@pytest.mark.parametrize(
    ("zero", "gradient_bytes", "whole", "sharded"),
    [(0, 2, 16, 0), (0, 4, 18, 0), (1, 2, 4, 12), (1, 4, 6, 12), (2, 2, 2, 14), (2, 4, 2, 16)],
)
def test_bytes_of_a_sharded_parameter(zero, gradient_bytes, whole, sharded, micro_batch, data):
    """The ZeRO paper's table: 16 bytes, 4 + 12/d, 2 + 14/d; Megatron's with float32 gradients: 18 and 6 + 12/d."""
    options = {**SIZE, "batch": 16, "micro_batch": micro_batch}
    problem = gpt(dtype="bfloat16", gradient_bytes=gradient_bytes, zero=zero, adam=Adam(), **options)
    parameters = kept_bytes(gpt(adam=Adam(), **options), Grid()) / 32
    assert kept_bytes(problem, Grid(data=data)) / parameters == whole + sharded / data


@pytest.mark.parametrize("data", [2, 4, 8])
def test_all_bytes_of_a_parameter_that_zero_1_shards(data):
    """Each parameter of additional layers costs 6 + 12/d bytes in the memory of a rank, without activations."""
    smaller, larger = (
        gpt(dtype="bfloat16", gradient_bytes=4, zero=1, adam=Adam(), **SIZE | {"layers": layers, "batch": 16})
        for layers in (8, 16)
    )
    bytes_of, parameters_of = [], []
    for problem in (smaller, larger):
        schedule = schedule_of(problem, Grid(data=data))
        by_kind = memory_bytes_by_kind(schedule, schedule.coordinates(0), Choices())
        bytes_of.append(sum(by_kind.values()) - by_kind["activations"])
        parameters_of.append(kept_bytes(replace(problem, dtype="float64", zero=0), Grid()) / 32)
    difference = parameters_of[1] - parameters_of[0]
    assert (bytes_of[1] - bytes_of[0]) / difference == 6 + 12 / data


@pytest.mark.parametrize(("zero", "whole", "sharded"), [(1, 8, 8), (2, 4, 12)])
def test_bytes_of_a_float32_parameter(zero, whole, sharded):
    """The weights that the optimizer updates are a shard of the gathered weights."""
    problem = gpt(dtype="float32", zero=zero, adam=Adam(), **SIZE, batch=16)
    parameters = kept_bytes(gpt(adam=Adam(), **SIZE, batch=16), Grid()) / 32
    assert kept_bytes(problem, Grid(data=4)) / parameters == whole + sharded / 4


@pytest.mark.parametrize("data", [2, 4])
@pytest.mark.parametrize(("gradient_bytes", "sharded"), [(2, 16), (4, 18)])
def test_bytes_of_parameters_that_are_all_sharded(gradient_bytes, sharded, data):
    size = {"layers": 32, "hidden": 16, "heads": 2, "vocabulary": 2, "sequence": 2}
    problem = gpt(dtype="bfloat16", gradient_bytes=gradient_bytes, zero=3, adam=Adam(), **size)
    parameters = kept_bytes(gpt(adam=Adam(), **size), Grid()) / 32
    assert kept_bytes(problem, Grid(data=data)) / parameters == pytest.approx(sharded / data, rel=0.02)


HALF = {"dtype": "float16", "steps": 2, "adam": Adam(rate=1e-3, epsilon=1e-3)}


@pytest.mark.parametrize(
    ("grid", "zero", "gradient_bytes", "micro_batch"),
    [
        *((Grid(), 0, 4, None), (Grid(), 0, 2, 1), (Grid(data=2, z=2, x=3), 1, 2, 1)),
        *((Grid(data=2), zero, gradient_bytes, 1) for zero in (1, 2, 3) for gradient_bytes in (2, 4)),
        *((Grid(data=2), zero, 2, None) for zero in (1, 2, 3)),
    ],
    ids=name_of,
)
def test_mixed_precision_is_near_serial(grid, zero, gradient_bytes, micro_batch):
    """NumPy has float16, though not fast: the optimizer's float32 weights move where float16 ones would stand still."""
    problem = gpt(**HALF, zero=zero, gradient_bytes=gradient_bytes, micro_batch=micro_batch)
    schedule = schedule_of(problem, grid)
    matrices = whole_matrices(schedule, problem.vocabulary)
    execution = trained(schedule, matrices)
    losses, held, _ = reference(problem, matrices)
    got = [float(loss[0, 0]) for loss in assembled(schedule, "loss", execution.outputs).values()]
    np.testing.assert_allclose(got, losses, rtol=5e-3)
    for name in schedule.state:
        for copy, matrix in assembled(schedule, name, execution.outputs).items():
            assert np.abs(matrix - held[copy]).max() < 2 * problem.steps * problem.adam.rate, copy
            assert schedule.tensors[name].dtype == "float32"


@pytest.mark.parametrize(
    ("problem", "grid", "said"),
    [
        (lambda: gpt(zero=4), Grid(), "zero 4: accepted are 0, 1, 2, 3"),
        (lambda: gpt(zero=3), Grid(pipeline=2), "zero 3 on grid pipeline=2"),
        (lambda: gpt(gradient_bytes=3), Grid(), "gradient bytes 3: accepted are 4 and 2"),
        (lambda: mlp(zero=-1), Grid(), "zero -1: accepted are"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(problem, grid, said):
    with pytest.raises(InputError, match=re.escape(said)) as refused:
        schedule_of(problem(), grid)
    assert "\n" not in str(refused.value)


def test_kernels_take_bfloat16_as_the_upper_half_of_float32():
    """As CuPy keeps it: computed in float32, rounded to the nearest, of two as near to the even one."""
    numbers = np.array([1.0, -2.5, 3.0e-3, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8], np.float32)
    kept = np.array([0x3F80, 0xC020, 0x3B45, 0x3F80, 0x3F82], np.uint16)
    source, into = np.zeros_like(kept), np.zeros_like(numbers)
    carry_out("cast", KernelArguments(np, (source,), (), (numbers,), (), {}, 0))
    assert source.tolist() == kept.tolist()
    carry_out("cast", KernelArguments(np, (into,), (), (kept,), (), {}, 0))
    assert np.abs(into / numbers - 1).max() <= 2.0**-8
    carry_out("add_to", KernelArguments(np, (), (source,), (kept,), (), {}, 0))
    carry_out("cast", KernelArguments(np, (into,), (), (source,), (), {}, 0))
    assert np.abs(into / (2 * numbers) - 1).max() <= 2.0**-8
