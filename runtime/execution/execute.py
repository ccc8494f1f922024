"""The MPI runtime's main function `execute`: it runs a schedule on real arrays and measures every op by the wall clock.

Two terms of this package:

carrier
    The message transport of a run and the ranks that it connects: MPI, NCCL, or queues within one process
    (`runtime/carriers/`).
lane
    A queue of communication ops on one rank, like a CUDA stream. Ops on one lane run one after the other; ops on
    different lanes overlap each other and the computation. Every axis of the grid has at least one lane.

Each rank runs its own program:

- A compute op runs at once, in program order. So does a host copy of NumPy arrays, which is a copy in memory. On a GPU,
  host copies have a lane for each direction, with a stream of its own.
- A communication op joins the queue of its lane. It starts when it is first in the queue and all ops that it depends on
  have ended. It ends when its result is in the destination array.
- While the rank waits for a communication op, the communication on all its lanes advances.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from quadrille.algorithms.analysis.dependencies import Undecided
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import TO_DEVICE, TO_HOST, Barrier, Communication, Compute, HostCopy, Op, lane
from quadrille.algorithms.schedule.schedule import Schedule, all_ops, may_overlap
from quadrille.algorithms.timelines.spans import COMPUTE, Span
from quadrille.algorithms.timelines.timeline import Timeline
from quadrille.runtime.arrays.array_library import ArrayLibrary
from quadrille.runtime.carriers.communicators import Carrier, Communicator, RankCoroutine, Wait
from quadrille.runtime.carriers.message_options import Progress
from quadrille.runtime.execution.buffers import Buffers
from quadrille.runtime.execution.execution_results import Execution, RankResult, mean_by_name
from quadrille.runtime.execution.lanes import LaneScheduler, OpTask
from quadrille.runtime.execution.op_executor import OpExecutor
from quadrille.runtime.execution.progress_thread import ProgressThread
from quadrille.runtime.execution.unrolled_program import UnrolledProgram
from quadrille.runtime.host.progress_reports import CollectiveWork, ProgressReporter, reporting
from quadrille.runtime.operands.input_sources import InputSource, WholeMatrices


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
    """Execute the schedule on every rank of a carrier and return the outputs, timelines and counted bytes.

    The schedule runs `warmups` times without a record, then `repeats` times with a timeline each. On several processes
    the call is collective; processes without rank 0 get their outputs only.

    Parameters
    ----------
    schedule : programs of all ranks, with the tensors and the grid
    tensors : whole matrices by name, or a source that gives each rank its blocks
    communicators : carrier (message transport) that holds the ranks and their communicators
    repeats, warmups : number of recorded and of unrecorded runs
    choices : collectives that the communication library runs (such as `MPI_Allgather`), and algorithms of all others;
        by default our own ring algorithms
    library : array library, NumPy by default
    between : function called with the rank before every run, outside the measured time
    progress : "thread" if a thread advances communication during local work; only for a carrier with one rank per
        process, and host arrays
    reporter : listener that records the rank's current op (`progress_reports.py`); only for a carrier with one rank per
        process

    Raises
    ------
    InputError : a progress thread together with device arrays
    """
    from quadrille.runtime.arrays.numpy_library import NumpyLibrary, keep_freed_memory

    keep_freed_memory()
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
        on_host = {rank: result.allocated_host_bytes for rank, result in gathered.items()}
        overlap_fractions = mean_by_name([result.overlap_fractions for result in gathered.values()])
    return Execution(outputs, timelines, sent, allocated, overlap_fractions, on_host)


class RankExecutor:
    """The executor of one rank: its buffers, its communicators and lanes, and the loop over the ops of its program."""

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
        self._coordinates = schedule.coordinates(rank)
        self._carrier = carrier
        self._reporter = reporter
        self._library = library
        with reporting(reporter, CollectiveWork("set-up of its groups")):
            self._groups = self._communicators()
        self._buffers = Buffers(schedule, self._coordinates, choices, library)
        self._op_executor = OpExecutor(schedule, choices, library, self._buffers)
        host_streams = {} if library.name == "numpy" else {name: library.lane() for name in (TO_DEVICE, TO_HOST)}
        self._has_host_lanes = bool(host_streams)
        self._lanes = LaneScheduler(self._groups, self._op_executor, carrier.now, reporter, host_streams)
        self._program = UnrolledProgram(schedule, self._coordinates)
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
        """Run all repeats, with a progress thread if `progress` is "thread"."""
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
        """Load the inputs, execute all repeats, and return the rank's results with the outputs of the last repeat."""
        self._load(source, self._schedule.inputs)
        spans: list[list[Span]] = []
        overlap_fractions: list[dict[str, float]] = []
        for repeat in range(-warmups, repeats):
            self._load(source, self._schedule.state)
            if between is not None:
                with reporting(self._reporter, "work before the run"):
                    between(self._rank)
            yield from self._barrier("barrier between runs")
            with reporting(self._reporter, CollectiveWork("the start of a run")):
                self._carrier.begin_together()
            tasks = yield from self._run_once()
            yield from self._barrier("barrier after the run")
            if repeat >= 0:
                spans.append([self._span(task) for task in tasks])
                overlap_fractions += [
                    {task.op.name: task.overlap_fraction} for task in tasks if may_overlap(self._schedule, task.op)
                ]
        outputs = {name: self._buffers.result(name, self._coordinates) for name in self._schedule.outputs}
        runs = repeats + warmups
        sent = self._op_executor.bytes_sent // max(1, runs)
        allocated = self._buffers.allocated_bytes, self._buffers.allocated_host_bytes
        return RankResult(outputs, spans, sent, *allocated, mean_by_name(overlap_fractions))

    def _load(self, source: InputSource, names: tuple[str, ...]) -> None:
        """Load every copy of the named tensors from the source."""
        for name in names:
            tensor = self._schedule.tensors[name]
            with reporting(self._reporter, f"loading '{name}'"):
                for coordinates in tensor.copy_coordinates(self._coordinates):
                    values = source.stored(tensor.copy_name(coordinates), tensor.block(coordinates))
                    self._buffers.load(name, coordinates, values)

    def _barrier(self, name: str) -> RankCoroutine[None]:
        """Wait for all ranks: a non-blocking barrier along each axis in turn.

        A blocking barrier would poll without a pause, on a core that slower ranks may need.
        """
        for axis in self._schedule.grid.order:
            barrier = Barrier(name=name, axis=axis)
            if self._reporter is not None:
                self._reporter.began(barrier)
            request = self._groups[axis].barrier(blocking=False)
            while not request.done():
                yield Wait((request,), (barrier.name,), idle=True)
            if self._reporter is not None:
                self._reporter.ended(barrier)

    def _run_once(self) -> RankCoroutine[list[OpTask]]:
        """Execute the program once and return the tasks of all op instances, in program order."""
        tasks: list[OpTask] = []
        begin = self._carrier.now()

        def end(position: int) -> float | None:
            return tasks[position].end if tasks[position].ended else None

        for entry in self._program.entries(end, self._buffers):
            if isinstance(entry, Undecided):
                yield from self._wait_for_any([tasks[position] for position in entry.tokens])
                continue
            needs = [tasks[position] for position in entry.needs]
            task = OpTask(entry.op, entry.coordinates, entry.index, needs, ready=begin)
            tasks.append(task)
            if self._has_lane(task.op):
                self._lanes.add(entry.lane, task)
            else:
                assert not isinstance(task.op, Communication)
                yield from self._wait_for(needs)
                self._compute(task.op, task)
        yield from self._wait_for(tasks)
        return tasks

    def _has_lane(self, op: Op) -> bool:
        """Whether an op runs beside local work; a host copy of host arrays, and work of the host, is local work."""
        return isinstance(op, Communication) or (isinstance(op, HostCopy) and self._has_host_lanes)

    def _compute(self, op: Compute, task: OpTask) -> None:
        """Run a compute op to its end; the progress thread, if there is one, advances the lanes meanwhile."""
        self._lanes.begin(task)
        work = self._op_executor.local_work(op, task.coordinates)
        with self._lanes.recording_overlap():
            with self._thread.running() if self._thread is not None and self._lanes.unfinished else nullcontext():
                work()
            marker = self._library.mark()
            while marker is not None and not marker.done():
                self._lanes.advance()
        self._lanes.finish(task)

    def _wait_for(self, tasks: Sequence[OpTask]) -> RankCoroutine[None]:
        """Advance the lanes until these tasks have ended."""
        open_tasks = [task for task in tasks if not task.ended]
        while open_tasks:
            if not self._lanes.advance():
                yield self._lanes.wait()
            open_tasks = [task for task in open_tasks if not task.ended]

    def _wait_for_any(self, tasks: Sequence[OpTask]) -> RankCoroutine[None]:
        """Advance the lanes until one of these tasks has ended."""
        while not any(task.ended for task in tasks):
            if not self._lanes.advance():
                yield self._lanes.wait()

    def _span(self, task: OpTask) -> Span:
        axis = task.op.axis if isinstance(task.op, Communication) else None
        name = lane(task.op) if self._has_lane(task.op) else COMPUTE
        return Span.of(self._rank, task.op, name, task.index, axis, task.ready, task.start, task.end)
