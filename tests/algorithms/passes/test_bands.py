"""Products in bands of rows: the same numbers and bytes, and each band is summed while the next is multiplied."""

from dataclasses import replace

import numpy as np
import pytest

from quadrille.algorithms.analysis.coordinate_dependence import lengths
from quadrille.algorithms.analysis.dependencies import Dependencies
from quadrille.algorithms.analysis.validation import validate
from quadrille.algorithms.analysis.volumes import bytes_sent, volumes
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes import bands
from quadrille.algorithms.passes.overlap import OVERLAPS, overlap
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllReduce, Gemm, Pointwise
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import in_sequence, walk
from quadrille.algorithms.schedule.schedule import declare
from quadrille.algorithms.schedule.tensors import Tensor, bands_of
from quadrille.algorithms.training.adam import Adam
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.mlp import Mlp
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.execution.execute import execute
from quadrille.simulator.simulate import simulate
from quadrille.simulator.symmetry.even_shards import with_even_shards
from tests.support.toy_machines import star
from tests.support.trainings import schedule_of, trained, whole_matrices

ADAM = Adam(clip=0.05, rate=0.05)
MLP = Mlp((7, 11, 5, 9), rows=13, dtype="float64", steps=2, adam=ADAM)
GPT = Gpt(2, 12, 4, 5, 17, 6, dtype="float64", steps=2, adam=ADAM)
PRODUCT = Matmul(24, 16, 20, "float64", "training")


def in_bands(schedule, count):
    """The schedule in bands, in which dW is accumulated by band however few rows a band has."""
    return bands.in_bands(schedule, count, least_rows=1)


def waits(schedule, rank=0):
    """For each op of a rank, by name, the names of those that it waits for."""
    place = schedule.coordinates(rank)
    dependencies = Dependencies(schedule)
    return {
        op.name: set(dependencies.enter(op, moment, op.name)) for op, moment in walk(schedule.program(place), place)
    }


@pytest.mark.parametrize(
    ("problem", "grid"),
    [
        (MLP, Grid(y=2, x=3)),
        (replace(MLP, adam=Adam(rate=0.05)), Grid(y=2, x=3)),
        (GPT, Grid(z=2, x=2)),
        (replace(GPT, adam=Adam(rate=0.05)), Grid(y=2, x=2)),
    ],
    ids=["mlp", "mlp, not clipped", "gpt", "gpt, not clipped"],
)
@pytest.mark.parametrize("names", [(), OVERLAPS], ids=["alone", "with all overlaps"])
def test_a_training_step_in_bands_ends_with_the_same_numbers_and_sends_the_same_bytes(problem, grid, names):
    plain = schedule_of(problem, grid)
    banded = validate(in_bands(overlap(plain, names), 3))
    assert len(banded.tensors) > len(plain.tensors)
    matrices = whole_matrices(plain, 17)
    expected, found = trained(plain, matrices, "own"), trained(banded, matrices, "own")
    assert sum(found.bytes_sent.values()) == sum(expected.bytes_sent.values())
    assert found.bytes_sent == {rank: bytes_sent(banded, rank, Choices()) for rank in range(grid.size)}
    assert max(found.allocated_bytes.values()) == volumes(banded, Choices()).peak_bytes_per_rank_max
    for rank, tensors in expected.outputs.items():
        for name, blocks in tensors.items():
            np.testing.assert_allclose(found.outputs[rank][name], blocks, rtol=1e-9, atol=1e-12, err_msg=name)


def test_a_product_in_bands_is_right_on_inputs_and_outputs():
    schedule = validate(in_bands(matmul_schedule(PRODUCT, "4d", Grid(y=2, x=2)), 4))
    random = np.random.default_rng(0)
    A, B, dC = (random.random(shape) for shape in ((24, 16), (16, 20), (24, 20)))
    done = execute(schedule, {"A": A, "B": B, "dC": dC}, InProcess(4))
    np.testing.assert_allclose(done.outputs[0]["C"], (A @ B)[:, :10])
    np.testing.assert_allclose(done.outputs[0]["dA"], (dC @ B.T)[:, :8])


def test_the_next_band_is_multiplied_while_one_is_summed_and_each_goes_on_by_itself():
    found = waits(in_bands(schedule_of(MLP, Grid(y=2, x=2)), 2))
    assert "L1 sum O, 1 of 2" not in found["L1 multiply, 2 of 2"]
    assert found["L1 sum O, 2 of 2"] == {"L1 multiply, 2 of 2"}
    for band in ("1 of 2", "2 of 2"):
        assert {name for name in found[f"L1 add b, {band}"] if "sum" in name} == {f"L1 sum O, {band}"}
        assert not any("sum" in name for name in found[f"L2 multiply, {band}"])


def test_bands_go_on_through_the_loss_to_the_gradients_and_sums_of_all_rows_come_after_them():
    found = waits(in_bands(schedule_of(MLP, Grid(y=2, x=2)), 2))
    order = list(found)
    assert {name for name in found["loss, 1 of 2"] if "sum" in name} == set()
    assert {name for name in found["L3 add b, 1 of 2"] if "sum" in name} == {"L3 sum O, 1 of 2"}
    assert order.index("L3 multiply dI, 1 of 2") < order.index("loss, 2 of 2") < order.index("add loss, 2 of 2")
    assert order[-1].startswith("sum loss over")
    assert {"L1 multiply dW, 1 of 2", "L1 gelu gradient, 2 of 2"} <= found["L1 multiply dW, 2 of 2"]


def order_of(problem, grid, count):
    return list(waits(in_bands(schedule_of(problem, grid), count)))


@pytest.mark.parametrize(("count", "early"), [(2, False), (3, True)])
def test_what_follows_begins_before_the_last_band_if_there_is_a_band_to_hide_its_sum(count, early):
    """Layer 1 is summed over y, layer 2 over x; the last band of layer 1 waits for nothing."""
    order = order_of(MLP, Grid(y=2, x=2), count)
    bands = {
        layer: [order.index(f"L{layer} multiply, {one + 1} of {count}") for one in range(count)] for layer in (1, 2, 3)
    }
    assert bands[2][0] > bands[1][-1]
    assert (bands[3][0] < bands[2][-1]) == early
    assert bands[3][1] > bands[2][-1]


@pytest.mark.parametrize(
    ("adam", "grid", "early"),
    [(Adam(), Grid(y=2, x=2), True), (Adam(clip=1.0), Grid(y=2, x=2), False), (Adam(), Grid(data=2, y=2, x=2), False)],
    ids=["at once", "clipped by the norm of all", "summed over data"],
)
def test_a_weight_is_updated_before_the_last_band_if_its_gradient_is_there(adam, grid, early):
    order = order_of(replace(MLP, adam=adam), grid, 3)
    assert (order.index("update L3 W") < order.index("L1 gelu gradient, 3 of 3")) == early
    assert order.index("update L1 W") > order.index("L1 multiply dW, 3 of 3")


def test_attention_of_whole_sequences_goes_on_in_bands_and_of_parts_of_them_does_not():
    six = Gpt(2, 12, 4, 5, 17, 6, adam=ADAM)
    found = waits(in_bands(overlap(schedule_of(six, Grid(y=2, x=2)), OVERLAPS), 2))
    assert {"attention, 1 of 2", "attention gradient, 2 of 2"} <= set(found)
    found = waits(in_bands(overlap(schedule_of(six, Grid(z=2, y=2, x=2)), OVERLAPS), 4))  # three sequences on a rank
    assert {"QKV add b, 4 of 4", "attention"} <= set(found)


@pytest.mark.parametrize(("dtype", "cut"), [("float32", True), ("bfloat16", False)])
def test_dw_is_added_up_band_by_band_where_additions_round_little(dtype, cut):
    step = Mlp((8, 8, 8), rows=8, dtype=dtype, adam=ADAM)
    assert ("L1 multiply dW, 1 of 2" in waits(in_bands(schedule_of(step, Grid(y=2, x=2)), 2))) == cut


def test_bands_hide_the_shorter_of_a_product_and_its_sum_but_for_an_end_where_one_is_much_longer():
    plain = matmul_schedule(Matmul(4096, 4096, 4096), "4d", Grid(y=2))
    machine = star(2)
    whole, banded = (simulate(one, machine).timeline for one in (plain, in_bands(plain, 4)))
    product, summed = (sum(one.seconds for one in whole.spans if one.op == op) / 2 for op in ("multiply C", "sum C"))
    assert whole.makespan - banded.makespan == pytest.approx(5 / 6 * min(product, summed), rel=0.05)


def test_nothing_is_cut_where_no_sum_follows_a_product_or_rows_are_too_few():
    for grid, problem, count in ((Grid(z=2), MLP, 3), (Grid(y=2), MLP, 14)):
        plain = schedule_of(problem, grid)
        assert in_bands(plain, count).tensors == plain.tensors


def test_dw_of_few_rows_is_not_cut():
    step = Mlp((8, 8, 8), rows=1024, adam=ADAM)
    names = {count: set(waits(bands.in_bands(schedule_of(step, Grid(y=2, x=2)), count))) for count in (4, 8)}
    assert "L1 multiply dW, 1 of 4" in names[4] and "L1 multiply dW" in names[8]


def test_what_reads_the_whole_of_a_sum_over_rows_is_not_cut_with_it():
    rows, inner, columns = Part("m", ("data", "z")), Part("k", ("y",)), Part("n", ("x",))
    tensors = [Tensor("A", rows, inner), Tensor("B", inner, columns), Tensor("C", rows, columns)]
    tensors += [Tensor("C2", rows, columns), Tensor("W", columns, Part("n")), Tensor("E", rows, Part("n"))]
    program = (
        Gemm(name="multiply C", a="A", b="B", c="C"),
        AllReduce(name="sum C", axis="y", buffer="C"),
        Pointwise(name="copy", function="copy", into="C2", sources=("C",)),
        Gemm(name="square", a="C", b="C2", c="W", layout="TN"),
        Gemm(name="use", a="C", b="W", c="E"),
    )
    plain = matmul_schedule(Matmul(8, 6, 4, "float64"), "4d", Grid(y=2))
    schedule = replace(
        plain,
        tensors=declare(*tensors),
        outputs=("E",),
        roles=(replace(plain.roles[0], program=in_sequence(program)),),
    )
    names = list(waits(validate(in_bands(schedule, 2))))
    assert names[-4:] == ["square, 1 of 2", "copy, 2 of 2", "square, 2 of 2", "use"]
    random = np.random.default_rng(0)
    A, B = random.random((8, 6)), random.random((6, 4))
    C = A @ B
    found = execute(in_bands(schedule, 2), {"A": A, "B": B}, InProcess(2)).outputs[0]["E"]
    np.testing.assert_allclose(found, C @ (C.T @ C))


def test_gathers_stay_in_order_on_their_lane():
    deep = Mlp((64, 64, 64, 64), rows=8, adam=ADAM)
    for count in (1, 2):
        order = list(waits(in_bands(overlap(schedule_of(deep, Grid(z=2, x=2)), OVERLAPS), count)))
        gathers = [name for name in order if "gather W again" in name]
        assert gathers == ["L3 gather W again", "L2 gather W again"]


def test_bands_go_on_through_the_loss_of_microbatches():
    for micro in (None, 2):
        order = list(waits(in_bands(schedule_of(replace(GPT, micro_batch=micro), Grid(y=2, x=2)), 2)))
        assert order.index("multiply dlast N, 1 of 2") < order.index("cross entropy, 2 of 2")


def test_bands_of_even_shards_are_all_rows():
    schedule = with_even_shards(in_bands(schedule_of(replace(GPT, batch=9), Grid(z=2, y=2, x=2)), 2))
    coordinates, banded = schedule.coordinates(0), bands_of(schedule.tensors)
    assert {len(names) for names in banded.values()} == {2}
    for whole, names in banded.items():
        elements = [schedule.tensors[name].block(coordinates).elements for name in names]
        assert sum(elements) == schedule.tensors[whole].block(coordinates).elements, whole


def test_the_lengths_that_a_band_may_have_are_those_that_it_has():
    schedule = in_bands(schedule_of(replace(GPT, batch=7), Grid(z=2, y=2, x=2)), 2)
    bands_of_tensors = [tensor for tensor in schedule.tensors.values() if tensor.band_of is not None]
    assert bands_of_tensors
    for tensor in bands_of_tensors:
        bounds = {tensor.rows.bounds(schedule.coordinates(rank)) for rank in range(schedule.grid.size)}
        assert {stop - start for start, stop in bounds} <= lengths(tensor.rows, schedule)


def test_fewer_than_one_band_are_refused():
    with pytest.raises(InputError, match="bands 0: a whole number from 1"):
        in_bands(schedule_of(MLP, Grid(y=2)), 0)
