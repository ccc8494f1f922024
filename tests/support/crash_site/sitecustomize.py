"""Crash points of one rank, for tests: Python imports this module at its start where its folder is on PYTHONPATH.

TEST_CRASH_POINT is `RANK:NUMBER:LOG`.
"""

import os
import runpy
from pathlib import Path

RANK, NUMBER, LOG = os.environ.get("TEST_CRASH_POINT", ":0:").split(":", 2)
if RANK and os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == RANK:
    runpy.run_path(str(Path(__file__).parents[1] / "crash_points.py"))["install"](LOG, int(NUMBER))
