"""Rounds in which every host sends to one other: they end, leave nothing, and say what came."""

import json

import pytest

from quadrille.runtime.carriers.message_options import CHUNK_BYTES, MessageOptions
from quadrille.runtime.measuring.all_pairs_rates import chunk_bytes, pairs, rate_of
from quadrille.runtime.measuring.calibration_sizes import FULL
from tests.support.launched import launched

PROGRAM = """
import json
from dataclasses import astuple
from mpi4py import MPI
from quadrille.runtime.carriers.message_options import MessageOptions
from quadrille.runtime.measuring.all_pairs_rates import measure_all_pairs
from tests.support.calibrations import SMALL
world = MPI.COMM_WORLD
points = measure_all_pairs(world, 25e6, MessageOptions(poll_sleep_seconds=5e-4), SMALL)
found = [astuple(point) for point in points]
world.Barrier()
left = world.Iprobe()
every = world.gather((found, left))
if world.rank == 0:
    print(json.dumps(every))
"""


@pytest.mark.mpi
@pytest.mark.parametrize("hosts", [2, 3])
def test_ranks_agree_on_what_came_in_every_round_and_no_message_is_left(hosts):
    ended = launched(hosts, "-c", PROGRAM, seconds=60)
    assert (ended.status, ended.err) == (0, "")
    every = json.loads(ended.out)
    assert all(one == every[0] for one in every) and not every[0][1]
    expected = {(n, *pair) for n, targets in enumerate(pairs(hosts), start=1) for pair in targets.items()}
    assert {tuple(row[:3]) for row in every[0][0]} == expected and len(every[0][0]) == len(expected)
    assert all(row[3] > 0 for row in every[0][0])


@pytest.mark.parametrize("hosts", [2, 3, 4, 7, 16])
def test_every_host_sends_and_receives_in_some_round_in_which_it_does_not_do_both(hosts):
    calm = [targets for targets in pairs(hosts) if not set(targets) & set(targets.values())]
    assert {host for targets in calm for host in targets} == set(range(hosts))
    assert {host for targets in calm for host in targets.values()} == set(range(hosts))


@pytest.mark.parametrize("step", [0.003, 0.07, 0.3])
def test_chunks_that_come_evenly_come_at_their_rate_however_they_lie_in_the_window(step):
    chunks = [((number + 1) * step, 1000) for number in range(int(2 / step))]
    assert rate_of(chunks) == pytest.approx(1000 / step)


def test_a_pause_in_the_window_counts():
    end = FULL.settling_seconds + FULL.window_seconds
    half = [(FULL.settling_seconds + FULL.window_seconds * number / 20, 100) for number in range(11)]
    assert rate_of([*half, (end, 0), (end + 1, 100)]) == pytest.approx(10 * 100 / FULL.window_seconds)


def test_nothing_that_came_is_a_rate_of_nothing():
    assert rate_of([]) == 0.0


@pytest.mark.parametrize(("rate", "size"), [(25e6, CHUNK_BYTES), (1e6, 10000), (1e3, 1024)])
def test_chunks_are_those_of_runs_and_smaller_on_slow_links(rate, size):
    assert chunk_bytes(rate, MessageOptions()) == size
