"""All-pairs rates: the rate from every host to every other host while all hosts send at once and fill their links.

In round s = 1 … hosts - 1, host i sends to host (i + s) mod hosts for a fixed time by its own clock, in chunks as runs
send them, with several chunks in flight. The receiver counts the bytes that arrive in a window, after TCP has settled:

    |-- settling --|---- window ----|- margin -|
    sent       ████████████████████████████████ and one empty message for each posted receive
    counted        ░░░░░░░░░░░░░░░░░

Then follow two or three one-way rounds. Where a host both sends and receives, its acknowledgements queue behind its own
messages; behind a slow link they wait so long that the other direction of the cable looks slow, too.

An empty message is the last message for its receive. So every receive ends, whatever the clocks of other hosts say, and
no message is left.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from quadrille.runtime.carriers.message_options import CHUNK_BYTES, MessageOptions
from quadrille.runtime.host.progress_reports import report_progress
from quadrille.runtime.measuring.calibration_sizes import FULL, CalibrationSizes
from quadrille.runtime.measuring.measured_points import FlowPoint

MARGIN_SECONDS = 0.02
"""The time after the window; ranks leave a barrier within less [s]."""
CHUNKS_IN_FLIGHT = 3
"""The number of chunks in flight.

They keep a link busy while acknowledgements arrive, and queue at a link that several hosts share.

With more chunks than buffer space, packets are lost, and the retransmitted data look like a higher rate: up to 1.15
times the link's rate with 16 chunks (eight hosts, two leaves at 2:1, 200 Mbit/s), up to 1.08 with 4, and up to 1.03
with 3 (sixteen hosts at 8:1).
"""
CHUNK_SECONDS = 0.01
"""The longest time of a chunk on a link; otherwise slow links would carry too few chunks to count."""
LEAST_BYTES = 1 << 10

Arrival = tuple[float, int]
"""The arrival of a chunk: seconds since the start of its round, and its bytes."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One rank's part in a round.

    Parameters
    ----------
    target, source : rank to which it sends, and rank from which it receives; None for none
    chunk_bytes : chunk size [B]
    """

    target: int | None
    source: int | None
    chunk_bytes: int


def pairs(hosts: int) -> list[dict[int, int]]:
    """The senders and their targets in each round.

    >>> pairs(3)
    [{0: 1, 1: 2, 2: 0}, {0: 2, 1: 0, 2: 1}, {0: 1}, {2: 0}, {1: 2}]
    >>> pairs(4)[3:]
    [{0: 2, 1: 3}, {2: 0, 3: 1}]
    """
    half = hosts // 2
    all_at_once = [{host: (host + number) % hosts for host in range(hosts)} for number in range(1, hosts)]
    one_way = [{host: host + half for host in range(half)}, {hosts - half + host: host for host in range(half)}]
    return all_at_once + one_way + ([{half: 2 * half}] if hosts % 2 else [])


def measure_all_pairs(
    communicator: MPI.Intracomm,
    bytes_per_second: float,
    message_options: MessageOptions,
    sizes: CalibrationSizes = FULL,
) -> list[FlowPoint]:
    """The measured flows of all rounds; a collective call of one rank on each host, with the same result on all.

    Parameters
    ----------
    communicator : communicator with one rank on each host
    bytes_per_second : approximate rate of a link [B/s]
    message_options : chunk size and polling of the messages
    sizes : durations of a round
    """
    rank, hosts = communicator.Get_rank(), communicator.Get_size()
    chunk = chunk_bytes(bytes_per_second, message_options)
    points = []
    for number, targets in enumerate(pairs(hosts), start=1):
        source = next((sender for sender, target in targets.items() if target == rank), None)
        communicator.Barrier()
        chunks = arrivals(
            communicator, Flow(targets.get(rank), source, chunk), message_options.poll_sleep_seconds, sizes
        )
        if source is not None:
            points.append(FlowPoint(number, source, rank, rate_of(chunks, sizes)))
        report_progress()
    points_of_ranks: list[list[FlowPoint]] = communicator.allgather(points)
    return sorted(
        (point for points in points_of_ranks for point in points), key=lambda point: (point.round, point.receiver)
    )


def chunk_bytes(bytes_per_second: float, message_options: MessageOptions) -> int:
    """The chunk size: as in runs, and smaller where a chunk would occupy a link for long.

    >>> chunk_bytes(25e6, MessageOptions()), chunk_bytes(125e3, MessageOptions())
    (65136, 1250)
    """
    run_chunk_bytes = message_options.chunk_bytes or CHUNK_BYTES
    return max(LEAST_BYTES, min(run_chunk_bytes, int(CHUNK_SECONDS * bytes_per_second)))


def arrivals(
    communicator: MPI.Intracomm, flow: Flow, poll_sleep_seconds: float, sizes: CalibrationSizes
) -> list[Arrival]:
    """The chunks that arrive at this rank in a round, while it sends."""
    receive_buffers, sent, empty = (np.zeros((count, flow.chunk_bytes), np.uint8) for count in (CHUNKS_IN_FLIGHT, 1, 0))
    start, chunk_arrivals = time.perf_counter(), list[Arrival]()
    source, target = (MPI.PROC_NULL if peer is None else peer for peer in (flow.source, flow.target))
    requests = [
        MPI.REQUEST_NULL if flow.source is None else communicator.Irecv(peer, source) for peer in receive_buffers
    ]
    requests += [
        MPI.REQUEST_NULL if flow.target is None else communicator.Issend(sent, target) for _ in receive_buffers
    ]
    statuses, open_slots = [MPI.Status() for _ in requests], set(range(CHUNKS_IN_FLIGHT, 2 * CHUNKS_IN_FLIGHT))
    while (done := MPI.Request.Testsome(requests, statuses)) is not None:
        now = time.perf_counter() - start
        for status, slot in zip(statuses, done, strict=False):
            if slot < CHUNKS_IN_FLIGHT:
                if size := status.Get_count(MPI.BYTE):
                    chunk_arrivals.append((now, size))
                    requests[slot] = communicator.Irecv(receive_buffers[slot], source)
            elif now < sizes.settling_seconds + sizes.window_seconds + MARGIN_SECONDS:
                requests[slot] = communicator.Issend(sent, target)
            elif slot in open_slots:
                open_slots.remove(slot)
                requests[slot] = communicator.Issend(empty, target)
        if not done and poll_sleep_seconds:
            time.sleep(poll_sleep_seconds)
    return chunk_arrivals


def rate_of(chunks: Sequence[Arrival], sizes: CalibrationSizes = FULL) -> float:
    """The rate in the window, as if each chunk had arrived evenly since the previous one [B/s].

    So a flow that pauses, as TCP flows do, counts with its pause, and the chunks at the ends count in part.

    >>> round(rate_of([(0.2, 40), (0.3, 70), (0.6, 105)]))
    450
    """
    times = [0.0, *(when for when, _ in chunks)]
    so_far = np.cumsum([0, *(size for _, size in chunks)])
    begin, end = np.interp([sizes.settling_seconds, sizes.settling_seconds + sizes.window_seconds], times, so_far)
    return float(end - begin) / sizes.window_seconds
