"""Tests of the optimizer state in host memory: equal results, buckets, memory, order of copies, bad input."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from quadrille.algorithms.analysis.storage import storage
from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.formats.record import device_bytes
from quadrille.algorithms.passes.overlap import overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import HostCopy
from quadrille.algorithms.schedule.program import Repeat, ops
from quadrille.algorithms.schedule.schedule import all_ops
from quadrille.algorithms.training.adam import Adam, is_moment
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.memory import memory_bytes_by_kind
from quadrille.algorithms.training.mlp import Mlp
from quadrille.algorithms.training.offload import Offload
from quadrille.algorithms.training.scheme_catalogue import find_scheme
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.execution.buffers import Buffers
from tests.support.pairs import pairs
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


@pytest.mark.parametrize(("problem", "case", "bucket", "on_host"), pairs([gpt, mlp], CASES, [0, 16], [False, True]))
def test_a_step_with_state_on_the_host_equals_one_without_bit_for_bit(problem, case, bucket, on_host):
    """Of the full product, combinations in which every two values meet."""
    grid, options = case
    plain = schedule_of(problem(**options), grid)
    offloaded = schedule_of(problem(**options, offload=Offload(bucket, updates_on_host=on_host)), grid)
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


@pytest.mark.parametrize(
    ("case", "bucket", "dtype", "on_host"),
    pairs(
        [(Grid(), 0), (Grid(data=2), 1), (Grid(data=2), 3), (Grid(x=3), 0)],
        [31, 7],
        ["float32", "bfloat16"],
        [False, True],
    ),
    ids=str,
)
def test_predicted_bytes_on_device_and_host_are_allocated(case, bucket, dtype, on_host):
    grid, zero = case
    offload = Offload(bucket, updates_on_host=on_host)
    schedule = schedule_of(gpt(dtype=dtype, zero=zero, offload=offload), grid)
    library = NumpyIn16Bits()
    for place in map(schedule.coordinates, range(grid.size)):
        predicted = storage(schedule, place, Choices())
        allocated = Buffers(schedule, place, Choices(), library)
        assert (allocated.allocated_bytes, allocated.allocated_host_bytes) == (predicted.bytes, predicted.host_bytes)
        kinds = memory_bytes_by_kind(schedule, place, Choices())
        assert device_bytes(kinds) == predicted.bytes and kinds["optimizer on host"] == predicted.host_bytes


class NumpyIn16Bits(NumpyLibrary):
    """NumPy arrays that store bfloat16 as integers of 16 bits."""

    def empty(self, elements, dtype):
        return super().empty(elements, "uint16" if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize(("gradient_bytes", "plain", "on_device"), [(4, 18, 6), (2, 16, 4)])
def test_of_18_or_16_bytes_a_parameter_6_or_4_and_the_buckets_stay_on_the_device(gradient_bytes, plain, on_device):
    problem = Gpt(**SIZE | {"hidden": 96, "steps": 1}, dtype="bfloat16", gradient_bytes=gradient_bytes)
    bucket, place = 1024, Grid()
    before, after = (
        memory_bytes_by_kind(schedule, schedule.coordinates(0), Choices())
        for schedule in (schedule_of(problem, place), schedule_of(replace(problem, offload=Offload(bucket)), place))
    )
    states = ("parameters", "gradients", "optimizer")
    parameters = problem.shape.parameters
    matrices = after["optimizer on host"] // 12
    assert sum(before[kind] for kind in states) == plain * parameters
    assert sum(after[kind] for kind in states) == on_device * matrices + plain * (parameters - matrices)
    assert after["buckets"] <= 2 * 12 * bucket
    assert matrices > 0.98 * parameters


@pytest.mark.parametrize(
    ("scheme", "grid", "options"),
    [
        ("optimus", Grid(z=2, x=3), {}),
        ("bian", Grid(z=2, y=2, x=2), {"heads": 4, "hidden": 8, "sequence": 4}),
        ("megatron", Grid(data=2, x=3), {"zero": 1}),
        ("4d", Grid(pipeline=2), {"micro_batch": 3, "pipeline_schedule": "zb-h1"}),
        ("4d", Grid(pipeline=2), {"micro_batch": 3, "pipeline_schedule": "message-driven"}),
        ("4d", Grid(pipeline=2, data=2), {"layers": 4, "micro_batch": 3, "interleave": 2, "zero": 2}),
        ("4d", Grid(z=2), {"gathered": "keep", "recompute": "full"}),
    ],
)
def test_every_scheme_and_pipeline_trains_with_state_on_the_host(scheme, grid, options):
    runs = []
    for offload in (None, Offload(20), Offload(20, updates_on_host=True)):
        schedule = schedule_of(gpt(**options, offload=offload), grid, find_scheme(scheme))
        matrices = whole_matrices(schedule, SIZE["vocabulary"]) | moments_of_zero(schedule)
        execution = trained(schedule, matrices)
        outputs = {name: assembled(schedule, name, execution.outputs) for name in schedule.outputs}
        runs.append({copy: matrix for copies in outputs.values() for copy, matrix in copies.items()})
    for run in runs[1:]:
        assert run.keys() == runs[0].keys()
        for copy, matrix in runs[0].items():
            np.testing.assert_array_equal(run[copy], matrix, err_msg=copy)


OVERLAPPED = [
    ("4d", Grid(z=2), {}),
    ("4d", Grid(data=2, z=2), {"zero": 1}),
    ("4d", Grid(data=2, z=2), {"zero": 3}),
    ("megatron", Grid(data=2, x=3), {"zero": 2}),
    ("megatron", Grid(data=2, x=3), {"zero": 3}),
]
"""A scheme, a grid, and options of the problem."""


@pytest.mark.parametrize(("case", "gathered", "on_host"), pairs(OVERLAPPED, ["again", "keep"], [False, True]), ids=str)
def test_with_overlaps_a_bucket_is_updated_after_its_gradient_is_summed(case, gathered, on_host):
    scheme, grid, options = case
    adam, offload = replace(ADAM, clip=0.0), Offload(20, updates_on_host=on_host)
    problem = gpt(**options, gathered=gathered, adam=adam, offload=offload)
    plain = schedule_of(problem, grid, find_scheme(scheme, sequence_parallel=scheme == "megatron"))
    matrices = whole_matrices(plain, SIZE["vocabulary"]) | moments_of_zero(plain)
    runs = []
    for schedule in (plain, validate(overlap(plain, ("oar", "ors", "oag")))):
        execution = trained(schedule, matrices)
        outputs = {name: assembled(schedule, name, execution.outputs) for name in schedule.outputs}
        runs.append({copy: matrix for copies in outputs.values() for copy, matrix in copies.items()})
    assert runs[0].keys() == runs[1].keys()
    for copy, matrix in runs[0].items():
        np.testing.assert_array_equal(runs[1][copy], matrix, err_msg=copy)


@pytest.mark.parametrize("on_host", [False, True], ids=["device", "host"])
@pytest.mark.parametrize("options", [{}, {"zero": 3, "dtype": "bfloat16"}], ids=str)
def test_with_overlaps_the_gradient_of_a_table_is_summed_just_before_its_first_bucket(options, on_host):
    offload = Offload(20, updates_on_host=on_host)
    problem = gpt(**{"dtype": "bfloat16", "adam": replace(ADAM, clip=0.0), "offload": offload} | options)
    schedule = validate(overlap(schedule_of(problem, Grid(data=2, z=2)), ("oar", "ors", "oag")))
    step = next(entry for entry in schedule.roles[0].program if isinstance(entry, Repeat) and entry.loop == "step")
    names = [[op.name for op in ops((entry,))] for entry in step.body]
    scatter, widen = (names.index([name]) for name in ("scatter dtable", "widen dtable"))
    last = names.index(["scatter dtable over data" if options else "sum dtable over data"])
    assert step.body[last + 1].loop == "bucket" and "update table" in names[last + 1]
    assert scatter + 4 < widen < last, "other ops hide the reduce-scatter"


def test_copies_wait_for_their_data_only_and_reductions_begin_together():
    schedule = schedule_of(gpt(offload=Offload(20)), Grid(data=2))
    ops = {op.name: op for op in all_ops(schedule)}
    copies = [op for op in ops.values() if isinstance(op, HostCopy)]
    sums = [op for name, op in ops.items() if name.startswith("sum d") and name.endswith("over data")]
    assert copies and sums
    assert not any(op.after for op in copies) and all(op.concurrent for op in sums)
    assert not {op.name for op in (*copies, *sums)} & {name for op in ops.values() for name in op.after}


def test_a_parameter_has_equally_many_buckets_on_all_ranks_and_none_is_larger_than_asked():
    schedule = schedule_of(gpt(offload=Offload(20)), Grid(x=3, data=2))
    sizes = set()
    for place in map(schedule.coordinates, range(6)):
        stored = schedule.tensors["up W"]
        blocks = [stored.block(copy) for copy in stored.copy_coordinates(place)]
        assert len(blocks) == 2 * stored.buckets[1], "two layers"
        sizes |= {block.elements for block in blocks}
        first, *others = blocks[: stored.buckets[1]]
        assert first.flat_range[0] == 0
        for before, after in pairwise([first, *others]):
            assert before.flat_range[1] == after.flat_range[0]
    assert max(sizes) <= 20
