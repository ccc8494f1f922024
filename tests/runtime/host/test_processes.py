"""Processes as the kernel tells of them: living, stopped, ended, and of a number that was another's."""

import os
import platform
import signal
import subprocess
import sys

import pytest

from quadrille.algorithms.formats.atomic_files import has_ended, start_ticks
from quadrille.runtime.host.processes import ending_signal, state

NO_PROCESS = 2**22 + 1  # above the most that a Linux kernel gives
KERNEL = tuple(int(number) for number in platform.release().split(".")[:2])


@pytest.fixture
def sleeping():
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def test_a_process_has_ended_when_it_is_a_zombie_or_its_number_is_of_one_that_began_at_another_time(sleeping):
    began = start_ticks(sleeping.pid)
    assert began >= start_ticks(os.getpid()) > 0
    assert [has_ended(sleeping.pid, at) for at in (began, began - 1)] == [False, True]
    sleeping.kill()
    os.waitid(os.P_PID, sleeping.pid, os.WEXITED | os.WNOWAIT)
    assert state(sleeping.pid) == "Z" and has_ended(sleeping.pid, began)
    assert ending_signal(sleeping.pid) == signal.SIGKILL


@pytest.mark.skipif(KERNEL < (6, 15), reason="kernels before Linux 6.15 forget how a process ended")
def test_the_handle_of_an_ended_process_has_its_exit_status(sleeping):
    handle = os.pidfd_open(sleeping.pid)
    assert ending_signal(sleeping.pid, handle) is None
    sleeping.kill()
    sleeping.wait()
    assert (ending_signal(sleeping.pid), ending_signal(sleeping.pid, handle)) == (None, signal.SIGKILL)
    os.close(handle)
    assert ending_signal(sleeping.pid, handle) is None


def test_nothing_is_reported_of_a_process_that_is_gone():
    assert (state(NO_PROCESS), start_ticks(NO_PROCESS), ending_signal(NO_PROCESS)) == ("", 0, None)
    assert has_ended(NO_PROCESS, 0)


def test_a_stopped_process_is_distinguished_from_one_that_ended_by_no_signal(sleeping):
    sleeping.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeping.pid, os.WSTOPPED)
    assert state(sleeping.pid) == "T" and ending_signal(sleeping.pid) is None
