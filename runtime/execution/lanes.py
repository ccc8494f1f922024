"""The communication lanes of one rank: each lane is a queue of ops, and its first op is in progress."""

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
    """One op instance on one rank.

    Parameters
    ----------
    carried : messages that have completed; or steps, where messages are not chunked
    starting : messages (or steps) that complete with the pending requests
    overlapped : messages (or steps) that completed during local work, as far as the rank noticed
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
    overlapped: int = 0
    work: Generator[list[Request], None, None] | None = None
    pending: list[Request] = field(default_factory=list)

    def is_ready(self) -> bool:
        return all(task.ended for task in self.needs)

    @property
    def carried_now(self) -> int:
        """Messages, or steps, that have completed by now."""
        return self.carried + sum(request.ended for request in self.pending if isinstance(request, PipelinedTransfer))

    @property
    def overlap_fraction(self) -> float:
        """The fraction (0 to 1) of a finished communication that happened during local work."""
        return self.overlapped / self.carried if self.carried else 0.0


class LaneScheduler:
    """Starts, advances and ends the tasks on all lanes of one rank.

    Lanes are independent, with one exception: where communicators must begin ops in program order (NCCL), a task waits
    until every earlier task of such communicators has begun.

    Parameters
    ----------
    groups : the rank's communicator on each lane
    now : clock of the carrier [s]
    """

    def __init__(
        self,
        groups: Mapping[str, Communicator],
        transfers: Transfers,
        now: Callable[[], float],
        reporter: ProgressReporter | None,
    ) -> None:
        self._groups = groups
        self._transfers = transfers
        self._now = now
        self._reporter = reporter
        self._queues: dict[str, deque[OpTask]] = {name: deque() for name in groups}
        self._to_begin: deque[OpTask] = deque()
        self._carried = 0

    @property
    def unfinished(self) -> bool:
        """Whether any communication is unfinished."""
        return any(self._queues.values())

    @contextmanager
    def recording_overlap(self) -> Iterator[None]:
        """A context in which local work runs. At its end, every open task records what completed during the work."""
        open_tasks = [(task, task.carried_now) for queue in self._queues.values() for task in queue]
        yield
        for task, before in open_tasks:
            task.overlapped += task.carried_now - before

    def add(self, name: str, task: OpTask) -> None:
        """Append a communication op to its lane and advance all lanes."""
        self._queues[name].append(task)
        if self._groups[name].begins_in_order:
            self._to_begin.append(task)
        self.advance()

    def advance(self) -> bool:
        """Advance every lane as far as possible; returns whether any lane moved."""
        moved = False
        for name, queue in self._queues.items():
            while queue and self._step(queue[0], self._groups[name]):
                moved = True
                if queue[0].ended:
                    queue.popleft()
        return moved

    def wait(self) -> Wait:
        """The requests that the open tasks wait for."""
        started = [queue[0] for queue in self._queues.values() if queue and queue[0].pending]
        requests = [request for task in started for request in task.pending]
        carried = self._carried + sum(task.carried_now for task in started)
        return Wait(requests, tuple(task.op.name for task in started), every=len(started) == 1, carried=carried)

    def _step(self, task: OpTask, communicator: Communicator) -> bool:
        """Take one step of a communication op if it is possible now; returns whether it was."""
        assert isinstance(task.op, CommunicationOp)
        if task.work is None:
            if not task.is_ready() or not self._has_its_turn(task, communicator):
                return False
            self.begin(task)
            task.work = self._transfers.communicate(task.op, task.place, communicator)
        before = _moves(task.pending)
        task.pending = [request for request in task.pending if not request.done()]
        if self._reporter is not None and (not task.pending or _moves(task.pending) != before):
            self._reporter.stepped()
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
        """Whether the task may begin now: where ops begin in program order, whether it is the next one."""
        if communicator.begins_in_order:
            if self._to_begin[0] is not task:
                return False
            self._to_begin.popleft()
        return True

    def begin(self, task: OpTask) -> None:
        if self._reporter is not None:
            self._reporter.began(task.op)
        task.ready = max([task.ready, *(needed.end for needed in task.needs)])
        task.start = self._now()

    def finish(self, task: OpTask) -> None:
        self._carried += task.carried
        task.end = self._now()
        task.ended = True
        if self._reporter is not None:
            self._reporter.ended(task.op)
        task.needs = []
        task.work = None


def _messages(requests: Sequence[Request]) -> int:
    """The messages that complete with these requests; a step without chunks counts as one."""
    streams = [request for request in requests if isinstance(request, PipelinedTransfer)]
    return sum(stream.messages for stream in streams) if streams else min(1, len(requests))


def _moves(requests: Sequence[Request]) -> int:
    """The progress count of all pipelined transfers among the requests."""
    return sum(request.moves for request in requests if isinstance(request, PipelinedTransfer))
