"""Tests of pruned training: compressed states equal dense states with the same mask, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import HostCopy
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.memory import largest_memory, memory_bytes_by_kind
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.offload import Offload
from quadrille.algorithms.training.scheme_catalogue import SCHEMES
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.execution.buffers import Buffers
from tests.support.pruned_trainings import PrunedRun, both_runs, check_equal
from tests.support.trainings import schedule_of

UNEVEN = Mlp((70, 81, 50, 30), rows=16, steps=2, sparsity=0.7, micro_batch=2, dtype="float64")
SMALL = Gpt(2, 48, 6, 8, 256, 8, steps=2, sparsity=0.8, dtype="float32")


@pytest.mark.parametrize(
    ("grid", "zero", "dtype"),
    [
        (Grid(), 0, "float64"),
        (Grid(), 0, "float16"),
        (Grid(z=2, x=3), 0, "float64"),
        (Grid(data=2), 0, "float16"),
        (Grid(data=2), 1, "float64"),
        (Grid(data=2), 2, "float16"),
        (Grid(data=2), 3, "float64"),
        (Grid(data=2, z=2, y=2), 0, "float64"),
        (Grid(data=2, z=2, y=2), 1, "float16"),
        (Grid(data=2, z=2, y=2), 2, "float64"),
        (Grid(data=2, z=2, y=2), 3, "float16"),
        (Grid(data=2, pipeline=2), 0, "float16"),
        (Grid(data=2, pipeline=2), 1, "float64"),
        (Grid(data=2, pipeline=2), 2, "float16"),
    ],
    ids=str,
)
def test_compressed_states_of_an_mlp_equal_dense_ones(grid, zero, dtype):
    dense, compressed = check_equal(replace(UNEVEN, zero=zero, dtype=dtype), grid)
    assert compressed.sent < dense.sent or grid.data == 1


@pytest.mark.parametrize(
    ("scheme", "options"), [("4d", {}), *((scheme, {"prune": "random", "zero": 1}) for scheme in SCHEMES)], ids=str
)
def test_compressed_states_of_a_gpt_equal_dense_ones(scheme, options):
    grids = {"4d": Grid(data=2, z=2, x=2), "megatron": Grid(data=2, x=2), "optimus": Grid(data=2, z=2, x=2)}
    check_equal(replace(SMALL, **options), grids.get(scheme, Grid(y=2, z=2, x=2)), SCHEMES[scheme])


@pytest.mark.parametrize(
    "options",
    [
        {"pipeline_schedule": "zb-h1"},
        {"pipeline_schedule": "gpipe"},
        {"pipeline_schedule": "message-driven"},
        {"pipeline_schedule": "interleaved", "interleave": 2, "layers": 4},
        {"zero": 2},
        {"stages": (1, 2), "layers": 3},
        {"recompute": "full", "dropout": 0.1},
    ],
    ids=str,
)
def test_compressed_states_in_a_pipeline_equal_dense_ones(options):
    check_equal(replace(SMALL, micro_batch=2, **options), Grid(data=2, pipeline=2), SCHEMES["megatron"])


@pytest.mark.parametrize(("zero", "dtype"), [(0, "float16"), (3, "float32")])
def test_compressed_states_with_overlaps_equal_dense_ones(zero, dtype):
    problem = replace(SMALL, micro_batch=2, zero=zero, dtype=dtype)
    check_equal(problem, Grid(data=2, z=2, x=2), overlaps=("oar", "ors", "oag", "ogr", "opg"))


def test_clipping_by_the_norm_of_kept_gradients_equals_that_of_dense_ones():
    problem = replace(SMALL, adam=Adam(clip=0.01))
    clipped, _ = check_equal(problem, Grid(data=2, x=3))
    free = PrunedRun(SMALL, Grid(data=2, x=3))
    assert free.states()["QKV W layer 0"].tobytes() != clipped.states()["QKV W layer 0"].tobytes()


def test_a_doubling_sum_over_four_ranks_has_one_order_for_dense_and_compressed_gradients():
    check_equal(replace(SMALL, dtype="float32"), Grid(data=4), collectives="own:doubling")


def test_pruned_weights_and_gradients_of_dense_states_stay_zero():
    dense, _ = both_runs(SMALL, Grid())
    for name in dense.pruned_names():
        for gradient in (name, f"d{name}"):
            for block in dense.execution.outputs[0].get(gradient, ()):
                assert np.count_nonzero(block) <= round(0.2 * block.size) + 8
                assert np.count_nonzero(block) >= round(0.2 * block.size) - 200


@pytest.mark.parametrize(
    ("dtype", "gradient_bytes", "dense_bytes", "fixed", "kept"),
    [("bfloat16", 4, 18, 2, 20), ("bfloat16", 2, 16, 2, 18), ("float32", 4, 16, 4, 20)],
)
@pytest.mark.parametrize("sparsity", [0.25, 0.5, 0.9])
def test_bytes_of_a_pruned_parameter(dtype, gradient_bytes, dense_bytes, fixed, kept, sparsity):
    """2 + 20 f bytes a parameter instead of 18, and the other dtypes' counts; dense states have a mask of 4 f bytes."""
    problem = Mlp((1024, 1024, 1024), 8, dtype, gradient_bytes=gradient_bytes, sparsity=sparsity)
    parameters, vectors = 2 * 1024**2, 2 * 1024
    share = 1 - round(1024 * sparsity) / 1024
    for compressed, expected in ((False, dense_bytes + 4 * share), (True, fixed + kept * share)):
        schedule = schedule_of(replace(problem, sparse_states=compressed), Grid())
        memory = largest_memory(schedule, Choices())
        states = sum(memory[kind] for kind in ("parameters", "gradients", "optimizer"))
        assert states == round(expected * parameters) + dense_bytes * vectors


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_bytes_of_a_sharded_pruned_parameter(zero):
    """Dense weights, the index, and compressed gradients, master weights and moments, of which ZeRO shares more."""
    data, share, parameters, vectors = 4, 102 / 1024, 2 * 1024**2, 2 * 1024
    problem = Mlp((1024, 1024, 1024), 8, "bfloat16", sparsity=0.9, sparse_states=True, zero=zero)
    memory = largest_memory(schedule_of(problem, Grid(data=data)), Choices())
    sharded = [data if zero >= stage else 1 for stage in (1, 2, 3)]
    weights = 2 * share / data if zero == 3 else 2
    assert memory["parameters"] == round(weights * parameters) + 2 * vectors // sharded[2]
    assert memory["gradients"] == round(4 * share * parameters / sharded[1]) + 4 * vectors // sharded[1]
    states = 4 * share + 12 * share / sharded[0]
    assert memory["optimizer"] == round(states * parameters) + 12 * vectors // sharded[0]


def test_sums_over_data_shrink_to_the_density():
    problem = Mlp((1024, 1024, 1024), 8, sparsity=0.875, micro_batch=1)
    sent = [
        sum(schedule.tensors[name].block(schedule.coordinates(0)).elements for name in ("dL1 W", "dL2 W"))
        for schedule in (schedule_of(replace(problem, sparse_states=state), Grid(data=8)) for state in (False, True))
    ]
    assert sent[1] == sent[0] // 8


@pytest.mark.parametrize("sparsity", [-0.5, 1.0, 2.0])
def test_a_sparsity_outside_its_range_is_refused(sparsity):
    with pytest.raises(InputError, match="a number from 0 and below 1"):
        Mlp((8, 8), 8, sparsity=sparsity)


def test_other_pruning_without_sense_is_refused():
    with pytest.raises(InputError, match="prune 'smallest': accepted are magnitude, random"):
        Mlp((8, 8), 8, sparsity=0.5, prune="smallest")
    with pytest.raises(InputError, match="sparse states without a sparsity"):
        Gpt(1, 8, 1, 4, 256, 4, sparse_states=True)


@pytest.mark.parametrize(("grid", "zero"), [(Grid(), 0), (Grid(data=2), 1)], ids=str)
def test_a_pruned_model_trains_alike_with_its_states_on_the_host(grid, zero):
    problem = replace(SMALL, zero=zero)
    on_device, on_host = PrunedRun(problem, grid), PrunedRun(replace(problem, offload=Offload(1000)), grid)
    assert on_device.losses == on_host.losses
    expected = on_device.states()
    assert {name: vector.tobytes() for name, vector in on_host.states().items()} == {
        name: vector.tobytes() for name, vector in expected.items()
    }


@pytest.mark.parametrize(
    ("problem", "bucket", "grid", "options"),
    [
        (SMALL, 0, Grid(), {}),
        (UNEVEN, 200, Grid(z=2, x=3), {"micro_batch": 2}),
        (SMALL, 300, Grid(data=2, x=3), {"zero": 1}),
        (SMALL, 300, Grid(data=2, z=2), {"zero": 2, "micro_batch": 2, "dtype": "float16"}),
        (SMALL, 300, Grid(data=2), {"zero": 3, "dtype": "float16"}),
        (UNEVEN, 0, Grid(data=2), {"zero": 3}),
        (SMALL, 500, Grid(pipeline=2, data=2), {"micro_batch": 2, "dtype": "float16", "adam": Adam(clip=0.01)}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Gpt | Mlp) else str(value)[:60],
)
def test_compressed_states_on_the_host_equal_those_on_the_device(problem, bucket, grid, options):
    compressed = replace(problem, sparse_states=True, **options)
    on_device = PrunedRun(compressed, grid)
    expected = on_device.states()
    for on_host in (False, True):
        offloaded = PrunedRun(replace(compressed, offload=Offload(bucket, updates_on_host=on_host)), grid)
        assert on_device.losses == offloaded.losses
        states = offloaded.states()
        assert expected.keys() == states.keys()
        assert all(vector.tobytes() == states[name].tobytes() for name, vector in expected.items()), on_host


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("on_host", [False, True], ids=["device", "host"])
def test_compressed_states_on_the_host_have_the_bytes_of_kept_elements(zero, on_host):
    """Host memory has 12 f bytes a parameter, the device 2 + (g + 4) f and, if weights are gathered, a copy of 2 f."""
    data, bucket, share, parameters = 4, 5000, 102 / 1024, 2 * 1024**2
    offload = Offload(bucket, updates_on_host=on_host)
    problem = Mlp((1024, 1024, 1024), 8, "bfloat16", sparsity=0.9, sparse_states=True, zero=zero, offload=offload)
    schedule = schedule_of(problem, Grid(data=data))
    memory, shards = largest_memory(schedule, Choices()), data if zero else 1
    rounding = 2 * 12 * schedule.tensors["L1 W"].buckets[1]
    staged = 2 * (4 + 2) * bucket if on_host else 0
    assert 0 <= memory["optimizer on host"] - round(12 * share * parameters / shards) <= staged + rounding
    weights = {0: 2, 1: 2 + 2 * share / data, 3: 2 * share / data}[zero]
    vectors = 2 * 1024
    assert memory["parameters"] == pytest.approx(weights * parameters, abs=2 * vectors)
    assert memory["gradients"] == pytest.approx(4 * share * parameters / (data if zero > 1 else 1), abs=4 * vectors)
    assert memory["optimizer"] == pytest.approx(4 * share * parameters, abs=12 * vectors)
    copied = [op for op in all_ops(schedule) if isinstance(op, HostCopy)]
    sizes = [schedule.tensors[op.source].block(schedule.coordinates(0)).elements for op in copied]
    assert 0 < max(sizes) <= bucket
    if zero == 0 and on_host:
        assert memory["buckets"] == 2 * 2 * max(sizes)


@pytest.mark.parametrize("on_host", [False, True], ids=["device", "host"])
@pytest.mark.parametrize(("grid", "zero"), [(Grid(z=2, x=3), 0), (Grid(data=2, x=3), 1), (Grid(data=2), 3)], ids=str)
def test_predicted_bytes_of_compressed_states_on_the_host_are_allocated(grid, zero, on_host):
    problem = replace(UNEVEN, sparse_states=True, zero=zero, offload=Offload(100, updates_on_host=on_host))
    schedule = schedule_of(problem, grid)
    for place in map(schedule.coordinates, range(grid.size)):
        predicted, buffers = storage(schedule, place, Choices()), Buffers(schedule, place, Choices(), NumpyLibrary())
        assert (buffers.allocated_bytes, buffers.allocated_host_bytes) == (predicted.bytes, predicted.host_bytes)
        kinds = memory_bytes_by_kind(schedule, place, Choices())
        assert kinds["optimizer on host"] == predicted.host_bytes > 0
