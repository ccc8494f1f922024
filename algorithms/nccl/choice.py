"""What NCCL takes: the algorithm and protocol of the least predicted time, on as many channels as have enough to do.

Source: NVIDIA, NCCL 2.28, src/enqueue.cc, topoGetAlgoInfo.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from algorithms.errors import InputError
from algorithms.nccl.communicator import Communicator
from algorithms.nccl.costs import SERVED, predicted_seconds
from algorithms.nccl.tables import (
    ALGORITHMS,
    BYTES_PER_THREAD,
    MOST_THREADS,
    Algorithm,
    Protocol,
)
from algorithms.ops import CollectiveKind


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm and protocol with the channels that it would use and the time that NCCL predicts for it [s]."""

    algorithm: Algorithm
    protocol: Protocol
    channels: int
    seconds: float

    def __str__(self) -> str:
        channels = f"{self.channels} channel{'s' if self.channels != 1 else ''}"
        return f"nccl ({self.algorithm}, {self.protocol}, {channels})"


def choose(
    kind: CollectiveKind,
    size_bytes: float,
    group: Communicator,
    *,
    algorithm: Algorithm | None = None,
    protocol: Protocol | None = None,
) -> Choice:
    """What NCCL would take: the least predicted time, held to an algorithm or a protocol where one is given.

    Raises
    ------
    InputError : NCCL has nothing of the kind for this group
    """
    candidates = [
        Choice(one, two, used_channels(size_bytes, group, one, two), seconds)
        for one, two in _allowed(kind, algorithm, protocol)
        if (seconds := predicted_seconds(kind, size_bytes, group, one, two)) < inf
    ]
    if not candidates:
        held = " ".join(word for word in (algorithm, protocol) if word)
        raise InputError(
            f"NCCL has no {kind} by {held or 'any algorithm'} for {group.ranks} {group.generation} GPUs on "
            f"{group.nodes} nodes; it has {', '.join(SERVED[kind]) or 'none'}"
        )
    return min(candidates, key=lambda one: one.seconds)


def _allowed(
    kind: CollectiveKind, algorithm: Algorithm | None, protocol: Protocol | None
) -> Iterator[tuple[Algorithm, Protocol]]:
    for one in SERVED[kind]:
        for two in ALGORITHMS[one]:
            if algorithm in (None, one) and protocol in (None, two):
                yield one, two


def used_channels(size_bytes: float, group: Communicator, algorithm: Algorithm, protocol: Protocol) -> int:
    """Channels that have enough to do: fewer for small buffers."""
    if algorithm in ("nvls", "nvls_tree"):
        return group.nvls_channels
    per_thread = BYTES_PER_THREAD[protocol] * (group.ranks if (algorithm, protocol) == ("ring", "LL") else 1)
    busy = int(size_bytes // (MOST_THREADS[protocol] * per_thread))
    return max(1, min(group.channels_in_all, busy))
