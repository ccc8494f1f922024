"""What every host gets of every other while all send at once: rounds in which the links between hosts are full.

In round s = 1 … hosts - 1 host i sends to host (i + s) mod hosts, in chunks as runs do, several of them under way,
for a fixed time by its own clock.  Who receives counts what comes in a window, once TCP has settled:

    |-- settling --|---- window ----|- margin -|
    sent       ████████████████████████████████ and an empty message for each that is received at once
    counted        ░░░░░░░░░░░░░░░░░

Then two or three rounds in which each host sends or receives: where all do both, what a host receives is held up by its
own answers, which wait behind what it sends, and behind a slow link they wait so long that the other direction of its
cable looks slow, too.

An empty message is the last of its place, so every receive ends, whatever the clocks of others say, and nothing is
left.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from quadrille.runtime.carriers.message_options import CHUNK_BYTES, MessageOptions
from quadrille.runtime.host.progress_reports import report_progress
from quadrille.runtime.measuring.points import FlowPoint

SETTLING_SECONDS, WINDOW_SECONDS, MARGIN_SECONDS = 0.2, 0.35, 0.02
"""Sixteen hosts take about ten seconds; ranks leave a barrier within less than the margin."""
UNDER_WAY = 3
"""Chunks sent at once: they keep a link busy while answers come, and wait before one that several hosts share.

Where more wait than there is room for, packets are lost, and what then waits in a receiver for those sent again looks
like a rate: up to 1.15 times the link's with 16 of them (eight hosts, two leaves at 2:1, 200 Mbit/s), with 4 up to 1.08
and with 3 up to 1.03 (sixteen hosts at 8:1).
"""
CHUNK_SECONDS = 0.01
"""A chunk takes a link no longer than this, or slow links would carry too few of them to count."""
LEAST_BYTES = 1 << 10

Arrival = tuple[float, int]
"""When a chunk had come, from the beginning of its round [s], and its bytes."""


@dataclass(frozen=True, slots=True)
class Flow:
    """A round as one rank sees it: whom it sends to and receives from, if anybody, in chunks of how many bytes."""

    target: int | None
    source: int | None
    chunk_bytes: int


def pairs(hosts: int) -> list[dict[int, int]]:
    """Who sends to whom in each round.

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
    communicator: MPI.Intracomm, bytes_per_second: float, message_options: MessageOptions
) -> list[FlowPoint]:
    """What came of all flows of all rounds; all ranks call it, one on each host, and get the same.

    Parameters
    ----------
    bytes_per_second : of a link, roughly
    message_options : how messages go
    """
    rank, hosts = communicator.Get_rank(), communicator.Get_size()
    chunk = chunk_bytes(bytes_per_second, message_options)
    found = []
    for number, targets in enumerate(pairs(hosts), start=1):
        source = next((sender for sender, target in targets.items() if target == rank), None)
        communicator.Barrier()
        chunks = arrivals(communicator, Flow(targets.get(rank), source, chunk), message_options.poll_sleep_seconds)
        if source is not None:
            found.append(FlowPoint(number, source, rank, rate_of(chunks)))
        report_progress()
    every: list[list[FlowPoint]] = communicator.allgather(found)
    return sorted((point for points in every for point in points), key=lambda point: (point.round, point.receiver))


def chunk_bytes(bytes_per_second: float, message_options: MessageOptions) -> int:
    """Of a chunk: as in runs, and less where a link would be busy with it for long.

    >>> chunk_bytes(25e6, MessageOptions()), chunk_bytes(125e3, MessageOptions())
    (65136, 1250)
    """
    usual = message_options.chunk_bytes or CHUNK_BYTES
    return max(LEAST_BYTES, min(usual, int(CHUNK_SECONDS * bytes_per_second)))


def arrivals(communicator: MPI.Intracomm, flow: Flow, poll_sleep_seconds: float) -> list[Arrival]:
    """All chunks that came in a round, this rank sending meanwhile."""
    room, sent, empty = (np.zeros((count, flow.chunk_bytes), np.uint8) for count in (UNDER_WAY, 1, 0))
    start, found = time.perf_counter(), list[Arrival]()
    source, target = (MPI.PROC_NULL if one is None else one for one in (flow.source, flow.target))
    requests = [MPI.REQUEST_NULL if flow.source is None else communicator.Irecv(one, source) for one in room]
    requests += [MPI.REQUEST_NULL if flow.target is None else communicator.Issend(sent, target) for _ in room]
    statuses, open_places = [MPI.Status() for _ in requests], set(range(UNDER_WAY, 2 * UNDER_WAY))
    while (done := MPI.Request.Testsome(requests, statuses)) is not None:
        now = time.perf_counter() - start
        for status, place in zip(statuses, done, strict=False):
            if place < UNDER_WAY:
                if size := status.Get_count(MPI.BYTE):
                    found.append((now, size))
                    requests[place] = communicator.Irecv(room[place], source)
            elif now < SETTLING_SECONDS + WINDOW_SECONDS + MARGIN_SECONDS:
                requests[place] = communicator.Issend(sent, target)
            elif place in open_places:
                open_places.remove(place)
                requests[place] = communicator.Issend(empty, target)
        if not done and poll_sleep_seconds:
            time.sleep(poll_sleep_seconds)
    return found


def rate_of(chunks: Sequence[Arrival]) -> float:
    """Bytes a second in the window, as if each chunk had come evenly since the one before it.

    So a flow that pauses there, as TCP's do, is counted with its pause, and chunks at the ends count for their parts.

    >>> round(rate_of([(0.2, 40), (0.3, 70), (0.6, 105)]))
    450
    """
    times = [0.0, *(when for when, _ in chunks)]
    so_far = np.cumsum([0, *(size for _, size in chunks)])
    begin, end = np.interp([SETTLING_SECONDS, SETTLING_SECONDS + WINDOW_SECONDS], times, so_far)
    return float(end - begin) / WINDOW_SECONDS
