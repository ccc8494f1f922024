"""How long a core is idle before it takes a rank from another: one product more than there are cores."""

import json

import pytest

from quadrille.runtime.carriers.message_options import WHOLE_MESSAGES
from quadrille.runtime.measuring import overlap_interference
from quadrille.runtime.measuring.overlap_interference import measure_idle_cores
from tests.support.launched import launched

PROGRAM = """
import json
from mpi4py import MPI
from quadrille.runtime.carriers.message_options import WHOLE_MESSAGES
from quadrille.runtime.measuring.overlap_interference import measure_idle_cores
from tests.support.calibrations import SMALL
world = MPI.COMM_WORLD
found = [world.gather(measure_idle_cores(world, cores, WHOLE_MESSAGES, SMALL)) for cores in (2, 3)]
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps(found))
"""


class Ranks:
    """A communicator of so many."""

    def __init__(self, size):
        self.size = size

    def Get_size(self):
        return self.size


@pytest.mark.parametrize("cores", [2, 4])
def test_it_is_what_the_last_product_of_one_too_many_tells(monkeypatch, cores):
    """Products of 10, 20 and 30 ms: the last of cores + 1 ends 1, 3 and 9 ms after one and a half of them."""
    last = {cores: [0.01, 0.02, 0.03], cores + 1: [0.016, 0.033, 0.054]}
    monkeypatch.setattr(overlap_interference, "measured_on_first", lambda _, ranks, __: last[ranks])
    assert measure_idle_cores(Ranks(cores + 1), cores, WHOLE_MESSAGES) == pytest.approx(0.006)


def test_products_that_all_end_early_tell_of_no_wait(monkeypatch):
    monkeypatch.setattr(overlap_interference, "measured_on_first", lambda *_: [0.01])
    assert measure_idle_cores(Ranks(3), 2, WHOLE_MESSAGES) == 0.0


@pytest.mark.mpi
def test_ranks_agree_and_nothing_is_measured_of_ranks_that_have_a_core_each():
    ended = launched(3, "-c", PROGRAM)
    assert (ended.status, ended.err) == (0, "")
    uneven, even = json.loads(ended.out)
    assert len(set(uneven)) == 1 and 0 <= uneven[0] < 1
    assert even == [0.0] * 3
