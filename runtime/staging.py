"""Device arrays on their way through the host: pinned buffers, kept and reused.

    outgoing      device ──copy──► pinned ──MPI──►           incoming   ──MPI──► pinned ──copy──► device

MPI knows no streams.  So the copy to the host has ended before MPI is given the
buffer, and the copy to the device has ended before the request counts as done.
The copies run on the library's stream beside the compute lane, behind whatever
was handed to that stream: sums of our own collectives are in order with them, and a
GEMM under way does not hold them up.  What the compute lane itself wrote has
ended when the executor starts an op that sends it.

A buffer is free again when its flight has landed.  A message is one copy, since MPI
takes it as a whole; what is longer comes in pieces from above: the chunks of a
pipelined collective, the steps of a ring.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from algorithms.collectives.choices import Carriage
from algorithms.errors import InputError
from algorithms.tensors import DType
from runtime.communicators import Array
from runtime.mpi_communicator import Staging
from runtime.pinned import Bytes, PinnedPool

if TYPE_CHECKING:
    from runtime.cupy_library import CupyLibrary
    from runtime.gpu_awareness import Awareness


class DeviceStaging(Staging):
    """How device arrays meet an MPI that knows only the host: through pinned buffers.

    Parameters
    ----------
    library : whose arrays they are
    pool : of pinned buffers, by default the library's
    """

    def __init__(self, library: "CupyLibrary", pool: PinnedPool | None = None) -> None:
        self._library = library.beside()
        self._pool = pool or library.pinned

    def outgoing(self, buffer: Array) -> tuple[Array, Callable[[], None]]:
        """A pinned buffer with the array's elements; free again when MPI has read it."""
        pinned, host = self._room(buffer)
        self._library.copy_to_host(host, buffer)
        self._library.synchronise()
        return host, lambda: self._pool.give_back(pinned)

    def incoming(self, buffer: Array) -> tuple[Array, Callable[[], None]]:
        """A pinned buffer for MPI to write, copied to the array when it has."""
        pinned, host = self._room(buffer)
        return host, lambda: self._land(buffer, host, pinned)

    def both_ways(self, buffer: Array) -> tuple[Array, Callable[[], None]]:
        """A pinned buffer with the array's elements, copied back when MPI has changed it."""
        pinned, host = self._room(buffer)
        self._library.copy_to_host(host, buffer)
        self._library.synchronise()
        return host, lambda: self._land(buffer, host, pinned)

    def _room(self, buffer: Array) -> tuple[Bytes, NDArray[Any]]:
        pinned = self._pool.take(buffer.nbytes)
        return pinned, pinned[: buffer.nbytes].view(buffer.dtype)

    def _land(self, buffer: Array, host: NDArray[Any], pinned: Bytes) -> None:
        self._library.copy_to_device(buffer, host)
        self._library.synchronise()
        self._pool.give_back(pinned)


class DirectStaging(Staging):
    """How device arrays meet an MPI that takes them: as they are, when the device has written them."""

    def __init__(self, library: "CupyLibrary") -> None:
        self._library = library.beside()

    def outgoing(self, buffer: Array) -> tuple[Array, Callable[[], None] | None]:
        """The array itself."""
        return self._ended(buffer)

    def incoming(self, buffer: Array) -> tuple[Array, Callable[[], None] | None]:
        """The array itself, which the device neither reads nor writes any more."""
        return self._ended(buffer)

    def both_ways(self, buffer: Array) -> tuple[Array, Callable[[], None] | None]:
        """The array itself."""
        return self._ended(buffer)

    def _ended(self, buffer: Array) -> tuple[Array, None]:
        self._library.synchronise()
        return buffer, None


def find_staging(library: "CupyLibrary", awareness: "Awareness", carriage: Carriage) -> Staging:
    """The way of device arrays through MPI.

    Only point-to-point messages, which our own collectives are made of, may go
    directly: Open MPI has no non-blocking reductions of device arrays.

    Source: Open MPI issues 9845 and 12045.
    """
    return DirectStaging(library) if awareness.aware and carriage == "own" else DeviceStaging(library)


def check_sums(dtype: DType, carriage: Carriage) -> None:
    """Nothing, where MPI can sum such elements or is not asked to.

    Raises
    ------
    InputError : MPI's own collectives with 16-bit elements
    """
    if carriage == "library" and dtype in ("float16", "bfloat16"):
        raise InputError(f"dtype {dtype!r} with collectives 'library': MPI has no sum of it; accepted are own and NCCL")
