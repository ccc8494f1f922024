"""The layer functions that a calibration measures: their arguments fit their signatures, and they can run."""

import numpy as np
import pytest

from quadrille.algorithms.schedule.kernel_signatures import ATTENTION_PRODUCTS, SIGNATURES
from quadrille.runtime.kernels.layer_kernels import carry_out
from quadrille.runtime.measuring.benchmark_kernels import HOST_COLUMNS, MEASURED, arguments

OF_DATA = {
    "embed",
    "embed_gradient",
    "add_positions",
    "position_sums",
    "row_maxima",
    "exponential_sums",
    "cross_entropy",
}
"""Functions that the passes of `host_passes.py` predict."""
MOVES = {"transpose", "add_region", "cast", "dropout", "dropout_gradient", "expand_bucket", "square_sum_kept"}
"""Functions that move data, or that a prediction takes from measured passes or copies."""
BY_BYTES = {
    *(
        "route",
        "route_gradient",
        "sequence_loads",
        "route_gradient_by_loads",
        "permute",
        "permute_gradient",
        "combine",
        "combine_gradient",
    ),
    *("add_expert_bias", "expert_column_sums", "add_gated", "add_gated_gradient"),
    *("take_keys_values", "put_keys_values"),
}
"""Functions of experts and of context parallelism: a prediction takes the bytes that they move."""
NEVER_RUN = {"cast_twice", "largest", "to_columns"}
"""Passes over numbers of 8 and 4 bits, which only predictions have."""


@pytest.mark.parametrize("function", MEASURED)
@pytest.mark.parametrize("elements", [1 << 6, 1 << 12])
def test_a_measured_function_runs_on_its_arguments_and_gives_numbers(function, elements):
    args = arguments(function, "float64", elements, HOST_COLUMNS)
    carry_out(function, args)
    assert all(np.isfinite(array).all() for array in (*args.into, *args.updates))


def test_every_function_of_a_layer_is_measured_or_made_of_measured_passes():
    assert SIGNATURES.keys() == {*MEASURED, *ATTENTION_PRODUCTS, *OF_DATA, *MOVES, *BY_BYTES, *NEVER_RUN}
