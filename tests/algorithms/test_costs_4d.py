import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadrille.algorithms.analysis import alpha_beta
from quadrille.algorithms.analysis.axonn import (
    FRONTIER,
    PERLMUTTER,
    axis_bandwidths,
    effective_bandwidth,
    layer_cost,
)
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import AXES, Grid
from quadrille.algorithms.units import GIB
from tests.support.formulas import gpt_block_seconds, gpt_block_seconds_of_authors

lengths = st.integers(1, 7)


def in_features_first(y, x, z, data):
    """The authors' tuple and rank order: in-feature, out-feature, depth, data."""
    return Grid(y=y, x=x, z=z, data=data, order=("y", "x", "z", "data"))


@pytest.mark.parametrize(
    ("node", "batch", "hidden", "grid", "golden"),
    [
        (PERLMUTTER, 1024, 7168, (2, 2, 8, 1), 0.6824199475740131),
        (PERLMUTTER, 8192, 9216, (1, 4, 64, 16), 0.09396949768066407),
        (FRONTIER, 8192, 12288, (2, 4, 32, 32), 0.3139350358829942),
    ],
)
def test_authors_form_of_one_block_gives_the_golden_values(node, batch, hidden, grid, golden):
    seconds = gpt_block_seconds_of_authors(batch, 2048, hidden, in_features_first(*grid), node)
    assert seconds == pytest.approx(golden, rel=1e-12)


@pytest.mark.parametrize(
    ("form", "seconds_of_grid"),
    [
        (
            gpt_block_seconds_of_authors,
            {(1, 1, 32, 1): 1.335, (1, 4, 8, 1): 1.486, (1, 1, 16, 2): 1.522, (1, 4, 4, 2): 1.543},
        ),
        (gpt_block_seconds, {(1, 1, 32, 1): 1.335, (1, 4, 8, 1): 1.346, (1, 4, 4, 2): 1.403, (1, 2, 16, 1): 1.430}),
    ],
)
def test_both_forms_rank_the_grids_of_20b_on_32_gpus_as_known(form, seconds_of_grid):
    powers = (1, 2, 4, 8, 16, 32)
    grids = [(y, x, z, 32 // (y * x * z)) for y in powers for x in powers for z in powers if y * x * z in (16, 32)]
    layers, batch = 32, 32
    ranked = sorted((layers * form(batch, 2048, 7168, in_features_first(*grid), PERLMUTTER), grid) for grid in grids)[
        :4
    ]
    assert {grid: round(seconds, 3) for seconds, grid in ranked} == seconds_of_grid


def test_the_two_forms_agree_where_the_axes_of_the_tensor_have_length_one():
    grid = in_features_first(1, 1, 32, 1)
    assert gpt_block_seconds(32, 2048, 7168, grid, PERLMUTTER) == gpt_block_seconds_of_authors(
        32, 2048, 7168, grid, PERLMUTTER
    )


@pytest.mark.parametrize(("stride", "shared_by"), [(1, 1), (2, 2), (4, 4), (8, 8), (32, 8)])
def test_rings_that_leave_a_node_share_its_injection(stride, shared_by):
    assert effective_bandwidth(stride, 16, FRONTIER) == 40 * GIB / shared_by


def test_a_group_inside_a_node_takes_the_table():
    assert effective_bandwidth(2, 4, FRONTIER) == 72 * GIB
    with pytest.raises(InputError, match=r"\(1, 3\)"):
        effective_bandwidth(1, 3, PERLMUTTER)


def test_bandwidth_follows_the_rank_order():
    assert axis_bandwidths(Grid(x=4, y=2), PERLMUTTER)["x"] == 225 * GIB
    assert axis_bandwidths(Grid(x=4, y=2, order=("y", "x", "z", "data")), PERLMUTTER)["x"] == 40 * GIB


@given(lengths, lengths, lengths, lengths)
def test_a_layer_costs_what_its_rings_cost_without_latency(data, z, y, x):
    m, k, n = 840, 420, 1260
    grid = {"data": data, "z": z, "y": y, "x": x}
    rate = {"data": 1.0, "z": 2.0, "y": 3.0, "x": 5.0}
    links = {axis: alpha_beta.AlphaBetaLink(latency=0, bandwidth=rate[axis]) for axis in rate}
    cost = layer_cost(m, k, n, grid, rate)
    shard = k * n / (x * y * z)
    assert cost.gather_weight == pytest.approx(alpha_beta.ring_all_gather(z, 2 * shard, links["z"]))
    assert cost.scatter_gradient == pytest.approx(alpha_beta.ring_reduce_scatter(z, 2 * shard, links["z"]))
    assert cost.forward_sum == pytest.approx(alpha_beta.ring_all_reduce(y, 2 * m * n / (z * x), links["y"]))
    assert cost.backward_sum == pytest.approx(alpha_beta.ring_all_reduce(x, 2 * m * k / (z * y), links["x"]))
    assert cost.data_sum == pytest.approx(alpha_beta.ring_all_reduce(data, 4 * shard, links["data"]))


@given(lengths, lengths, lengths, lengths)
def test_a_transposed_layer_is_the_normal_one_with_x_and_y_exchanged(data, z, y, x):
    rate = {"data": 1.0, "z": 2.0, "y": 3.0, "x": 5.0}
    exchanged = layer_cost(7, 5, 3, {"data": data, "z": z, "y": x, "x": y}, {**rate, "y": rate["x"], "x": rate["y"]})
    assert layer_cost(7, 5, 3, {"data": data, "z": z, "y": y, "x": x}, rate, transposed=True) == exchanged


def test_an_iteration_is_forward_backward_and_the_sum_over_data():
    cost = layer_cost(7, 5, 3, {"data": 2, "z": 3, "y": 2, "x": 5}, dict.fromkeys(AXES, 1.0))
    assert cost.training == pytest.approx(cost.forward + cost.backward + cost.data_sum)
    assert cost.training + cost.forward_sum == pytest.approx(
        3 * cost.gather_weight + 2 * cost.forward_sum + cost.backward_sum + cost.data_sum
    )
