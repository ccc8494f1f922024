"""The delivery that is best beside local work: in which chunks messages go or whole, with a progress thread or without.

A gather is under way while each rank multiplies, by the executor itself, by every delivery, round after round: of all
ranks and, between hosts that have one each, several of pairs, whose exchanges show what chunks are for: those behind a
first one may lock into a slow phase (`studies/laboratory_trials/exchanges.py`).  These are
microbenchmarks of two kinds of ops; no algorithm is among them.  Deliveries are compared within rounds, since a
machine with neighbours is half as fast for twenty seconds and then as it was.  The simpler one is taken unless
another is faster by more than noise, and usual chunks unless others are by `CHUNKS_GAIN`: a thread that gains nothing
is a nuisance.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, get_args

from quadrille.algorithms.formats.measured_rows import MessagesRow
from quadrille.runtime.carriers.message_options import CHUNK_BYTES, MessageOptions, Progress, default_message_options
from quadrille.runtime.host.world import ComputeHost, mpi_allows_threads
from quadrille.runtime.measuring.sizes import FULL, CalibrationSizes

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

GATHERED_BYTES, PRODUCTS, ROUNDS = 4 << 20, 2, 5
IN_A_ROW, PAIRS_BYTES = 3, 2 << 20
"""Gathers of pairs."""
OTHER_CHUNKS = (16 << 10, 256 << 10)
"""Tried between hosts only: within one the cores copy, and the thread alone makes a difference."""
NOISE = 0.05
"""By which a delivery must be faster than a simpler one to be taken."""
CHUNKS_GAIN = 0.15
"""By which other chunks must be faster than the usual ones to be taken, where there are such.

Runs that name no machine file go in the usual ones.

Of 43 calibrations of laboratories five found others 5 to 11 % faster; of those three that were made again, on the same
site, none did.
"""


def deliveries(usual: MessageOptions, *, hosts: int, threads: bool) -> list[MessageOptions]:
    """What is tried, the simpler ones first.

    >>> [(one.chunk_bytes, one.progress) for one in deliveries(MessageOptions(), hosts=1, threads=True)]
    [(0, 'none'), (0, 'thread'), (65136, 'none'), (65136, 'thread')]
    >>> [(one.chunk_bytes, one.progress) for one in deliveries(MessageOptions(), hosts=2, threads=True)[4:]]
    [(16384, 'thread'), (262144, 'thread')]

    Parameters
    ----------
    threads : whether the MPI library takes calls of two
    """
    progresses: tuple[Progress, ...] = get_args(Progress) if threads else ("none",)
    others = OTHER_CHUNKS if hosts > 1 else ()
    tried = [*product((0, CHUNK_BYTES), progresses), *((chunk, progresses[-1]) for chunk in others)]
    return [MessageOptions(chunk, usual.poll_sleep_seconds, progress) for chunk, progress in tried]


def tune_messages(
    communicator: "Intracomm", hosts: Sequence[ComputeHost], sizes: CalibrationSizes = FULL
) -> tuple[MessagesRow, ...]:
    """A row for each of them; all ranks call it, rank 0 gets the rows."""
    from quadrille.runtime.measuring.core_share import own_cores
    from quadrille.runtime.measuring.overlap_interference import median_seconds

    usual, ranks, threads = default_message_options(hosts[0]), communicator.Get_size(), own_cores(communicator)
    kinds = [(ranks, 1, GATHERED_BYTES)]
    if ranks == len(hosts) and ranks % 2 == 0:
        kinds.append((2, IN_A_ROW, PAIRS_BYTES))

    def seconds(message_options: MessageOptions) -> float:
        return sum(
            median_seconds(
                communicator,
                message_options,
                gathered,
                PRODUCTS,
                repeats=1,
                members=members,
                gathers=gathers,
                product_size=sizes.overlap_product,
            )
            for members, gathers, gathered in kinds
        )

    tried = deliveries(usual, hosts=len(hosts), threads=mpi_allows_threads())
    rounds = [[seconds(message_options) for message_options in tried] for _ in range(ROUNDS)]
    if communicator.Get_rank() > 0:
        return ()
    return tuple(
        MessagesRow(
            chunk_bytes=message_options.chunk_bytes,
            progress=message_options.progress,
            ranks=ranks,
            hosts=len(hosts),
            threads=threads,
            seconds=typical,
        )
        for message_options, typical in zip(tried, within_rounds(rounds), strict=True)
    )


def within_rounds(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Of each delivery typical seconds: its median share of what all of a round take, of the median round.

    >>> within_rounds([[1.0, 3.0], [2.0, 6.0], [1.0, 3.0]])
    [1.0, 3.0]
    """
    whole = [sum(of_round) for of_round in rounds]
    shares = [[one / total for one in of_round] for of_round, total in zip(rounds, whole, strict=True)]
    return [median(whole) * median(of_one) for of_one in zip(*shares, strict=True)]


def with_best_chunks(rows: Sequence[MessagesRow], usual: MessageOptions) -> MessageOptions:
    """The usual delivery with the chunks of the best row, if there is one.

    >>> rows = [MessagesRow(chunk_bytes=size, progress="thread", seconds=1 + size / 2**20) for size in (16384, 65136)]
    >>> [with_best_chunks(rows, MessageOptions(chunk_bytes=usual)).chunk_bytes for usual in (65136, 0)]
    [65136, 16384]
    """
    found = best_row(rows, usual)
    return usual if found is None else replace(usual, chunk_bytes=found.chunk_bytes)


def best_row(rows: Sequence[MessagesRow], usual: MessageOptions) -> MessagesRow | None:
    """The fastest one, or of those that differ by no more than noise the first; with the usual chunks where they do.

    Chunks that make little difference to these gathers may make one elsewhere: where they are usual they stay.

    >>> whole = MessagesRow(chunk_bytes=0, progress="none", seconds=1.0)
    >>> thread = MessagesRow(chunk_bytes=0, progress="thread", seconds=0.97)
    >>> chunks = MessagesRow(chunk_bytes=65136, progress="thread", seconds=0.99)
    >>> best_row([whole, thread, chunks], MessageOptions()) == whole, best_row([], MessageOptions())
    (True, None)
    >>> best_row([whole, thread, chunks], MessageOptions(chunk_bytes=65136)) == chunks
    True
    >>> slow = MessagesRow(chunk_bytes=65136, progress="thread", seconds=1.2)
    >>> best_row([whole, thread, slow], MessageOptions(chunk_bytes=65136)) == whole
    True
    """
    of_usual = [row for row in rows if row.chunk_bytes == usual.chunk_bytes]
    enough = CHUNKS_GAIN if usual.chunk_bytes else NOISE
    taken = of_usual if of_usual and _least(of_usual) <= _least(rows) * (1 + enough) else rows
    return next((row for row in taken if row.seconds <= _least(taken) * (1 + NOISE)), None)


def _least(rows: Sequence[MessagesRow]) -> float:
    return min((row.seconds for row in rows), default=0.0)
