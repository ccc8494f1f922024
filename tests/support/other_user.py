"""What another user of this machine does, in a child process with that user's rights; only root can start it."""

import os
import sys
import traceback

import pytest

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


def start_as_nobody(act):
    """The number of a new process that acts as the user `nobody`."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        act()
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(status)


def as_nobody(act):
    """Have the user `nobody` act, and wait until that is done."""
    assert os.waitpid(start_as_nobody(act), 0)[1] == 0
