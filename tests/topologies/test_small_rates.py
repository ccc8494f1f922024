"""Products in small numbers on GPUs: peaks of the data sheets, and one line for a GPU that lacks a precision."""

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.nodes.kernel_tables import kernel_table, kernel_table_names
from quadrille.topologies.small_rates import TABLES, small_rate


@pytest.mark.parametrize(
    ("machine", "precision", "peak", "any_layout"),
    [
        ("h100-node", "fp8", 1978.9e12, False),
        ("b200-node", "mxfp8", 4.5e15, True),
        ("b200-node", "nvfp4", 9e15, True),
        ("mi300x-node", "fp8", 2614.9e12, True),
    ],
)
def test_the_peak_is_that_of_the_data_sheet(machine, precision, peak, any_layout):
    rate = small_rate(find_machine(machine), precision)
    assert (rate.peak, rate.any_layout) == (peak, any_layout)


@pytest.mark.parametrize(
    ("machine", "precision", "line"),
    [
        ("a100-node", "fp8", "products fp8 on a100-node: A100 SXM 80 GB computes no products of 8 or 4 bits"),
        ("h100-node", "mxfp8", "H100 SXM does not compute them: accepted are fp8, fp8-delayed, fp8-block and dtype"),
        ("h100-node", "nvfp4", "products nvfp4 on h100-node"),
        ("mi300x-node", "nvfp4", "products nvfp4 on mi300x-node"),
    ],
)
def test_a_precision_that_a_gpu_lacks_is_one_line(machine, precision, line):
    with pytest.raises(InputError, match=line):
        small_rate(find_machine(machine), precision)


def test_every_precision_has_a_table_on_some_gpu():
    tables = {precision for name in kernel_table_names() for precision in kernel_table(name).products}
    assert set(TABLES.values()) <= tables
