"""The wall-clock interpreter: it executes one schedule on real arrays, on every rank of a carrier.

Every rank follows its own program:

- A compute op runs at once, in program order.
- A communication op joins the queue of its lane. It starts when all ops that it depends on have ended.
- While a rank waits, the communication on its lanes advances.

An op starts when its lane takes it, and ends when its result is in place.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from quadrille.algorithms.collectives.collective_choices import Choices
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
    reporter: ProgressReporter | None = None,
) -> Execution:
    """Execute the schedule on every rank of a carrier: `warmups` unrecorded runs, then `repeats` recorded runs.

    Parameters
    ----------
    tensors : whole matrices by name, or a source that gives each rank its blocks
    communicators : carrier that holds the ranks and their communicators
    choices : which collectives the library carries out, and which algorithms the others use; by default own rings
    between : function called with the rank before every run, outside the measured time
    reporter : listener that records what the rank does (`progress_reports.py`); only for a carrier of one rank
    progress : whether a thread advances communication during local work; only for a carrier of one rank and host arrays

    Raises
    ------
    InputError : a progress thread together with device arrays
    """
    from quadrille.runtime.arrays.numpy_library import NumpyLibrary

    chosen, arrays = choices or Choices(), library or NumpyLibrary()
    if progress == "thread" and arrays.name != "numpy":
        raise InputError(f"progress 'thread': is for host arrays; accepted with those of {arrays.name} is none")
    source = WholeMatrices(tensors) if isinstance(tensors, Mapping) else tensors

    def coroutine(rank: int) -> RankCoroutine[RankResult]:
        executor = RankExecutor(schedule, rank, communicators, chosen, arrays, reporter)
        return executor.run_with_progress(progress, source, repeats, warmups, between)

    results = communicators.run(coroutine)
    with reporting(reporter, CollectiveWork("gathering of what was measured")):
        gathered = communicators.gather({rank: replace(result, outputs={}) for rank, result in results.items()})
    outputs = {rank: result.outputs for rank, result in results.items()}
    if gathered is None:
        return Execution(outputs, [], {}, {}, {})
    with reporting(reporter, "putting together what was measured"):
        timelines = [
            Timeline.of_spans(
                [span for result in gathered.values() for span in result.spans[repeat]], "measured", schedule.grid
            )
            for repeat in range(repeats)
        ]
        sent = {rank: result.bytes_sent for rank, result in gathered.items()}
        allocated = {rank: result.allocated_bytes for rank, result in gathered.items()}
        overlap_fractions = mean_by_name([result.overlap_fractions for result in gathered.values()])
    return Execution(outputs, timelines, sent, allocated, overlap_fractions)


class RankExecutor:
    """The execution of the program on one rank."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        carrier: Carrier,
        choices: Choices,
        library: ArrayLibrary,
        reporter: ProgressReporter | None = None,
    ) -> None:
        self._schedule = schedule
        self._rank = rank
        self._place = schedule.coordinates(rank)
        self._carrier = carrier
        self._reporter = reporter
        self._library = library
        with reporting(reporter, CollectiveWork("set-up of its groups")):
            self._groups = self._communicators()
        self._buffers = Buffers(schedule, self._place, choices, library)
        self._transfers = Transfers(schedule, choices, library, self._buffers)
        self._lanes = LaneScheduler(self._groups, self._transfers, carrier.now, reporter)
        self._unrolled = UnrolledProgram(schedule, self._place)
        self._thread: ProgressThread | None = None

    def _communicators(self) -> dict[str, Communicator]:
        """One communicator for each lane of the schedule, created in the same order on every rank."""
        groups: dict[str, Communicator] = {}
        grid = self._schedule.grid
        for axis in grid.order:
            groups[axis] = self._carrier.communicator(grid, self._rank, axis, 0)
        for op in all_ops(self._schedule):
            if isinstance(op, Communication) and lane(op) not in groups:
                groups[lane(op)] = self._carrier.communicator(grid, self._rank, op.axis, op.lane)
        return groups

    def run_with_progress(
        self,
        progress: Progress,
        source: InputSource,
        repeats: int,
        warmups: int,
        between: Callable[[int], None] | None,
    ) -> RankCoroutine[RankResult]:
        """Run all repeats, with the progress thread if one is asked for."""
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
        """Load the inputs, execute all repeats, and return the outputs of the last repeat."""
        self._load(source, self._schedule.inputs)
        spans: list[list[Span]] = []
        overlap_fractions: list[dict[str, float]] = []
        for repeat in range(-warmups, repeats):
            self._load(source, self._schedule.state)
            if between is not None:
                with reporting(self._reporter, "work before the run"):
                    between(self._rank)
            yield from self._meet("barrier between runs")
            with reporting(self._reporter, CollectiveWork("the start of a run")):
                self._carrier.begin_together()
            tasks = yield from self._once()
            yield from self._meet("barrier after the run")
            if repeat >= 0:
                spans.append([self._span(task) for task in tasks])
                overlap_fractions += [
                    {task.op.name: task.overlap_fraction} for task in tasks if may_overlap(self._schedule, task.op)
                ]
        outputs = {name: self._buffers.result(name, self._place) for name in self._schedule.outputs}
        runs = repeats + warmups
        sent = self._transfers.bytes_sent // max(1, runs)
        return RankResult(outputs, spans, sent, self._buffers.allocated_bytes, mean_by_name(overlap_fractions))

    def _load(self, source: InputSource, names: tuple[str, ...]) -> None:
        """Load every copy of the named tensors from the source."""
        for name in names:
            tensor = self._schedule.tensors[name]
            with reporting(self._reporter, f"loading '{name}'"):
                for moment in tensor.copy_coordinates(self._place):
                    values = source.stored(tensor.copy_name(moment), tensor.block(moment))
                    self._buffers.load(name, moment, values)

    def _meet(self, name: str) -> RankCoroutine[None]:
        """A barrier of all ranks, one axis after the other.

        The barriers do not block. A blocking barrier would poll all the time, on a core that slower ranks may need.
        """
        for axis in self._schedule.grid.order:
            meeting = Barrier(name=name, axis=axis)
            if self._reporter is not None:
                self._reporter.began(meeting)
            request = self._groups[axis].barrier(blocking=False)
            while not request.done():
                yield Wait((request,), (meeting.name,), idle=True)
            if self._reporter is not None:
                self._reporter.ended(meeting)

    def _once(self) -> RankCoroutine[list[OpTask]]:
        """Execute the program once."""
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
            with self._thread.running() if self._thread is not None and self._lanes.unfinished else nullcontext():
                work()
            marker = self._library.mark()
            while marker is not None and not marker.done():
                self._lanes.advance()
        self._lanes.finish(task)

    def _until(self, tasks: Sequence[OpTask]) -> RankCoroutine[None]:
        """Advance the lanes until these tasks have ended."""
        open_tasks = [task for task in tasks if not task.ended]
        while open_tasks:
            if not self._lanes.advance():
                yield self._lanes.wait()
            open_tasks = [task for task in open_tasks if not task.ended]

    def _span(self, task: OpTask) -> Span:
        axis = task.op.axis if isinstance(task.op, Communication) else None
        return Span.of(self._rank, task.op, lane(task.op), task.index, axis, task.ready, task.start, task.end)
