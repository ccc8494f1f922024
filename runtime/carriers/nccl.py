"""The NCCL carrier: a message transport with one process and one GPU per rank. MPI only distributes the NCCL ids.

Each group of ranks has one NCCL communicator and one CUDA stream per lane (`nccl_communicator.py`). A lane is a queue
of communication ops.

The ops of all lanes begin in program order, which is the same on every rank except between pipeline stages
(`lanes.py`). Later steps of our own collectives on two lanes may still start in different orders on different ranks.
NCCL allows this while the device can run the kernels of both at once, which holds for a handful of lanes.

Source: NVIDIA, "NCCL user guide", section "Using multiple NCCL communicators concurrently".
"""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.runtime.carriers.communicators import RankCoroutine, Result, SingleMember, Wait
from quadrille.runtime.carriers.mpi import MpiCarrier
from quadrille.runtime.carriers.nccl_communicator import NcclCommunicator
from quadrille.runtime.host.devices import check_unshared

if TYPE_CHECKING:
    from quadrille.runtime.arrays.cupy_library import CupyLibrary


def load_nccl() -> Any:
    """CuPy's NCCL module.

    Raises
    ------
    InputError : CuPy finds no NCCL
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns and goes on; we say it in our own line and end
        from cupy.cuda import nccl
    if not nccl.available:
        raise InputError("NCCL is not installed: pip install nvidia-nccl-cu12 (or -cu13), or let MPI carry (staging)")
    return nccl


class NcclCarrier:
    """The NCCL carrier: a message transport between the ranks of an MPI communicator, each with its own GPU.

    Parameters
    ----------
    library : array library of the rank's GPU
    communicator : communicator of all ranks; MPI's world if not given

    Raises
    ------
    InputError : two ranks on one GPU, or no NCCL
    """

    def __init__(self, library: "CupyLibrary", communicator: MPI.Intracomm | None = None) -> None:
        self._world = communicator or MPI.COMM_WORLD
        check_unshared(self._world.allgather(library.device))
        self._nccl = load_nccl()
        self._library = library
        self._mpi = MpiCarrier(self._world)
        self._groups: dict[tuple[Grid, Axis, int], Any] = {}
        self.size = self._mpi.size
        self.rank = self._mpi.rank
        self.ranks = self._mpi.ranks

    def communicator(self, grid: Grid, rank: int, axis: Axis, lane: int) -> Any:
        key = (grid, axis, lane)
        if key not in self._groups:
            self._groups[key] = self._new_communicator(grid, rank, axis)
        return self._groups[key]

    def _new_communicator(self, grid: Grid, rank: int, axis: Axis) -> Any:
        """An NCCL communicator with an id from the group's first member, because CuPy cannot split a communicator."""
        if grid.length(axis) == 1:
            return SingleMember()
        members = grid.group(rank, axis)
        member = members.index(rank)
        group = self._world.Split(color=members[0], key=member)
        unique_id = group.bcast(self._nccl.get_unique_id() if member == 0 else None, root=0)
        group.Free()
        try:
            communicator = self._nccl.NcclCommunicator(len(members), unique_id, member)
        except RuntimeError as error:
            raise RunError(f"NCCL does not start along {axis} on {self._library.device}: {error}") from None
        return NcclCommunicator(self._nccl, communicator, self._library, member, len(members))

    def run(self, coroutine: Callable[[int], RankCoroutine[Result]]) -> dict[int, Result]:
        rank_coroutine = coroutine(self.rank)
        while True:
            try:
                wait = next(rank_coroutine)
            except StopIteration as end:
                return {self.rank: end.value}
            _await(wait)

    def gather(self, values: dict[int, Any]) -> dict[int, Any] | None:
        return self._mpi.gather(values)

    def begin_together(self) -> None:
        self._mpi.begin_together()

    def now(self) -> float:
        return self._mpi.now()

    def close(self) -> None:
        """Free the communicators of all groups."""
        for group in self._groups.values():
            if isinstance(group, NcclCommunicator):
                group.close()
        self._groups.clear()
        self._mpi.close()


def _await(wait: Wait) -> None:
    """Poll until one request, or every request, has completed.

    Polling also starts the group calls: a call that is never polled would never start.
    """
    combine = all if wait.every else any
    while wait.requests and not combine([request.done() for request in wait.requests]):
        pass
