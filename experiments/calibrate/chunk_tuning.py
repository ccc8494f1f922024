"""Chunk tuning: which chunk size, and whether a progress thread, is fastest for communication beside products.

A gather is in progress while each rank multiplies; the executor runs it with every candidate of message options, round
after round: a gather of all ranks and, between hosts with one rank each, several gathers of pairs. The exchanges of
pairs show what chunks are for: the gathers after the first may lock into a slow phase
(`studies/laboratory_trials/exchanges.py`). These are microbenchmarks of two kinds of ops and contain no algorithm.

Candidates are compared within rounds, because a shared machine may be half as fast for twenty seconds. The simpler
candidate is taken unless another one is faster by more than noise, and the default chunk size is kept unless another
one is faster by `CHUNKS_GAIN`: a thread that gains nothing only does harm.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, get_args

from quadrille.algorithms.formats.measured_rows import MessagesRow
from quadrille.runtime.carriers.message_options import CHUNK_BYTES, MessageOptions, Progress, default_message_options
from quadrille.runtime.host.world import ComputeHost, mpi_allows_threads
from quadrille.runtime.measuring.calibration_sizes import FULL, CalibrationSizes

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

GATHERED_BYTES, PRODUCTS, ROUNDS = 4 << 20, 2, 5
IN_A_ROW, PAIRS_BYTES = 3, 2 << 20
"""Gathers of pairs in a row, and their size [B]."""
OTHER_CHUNKS = (16 << 10, 256 << 10)
"""Further chunk sizes, tried between hosts only: within a host the cores copy [B]."""
NOISE = 0.05
"""The share by which a candidate must be faster than a simpler one."""
CHUNKS_GAIN = 0.15
"""The share by which another chunk size must be faster than the default size, where there is a default.

Runs without a machine file use the default size. In 43 calibrations of emulated networks, five preferred another size
by
5 to 11 %; three of them were repeated on the same machine, and none preferred it again.
"""


def candidate_options(usual: MessageOptions, *, hosts: int, threads: bool) -> list[MessageOptions]:
    """The candidates, simpler ones first.

    >>> [(o.chunk_bytes, o.progress) for o in candidate_options(MessageOptions(), hosts=1, threads=True)]
    [(0, 'none'), (0, 'thread'), (65136, 'none'), (65136, 'thread')]
    >>> [(o.chunk_bytes, o.progress) for o in candidate_options(MessageOptions(), hosts=2, threads=True)[4:]]
    [(16384, 'thread'), (262144, 'thread')]

    Parameters
    ----------
    threads : whether the MPI library allows calls from two threads
    """
    progresses: tuple[Progress, ...] = get_args(Progress) if threads else ("none",)
    others = OTHER_CHUNKS if hosts > 1 else ()
    candidates = [*product((0, CHUNK_BYTES), progresses), *((chunk, progresses[-1]) for chunk in others)]
    return [MessageOptions(chunk, usual.poll_sleep_seconds, progress) for chunk, progress in candidates]


def tune_messages(
    communicator: "Intracomm", hosts: Sequence[ComputeHost], sizes: CalibrationSizes = FULL
) -> tuple[MessagesRow, ...]:
    """One row for each candidate, at rank 0; a collective call."""
    from quadrille.runtime.host.core_affinity import own_cores
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

    candidates = candidate_options(usual, hosts=len(hosts), threads=mpi_allows_threads())
    rounds = [[seconds(message_options) for message_options in candidates] for _ in range(ROUNDS)]
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
        for message_options, typical in zip(candidates, within_rounds(rounds), strict=True)
    )


def within_rounds(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The typical seconds of each candidate: its median share of a round's total, times the median total.

    >>> within_rounds([[1.0, 3.0], [2.0, 6.0], [1.0, 3.0]])
    [1.0, 3.0]
    """
    totals = [sum(of_round) for of_round in rounds]
    shares = [[seconds / total for seconds in of_round] for of_round, total in zip(rounds, totals, strict=True)]
    return [median(totals) * median(of_one) for of_one in zip(*shares, strict=True)]


def with_best_chunks(rows: Sequence[MessagesRow], usual: MessageOptions) -> MessageOptions:
    """The default options with the chunk size of the best row, if there is one.

    >>> rows = [MessagesRow(chunk_bytes=size, progress="thread", seconds=1 + size / 2**20) for size in (16384, 65136)]
    >>> [with_best_chunks(rows, MessageOptions(chunk_bytes=size)).chunk_bytes for size in (65136, 0)]
    [65136, 16384]
    """
    best = best_row(rows, usual)
    return usual if best is None else replace(usual, chunk_bytes=best.chunk_bytes)


def best_row(rows: Sequence[MessagesRow], usual: MessageOptions) -> MessagesRow | None:
    """The fastest row, or the first within noise of it; with the default chunk size unless that is much slower.

    Chunk sizes that hardly matter for these gathers may matter elsewhere, so the default size is kept.

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
