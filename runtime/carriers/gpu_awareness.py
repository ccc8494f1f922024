"""GPU awareness: whether MPI accepts device arrays. The answer is yes only on evidence: a wrong yes crashes the run.

Two pieces of evidence are needed:

    claim      MPIX_Query_cuda_support() = 1 in the library that mpi4py loaded, or
               "cuda" among the world's mpi_memory_alloc_kinds (MPI 4.1)
    test       a child process sends one element from device to device, and it arrives

The child is a separate Python without the launcher's variables, so it may crash. It is a world of one
rank, so it tests device memory but no network. Any doubt on any rank means staging through the host.

Source: Open MPI documentation, "MPIX_Query_cuda_support"; MPI 4.1, section 12.4.3
(mpi_memory_alloc_kinds); mpi4py issue 162.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quadrille.runtime.host.progress_reports import collective_work

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from quadrille.runtime.host.devices import GpuDevice

CHILD_SECONDS = 60.0
LAUNCHER_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_", "HYDRA_", "HYDI_", "SLURM_", "PALS_", "FLUX_")
"""Prefixes of the variables by which launchers tell a process its rank."""

CHILD = """
import sys
import cupy
cupy.cuda.Device(int(sys.argv[1])).use()
from mpi4py import MPI
sent, received = cupy.full(1, 42.0), cupy.zeros(1)
cupy.cuda.Device().synchronize()
MPI.COMM_SELF.Sendrecv(sent, 0, recvbuf=received, source=0)
cupy.cuda.Device().synchronize()
sys.exit(0 if float(received[0]) == 42.0 else 3)
"""


@dataclass(frozen=True, slots=True)
class GpuAwareness:
    """Whether MPI accepts device arrays, and the reason for the answer.

    >>> print(GpuAwareness(False, "MPIX_Query_cuda_support() is 0"))
    device arrays go through the host: MPIX_Query_cuda_support() is 0
    """

    aware: bool
    reason: str

    def __str__(self) -> str:
        return f"device arrays go {'straight to MPI' if self.aware else 'through the host'}: {self.reason}"


def gpu_awareness(communicator: "Intracomm", device: "GpuDevice") -> GpuAwareness:
    """The GPU awareness of MPI in this run; a collective call with the same result on every rank.

    Parameters
    ----------
    communicator : communicator of all ranks
    device : GPU of this rank
    """
    from quadrille.runtime.host.devices import number_on_host

    query, kinds = query_cuda_support(), memory_kinds(communicator)
    is_first = number_on_host(communicator) == 0
    own_answer = answer_from_evidence(
        query, kinds, (lambda: one_element_test(device.number)) if is_first else (lambda: None)
    )
    with collective_work("comparing what MPI takes"):
        return common_answer(communicator.allgather(own_answer))


def answer_from_evidence(query: int | None, kinds: str | None, run_test: Callable[[], str | None]) -> GpuAwareness:
    """The GPU awareness of MPI, from the evidence of one rank.

    >>> answer_from_evidence(0, None, lambda: None).aware, answer_from_evidence(1, None, lambda: None).aware
    (False, True)
    >>> answer_from_evidence(1, None, lambda: "the child ended by signal 11").reason
    'MPIX_Query_cuda_support() is 1, but the child ended by signal 11'

    Parameters
    ----------
    query : result of MPIX_Query_cuda_support; None if the library lacks it
    kinds : mpi_memory_alloc_kinds; None if MPI does not report it
    run_test : one-element test, called only if MPI claims support; returns the reason of a failure, or None
    """
    claim = "there is no MPIX_Query_cuda_support" if query is None else f"MPIX_Query_cuda_support() is {query}"
    if kinds is not None:
        claim += f", mpi_memory_alloc_kinds are {kinds}"
    if query != 1 and not names_cuda(kinds):
        return GpuAwareness(False, claim)
    failure = run_test()
    if failure is not None:
        return GpuAwareness(False, f"{claim}, but {failure}")
    return GpuAwareness(True, f"{claim}, and one element went from device to device")


def names_cuda(kinds: str | None) -> bool:
    """Whether the kinds include CUDA device memory; kinds have the form kind:restrictor:….

    >>> [names_cuda(kinds) for kinds in (None, "system,mpi", "system,cuda", "mpi,cuda:device", "cuda:host")]
    [False, False, True, True, False]
    """
    named = [kind.strip().split(":") for kind in (kinds or "").split(",")]
    return any(kind[0] == "cuda" and (len(kind) == 1 or "device" in kind[1:]) for kind in named)


def common_answer(answers: list[GpuAwareness]) -> GpuAwareness:
    """The answer of all ranks: yes if every rank says yes; otherwise the first rank's reason against it."""
    for rank, answer in enumerate(answers):
        if not answer.aware:
            others_say_yes = any(answer_of_rank.aware for answer_of_rank in answers)
            return GpuAwareness(False, f"on rank {rank}, {answer.reason}") if others_say_yes else answer
    return answers[0]


def query_cuda_support() -> int | None:
    """The result of MPIX_Query_cuda_support in the MPI library that mpi4py loaded; None if the library lacks it."""
    from mpi4py import MPI

    # A symbol is looked up in mpi4py's module and in what that was linked with: the MPI of this process.
    try:
        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (AttributeError, OSError):
        return None
    query.restype, query.argtypes = ctypes.c_int, ()
    return int(query())


def memory_kinds(communicator: "Intracomm") -> str | None:
    """The memory kinds that MPI reports (MPI 4.1); None if it does not."""
    info = communicator.Get_info()
    try:
        return info.Get("mpi_memory_alloc_kinds")
    finally:
        info.Free()


def one_element_test(device: int, *, program: str = CHILD, seconds: float = CHILD_SECONDS) -> str | None:
    """The reason why a child process could not send one element from device to device; None if it could."""
    command = [sys.executable, "-c", program, str(device)]
    try:
        child = subprocess.run(
            command,
            check=False,
            env=without_launcher(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"a child that tried it did not end in {seconds:g} s"
    except OSError as error:
        return f"a child to try it did not start ({error})"
    if child.returncode < 0:
        return f"a child that tried it was ended by signal {-child.returncode}"
    return None if child.returncode == 0 else f"a child that tried it ended with status {child.returncode}"


def without_launcher(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of a launcher.

    >>> without_launcher({"PATH": "/bin", "PMIX_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"})
    {'PATH': '/bin'}
    """
    return {name: value for name, value in environment.items() if not name.startswith(LAUNCHER_VARIABLES)}
