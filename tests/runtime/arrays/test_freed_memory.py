"""Freed arrays stay in the process: temporaries of the size of a kernel's need no new pages."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from quadrille.runtime.arrays.numpy_library import keep_freed_memory
kept = keep_freed_memory() if KEEP else True
def use():
    return [np.ones(1 << 16) for _ in range(6)]
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    use()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def kept_and_faults(keep):
    program = PROGRAM.replace("KEEP", str(keep))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    kept, faults = ended.stdout.split()
    return kept == "True", int(faults)


def test_temporaries_need_no_new_pages_where_the_c_library_keeps_freed_memory():
    kept, faults = kept_and_faults(True)
    if not kept:
        pytest.skip("the C library has no mallopt")
    _, usual = kept_and_faults(False)
    assert faults < usual / 10
