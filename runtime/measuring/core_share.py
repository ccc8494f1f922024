"""BLAS threads as in a run: each rank uses its share of its host's cores."""

from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from quadrille.runtime.host import world

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


def own_cores(communicator: "Intracomm") -> int:
    """The cores of this rank if only the ranks of the communicator compute; a collective call."""
    return world.host_of(communicator.Get_rank(), world.hosts(communicator)).cores_per_rank


def on_own_cores(communicator: "Intracomm") -> threadpool_limits:
    """A context in which products use this many threads; a collective call."""
    return threadpool_limits(own_cores(communicator), user_api="blas")
