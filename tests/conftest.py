"""What all tests share: the tests that need a device or mpirun say so, and are skipped with a reason."""

import importlib.util
import signal

import pytest
from hypothesis import settings

# Examples on a shared machine take as long as they take; failures are printed so that they can be run again.  The suite
# draws the same examples in every run, so that a commit is judged by what it changed; `make fuzz` draws new ones.
settings.register_profile("quadrille", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None, print_blob=True)
settings.load_profile("quadrille")

# Where a shell has put the suite in the background all its processes ignore Ctrl-C, also those that are to end at it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    reason = missing_device() if any(item.get_closest_marker("gpu") for item in items) else None
    for item in items:
        if reason and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=reason))


def missing_device():
    """Why the gpu tests cannot run here; None if they can."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed (make test-gpu installs it)"
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no CUDA device: {error}"
    return None if count else "no CUDA device"
