"""The communication of one rank: ops wait on their lanes, and the first of each lane is under way."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from quadrille.algorithms.schedule.ops import CommunicationOp, Op
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.runtime.carriers.communicators import Communicator, Request, Wait
from quadrille.runtime.carriers.pipelined_steps import PipelinedTransfer
from quadrille.runtime.execution.transfers import Transfers
from quadrille.runtime.host.progress_reports import ProgressReporter


@dataclass(eq=False, slots=True)
class OpTask:
    """One instance of an op on one rank.

    Parameters
    ----------
    carried : messages of a communication that have ended, or steps where these go whole
    starting : how many more will have when what is under way has
    beside : how many of them ended beside local work, as far as the rank had seen when that was done
    """

    op: Op
    place: Coordinates
    index: int
    needs: list["OpTask"] = field(default_factory=list)
    ready: float = 0.0
    start: float = 0.0
    end: float = 0.0
    ended: bool = False
    carried: int = 0
    starting: int = 0
    beside: int = 0
    work: Generator[list[Request], None, None] | None = None
    pending: list[Request] = field(default_factory=list)

    def is_ready(self) -> bool:
        return all(task.ended for task in self.needs)

    @property
    def carried_now(self) -> int:
        """How many messages, or steps, have ended by now."""
        return self.carried + sum(request.ended for request in self.pending if isinstance(request, PipelinedTransfer))

    @property
    def overlap_fraction(self) -> float:
        """How much of a communication that has ended went on beside local work, of 1."""
        return self.beside / self.carried if self.carried else 0.0


class LaneScheduler:
    """The lanes of one rank, and the beginning and end of every task.

    Lanes go on without regard to each other, but for groups that begin in order: a task of one waits until every
    earlier task of any of them has begun.

    Parameters
    ----------
    groups : the rank's group on each lane
    now : the carrier's clock
    """

    def __init__(
        self,
        groups: Mapping[str, Communicator],
        transfers: Transfers,
        now: Callable[[], float],
        watcher: ProgressReporter | None,
    ) -> None:
        self._groups = groups
        self._transfers = transfers
        self._now = now
        self._watcher = watcher
        self._queues: dict[str, deque[OpTask]] = {name: deque() for name in groups}
        self._to_begin: deque[OpTask] = deque()
        self._carried = 0

    @property
    def under_way(self) -> bool:
        """Whether any communication has yet to end."""
        return any(self._queues.values())

    @contextmanager
    def recording_overlap(self) -> Iterator[None]:
        """Local work is done inside: of what is under way, it is noted how far it comes."""
        under_way = [(task, task.carried_now) for queue in self._queues.values() for task in queue]
        yield
        for task, before in under_way:
            task.beside += task.carried_now - before

    def add(self, name: str, task: OpTask) -> None:
        """Put a communication op at the end of its lane, and go on."""
        self._queues[name].append(task)
        if self._groups[name].begins_in_order:
            self._to_begin.append(task)
        self.advance()

    def advance(self) -> bool:
        """Let every lane go as far as it can; whether any of them moved."""
        moved = False
        for name, queue in self._queues.items():
            while queue and self._step(queue[0], self._groups[name]):
                moved = True
                if queue[0].ended:
                    queue.popleft()
        return moved

    def wait(self) -> Wait:
        """What the tasks under way wait for."""
        started = [queue[0] for queue in self._queues.values() if queue and queue[0].pending]
        requests = [request for task in started for request in task.pending]
        carried = self._carried + sum(task.carried_now for task in started)
        return Wait(requests, tuple(task.op.name for task in started), every=len(started) == 1, carried=carried)

    def _step(self, task: OpTask, communicator: Communicator) -> bool:
        """One step of a communication op, if it can be taken now."""
        assert isinstance(task.op, CommunicationOp)
        if task.work is None:
            if not task.is_ready() or not self._has_its_turn(task, communicator):
                return False
            self.begin(task)
            task.work = self._transfers.communicate(task.op, task.place, communicator)
        before = _moves(task.pending)
        task.pending = [request for request in task.pending if not request.done()]
        if self._watcher is not None and (not task.pending or _moves(task.pending) != before):
            self._watcher.stepped()
        if task.pending:
            return False
        task.carried += task.starting
        try:
            task.pending = next(task.work)
            task.starting = _messages(task.pending)
        except StopIteration:
            self.finish(task)
        return True

    def _has_its_turn(self, task: OpTask, communicator: Communicator) -> bool:
        """Whether all that must begin before has; if so, the next one's turn has come."""
        if communicator.begins_in_order:
            if self._to_begin[0] is not task:
                return False
            self._to_begin.popleft()
        return True

    def begin(self, task: OpTask) -> None:
        if self._watcher is not None:
            self._watcher.began(task.op)
        task.ready = max([task.ready, *(other.end for other in task.needs)])
        task.start = self._now()

    def finish(self, task: OpTask) -> None:
        self._carried += task.carried
        task.end = self._now()
        task.ended = True
        if self._watcher is not None:
            self._watcher.ended(task.op)
        task.needs = []
        task.work = None


def _messages(requests: Sequence[Request]) -> int:
    """What will have been carried when these have ended: a step, or as many messages as it goes in."""
    streams = [request for request in requests if isinstance(request, PipelinedTransfer)]
    return sum(stream.messages for stream in streams) if streams else min(1, len(requests))


def _moves(requests: Sequence[Request]) -> int:
    """How far those among them have come that go on by themselves."""
    return sum(request.moves for request in requests if isinstance(request, PipelinedTransfer))
