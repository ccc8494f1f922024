"""What all tests share: the tests that need a device or mpirun say so, and are skipped with a reason."""

import importlib.util
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings

# Examples on a shared machine take as long as they take; failures are printed so that they can be run again.  The suite
# draws the same examples in every run, so that a commit is judged by what it changed; `make fuzz` draws new ones.
settings.register_profile("quadrille", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None, print_blob=True)
settings.load_profile("quadrille")

# The suite starts hundreds of Python processes.  Where Python may not write bytecode beside the sources, each process
# would compile the same modules again; so all processes share bytecode in a folder that git ignores.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).resolve().parents[1] / "build" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

LONGEST = (
    "tests/runtime/carriers/test_mpi.py",
    "tests/runtime/training/test_drawn_training.py",
    "tests/runtime/test_large_messages.py",
    "tests/runtime/execution/test_execute.py",
    "tests/quadrille/cli/test_training_study_commands.py",
    "tests/quadrille/cli/test_training_commands.py",
    "tests/simulator/symmetry/test_training_steps.py",
    "tests/studies/published_training/test_published_training.py",
)
"""Files of long tests: they begin first, so that one worker does not wait long for another at the end."""
BEGIN = pytest.StashKey[float]()
"""When the first test began, by the monotonic clock."""
FAILED_FIXTURES = []

# Where a shell has put the suite in the background all its processes ignore Ctrl-C, also those that are to end at it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="run the tests in an order drawn with --hypothesis-seed, and skip those not begun after so many seconds",
    )


def pytest_collection_finish(session):
    session.config.stash[BEGIN] = time.monotonic()


def pytest_runtest_setup(item):
    budget = item.config.getoption("--budget")
    if budget is not None and time.monotonic() - item.config.stash[BEGIN] > budget:
        pytest.skip(f"the budget of {budget:g} s is spent")


def pytest_report_header():
    """Announces the tests that change the machine's network."""
    if sys.platform.startswith("linux") and os.geteuid() == 0 and not os.environ.get("QUADRILLE_NO_LAB"):
        return "root: tests of emulated networks build network namespaces here; QUADRILLE_NO_LAB=1 skips them"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """One cause is one failure: tests whose shared fixture has failed before are skipped."""
    report = yield
    if call.when == "setup" and report.failed and call.excinfo is not None:
        if call.excinfo.value in FAILED_FIXTURES:
            path, line, _ = item.location
            report.outcome, report.longrepr = "skipped", (path, line or 0, "a fixture failed, as reported before")
        FAILED_FIXTURES.append(call.excinfo.value)
    return report


def pytest_collection_modifyitems(config, items):
    order = {path: place for place, path in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))
    if config.getoption("--budget") is not None:
        random.Random(config.getoption("--hypothesis-seed")).shuffle(items)
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
