"""The thread that advances communication beside local work: only there, and never unheard."""

import threading
import time

import pytest

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.runtime.arrays.cupy_library import CupyLibrary
from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.carriers.message_options import FIRST_SLEEP_SHARE, SLEEP_GROWTH, PollingBackoff
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.execution.progress_thread import ProgressThread
from tests.support import fake_device
from tests.support.fake_device import FAKE
from tests.support.launched import launched

SOON = 5.0
NAP = 1e-4


def until(happened):
    """Wait for it; whether it came."""
    end = time.monotonic() + SOON
    while not happened() and time.monotonic() < end:
        time.sleep(NAP)
    return happened()


def test_communication_advances_during_local_work_and_nowhere_else():
    calls = []
    thread = ProgressThread(lambda: calls.append(threading.current_thread().name), NAP)
    time.sleep(20 * NAP)
    assert calls == [], "not before the rank computes"
    with thread.running():
        assert until(lambda: len(calls) > 2)
    found = len(calls)
    time.sleep(20 * NAP)
    assert len(calls) == found, "not after it has computed"
    assert set(calls) == {"progress"}
    thread.close()


def test_an_error_of_communication_is_the_rank_s_own():
    def fail():
        raise ValueError("a message that is too long")

    thread = ProgressThread(fail, NAP)
    with pytest.raises(ValueError, match="too long"), thread.running():
        assert until(lambda: not thread.is_alive)
    thread.close()


def test_an_error_of_local_work_leaves_no_thread_behind():
    thread = ProgressThread(lambda: None, NAP)
    with pytest.raises(ZeroDivisionError), thread.running():
        _ = 1 / 0
    thread.close()
    assert not thread.is_alive
    assert "progress" not in {one.name for one in threading.enumerate()}


@pytest.fixture
def clock(monkeypatch):
    """Sleeps take the time that they are asked for; what was slept since it was last looked at."""
    now, slept = [0.0], []

    def sleep(seconds):
        now[0] += seconds
        slept.append(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def found():
        told = list(slept)
        slept.clear()
        return told

    return found


def test_the_polling_back_off_grows_while_nothing_comes_and_begins_short_again_for_other_ops(clock):
    naps = PollingBackoff(1e-3)
    for _ in range(60):
        naps.sleep(("gather",))
    slept = clock()
    assert slept[:3] == pytest.approx([5e-5, 5e-5 * SLEEP_GROWTH, 5e-5 * SLEEP_GROWTH**2])
    assert slept[-1] == 1e-3 == max(slept)
    naps.sleep(("sum",))
    assert clock() == [5e-5]


@pytest.mark.parametrize(("looks", "first"), [(1, 5e-5), (120, 1e-3)])
def test_the_polling_back_off_after_a_message_is_a_share_of_its_time(clock, looks, first):
    """At least the first nap, at most the longest."""
    naps = PollingBackoff(1e-3)
    for _ in range(looks):
        naps.sleep(("gather",), 0)
    took = sum(clock())
    naps.sleep(("gather",), 1)
    (slept,) = clock()
    assert slept == pytest.approx(min(1e-3, max(5e-5, took * FIRST_SLEEP_SHARE)))
    assert slept == pytest.approx(first)


def test_the_polling_back_off_grows_between_runs(clock):
    naps = PollingBackoff(1e-4)
    for _ in range(8):
        naps.sleep(("barrier",), idle=True)
    assert clock() == pytest.approx([5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 2e-3, 2e-3])


FAILING = """
import numpy as np
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.passes.overlap import overlap, parse_overlap
from quadrille.runtime.arrays.numpy_library import NumpyLibrary
from quadrille.runtime.carriers.message_options import MessageOptions
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.carriers.mpi import MpiCarrier
from quadrille.runtime.operands.operands import Operands
from quadrille.runtime.host.world import fail_all, world

class Breaking(NumpyLibrary):
    def matmul(self, a, b, out):
        if world().rank == 1:
            raise ArithmeticError("a broken unit")
        super().matmul(a, b, out)

schedule = overlap(matmul_schedule(Matmul(64, 64, 64, passes="training"), "4d", Grid(z=2)), parse_overlap("ors"))
carrier = MpiCarrier(message_options=MessageOptions(chunk_bytes=64))
try:
    execute(schedule, Operands(64, 64, 64, "float32"), carrier, library=Breaking(), progress="thread")
except ArithmeticError as error:
    fail_all(error)
"""


@pytest.mark.mpi
def test_a_rank_that_fails_beside_its_thread_ends_all():
    done = launched(2, "-c", FAILING, seconds=60)
    assert done.status == 1
    assert "rank 1 of 2: ArithmeticError: a broken unit" in done.err


def test_device_arrays_take_no_thread(monkeypatch):
    fake_device.install(monkeypatch)
    schedule = matmul_schedule(Matmul(4, 4, 4), "4d", Grid())
    with pytest.raises(InputError, match="progress 'thread': is for host arrays; accepted with those of cupy is none"):
        execute(schedule, {}, InProcess(1), library=CupyLibrary(FAKE), progress="thread")
