"""What NCCL takes: the algorithm and protocol of the least predicted time, on as many channels as have enough to do.

Source: NVIDIA, NCCL 2.28, src/enqueue.cc, topoGetAlgoInfo.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from quadrille.algorithms.collectives.nccl.communicator import Communicator
from quadrille.algorithms.collectives.nccl.costs import SERVED, predicted_seconds
from quadrille.algorithms.collectives.nccl.tables import ALGORITHMS, BYTES_PER_THREAD, MOST_THREADS, Algorithm, Protocol
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind

NEEDS: dict[Algorithm, str] = {
    "nvls": "nvls takes one node whose NVSwitch sums, from Hopper on, and at most 32 GPUs but for all-reduce",
    "nvls_tree": "nvls_tree takes all-reduce on several nodes whose NVSwitches sum, from Hopper on",
    "pat": "pat takes one GPU a node, on several nodes",
}
"""What an algorithm that is not always there takes."""


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
        raise InputError(_missing(kind, size_bytes, group, algorithm, protocol))
    return min(candidates, key=lambda one: one.seconds)


def _missing(
    kind: CollectiveKind,
    size_bytes: float,
    group: Communicator,
    algorithm: Algorithm | None,
    protocol: Protocol | None,
) -> str:
    """What NCCL has not for a group, what it has instead, and what the missing would take."""
    held = " ".join(word for word in (algorithm, protocol) if word) or "any algorithm"
    nodes = f"{group.nodes} node{'s' if group.nodes != 1 else ''}"
    there = [
        f"{one} ({', '.join(protocols)})"
        for one in SERVED[kind]
        if (protocols := [two for two in ALGORITHMS[one] if predicted_seconds(kind, size_bytes, group, one, two) < inf])
    ]
    said = f"NCCL has no {kind} by {held} for {group.ranks} {group.generation} GPUs on {nodes}"
    instead = f"; there it has {', '.join(there)}" if there else "; it has none at all"
    return said + instead + (f"; {NEEDS[algorithm]}" if algorithm in NEEDS and algorithm in SERVED[kind] else "")


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
