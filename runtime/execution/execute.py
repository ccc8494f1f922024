"""The wall-clock interpreter: one schedule, really executed by every rank.

Each rank follows its program.  Compute ops run at once, in program order;
communication ops are queued on their lane and started when all they depend on
has ended.  While a rank waits, whatever is under way on its lanes advances.
An op's start is when its lane takes it, its end when the data are there.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import Barrier, Communication, Compute, lane
from quadrille.algorithms.schedule.schedule import Schedule, all_ops, may_overlap
from quadrille.algorithms.timelines.spans import Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.runtime.arrays.array_library import ArrayLibrary
from quadrille.runtime.carriers.communicators import Carrier, Communicator, RankCoroutine, Wait
from quadrille.runtime.carriers.message_options import Progress
from quadrille.runtime.execution.buffers import Buffers
from quadrille.runtime.execution.lanes import LaneScheduler, OpTask
from quadrille.runtime.execution.progress_thread import ProgressThread
from quadrille.runtime.execution.results import Execution, RankResult, mean_by_name
from quadrille.runtime.execution.transfers import Transfers
from quadrille.runtime.execution.unrolled import UnrolledProgram
from quadrille.runtime.host.progress_reports import CollectiveWork, ProgressReporter, reporting
from quadrille.runtime.operands.sources import InputSource, WholeMatrices


def execute(
    schedule: Schedule,
    tensors: InputSource | Mapping[str, Any],
    communicators: Carrier,
    *,
    repeats: int = 1,
    warmups: int = 0,
    choices: Choices | None = None,
    library: ArrayLibrary | None = None,
    between: Callable[[int], None] | None = None,
    progress: Progress = "none",
    watcher: ProgressReporter | None = None,
) -> Execution:
    """Run the schedule on every rank of a carrier, `warmups` times unrecorded and `repeats` times recorded.

    Parameters
    ----------
    tensors : whole matrices by name, or a source that gives each rank its blocks
    communicators : the carrier of the ranks
    choices : who carries out the collectives, by default our own rings
    between : called with the rank before every run, outside the time measured
    watcher : told what the rank does, see `progress_reports.py`; for a carrier of one rank
    progress : whether a thread advances communication beside local work; for a carrier of one rank and host arrays

    Raises
    ------
    InputError : a thread with arrays of a device
    """
    from quadrille.runtime.arrays.numpy_library import NumpyLibrary

    chosen, arrays = choices or Choices(), library or NumpyLibrary()
    if progress == "thread" and arrays.name != "numpy":
        raise InputError(f"progress 'thread': is for host arrays; accepted with those of {arrays.name} is none")
    source = WholeMatrices(tensors) if isinstance(tensors, Mapping) else tensors

    def course(rank: int) -> RankCoroutine[RankResult]:
        executor = RankExecutor(schedule, rank, communicators, chosen, arrays, watcher)
        return executor.run_beside(progress, source, repeats, warmups, between)

    results = communicators.run(course)
    with reporting(watcher, CollectiveWork("gathering of what was measured")):
        gathered = communicators.gather({rank: replace(result, outputs={}) for rank, result in results.items()})
    outputs = {rank: result.outputs for rank, result in results.items()}
    if gathered is None:
        return Execution(outputs, [], {}, {}, {})
    with reporting(watcher, "putting together what was measured"):
        timelines = [
            Timeline.of_spans(
                [span for result in gathered.values() for span in result.spans[repeat]], "measured", schedule.grid
            )
            for repeat in range(repeats)
        ]
        sent = {rank: result.bytes_sent for rank, result in gathered.items()}
        allocated = {rank: result.allocated_bytes for rank, result in gathered.items()}
        beside = mean_by_name([result.overlap_fractions for result in gathered.values()])
    return Execution(outputs, timelines, sent, allocated, beside)


class RankExecutor:
    """One rank on its way through the program."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        carrier: Carrier,
        choices: Choices,
        library: ArrayLibrary,
        watcher: ProgressReporter | None = None,
    ) -> None:
        self._schedule = schedule
        self._rank = rank
        self._place = schedule.coordinates(rank)
        self._carrier = carrier
        self._watcher = watcher
        self._library = library
        with reporting(watcher, CollectiveWork("set-up of its groups")):
            self._groups = self._communicators()
        self._buffers = Buffers(schedule, self._place, choices, library)
        self._transfers = Transfers(schedule, choices, library, self._buffers)
        self._lanes = LaneScheduler(self._groups, self._transfers, carrier.now, watcher)
        self._unrolled = UnrolledProgram(schedule, self._place)
        self._thread: ProgressThread | None = None

    def _communicators(self) -> dict[str, Communicator]:
        """One for each lane of the schedule, in the same order on every rank."""
        groups: dict[str, Communicator] = {}
        grid = self._schedule.grid
        for axis in grid.order:
            groups[axis] = self._carrier.communicator(grid, self._rank, axis, 0)
        for op in all_ops(self._schedule):
            if isinstance(op, Communication) and lane(op) not in groups:
                groups[lane(op)] = self._carrier.communicator(grid, self._rank, op.axis, op.lane)
        return groups

    def run_beside(
        self,
        progress: Progress,
        source: InputSource,
        repeats: int,
        warmups: int,
        between: Callable[[int], None] | None,
    ) -> RankCoroutine[RankResult]:
        """The run, with what advances communication beside local work."""
        if progress == "none":
            return (yield from self.run(source, repeats, warmups, between))
        self._thread = ProgressThread(self._lanes.advance)
        try:
            return (yield from self.run(source, repeats, warmups, between))
        finally:
            self._thread.close()

    def run(
        self, source: InputSource, repeats: int, warmups: int, between: Callable[[int], None] | None
    ) -> RankCoroutine[RankResult]:
        """Load the inputs, run all repeats, and give the results of the last."""
        self._load(source, self._schedule.inputs)
        spans: list[list[Span]] = []
        beside: list[dict[str, float]] = []
        for repeat in range(-warmups, repeats):
            self._load(source, self._schedule.state)
            if between is not None:
                with reporting(self._watcher, "work before the run"):
                    between(self._rank)
            yield from self._meet("barrier between runs")
            with reporting(self._watcher, CollectiveWork("the start of a run")):
                self._carrier.begin_together()
            tasks = yield from self._once()
            yield from self._meet("barrier after the run")
            if repeat >= 0:
                spans.append([self._span(task) for task in tasks])
                beside += [
                    {task.op.name: task.overlap_fraction} for task in tasks if may_overlap(self._schedule, task.op)
                ]
        outputs = {name: self._buffers.result(name, self._place) for name in self._schedule.outputs}
        runs = repeats + warmups
        sent = self._transfers.bytes_sent // max(1, runs)
        return RankResult(outputs, spans, sent, self._buffers.allocated_bytes, mean_by_name(beside))

    def _load(self, source: InputSource, names: tuple[str, ...]) -> None:
        """Every copy of the tensors, from its place."""
        for name in names:
            tensor = self._schedule.tensors[name]
            with reporting(self._watcher, f"loading '{name}'"):
                for moment in tensor.copy_coordinates(self._place):
                    values = source.stored(tensor.copy_name(moment), tensor.block(moment))
                    self._buffers.load(name, moment, values)

    def _meet(self, name: str) -> RankCoroutine[None]:
        """A barrier of all ranks, axis by axis: what comes behind takes no core from a rank that is not there.

        None blocks: ranks that have ended would look for the others all the time, on cores that these may share.
        """
        for axis in self._schedule.grid.order:
            meeting = Barrier(name=name, axis=axis)
            if self._watcher is not None:
                self._watcher.began(meeting)
            request = self._groups[axis].barrier(blocking=False)
            while not request.done():
                yield Wait((request,), (meeting.name,), idle=True)
            if self._watcher is not None:
                self._watcher.ended(meeting)

    def _once(self) -> RankCoroutine[list[OpTask]]:
        """One run of the program."""
        tasks: list[OpTask] = []
        begin = self._carrier.now()
        for entry in self._unrolled.entries():
            needs = [tasks[position] for position in entry.needs]
            task = OpTask(entry.op, entry.place, entry.index, needs, ready=begin)
            tasks.append(task)
            if isinstance(task.op, Communication):
                self._lanes.add(entry.lane, task)
            else:
                yield from self._until(needs)
                self._compute(task.op, task)
        yield from self._until(tasks)
        return tasks

    def _compute(self, op: Compute, task: OpTask) -> None:
        self._lanes.begin(task)
        work = self._transfers.compute(op, task.place)
        with self._lanes.recording_overlap():
            with self._thread.beside() if self._thread is not None and self._lanes.under_way else nullcontext():
                work()
            marker = self._library.mark()
            while marker is not None and not marker.done():
                self._lanes.advance()
        self._lanes.finish(task)

    def _until(self, tasks: Sequence[OpTask]) -> RankCoroutine[None]:
        """Go on with the lanes until these tasks have ended."""
        open_tasks = [task for task in tasks if not task.ended]
        while open_tasks:
            if not self._lanes.advance():
                yield self._lanes.wait()
            open_tasks = [task for task in open_tasks if not task.ended]

    def _span(self, task: OpTask) -> Span:
        axis = task.op.axis if isinstance(task.op, Communication) else None
        return Span.of(self._rank, task.op, lane(task.op), task.index, axis, task.ready, task.start, task.end)
