"""The communication lanes of one rank and the scheduler that advances them.

A lane is a queue of communication ops, like a CUDA stream: the first op of the queue is in progress, and the lanes are
independent of each other. The grid's axis z has the lane "z", and "z:1" if the schedule uses a second lane along z.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from quadrille.algorithms.schedule.ops import CommunicationOp, HostCopy, Op
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.runtime.arrays.array_library import ArrayLibrary
from quadrille.runtime.carriers.communicators import Communicator, Request, Wait
from quadrille.runtime.carriers.pipelined_steps import PipelinedTransfer
from quadrille.runtime.execution.op_executor import OpExecutor, OpSteps
from quadrille.runtime.host.progress_reports import ProgressReporter


@dataclass(eq=False, slots=True)
class OpTask:
    """One op instance on one rank, with its state and its times.

    Messages are counted: chunks where the communicator splits messages, and otherwise the steps of the collective.

    Parameters
    ----------
    op : op of the schedule
    coordinates : grid coordinates of the rank and loop indices of the instance
    index : number of earlier instances of the op
    needs : tasks that must end before this one starts
    ready, start, end : times at which the last needed task ended, the op started and the op ended [s]
    ended : whether the op has ended
    completed : messages that have completed
    pending_messages : messages that complete with the pending requests
    completed_during_compute : messages that completed during local work, as far as the rank noticed
    steps : remaining steps of a communication op, once it has started
    pending : requests of the current step
    """

    op: Op
    coordinates: Coordinates
    index: int
    needs: list["OpTask"] = field(default_factory=list)
    ready: float = 0.0
    start: float = 0.0
    end: float = 0.0
    ended: bool = False
    completed: int = 0
    pending_messages: int = 0
    completed_during_compute: int = 0
    steps: Generator[list[Request], None, None] | None = None
    pending: list[Request] = field(default_factory=list)

    def is_ready(self) -> bool:
        """Whether all needed tasks have ended."""
        return all(task.ended for task in self.needs)

    @property
    def completed_now(self) -> int:
        """The messages that have completed by now, including those of pending pipelined transfers."""
        return self.completed + sum(
            request.completed_messages for request in self.pending if isinstance(request, PipelinedTransfer)
        )

    @property
    def overlap_fraction(self) -> float:
        """The fraction (0 to 1) of a finished communication that happened during local work."""
        return self.completed_during_compute / self.completed if self.completed else 0.0


class LaneScheduler:
    """Starts, advances and ends the tasks on all lanes of one rank.

    Lanes are independent, with one exception: where communicators must begin ops in program order (NCCL), a task waits
    until every earlier task of such communicators has begun.

    Parameters
    ----------
    groups : the rank's communicator on each lane, by the name of the lane
    op_executor : maker of the steps of a communication op
    now : clock of the carrier [s]
    reporter : listener that records the rank's current op, if any
    host_streams : the device stream of each direction of host copies, by the name of the lane
    """

    def __init__(
        self,
        groups: Mapping[str, Communicator],
        op_executor: OpExecutor,
        now: Callable[[], float],
        reporter: ProgressReporter | None,
        host_streams: Mapping[str, ArrayLibrary],
    ) -> None:
        self._groups, self._host_streams = groups, host_streams
        self._op_executor = op_executor
        self._now = now
        self._reporter = reporter
        self._queues: dict[str, deque[OpTask]] = {name: deque() for name in (*groups, *host_streams)}
        self._begin_order: deque[OpTask] = deque()
        self._completed = 0

    @property
    def unfinished(self) -> bool:
        """Whether any communication is unfinished."""
        return any(self._queues.values())

    @contextmanager
    def recording_overlap(self) -> Iterator[None]:
        """A context in which local work runs. At its end, every open task records what completed during the work."""
        open_tasks = [(task, task.completed_now) for queue in self._queues.values() for task in queue]
        yield
        for task, before in open_tasks:
            task.completed_during_compute += task.completed_now - before

    def add(self, name: str, task: OpTask) -> None:
        """Append a communication op or a host copy to its lane and advance all lanes."""
        self._queues[name].append(task)
        if name in self._groups and self._groups[name].begins_in_order:
            self._begin_order.append(task)
        self.advance()

    def advance(self) -> bool:
        """Advance every lane as far as possible; returns whether any lane moved."""
        has_advanced = False
        for name, queue in self._queues.items():
            while queue and self._step(queue[0], name):
                has_advanced = True
                if queue[0].ended:
                    queue.popleft()
        return has_advanced

    def wait(self) -> Wait:
        """The requests that the started tasks wait for."""
        started = [queue[0] for queue in self._queues.values() if queue and queue[0].pending]
        requests = [request for task in started for request in task.pending]
        completed = self._completed + sum(task.completed_now for task in started)
        return Wait(requests, tuple(task.op.name for task in started), every=len(started) == 1, completed=completed)

    def _step(self, task: OpTask, name: str) -> bool:
        """Advance an op of a lane by one step, if the requests of the previous step have completed; returns whether it
        advanced.
        """
        if task.steps is None:
            if not task.is_ready() or not self._may_begin(task, name):
                return False
            self.begin(task)
            task.steps = self._steps_of(task, name)
        before = _progress_count(task.pending)
        task.pending = [request for request in task.pending if not request.done()]
        if self._reporter is not None and (not task.pending or _progress_count(task.pending) != before):
            self._reporter.stepped()
        if task.pending:
            return False
        task.completed += task.pending_messages
        try:
            task.pending = next(task.steps)
            task.pending_messages = _message_count(task.pending)
        except StopIteration:
            self.finish(task)
        return True

    def _steps_of(self, task: OpTask, name: str) -> OpSteps:
        """The steps of an op on its lane."""
        if isinstance(task.op, HostCopy):
            return self._op_executor.host_copy_steps(task.op, task.coordinates, self._host_streams[name])
        assert isinstance(task.op, CommunicationOp)
        return self._op_executor.communication_steps(task.op, task.coordinates, self._groups[name])

    def _may_begin(self, task: OpTask, name: str) -> bool:
        """Whether the task may begin now. Where ops begin in program order, only the next one may, and it is removed
        from the order.
        """
        if name in self._groups and self._groups[name].begins_in_order:
            if self._begin_order[0] is not task:
                return False
            self._begin_order.popleft()
        return True

    def begin(self, task: OpTask) -> None:
        """Record the start of a task."""
        if self._reporter is not None:
            self._reporter.began(task.op)
        task.ready = max([task.ready, *(needed.end for needed in task.needs)])
        task.start = self._now()

    def finish(self, task: OpTask) -> None:
        """Record the end of a task."""
        self._completed += task.completed
        task.end = self._now()
        task.ended = True
        if self._reporter is not None:
            self._reporter.ended(task.op)
        task.needs = []
        task.steps = None


def _message_count(requests: Sequence[Request]) -> int:
    """The number of messages that complete with these requests; a step without chunks counts as one."""
    transfers = [request for request in requests if isinstance(request, PipelinedTransfer)]
    return sum(transfer.message_count for transfer in transfers) if transfers else min(1, len(requests))


def _progress_count(requests: Sequence[Request]) -> int:
    """The sum of the progress counts of all pipelined transfers among the requests."""
    return sum(request.progress_count for request in requests if isinstance(request, PipelinedTransfer))
