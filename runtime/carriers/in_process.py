"""All ranks in one Python process: for tests by the thousand, for teaching, and to find deadlocks at once.

Each rank's course is a generator.  They are resumed in turn; a round in which
no rank moves on is a deadlock, and every rank's op is named.
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
from quadrille.runtime.carriers.communicators import DONE, Edges, RankCoroutine, Request, Result, Wait
from quadrille.runtime.carriers.pipelined_steps import MAX_OUTSTANDING, PipelinedTransfer

Key = tuple[Axis, int, tuple[int, ...]]


Way = tuple[int, int, Literal["data", "greetings"]]
"""From a member to another, and what goes there."""
NOTHING = np.empty(0)


@dataclass(slots=True)
class _Letter:
    """A send that waits for its receive."""

    buffer: Array
    taken: bool = False

    def done(self) -> bool:
        return self.taken


@dataclass(slots=True)
class _Expected:
    """A receive that looks for its send."""

    buffer: Array
    box: deque[_Letter]
    after: deque["_Expected"]
    taken: bool = False

    def done(self) -> bool:
        while not self.taken and self.box and self.after and self.after[0]._take():
            pass
        return self.taken

    def misfit(self) -> str:
        """What keeps the letter at hand from being taken, if there is one."""
        if self.taken or not self.box or self.box[0].buffer.size == self.buffer.size:
            return ""
        return f" (sent {self.box[0].buffer.size} elements, room for {self.buffer.size})"

    def _take(self) -> bool:
        if not self.box or self.misfit():
            return False
        letter = self.box.popleft()
        self.buffer[...] = letter.buffer
        letter.taken = self.taken = True
        self.after.popleft()
        return True


@dataclass(slots=True)
class _Meeting:
    """A library collective that happens when its last member has come."""

    verb: str
    members: int
    act: Callable[[dict[int, Any]], None]
    came: dict[int, Any] = field(default_factory=dict)
    over: bool = False

    def join(self, member: int, value: Any) -> None:
        self.came[member] = value
        if len(self.came) == self.members:
            self.act(self.came)
            self.came = {}  # the buffers are the members' own
            self.over = True

    def done(self) -> bool:
        return self.over


@dataclass(slots=True)
class _Group:
    """What the members of one group share: letters on their way, and the meetings that are not over, by number."""

    size: int
    boxes: dict[Way, deque[_Letter]] = field(default_factory=dict)
    receives: dict[Way, deque[_Expected]] = field(default_factory=dict)
    meetings: dict[int, _Meeting] = field(default_factory=dict)
    attended: dict[int, int] = field(default_factory=dict)


class InProcessCommunicator:
    """One member's end of a group."""

    max_outstanding = MAX_OUTSTANDING
    begins_in_order, lane = False, None

    def __init__(self, group: _Group, member: int, chunk_bytes: int) -> None:
        self._group = group
        self.chunk_bytes = chunk_bytes
        self.member = member
        self.size = group.size

    def send(self, buffer: Array, to: int, *, taken: bool = False) -> Request:
        """It has ended when it has been taken, in any case."""
        return self._post(buffer, (self.member, to, "data"))

    def receive(self, buffer: Array, sender: int) -> Request:
        return self._expect(buffer, (sender, self.member, "data"))

    def signal_ready(self, peer: int) -> Request:
        self._post(NOTHING, (self.member, peer, "greetings"))
        return DONE

    def await_ready(self, peer: int) -> Request:
        return self._expect(NOTHING.copy(), (peer, self.member, "greetings"))

    def _post(self, buffer: Array, way: Way) -> _Letter:
        letter = _Letter(buffer)
        self._group.boxes.setdefault(way, deque()).append(letter)
        return letter

    def _expect(self, buffer: Array, way: Way) -> _Expected:
        box = self._group.boxes.setdefault(way, deque())
        waiting = self._group.receives.setdefault(way, deque())
        expected = _Expected(buffer, box, waiting)
        waiting.append(expected)
        return expected

    def all_gather(self, whole: Array, edges: Edges, *, blocking: bool, calls: Calls = "vector") -> Request:
        def act(came: dict[int, Any]) -> None:
            for member, source in came.items():
                for into in came.values():
                    into[edges[member] : edges[member + 1]] = source[edges[member] : edges[member + 1]]

        return self._meet("all_gather", act, whole)

    def reduce_scatter(
        self, whole: Array, edges: Edges, piece: Array, *, blocking: bool, calls: Calls = "vector"
    ) -> Request:
        def act(came: dict[int, Any]) -> None:
            total = _sum({member: summand for member, (summand, _) in came.items()})
            for member, (_, into) in came.items():
                into[...] = total[edges[member] : edges[member + 1]]

        return self._meet("reduce_scatter", act, (whole, piece))

    def all_reduce(self, buffer: Array, combination: Combination = "sum", *, blocking: bool) -> Request:
        def act(came: dict[int, Any]) -> None:
            total = _sum(came) if combination == "sum" else _largest(came)
            for into in came.values():
                into[...] = total

        return self._meet("all_reduce", act, buffer)

    def broadcast(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        def act(came: dict[int, Any]) -> None:
            for into in came.values():
                into[...] = came[root]

        return self._meet("broadcast", act, buffer)

    def reduce(self, buffer: Array, root: int, *, blocking: bool) -> Request:
        def act(came: dict[int, Any]) -> None:
            came[root][...] = _sum(came)

        return self._meet("reduce", act, buffer)

    def all_to_all(
        self, sent: Array, sent_edges: Edges, received: Array, received_edges: Edges, *, blocking: bool
    ) -> Request:
        def act(came: dict[int, Any]) -> None:
            for sender, (source, its_edges, _, _) in came.items():
                for member, (_, _, into, edges) in came.items():
                    piece = source[its_edges[member] : its_edges[member + 1]]
                    into[edges[sender] : edges[sender + 1]] = piece

        return self._meet("all_to_all", act, (sent, sent_edges, received, received_edges))

    def barrier(self, *, blocking: bool) -> Request:
        return self._meet("barrier", lambda _: None, None)

    def _meet(self, verb: str, act: Callable[[dict[int, Any]], None], value: Any) -> Request:
        """The next meeting of the group; who comes for another collective than the first waits for ever."""
        if self.size == 1:
            return DONE
        number = self._group.attended.get(self.member, 0)
        self._group.attended[self.member] = number + 1
        meeting = self._group.meetings.setdefault(number, _Meeting(verb, self.size, act))
        if meeting.verb != verb:
            return _Meeting(verb, self.size, act)
        meeting.join(self.member, value)
        if meeting.over:
            del self._group.meetings[number]
        return meeting


def _sum(came: dict[int, Any]) -> Array:
    total = np.array(came[0], copy=True)
    for member in sorted(came)[1:]:
        total += came[member]
    return total


def _largest(came: dict[int, Any]) -> Array:
    total = np.array(came[0], copy=True)
    for member in sorted(came)[1:]:
        np.maximum(total, came[member], out=total)
    return total


class InProcess:
    """A carrier whose ranks all live here.

    >>> InProcess(4).ranks
    (0, 1, 2, 3)

    Parameters
    ----------
    chunk_bytes : into which messages of our own steps are cut; 0 for whole steps
    """

    def __init__(self, size: int, *, chunk_bytes: int = 0) -> None:
        self.size = size
        self._chunk_bytes = chunk_bytes
        self.ranks = tuple(range(size))
        self._groups: dict[Key, _Group] = {}

    def communicator(self, grid: Grid, rank: int, axis: Axis, lane: int) -> InProcessCommunicator:
        members = grid.group(rank, axis)
        group = self._groups.setdefault((axis, lane, members), _Group(len(members)))
        return InProcessCommunicator(group, members.index(rank), self._chunk_bytes)

    def run(self, course: Callable[[int], RankCoroutine[Result]]) -> dict[int, Result]:
        """Resume the ranks in turn until all have ended.

        Raises
        ------
        Deadlock : no rank can move on
        """
        self._groups.clear()
        courses = {rank: course(rank) for rank in self.ranks}
        waiting = dict.fromkeys(self.ranks, Wait((DONE,), ()))
        results: dict[int, Result] = {}
        while courses:
            moved = False
            for rank in list(courses):
                if not _ready(waiting[rank]):
                    continue
                moved = True
                try:
                    waiting[rank] = next(courses[rank])
                except StopIteration as end:
                    results[rank] = end.value
                    del courses[rank]
            if courses and not moved:
                raise Deadlock(_stuck({rank: waiting[rank] for rank in courses}))
        return results

    def gather(self, values: dict[int, Any]) -> dict[int, Any]:
        return values

    def begin_together(self) -> None:
        """They take turns on one thread: nothing to agree on."""

    def now(self) -> float:
        return time.perf_counter()


def _ready(wait: Wait) -> bool:
    """Whether a rank can go on, or has gone on in what it waits for."""
    streams = [request for request in wait.requests if isinstance(request, PipelinedTransfer)]
    before = [stream.moves for stream in streams]
    ended = [request.done() for request in wait.requests]
    gone_on = [stream.moves for stream in streams] != before
    return gone_on or (all(ended) if wait.every else any(ended))


def _stuck(waiting: dict[int, Wait]) -> str:
    return f"deadlock: {', '.join(_who(*entry) for entry in sorted(waiting.items()))}; each waits for another"


def _who(rank: int, wait: Wait) -> str:
    heads = [
        head
        for request in wait.requests
        for head in (request.heads if isinstance(request, PipelinedTransfer) else [request])
    ]
    misfits = "".join(head.misfit() for head in heads if isinstance(head, _Expected))
    return f"rank {rank} in {' and '.join(map(repr, wait.ops))}{misfits}"
