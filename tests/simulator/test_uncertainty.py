"""How far off predictions may be: by fit and noise as much either way, by messages later rather than earlier."""

from math import hypot

import msgspec
import pytest

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.simulator.uncertainty import (
    CHAIN_MESSAGES,
    LIBRARY_MESSAGES,
    OWN_MESSAGES,
    SHEET_RESIDUALS,
    TABLE_RESIDUALS,
    Uncertainty,
    message_margins,
    uncertainty,
)
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Fit, ReferenceKernels
from tests.support.toy_laboratories import laboratory, with_messages
from tests.support.toy_machines import star


def test_data_sheets_alone_give_no_interval():
    assert uncertainty(star(1), 1.0, OWN_MESSAGES) == Uncertainty(0, 0)


def test_residuals_of_the_fit_count_as_a_normal_distributions_median_deviation_would():
    fitted = msgspec.structs.replace(star(1), fit=Fit(residuals={"gemm": 0.02, "copy": 0.01}))
    expected = pytest.approx(1.645 * 1.48 * 0.02)
    assert uncertainty(fitted, 1.0, OWN_MESSAGES) == Uncertainty(expected, expected)


def test_noise_beside_calibration_counts_either_way():
    kernels = ReferenceKernels(gemm_seconds=1, copy_seconds=1, add_seconds=1, gemm_spread=0.1)
    noisy = msgspec.structs.replace(star(1), reference=kernels)
    assert uncertainty(noisy, 1.0, OWN_MESSAGES) == Uncertainty(pytest.approx(0.1), pytest.approx(0.1))


def test_between_hosts_of_a_laboratory_noise_counts_for_what_ranks_compute():
    kernels = ReferenceKernels(gemm_seconds=1, copy_seconds=1, add_seconds=1, gemm_spread=0.4)
    found = msgspec.structs.replace(with_messages(laboratory(None)), reference=kernels)
    whole, half, more = (uncertainty(found, 1e6, OWN_MESSAGES, computing=share * 1e6) for share in (1.0, 0.5, 3.0))
    assert whole == more == uncertainty(found, 1e6, OWN_MESSAGES)
    assert (whole.less, half.less) == (
        pytest.approx(hypot(0.4, OWN_MESSAGES.less)),
        pytest.approx(hypot(0.2, OWN_MESSAGES.less)),
    )
    assert uncertainty(found, 1e6, None, computing=0.0).less == pytest.approx(0.4), "it is no laboratory"


def test_in_a_laboratory_what_sends_nothing_may_be_late_by_as_much_as_the_kernel_lets_it():
    found, (problem, grid) = with_messages(laboratory(None)), (Matmul(8, 8, 8), Grid(x=4))
    alone = message_margins(matmul_schedule(problem, "1d-column", grid), Choices())
    assert uncertainty(found, 0.01, alone) == Uncertainty(0, pytest.approx(alone.late / 0.01))
    assert message_margins(matmul_schedule(problem, "1d-row", Grid(y=4)), Choices()) == OWN_MESSAGES


def test_chains_of_broadcasts_or_sums_among_more_than_two_are_less_certain_either_way():
    problem = Matmul(8, 8, 8, passes="training")
    three, two = (matmul_schedule(problem, "summa", Grid(z=length)) for length in (3, 2))
    assert message_margins(three, Choices()) == CHAIN_MESSAGES and message_margins(two, Choices()) == OWN_MESSAGES
    assert message_margins(three, Choices("library")) == LIBRARY_MESSAGES
    assert message_margins(three, Choices("own", "doubling")) == OWN_MESSAGES, "trees are no chains"
    assert (
        OWN_MESSAGES.less < CHAIN_MESSAGES.less < LIBRARY_MESSAGES.less
        and OWN_MESSAGES.more < CHAIN_MESSAGES.more < LIBRARY_MESSAGES.more
    )


def test_in_laboratories_runs_end_later_than_predicted_rather_than_earlier():
    found = with_messages(laboratory(None))
    own, library = uncertainty(found, 1e6, OWN_MESSAGES), uncertainty(found, 1e6, LIBRARY_MESSAGES)
    assert own == Uncertainty(pytest.approx(OWN_MESSAGES.less), pytest.approx(OWN_MESSAGES.more))
    assert library == Uncertainty(pytest.approx(LIBRARY_MESSAGES.less), pytest.approx(LIBRARY_MESSAGES.more))
    assert own.less < own.more < library.more
    assert own.less < library.less


def test_what_makes_a_run_early_or_late_whatever_its_length_weighs_on_short_ones():
    found = with_messages(laboratory(None))
    brief, long = uncertainty(found, 0.02, OWN_MESSAGES), uncertainty(found, 2.0, OWN_MESSAGES)
    assert brief.less == pytest.approx(hypot(OWN_MESSAGES.less, OWN_MESSAGES.early / 0.02))
    assert brief.more == pytest.approx(hypot(OWN_MESSAGES.more, OWN_MESSAGES.late / 0.02))
    assert brief.less > 2 * long.less and brief.more > 2 * long.more


def test_what_was_found_in_laboratories_widens_intervals_of_laboratories_only():
    found = with_messages(laboratory(None))
    apart = msgspec.structs.replace(found, emulation=None)
    assert (
        uncertainty(apart, 1.0, OWN_MESSAGES) == uncertainty(laboratory(None), 1.0, OWN_MESSAGES) == Uncertainty(0, 0)
    )
    assert uncertainty(found, 0.0, OWN_MESSAGES) == uncertainty(found, 1.0, None) == Uncertainty(0, 0)


def test_an_interval_lies_around_both_bounds_of_a_makespan_and_not_below_none():
    assert Uncertainty(0.1, 0.5).around(1.0, 2.0) == (pytest.approx(0.9), pytest.approx(3.0))
    assert Uncertainty(1.5, 0.5).around(1.0, 1.0) == (0.0, 1.5)


def test_gpus_known_by_tables_or_shares_have_the_residuals_of_published_steps():
    tabled, shared = find_machine("h100-node"), find_machine("frontier", gpus=8)
    assert uncertainty(tabled, 1.0, OWN_MESSAGES) == uncertainty(tabled, 9.0, None) == TABLE_RESIDUALS
    assert uncertainty(shared, 1.0, OWN_MESSAGES) == SHEET_RESIDUALS
    low, high = TABLE_RESIDUALS.around(2.0, 2.0)
    assert SHEET_RESIDUALS.around(2.0, 2.0)[0] < low < 2.0 < high < SHEET_RESIDUALS.around(2.0, 2.0)[1]


def test_a_calibrated_gpu_has_the_interval_of_its_calibration():
    fitted = msgspec.structs.replace(find_machine("h100-node"), fit=Fit(residuals={"gemm": 0.02}))
    assert uncertainty(fitted, 1.0, None).less == pytest.approx(1.645 * 1.48 * 0.02)
