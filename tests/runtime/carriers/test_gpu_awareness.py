"""A yes needs two kinds of evidence; a crash is only ever the child's."""

import sys

import pytest
from mpi4py import MPI

from quadrille.runtime.carriers import gpu_awareness as module
from quadrille.runtime.carriers.gpu_awareness import (
    GpuAwareness,
    answer_from_evidence,
    common_answer,
    gpu_awareness,
    memory_kinds,
    one_element_test,
    query_cuda_support,
    without_launcher,
)
from quadrille.runtime.launching.launch import launch
from tests.support.fake_device import FAKE

CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
SEND_ON_THE_HOST = """
import sys, numpy as np
from mpi4py import MPI
sent, received = np.full(1, 42.0), np.zeros(1)
MPI.COMM_SELF.Sendrecv(sent, 0, recvbuf=received, source=0)
sys.exit(0 if received[0] == 42 and MPI.COMM_WORLD.size == 1 else 3)
"""


def passes():
    return None


def fails():
    return "the child crashed"


def is_not_tried():
    raise AssertionError("nothing says yes, so nothing is tried")


@pytest.mark.parametrize(
    ("query", "kinds"),
    [(None, None), (0, None), (None, "system,mpi"), (0, "system"), (0, "system,cuda:host"), (-1, None)],
)
def test_without_a_library_that_says_yes_nothing_is_tried(query, kinds):
    answer = answer_from_evidence(query, kinds, is_not_tried)
    assert not answer.aware
    said = "there is no MPIX_Query_cuda_support" if query is None else f"MPIX_Query_cuda_support() is {query}"
    assert answer.reason == said + (f", mpi_memory_alloc_kinds are {kinds}" if kinds else "")


@pytest.mark.parametrize(("query", "kinds"), [(1, None), (None, "system,cuda"), (0, "mpi,cuda:device"), (1, "system")])
def test_a_library_that_says_yes_must_also_do_it(query, kinds):
    assert answer_from_evidence(query, kinds, passes).aware
    answer = answer_from_evidence(query, kinds, fails)
    assert not answer.aware and "the child crashed" in answer.reason


def test_one_rank_that_doubts_is_enough():
    yes = GpuAwareness(True, "it does")
    assert common_answer([yes, yes]) == yes
    assert common_answer([yes, GpuAwareness(False, "it crashed"), yes]) == GpuAwareness(False, "on rank 1, it crashed")
    assert common_answer([GpuAwareness(False, "none")] * 2) == GpuAwareness(False, "none")


def test_a_child_that_crashes_fails_or_hangs_is_reported_in_one_line():
    assert one_element_test(0, program="pass") is None
    assert "signal 11" in one_element_test(0, program=CRASH)
    assert "status 3" in one_element_test(0, program="raise SystemExit(3)")
    assert "0.2 s" in one_element_test(0, program="import time; time.sleep(30)", seconds=0.2)


def test_the_child_gets_the_device_and_nothing_of_the_launcher(monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "3")
    program = "import os, sys; sys.exit(sys.argv[1] != '5' or 'PMIX_RANK' in os.environ)"
    assert one_element_test(5, program=program) is None


def test_settings_of_the_mpi_library_reach_the_child():
    kept = {"MPICH_GPU_SUPPORT_ENABLED": "1", "UCX_TLS": "cuda", "CUDA_VISIBLE_DEVICES": "1", "PATH": "/bin"}
    assert without_launcher({**kept, "SLURM_PROCID": "2", "PMI_RANK": "2", "OMPI_COMM_WORLD_RANK": "2"}) == kept


def test_the_wheels_answer_is_no_and_every_rank_says_why(monkeypatch):
    monkeypatch.setattr(module, "one_element_test", is_not_tried)
    if query_cuda_support() == 1:
        pytest.skip("this MPI says that it takes device arrays")
    answer = gpu_awareness(MPI.COMM_WORLD, FAKE)
    assert not answer.aware and "MPIX_Query_cuda_support" in answer.reason


def test_memory_kinds_are_what_the_world_says(monkeypatch):
    class World:
        def Get_info(self):
            info = MPI.Info.Create()
            info.Set("mpi_memory_alloc_kinds", "system,cuda:device")
            return info

    assert memory_kinds(World()) == "system,cuda:device"


@pytest.mark.skipif(MPI.Get_version() < (4, 1), reason="mpi_memory_alloc_kinds came with MPI 4.1")
def test_the_world_names_the_memory_of_the_host():
    assert "system" in memory_kinds(MPI.COMM_SELF)


def test_the_child_s_own_program_compiles():
    compile(module.CHILD, "child", "exec")


@pytest.mark.mpi
def test_among_ranks_the_child_is_a_world_of_its_own():
    source = (
        "import sys\nfrom mpi4py import MPI\nfrom quadrille.runtime.carriers.gpu_awareness import one_element_test\n"
        f"failure = one_element_test(0, program={SEND_ON_THE_HOST!r})\n"
        "assert MPI.COMM_WORLD.size == 2 and failure is None, failure\n"
    )
    assert launch(2, [], program=("-c", source)) == 0


def test_without_cupy_the_child_fails_and_nobody_else():
    if "cupy" in sys.modules or __import__("importlib.util").util.find_spec("cupy"):
        pytest.skip("CuPy is installed here")
    assert "status 1" in one_element_test(0)
