"""A time limit ends its body, also where Python drops the exception, and nothing after its body."""

import gc
import signal
import sys
import time
import weakref
from contextlib import suppress

import pytest

from quadrille.algorithms.errors import QuadrilleError
from quadrille.experiments.sweep.time_limit import TimeLimitExceeded, processor_time_limit


def test_a_limit_ends_what_takes_longer_and_leaves_the_rest_alone():
    with (
        pytest.raises(TimeLimitExceeded, match=r"given up after 50.0 ms of processor time"),
        processor_time_limit(0.05),
    ):
        while True:
            pass
    with processor_time_limit(30):
        done = sum(range(1000))
    assert done == 499500


def busy(seconds):
    """Use the processor for some seconds."""
    ends = time.process_time() + seconds
    while time.process_time() < ends:
        sum(range(10_000))


class Finalized:
    """An object whose finalizer is busy."""

    def __del__(self):
        busy(0.1)


def in_a_collection():
    """Be busy in a callback of the garbage collector."""
    callback = lambda _phase, _info: busy(0.1)  # noqa: E731 - removed below
    gc.callbacks.append(callback)
    gc.collect()
    gc.callbacks.remove(callback)


def in_a_finalizer():
    """Be busy in a finalizer."""
    Finalized()


def in_a_callback_of_a_weak_reference():
    """Be busy in the callback of a weak reference."""
    referent = type("Referent", (), {})()
    reference = weakref.ref(referent, lambda _: busy(0.2))
    del referent
    assert reference() is None


def in_a_body_that_drops_it():
    """Be busy where every error is ignored."""
    with suppress(QuadrilleError):
        busy(0.2)


@pytest.mark.parametrize(
    "swallow", [in_a_collection, in_a_finalizer, in_a_callback_of_a_weak_reference, in_a_body_that_drops_it]
)
def test_a_limit_that_is_reached_where_exceptions_are_dropped_is_raised_again(swallow, capsys):
    ended = []
    with pytest.raises(TimeLimitExceeded), processor_time_limit(0.05):
        swallow()
        ended.append(swallow)
        busy(10)
    assert ended == [swallow] and capsys.readouterr().err == ""
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    busy(0.15)  # a signal now would end the process


def test_a_limit_reports_other_dropped_exceptions_as_before(monkeypatch):
    reports = []
    monkeypatch.setattr(sys, "unraisablehook", reports.append)
    referent = type("Referent", (), {})()
    with processor_time_limit(30):
        reference = weakref.ref(referent, lambda _: 1 / 0)
        del referent
    assert reference() is None and [type(report.exc_value) for report in reports] == [ZeroDivisionError]
    assert sys.unraisablehook == reports.append
