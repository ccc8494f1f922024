"""The way between two hosts: rate and bucket read off the seconds of messages."""

import json

import pytest

from quadrille.runtime.measuring.calibration_sizes import FULL
from quadrille.runtime.measuring.link_speed import rate_and_burst
from tests.support.launched import launched

PROGRAM = """
import json
from dataclasses import astuple
from mpi4py import MPI
from quadrille.runtime.measuring import link_speed
from tests.support.calibrations import SMALL
world = MPI.COMM_WORLD
found = world.gather(astuple(link_speed.measure_link_speed(world, SMALL)))
if world.rank == 0:
    print(json.dumps(found))
"""


@pytest.mark.parametrize("rate", [2.5e6, 25e6, 1.25e9])
@pytest.mark.parametrize("burst", [0.0, 25e3, 7e4, 3e5])
def test_rate_and_bucket_are_read_off_messages_of_several_sizes(rate, burst):
    found_rate, found_burst = rate_and_burst([(size, max(1e-6, size - burst) / rate) for size in FULL.link_bytes])
    assert found_rate == pytest.approx(rate, rel=1e-3)
    assert found_burst == pytest.approx(burst, rel=1e-2, abs=2000)


def test_without_a_bucket_noise_makes_none():
    rate, burst = rate_and_burst(
        [(size, 1.01 * size / 25e6 if size < 1 << 20 else size / 25e6) for size in FULL.link_bytes]
    )
    assert (rate, burst) == (pytest.approx(25e6, rel=0.02), 0.0)


@pytest.mark.mpi
def test_ranks_agree_on_the_path_between_them():
    ended = launched(2, "-c", PROGRAM)
    assert (ended.status, ended.err) == (0, "")
    one, other = json.loads(ended.out)
    assert one == other
    latency, rate, burst = one
    assert min(latency, rate) > 0 and burst >= 0
