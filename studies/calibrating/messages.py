"""Which way messages go best beside local work: in chunks or whole, with a progress thread or without.

Between all ranks a gather is under way while each multiplies, by the executor itself, once in every way.  It is a
microbenchmark of two ops; no algorithm is among them.  What is gained by one way must be more than noise, or the
simpler way is taken: a thread that gains nothing is in the way.
"""

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, get_args

from algorithms.formats.machine import MessagesRow
from runtime.delivery import CHUNK_BYTES, Delivery, Progress, usual_delivery
from runtime.world import Host, threads_may_send

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

GATHERED_BYTES, PRODUCTS, REPEATS = 4 << 20, 2, 5
NOISE = 0.05
"""By which a way must be faster than a simpler one to be taken."""


def measure_messages(communicator: "Intracomm", hosts: Sequence[Host]) -> tuple[MessagesRow, ...]:
    """A row for each way, the simpler ones first; all ranks call it, rank 0 gets the rows."""
    from runtime.measuring.beside import median_seconds
    from runtime.measuring.own_cores import own_cores

    progresses: tuple[Progress, ...] = get_args(Progress) if threads_may_send() else ("none",)
    ways = list(product((0, CHUNK_BYTES), progresses))
    nap = usual_delivery(hosts[0]).nap_seconds
    ranks, threads = communicator.Get_size(), own_cores(communicator)
    return tuple(
        MessagesRow(
            chunk_bytes=chunk, progress=progress, ranks=ranks, hosts=len(hosts), threads=threads, seconds=seconds
        )
        for chunk, progress in ways
        if (
            seconds := median_seconds(
                communicator, Delivery(chunk, nap, progress), GATHERED_BYTES, PRODUCTS, repeats=REPEATS
            )
        )
    )


def best(rows: Sequence[MessagesRow], usual: Delivery) -> MessagesRow | None:
    """The fastest way; of ways that differ by no more than noise the first whose chunks are the usual, else the first.

    A ring of all ranks does not show what chunks are for in a laboratory, exchanges between two (`CHUNK_BYTES`).

    >>> whole = MessagesRow(chunk_bytes=0, progress="none", seconds=1.0)
    >>> thread = MessagesRow(chunk_bytes=0, progress="thread", seconds=0.97)
    >>> chunks = MessagesRow(chunk_bytes=61440, progress="thread", seconds=0.99)
    >>> best([whole, thread, chunks], Delivery()) == whole, best([], Delivery())
    (True, None)
    >>> best([whole, thread, chunks], Delivery(chunk_bytes=61440)) == chunks
    True
    """
    least = min((row.seconds for row in rows), default=0.0)
    good = [row for row in rows if row.seconds <= least * (1 + NOISE)]
    return next((row for row in good if row.chunk_bytes == usual.chunk_bytes), good[0] if good else None)
