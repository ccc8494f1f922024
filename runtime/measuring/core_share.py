"""BLAS as in a run: on a rank's share of the cores of its host."""

from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from quadrille.runtime.host import world

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


def own_cores(communicator: "Intracomm") -> int:
    """Cores of this rank where only the ranks of the communicator compute; all of them call it."""
    return world.host_of(communicator.Get_rank(), world.hosts(communicator)).cores_per_rank


def on_own_cores(communicator: "Intracomm") -> threadpool_limits:
    """Within it products go on so many threads; all ranks of the communicator open it."""
    return threadpool_limits(own_cores(communicator), user_api="blas")
