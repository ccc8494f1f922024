"""The work of a function as a count, which does not depend on the speed of the machine."""

import sys


def python_calls(work):
    """The number of calls of Python functions while `work()` runs."""
    count = 0

    def count_call(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    previous = sys.getprofile()
    sys.setprofile(count_call)
    try:
        work()
    finally:
        sys.setprofile(previous)
    return count
