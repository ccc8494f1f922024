"""The in-process carrier: a message transport between ranks that are all in one Python process.

It serves for tests, for teaching, and for immediate deadlock detection.

Theory of operation
-------------------
Each rank is a coroutine. The carrier resumes the ranks in turn. A send waits in the queue of its channel until a
receive takes it; a collective happens when its last member arrives. If no rank can continue in a whole round, the
program has a deadlock, and the error names the op of every waiting rank.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from quadrille.algorithms.errors import Deadlock
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import Calls, Combination
from quadrille.runtime.arrays.array_library import Array
from quadrille.runtime.carriers.communicators import (
    DONE,
    Edges,
    RankCoroutine,
    Request,
    Result,
    Wait,
    shard_of_member,
)
from quadrille.runtime.carriers.pipelined_steps import MAX_OUTSTANDING, PipelinedTransfer

GroupKey = tuple[Axis, int, tuple[int, ...]]
"""The axis, the lane number and the ranks of a group."""
Channel = tuple[int, int, Literal["data", "ready"]]
"""Sender, receiver and kind of message of a channel within a group."""
NO_CONTENT = np.empty(0)
"""The buffer of a message without content."""


@dataclass(slots=True)
class _PendingSend:
    """A send that waits for its receive."""

    buffer: Array
    matched: bool = False

    def done(self) -> bool:
        return self.matched


@dataclass(slots=True)
class _PendingReceive:
    """A receive that waits for its send."""

    buffer: Array
    sends: deque[_PendingSend]
    receives: deque["_PendingReceive"]
    matched: bool = False

    def done(self) -> bool:
        while not self.matched and self.sends and self.receives and self.receives[0]._take():
            pass
        return self.matched

    def mismatch(self) -> str:
        """The reason why the first send in the queue does not match this receive; empty if it does or there is none."""
        if self.matched or not self.sends or self.sends[0].buffer.size == self.buffer.size:
            return ""
        return f" (sent {self.sends[0].buffer.size} elements, room for {self.buffer.size})"

    def _take(self) -> bool:
        """Copy the content of the first send in the queue, if it matches; returns whether it did."""
        if not self.sends or self.mismatch():
            return False
        send = self.sends.popleft()
        self.buffer[...] = send.buffer
        send.matched = self.matched = True
        self.receives.popleft()
        return True


@dataclass(slots=True)
class _PendingCollective:
    """A library collective that happens when its last member arrives."""

    kind: str
    members: int
    compute: Callable[[dict[int, Any]], None]
    arrived: dict[int, Any] = field(default_factory=dict)
    completed: bool = False

    def join(self, member: int, value: Any) -> None:
        self.arrived[member] = value
        if len(self.arrived) == self.members:
            self.compute(self.arrived)
            self.arrived = {}  # the buffers are the members' own
            self.completed = True

    def done(self) -> bool:
        return self.completed


@dataclass(slots=True)
class _Group:
    """The state that the members of a group share.

    Parameters
    ----------
    sends, receives : pending sends and receives of each channel
    open_collectives : collectives that some members have not called yet, by their number in the order of calls
    calls : number of collectives that each member has called
    """

    size: int
    sends: dict[Channel, deque[_PendingSend]] = field(default_factory=dict)
    receives: dict[Channel, deque[_PendingReceive]] = field(default_factory=dict)
    open_collectives: dict[int, _PendingCollective] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)


class InProcessCommunicator:
    """One member's communicator of a group of ranks in this process."""

    max_outstanding = MAX_OUTSTANDING
    begins_in_order, lane = False, None

    def __init__(self, group: _Group, member: int, chunk_bytes: int) -> None:
        self._group = group
        self.chunk_bytes = chunk_bytes
        self.member = member
        self.size = group.size

    def send(self, buffer: Array, to: int, *, synchronous: bool = False) -> Request:
        """A send. In process, every send is synchronous."""
        return self._post(buffer, (self.member, to, "data"))

    def receive(self, buffer: Array, sender: int) -> Request:
        return self._expect(buffer, (sender, self.member, "data"))

    def signal_ready(self, peer: int) -> Request:
        self._post(NO_CONTENT, (self.member, peer, "ready"))
        return DONE

    def await_ready(self, peer: int) -> Request:
        return self._expect(NO_CONTENT.copy(), (peer, self.member, "ready"))

    def _post(self, buffer: Array, channel: Channel) -> _PendingSend:
        send = _PendingSend(buffer)
        self._group.sends.setdefault(channel, deque()).append(send)
        return send

    def _expect(self, buffer: Array, channel: Channel) -> _PendingReceive:
        sends = self._group.sends.setdefault(channel, deque())
        receives = self._group.receives.setdefault(channel, deque())
        receive = _PendingReceive(buffer, sends, receives)
        receives.append(receive)
        return receive

    def all_gather(self, whole: Array, edges: Edges, *, blocking: bool, calls: Calls = "vector") -> Request:
        def compute(arrived: dict[int, Any]) -> None:
            for member, source in arrived.items():
                for into in arrived.values():
                    into[edges[member] : edges[member + 1]] = source[edges[member] : edges[member + 1]]

        return self._join_collective("all_gather", compute, whole)

    def reduce_scatter(
        self, whole: Array, edges: Edges, piece: Array, *, blocking: bool, calls: Calls = "vector"
    ) -> Request:
        def compute(arrived: dict[int, Any]) -> None:
            total = _sum({member: summand for member, (summand, _) in arrived.items()})
            for member, (_, into) in arrived.items():
                into[...] = total[edges[member] : edges[member + 1]]

        return self._join_collective("reduce_scatter", compute, (whole, piece))

    def sum_in_place(self, whole: Array, edges: Edges) -> Array:
        return shard_of_member(whole, edges, self.member)

    def all_reduce(self, buffer: Array, combination: Combination = "sum", *, blocking: bool) -> Request:
        def compute(arrived: dict[int, Any]) -> None:
            total = _sum(arrived) if combination == "sum" else _largest(arrived)
            for into in arrived.values():
                into[...] = total

        return self._join_collective("all_reduce", compute, buffer)

    def broadcast(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        def compute(arrived: dict[int, Any]) -> None:
            for into in arrived.values():
                into[...] = arrived[root]

        return self._join_collective("broadcast", compute, buffer)

    def reduce(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        def compute(arrived: dict[int, Any]) -> None:
            arrived[root][...] = _sum(arrived)

        return self._join_collective("reduce", compute, buffer)

    def all_to_all(
        self, sent: Array, sent_edges: Edges, received: Array, received_edges: Edges, *, blocking: bool
    ) -> Request:
        def compute(arrived: dict[int, Any]) -> None:
            for sender, (source, source_edges, _, _) in arrived.items():
                for member, (_, _, into, edges) in arrived.items():
                    piece = source[source_edges[member] : source_edges[member + 1]]
                    into[edges[sender] : edges[sender + 1]] = piece

        return self._join_collective("all_to_all", compute, (sent, sent_edges, received, received_edges))

    def barrier(self, *, blocking: bool) -> Request:
        return self._join_collective("barrier", lambda _: None, None)

    def _join_collective(self, kind: str, compute: Callable[[dict[int, Any]], None], value: Any) -> Request:
        """Join the group's next collective. A member that calls a different kind of collective waits for ever.

        Parameters
        ----------
        compute : function of all members' values that fills their buffers, called when the last member has joined
        value : buffers of this member
        """
        if self.size == 1:
            return DONE
        number = self._group.calls.get(self.member, 0)
        self._group.calls[self.member] = number + 1
        collective = self._group.open_collectives.setdefault(number, _PendingCollective(kind, self.size, compute))
        if collective.kind != kind:
            return _PendingCollective(kind, self.size, compute)
        collective.join(self.member, value)
        if collective.completed:
            del self._group.open_collectives[number]
        return collective


def _sum(arrived: dict[int, Any]) -> Array:
    total = np.array(arrived[0], copy=True)
    for member in sorted(arrived)[1:]:
        total += arrived[member]
    return total


def _largest(arrived: dict[int, Any]) -> Array:
    total = np.array(arrived[0], copy=True)
    for member in sorted(arrived)[1:]:
        np.maximum(total, arrived[member], out=total)
    return total


class InProcess:
    """The in-process carrier: a message transport whose ranks are all in this process.

    >>> InProcess(4).ranks
    (0, 1, 2, 3)

    Parameters
    ----------
    size : number of ranks
    chunk_bytes : chunk size of our own steps; 0 sends each step whole [B]
    """

    def __init__(self, size: int, *, chunk_bytes: int = 0) -> None:
        self.size = size
        self._chunk_bytes = chunk_bytes
        self.ranks = tuple(range(size))
        self._groups: dict[GroupKey, _Group] = {}

    def __repr__(self) -> str:
        return f"InProcess({self.size}{f', chunk_bytes={self._chunk_bytes}' if self._chunk_bytes else ''})"

    def communicator(self, grid: Grid, rank: int, axis: Axis, lane: int) -> InProcessCommunicator:
        members = grid.group(rank, axis)
        group = self._groups.setdefault((axis, lane, members), _Group(len(members)))
        return InProcessCommunicator(group, members.index(rank), self._chunk_bytes)

    def run(self, coroutine: Callable[[int], RankCoroutine[Result]]) -> dict[int, Result]:
        """Resume the ranks in turn until all have ended.

        Raises
        ------
        Deadlock : no rank can continue
        """
        self._groups.clear()
        coroutines = {rank: coroutine(rank) for rank in self.ranks}
        waits = dict.fromkeys(self.ranks, Wait((DONE,), ()))
        results: dict[int, Result] = {}
        while coroutines:
            has_advanced = False
            for rank in list(coroutines):
                if not _ready(waits[rank]):
                    continue
                has_advanced = True
                try:
                    waits[rank] = next(coroutines[rank])
                except StopIteration as end:
                    results[rank] = end.value
                    del coroutines[rank]
            if coroutines and not has_advanced:
                raise Deadlock(_deadlock_message({rank: waits[rank] for rank in coroutines}))
        return results

    def gather(self, values: dict[int, Any]) -> dict[int, Any]:
        return values

    def begin_together(self) -> None:
        """Nothing to do: the ranks take turns on one thread."""

    def now(self) -> float:
        return time.perf_counter()


def _ready(wait: Wait) -> bool:
    """Whether a rank can continue, or a pipelined transfer that it waits for has advanced."""
    transfers = [request for request in wait.requests if isinstance(request, PipelinedTransfer)]
    before = [transfer.progress_count for transfer in transfers]
    ended = [request.done() for request in wait.requests]
    has_advanced = [transfer.progress_count for transfer in transfers] != before
    return has_advanced or (all(ended) if wait.every else any(ended))


def _deadlock_message(waits: dict[int, Wait]) -> str:
    return f"deadlock: {', '.join(_describe(*entry) for entry in sorted(waits.items()))}; each waits for another"


def _describe(rank: int, wait: Wait) -> str:
    next_requests = [
        next_request
        for request in wait.requests
        for next_request in (request.next_requests if isinstance(request, PipelinedTransfer) else [request])
    ]
    mismatches = "".join(request.mismatch() for request in next_requests if isinstance(request, _PendingReceive))
    return f"rank {rank} in {' and '.join(map(repr, wait.ops))}{mismatches}"
