"""What every host gets of every other while all send at once: rounds in which the links between hosts are full.

In round s = 1 … hosts - 1 host i sends to host (i + s) mod hosts, in chunks as runs do, several of them under way,
for a fixed time by its own clock.  Who receives counts what comes in a window, once TCP has settled:

    |-- settling --|---- window ----|- margin -|
    sent       ████████████████████████████████ and an empty message for each that is received at once
    counted        ░░░░░░░░░░░░░░░░░

An empty message is the last of its place, so every receive ends, whatever the clocks of others say, and nothing is
left.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from runtime.delivery import CHUNK_BYTES, Delivery
from runtime.measuring.points import FlowPoint
from runtime.whereabouts import come_further

SETTLING_SECONDS, WINDOW_SECONDS, MARGIN_SECONDS = 0.2, 0.4, 0.02
"""Sixteen hosts take about ten seconds; ranks leave a barrier within less than the margin."""
UNDER_WAY = 4
"""Chunks sent at once: they keep a link busy while answers come, and those of four hosts wait before one without loss.

With 16 packets are lost, and what then waits in a receiver for those sent again looks like a rate: up to 1.15 times
the link's (a 2:1 leaf-spine of eight hosts, 200 Mbit/s, behind a start).
"""
CHUNK_SECONDS = 0.01
"""A chunk takes a link no longer than this, or slow links would carry too few of them to count."""
LEAST_BYTES = 1 << 10

Arrival = tuple[float, int]
"""When a chunk had come, from the beginning of its round [s], and its bytes."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A round as one rank sees it: whom it sends to and receives from, and chunks of how many bytes it sends."""

    target: int
    source: int
    chunk_bytes: int


def measure_rounds(communicator: MPI.Intracomm, bytes_per_second: float, delivery: Delivery) -> list[FlowPoint]:
    """What came of all flows of all rounds; all ranks call it, one on each host, and get the same.

    Parameters
    ----------
    bytes_per_second : of a link, roughly
    delivery : how messages go
    """
    rank, hosts = communicator.Get_rank(), communicator.Get_size()
    chunk = chunk_bytes(bytes_per_second, delivery)
    found = []
    for number in range(1, hosts):
        flow = Flow((rank + number) % hosts, (rank - number) % hosts, chunk)
        communicator.Barrier()
        found.append(FlowPoint(number, flow.source, rank, rate_of(arrivals(communicator, flow, delivery.nap_seconds))))
        come_further()
    every: list[list[FlowPoint]] = communicator.allgather(found)
    return [point for points in zip(*every, strict=True) for point in points]


def chunk_bytes(bytes_per_second: float, delivery: Delivery) -> int:
    """Of a chunk: as in runs, and less where a link would be busy with it for long.

    >>> chunk_bytes(25e6, Delivery()), chunk_bytes(125e3, Delivery())
    (61440, 1250)
    """
    usual = delivery.chunk_bytes or CHUNK_BYTES
    return max(LEAST_BYTES, min(usual, int(CHUNK_SECONDS * bytes_per_second)))


def arrivals(communicator: MPI.Intracomm, flow: Flow, nap_seconds: float) -> list[Arrival]:
    """All chunks that came in a round, this rank sending meanwhile."""
    room, sent, empty = (np.zeros((count, flow.chunk_bytes), np.uint8) for count in (UNDER_WAY, 1, 0))
    start, found = time.perf_counter(), list[Arrival]()
    requests = [communicator.Irecv(one, flow.source) for one in room]
    requests += [communicator.Issend(sent, flow.target) for _ in room]
    statuses, open_places = [MPI.Status() for _ in requests], set(range(UNDER_WAY, 2 * UNDER_WAY))
    while (done := MPI.Request.Testsome(requests, statuses)) is not None:
        now = time.perf_counter() - start
        for status, place in zip(statuses, done, strict=False):
            if place < UNDER_WAY:
                if size := status.Get_count(MPI.BYTE):
                    found.append((now, size))
                    requests[place] = communicator.Irecv(room[place], flow.source)
            elif now < SETTLING_SECONDS + WINDOW_SECONDS + MARGIN_SECONDS:
                requests[place] = communicator.Issend(sent, flow.target)
            elif place in open_places:
                open_places.remove(place)
                requests[place] = communicator.Issend(empty, flow.target)
        if not done and nap_seconds:
            time.sleep(nap_seconds)
    return found


def rate_of(chunks: Sequence[Arrival]) -> float:
    """Bytes a second in the window, as if each chunk had come evenly since the one before it.

    So a flow that pauses there, as TCP's do, is counted with its pause, and chunks at the ends count for their parts.

    >>> rate_of([(0.1, 40), (0.3, 40), (0.5, 60), (0.7, 40)])
    300.0
    """
    times = [0.0, *(when for when, _ in chunks)]
    so_far = np.cumsum([0, *(size for _, size in chunks)])
    begin, end = np.interp([SETTLING_SECONDS, SETTLING_SECONDS + WINDOW_SECONDS], times, so_far)
    return float(end - begin) / WINDOW_SECONDS
