"""Passes over arrays: planted costs are found again, and kernels of a host take the passes that they consist of."""

import pytest

from quadrille.algorithms.analysis.host_passes import KernelShape, host_passes, product_pass
from quadrille.algorithms.analysis.volumes import Work
from quadrille.algorithms.formats.measured_rows import MemoryRow, PassRow
from quadrille.runtime.measuring.pass_benchmarks import sizes_of
from quadrille.simulator.machine.compute_model import ComputeModel
from quadrille.simulator.machine.pass_costs import PassCosts, fit_costs, measured_pass
from quadrille.topologies.machines.machine import Device, Host, Machine

PLANTED = {"exponential": (2e-6, 3e-8, 5e-10), "product_nt": (3e-6, 2e-7, 4e-10, 2e-11, 7e-10)}


def planted_rows(operation, costs, busy_ranks=1):
    for matrices, rows, columns in sizes_of(operation):
        row = PassRow(
            operation=operation,
            dtype="float32",
            matrices=matrices,
            rows=rows,
            columns=columns,
            busy_ranks=busy_ranks,
            seconds=1.0,
        )
        seconds = sum(cost * term for cost, term in zip(costs, measured_pass(row).terms, strict=True))
        yield PassRow(
            operation=operation,
            dtype="float32",
            matrices=matrices,
            rows=rows,
            columns=columns,
            busy_ranks=busy_ranks,
            seconds=seconds,
        )


@pytest.mark.parametrize("operation", PLANTED)
def test_planted_costs_are_found_again(operation):
    found = fit_costs(list(planted_rows(operation, PLANTED[operation])))
    assert found == pytest.approx(PLANTED[operation], rel=1e-6)


def test_no_cost_is_negative_where_larger_passes_are_faster():
    rows = [
        PassRow(operation="select", dtype="float32", rows=rows, columns=columns, seconds=seconds)
        for rows, columns, seconds in ((64, 16, 3e-6), (4096, 16, 2e-6), (64, 1024, 1e-6))
    ]
    assert min(fit_costs(rows)) >= 0


def test_passes_that_were_not_measured_have_no_seconds():
    costs = PassCosts(list(planted_rows("exponential", PLANTED["exponential"])))
    assert costs.seconds([product_pass("product_nt", 1, 1, 8, 8)]) is None
    assert costs.seconds([]) is None


def machine_with(passes, copies=()):
    device = Device(
        peak_flops_per_second={"float32": 1e11},
        memory_bytes_per_second=1e10,
        memory_bytes=1e9,
        overhead_seconds=1e-6,
        memory=tuple(copies),
        passes=tuple(passes),
    )
    return Machine(name="one", topology={"family": "host", "cores": 2}, device=device, host=Host(cores=2))


SHAPE = KernelShape(256, 1024, streamed_bytes=1 << 21)
OPERATIONS = sorted({each.operation for each in host_passes("exponential_sums", SHAPE)})


def rows_of_all(busy_ranks=1, factor=1.0):
    costs = tuple(cost * factor for cost in PLANTED["exponential"])
    return [row for operation in OPERATIONS for row in planted_rows(operation, costs, busy_ranks)]


def test_a_kernel_of_a_host_takes_its_passes_and_the_copy_of_its_operands():
    copies = [
        MemoryRow(operation="copy", bytes=8, bytes_per_second=8e7),
        MemoryRow(operation="copy", bytes=1 << 20, bytes_per_second=1e9),
    ]
    model = ComputeModel(machine_with(rows_of_all(), copies), "float32", 1, 1)
    passes = sum(
        cost * term
        for each in host_passes("exponential_sums", SHAPE)
        for cost, term in zip(PLANTED["exponential"], each.terms, strict=True)
    )
    estimate = model.kernel(Work(0, 0, 1 << 21, shape=SHAPE), "exponential_sums")
    assert estimate.seconds == pytest.approx(1e-6 + passes + (2**20 / 1e9 - 1e-7))
    assert not estimate.extrapolated


def test_passes_of_the_nearest_number_of_busy_ranks_count():
    passes = rows_of_all() + rows_of_all(busy_ranks=2, factor=3.0)
    alone, together = (
        ComputeModel(machine_with(passes), "float32", 1, busy).kernel(Work(0, 0, 8, shape=SHAPE), "exponential_sums")
        for busy in (1, 2)
    )
    streamed = 2 * (2**20 - 1) / 1e10
    assert together.seconds - 1e-6 - streamed == pytest.approx(3 * (alone.seconds - 1e-6 - streamed))


def test_a_machine_without_these_passes_predicts_from_bytes_as_before():
    work = Work(0, 0, 1 << 21, shape=SHAPE)
    without = ComputeModel(machine_with([]), "float32", 1, 1).kernel(work, "exponential_sums")
    other_dtype = ComputeModel(machine_with(rows_of_all()), "float64", 1, 1).kernel(work, "exponential_sums")
    assert without == other_dtype
    assert without.seconds == pytest.approx(1e-6 + 2**21 / 1e10)


def test_a_fill_does_not_count_its_call_twice():
    small = MemoryRow(operation="zero", bytes=8, bytes_per_second=8 / 3e-7)
    model = ComputeModel(machine_with([], [small]), "float32", 1, 1)
    assert model.call_seconds("zero") == pytest.approx(3e-7)
    large = MemoryRow(operation="zero", bytes=1 << 14, bytes_per_second=1e10)
    assert ComputeModel(machine_with([], [large]), "float32", 1, 1).call_seconds("zero") == 0.0
