"""Ranks that take turns keep to one core each, if cores can be dealt out evenly, and run as soon as they wake."""

import ctypes
import os
import platform
import threading

import pytest

from quadrille.runtime.host.core_affinity import ATTRIBUTES, SLICE_NANOSECONDS, pinned_to_core, request_short_slices

CORES = sorted(os.sched_getaffinity(0))
GET_ATTRIBUTES = {"x86_64": 315, "aarch64": 275}
SLICE = 5
"""Its place among the attributes."""


def cores_within(rank, ranks):
    with pinned_to_core(rank, ranks):
        return os.sched_getaffinity(0)


def test_ranks_are_pinned_to_cores_one_after_the_other():
    ranks = 2 * len(CORES)
    found = [cores_within(rank, ranks) for rank in range(ranks)]
    assert found == [{core} for core in CORES] * 2
    assert sorted(os.sched_getaffinity(0)) == CORES


@pytest.mark.skipif(len(CORES) == 1, reason="any number of ranks is dealt out evenly to one core")
def test_ranks_that_cannot_be_pinned_evenly_keep_all_cores():
    assert sorted(cores_within(0, len(CORES) + 1)) == CORES


def slice_asked_for():
    """Of this thread [ns]; 0 where the kernel knows none."""
    given = ctypes.create_string_buffer(ATTRIBUTES.size)
    call = GET_ATTRIBUTES.get(platform.machine())
    if call is None or ctypes.CDLL(None).syscall(call, 0, given, ATTRIBUTES.size, 0):
        return 0
    return ATTRIBUTES.unpack(given.raw)[SLICE]


def test_a_rank_is_scheduled_soon_while_cores_are_shared_and_then_as_before():
    before = slice_asked_for()
    if not before:
        pytest.skip("slices can be asked for from Linux 6.12 on")
    with pinned_to_core(0, len(CORES)):
        assert slice_asked_for() == SLICE_NANOSECONDS < before
    assert slice_asked_for() == before


def test_a_rank_that_fails_gets_its_cores_back():
    with pytest.raises(ZeroDivisionError), pinned_to_core(0, len(CORES)):
        raise ZeroDivisionError
    assert sorted(os.sched_getaffinity(0)) == CORES


def test_a_thread_that_asks_to_run_soon_stays_as_nice_as_it_was():
    found = []

    def ask():
        os.nice(3)
        found.extend([request_short_slices(), os.sched_getscheduler(0), os.nice(0)])

    thread = threading.Thread(target=ask)
    before = os.nice(0)
    thread.start()
    thread.join()
    assert found[1:] == [os.SCHED_OTHER, before + 3]
    assert os.nice(0) == before


def test_a_thread_of_another_policy_is_left_alone(monkeypatch):
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_BATCH)
    assert not request_short_slices()
