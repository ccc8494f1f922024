"""Counts beyond 32 bits, for real."""

import pytest

from quadrille.runtime.host.memory_available import bytes_available
from tests.support.launched import launched

NEEDED = 7 << 30


@pytest.mark.mpi
@pytest.mark.skipif(bytes_available() < NEEDED, reason="7 GiB of free memory are needed")
def test_messages_and_collectives_of_more_than_2_to_the_31_elements_arrive():
    run = launched(2, "-m", "tests.support.large_messages")
    assert run.status == 0, run.err
