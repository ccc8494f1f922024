"""Chunk tuning: the chunk size, with or without a progress thread, that is fastest for communication beside products.

A gather is in progress while each rank multiplies; the executor runs it with every candidate of message options, round
after round: a gather of all ranks and, between hosts with one rank each, several gathers of pairs. The exchanges of
pairs show what chunks are for: the gathers after the first may lock into a slow phase
(`studies/laboratory_trials/open_mpi_tcp_settings.py`). These are microbenchmarks of two kinds of ops and contain no
algorithm.

Candidates are compared within rounds, because a shared machine may be half as fast for twenty seconds.  The simplest
candidate wins unless another candidate is faster by more than `NOISE`.  The default chunk size wins unless another
size is faster by `CHUNKS_GAIN`.
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
"""Further chunk sizes, tried between hosts with a network of their own [B]; within a host, cores copy the messages."""
NOISE = 0.05
"""The share by which a candidate must be faster than a simpler one."""
CHUNKS_GAIN = 0.15
"""The share by which another chunk size must be faster than the default size, if there is a default.

Runs without a machine file use the default size.  In 43 calibrations of emulated networks, five preferred another size
by 5 to 11 %; three of the five were repeated on the same machine, and none preferred that size again.
"""


def candidate_options(
    default: MessageOptions, *, hosts: int, threads: bool, emulated: bool = False
) -> list[MessageOptions]:
    """The candidate message options, the simplest first.

    >>> [(o.chunk_bytes, o.progress) for o in candidate_options(MessageOptions(), hosts=1, threads=True)]
    [(0, 'none'), (0, 'thread'), (65136, 'none'), (65136, 'thread')]
    >>> [(o.chunk_bytes, o.progress) for o in candidate_options(MessageOptions(), hosts=2, threads=True)[4:]]
    [(16384, 'thread'), (262144, 'thread')]
    >>> candidate_options(MessageOptions(), hosts=2, threads=True, emulated=True)[4:]
    []

    Parameters
    ----------
    default : message options of runs without a machine file
    hosts : number of hosts
    threads : whether the MPI library allows calls from two threads
    emulated : whether the hosts share a machine: there no further chunk size was ever faster by `CHUNKS_GAIN`
    """
    progresses: tuple[Progress, ...] = get_args(Progress) if threads else ("none",)
    others = OTHER_CHUNKS if hosts > 1 and not emulated else ()
    candidates = [*product((0, CHUNK_BYTES), progresses), *((chunk, progresses[-1]) for chunk in others)]
    return [MessageOptions(chunk, default.poll_sleep_seconds, progress) for chunk, progress in candidates]


def tune_messages(
    communicator: "Intracomm", hosts: Sequence[ComputeHost], sizes: CalibrationSizes = FULL
) -> tuple[MessagesRow, ...]:
    """The machine file's rows of message options, one for each candidate; a collective call.

    Returns
    -------
    The rows at rank 0, with the typical time of the benchmarks [s]; an empty tuple at other ranks.
    """
    from quadrille.runtime.host.core_affinity import own_cores
    from quadrille.runtime.measuring.overlap_interference import median_seconds

    default, ranks, threads = default_message_options(hosts[0]), communicator.Get_size(), own_cores(communicator)
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

    emulated = hosts[0].sharing > 0
    candidates = candidate_options(default, hosts=len(hosts), threads=mpi_allows_threads(), emulated=emulated)
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
        for message_options, typical in zip(candidates, typical_seconds(rounds), strict=True)
    )


def typical_seconds(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The typical time of each candidate [s]: its median share of a round's total, times the median total.

    >>> typical_seconds([[1.0, 3.0], [2.0, 6.0], [1.0, 3.0]])
    [1.0, 3.0]
    """
    totals = [sum(times) for times in rounds]
    shares = [[seconds / total for seconds in times] for times, total in zip(rounds, totals, strict=True)]
    return [median(totals) * median(candidate_shares) for candidate_shares in zip(*shares, strict=True)]


def options_with_best_chunks(rows: Sequence[MessagesRow], default: MessageOptions) -> MessageOptions:
    """The default options with the chunk size of the best row, if there is one.

    >>> rows = [MessagesRow(chunk_bytes=size, progress="thread", seconds=1 + size / 2**20) for size in (16384, 65136)]
    >>> [options_with_best_chunks(rows, MessageOptions(chunk_bytes=size)).chunk_bytes for size in (65136, 0)]
    [65136, 16384]
    """
    best = fastest_row(rows, default)
    return default if best is None else replace(default, chunk_bytes=best.chunk_bytes)


def fastest_row(rows: Sequence[MessagesRow], default: MessageOptions) -> MessagesRow | None:
    """The row of the fastest candidate, or the first (simplest) candidate within noise of it; None without rows.

    Only rows with the default chunk size count, unless the default is slower by `CHUNKS_GAIN`: a chunk size that hardly
    matters for these gathers may matter in other programs.

    >>> whole = MessagesRow(chunk_bytes=0, progress="none", seconds=1.0)
    >>> thread = MessagesRow(chunk_bytes=0, progress="thread", seconds=0.97)
    >>> chunks = MessagesRow(chunk_bytes=65136, progress="thread", seconds=0.99)
    >>> fastest_row([whole, thread, chunks], MessageOptions()) == whole, fastest_row([], MessageOptions())
    (True, None)
    >>> fastest_row([whole, thread, chunks], MessageOptions(chunk_bytes=65136)) == chunks
    True
    >>> slow = MessagesRow(chunk_bytes=65136, progress="thread", seconds=1.2)
    >>> fastest_row([whole, thread, slow], MessageOptions(chunk_bytes=65136)) == whole
    True
    """
    default_rows = [row for row in rows if row.chunk_bytes == default.chunk_bytes]
    least_gain = CHUNKS_GAIN if default.chunk_bytes else NOISE
    candidate_rows = (
        default_rows
        if default_rows and _least_seconds(default_rows) <= _least_seconds(rows) * (1 + least_gain)
        else rows
    )
    return next((row for row in candidate_rows if row.seconds <= _least_seconds(candidate_rows) * (1 + NOISE)), None)


def _least_seconds(rows: Sequence[MessagesRow]) -> float:
    return min((row.seconds for row in rows), default=0.0)
