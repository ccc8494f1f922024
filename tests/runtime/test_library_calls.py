"""MPI's calls for an all-gather and a reduce-scatter, on real ranks."""

import pytest

from tests.support.launched import launched


@pytest.mark.mpi
def test_both_calls_of_the_library_give_the_same_in_pairs_and_on_four_ranks_and_are_those_chosen():
    run = launched(4, "-m", "tests.support.library_calls")
    assert (run.status, run.err) == (0, "")
