"""The same schedules on real MPI ranks: one launch runs every case, on groups of 1 to 12 ranks."""

import json

import pytest

from tests.support.launched import launched
from tests.support.mpi_cases import CASE_SECONDS, ROUNDS, WORLD, cases, names
from tests.support.speed import time_limit

pytestmark = pytest.mark.mpi
SLOW_START = "quadrille: starting "
"""Beginning of the line that a launch prints where the ranks of a busy machine start slowly."""


@pytest.fixture(scope="module")
def launch():
    return launched(WORLD, "-m", "tests.support.mpi_cases", "--case-seconds", str(time_limit(CASE_SECONDS)))


@pytest.fixture(scope="module")
def results(launch):
    lines = [json.loads(line) for line in launch.out.splitlines() if line.startswith("{")]
    return {line["case"]: line["wrong"] for line in lines}


def test_the_launch_ends_well_and_runs_each_case_once(launch, results):
    assert launch.status == 0, launch.err[-3000:]
    assert [line for line in launch.err.splitlines() if not line.startswith(SLOW_START)] == []
    assert sorted(results) == sorted(names())
    assert len(launch.out.splitlines()) == len(names())


@pytest.mark.parametrize("ranks", sorted({size for sizes in ROUNDS for size in sizes}))
def test_mpi_ranks_get_numpy_s_result_bit_for_bit_and_send_the_predicted_bytes(ranks, results):
    ran = {case.name: results[case.name] for case in cases(ranks) if case.name in results}
    if not ran:
        pytest.skip("none ran: test_the_launch_ends_well_and_runs_each_case_once says why")
    assert not {name: wrong for name, wrong in ran.items() if wrong is not None}
