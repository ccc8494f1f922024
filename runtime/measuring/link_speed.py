"""A ping-pong benchmark of the path between two hosts: latency, rate and burst of a token bucket.

Rank 0 sends messages to rank 1 after a rest, one at a time; rank 1 answers with an empty message. If a token bucket of
b bytes limits the rate to r, n bytes take

    t(n) = latency + max(0, n - b) / r
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from quadrille.runtime.measuring.calibration_sizes import FULL, CalibrationSizes

SMALLEST_BYTES = 1
LONG_SECONDS = 0.2
"""A message that takes longer than this ends the measurement [s]."""
LEAST_SECONDS = 1e-6
"""The least time of a message beyond the time of an empty message; shorter times are noise [s]."""
MAX_BURST_MESSAGE_BYTES = 1 << 19
"""Messages up to this size determine the burst; in longer ones the error of the rate is larger."""
PACKET_BYTES = 1500
"""A burst smaller than a packet is no burst."""


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """The speed of the path between two hosts.

    Parameters
    ----------
    latency : time of an empty message, one way [s]
    bytes_per_second : rate of long messages
    burst_bytes : bytes that pass at once after a rest
    """

    latency: float
    bytes_per_second: float
    burst_bytes: float


def measure_link_speed(communicator: MPI.Intracomm, sizes: CalibrationSizes = FULL) -> LinkSpeed:
    """The speed of the path between the hosts of ranks 0 and 1; a collective call of one rank on each host."""
    several, few = sizes.link_repeats
    rest = sizes.link_rest_seconds
    empty = round_trip_seconds(communicator, SMALLEST_BYTES, several, rest) / 2
    times: list[tuple[int, float]] = []
    for size in sizes.link_bytes:
        times.append((size, max(LEAST_SECONDS, round_trip_seconds(communicator, size, few, rest) - 2 * empty)))
        if times[-1][1] > LONG_SECONDS:
            break
    rate, burst = rate_and_burst(times)
    return LinkSpeed(empty, rate, burst)


def round_trip_seconds(communicator: MPI.Intracomm, size: int, repeats: int, rest_seconds: float) -> float:
    """The shortest round trip of a message of `size` bytes from rank 0 to rank 1, with an empty answer [s].

    Parameters
    ----------
    repeats : number of messages after a warm-up
    rest_seconds : rest before each message [s]
    """
    rank = communicator.Get_rank()
    message, answer, seconds = np.zeros(size, np.uint8), np.zeros(SMALLEST_BYTES, np.uint8), []
    for _ in range(1 + repeats):
        communicator.Barrier()
        time.sleep(rest_seconds)
        start = time.perf_counter()
        if rank == 0:
            communicator.Send(message, 1)
            communicator.Recv(answer, 1)
        elif rank == 1:
            communicator.Recv(message, 0)
            communicator.Send(answer, 0)
        seconds.append(time.perf_counter() - start)
    return communicator.bcast(min(seconds[1:]), root=0)  # type: ignore[no-any-return]


def rate_and_burst(times: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """The rate [B/s] and burst [B] of a path, from message sizes and times without the latency.

    >>> rate, burst = rate_and_burst([(n, max(1e-6, n - 25e3) / 25e6) for n in (16384, 65536, 1 << 20, 1 << 22)])
    >>> round(rate), round(burst)
    (25000000, 25000)
    """
    (small, short), (large, long) = times[-3:][0], times[-1]
    rate = (large - small) / (long - short) if long > short else large / long
    burst = max(size - seconds * rate for size, seconds in times if size <= MAX_BURST_MESSAGE_BYTES)  # delays lessen it
    return rate, burst if burst > PACKET_BYTES else 0.0
