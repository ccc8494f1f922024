"""Benchmark of sweeps: the speed-up of two processes over one, and the engine's processor time per point.

Both go through the engine of `quadrille sweep --store`: a hash of each point, a look into the store, workers, and a
commit of each answer. The points of the speed-up take a fixed number of steps of Python's interpreter; those of the
engine's time take none.
"""

import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec

from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.sweep.sweep import put_answers
from quadrille.experiments.sweep.sweep_points import OneGrid
from quadrille.experiments.sweep.sweep_result import NOT_REACHED, SweepAnswer
from quadrille.experiments.tasks.answer_tasks import StoredTasks
from quadrille.experiments.tasks.task_options import TaskOptions
from quadrille.experiments.tasks.task_store import TaskStore
from quadrille.experiments.workloads.matmul import MatmulExperiment
from quadrille.topologies.find_machine import find_machine

PAIRS, POINTS = 7, 60
POINT_SECONDS = 0.05
"""Least processor time of a point of the speed-up [s]."""
REPEATS, ENGINE_POINTS = 7, 1000


class SweepSpeed(msgspec.Struct, frozen=True):
    """The speed of a sweep's engine.

    Parameters
    ----------
    point_seconds : processor time of a point of the speed-up [s]
    one_process_seconds, two_process_seconds : wall times of each pair of sweeps [s]
    one_process_work, two_process_work : processor times of each pair of sweeps, of all processes [s]
    engine_seconds_per_point : processor times of a point without work, of all processes, in each repeat [s]
    """

    point_seconds: float
    one_process_seconds: tuple[float, ...]
    two_process_seconds: tuple[float, ...]
    one_process_work: tuple[float, ...]
    two_process_work: tuple[float, ...]
    engine_seconds_per_point: tuple[float, ...]

    @property
    def speedups(self) -> list[float]:
        """Wall time of one process / that of two, in each pair."""
        return [
            one_process / two_processes
            for one_process, two_processes in zip(self.one_process_seconds, self.two_process_seconds, strict=True)
        ]

    @property
    def speedup(self) -> float:
        """The median of the speed-ups."""
        return median(self.speedups)

    @property
    def undisturbed_speedup(self) -> float:
        """Largest speed-up of two processes whose cores run nothing else: twice the ratio of processor times."""
        return median(
            2 * one_process / two_processes
            for one_process, two_processes in zip(self.one_process_work, self.two_process_work, strict=True)
        )

    @property
    def engine_seconds(self) -> float:
        """The median of the engine's processor times of a point [s]."""
        return median(self.engine_seconds_per_point)


def sweep_speed(pairs: int = PAIRS, points: int = POINTS, engine_points: int = ENGINE_POINTS) -> SweepSpeed:
    """Measure pairs of sweeps, by one process and by two, and then the engine's time.

    Parameters
    ----------
    points, engine_points : number of points of a sweep, with and without work
    """
    question, point_seconds = working_question(POINT_SECONDS)
    measured_pairs = [[_sweep_seconds(question, points, jobs) for jobs in (1, 2)] for _ in range(pairs)]
    one_process, two_processes = zip(*measured_pairs, strict=True)
    engine = [_sweep_seconds(_no_work, engine_points, 2)[1] / engine_points for _ in range(REPEATS)]
    return SweepSpeed(
        point_seconds=point_seconds,
        one_process_seconds=tuple(seconds for seconds, _ in one_process),
        two_process_seconds=tuple(seconds for seconds, _ in two_processes),
        one_process_work=tuple(work_seconds for _, work_seconds in one_process),
        two_process_work=tuple(work_seconds for _, work_seconds in two_processes),
        engine_seconds_per_point=tuple(engine),
    )


def working_question(seconds: float) -> tuple[Callable[[OneGrid], SweepAnswer], float]:
    """A question that takes at least this processor time, and its measured processor time [s]."""
    steps = 1 << 14
    while (taken := min(_seconds_of_steps(steps) for _ in range(3))) < seconds:
        steps = int(steps * min(2.0, 1.1 * seconds / taken))

    def question(_point: OneGrid) -> SweepAnswer:
        return SweepAnswer(seconds=float(work(steps)))

    return question, taken


def work(steps: int) -> int:
    """A sum, as work for so many steps of the interpreter."""
    return sum(number & 7 for number in range(steps))


def _seconds_of_steps(steps: int) -> float:
    begin = time.process_time()
    work(steps)
    return time.process_time() - begin


def _no_work(_point: OneGrid) -> SweepAnswer:
    return SweepAnswer(seconds=1.0)


def _sweep_seconds(question: Callable[[OneGrid], SweepAnswer], points: int, jobs: int) -> tuple[float, float]:
    """The wall time of a sweep with a new store, and the processor time of all its processes [s]."""
    begin, work_before = time.monotonic(), _processor_seconds()
    answer_all(question, points, jobs)
    return time.monotonic() - begin, _processor_seconds() - work_before


def _processor_seconds() -> float:
    """The processor time of this process, and of its children that have ended [s]."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def answer_all(question: Callable[[OneGrid], SweepAnswer], points: int, jobs: int) -> list[SweepAnswer]:
    """The answers of so many points by so many processes, with a new store."""
    machine = find_machine("perlmutter", gpus=4)
    asked = (OneGrid(MatmulExperiment(Matmul(8 + number, 64, 64), Grid(x=4)), machine) for number in range(points))
    answers = [NOT_REACHED] * points
    with tempfile.TemporaryDirectory() as folder, TaskStore(str(Path(folder) / "s.sqlite")) as store:
        stored = StoredTasks[OneGrid, SweepAnswer](
            store=store, function="bench", arguments=lambda point: point, form=SweepAnswer
        )
        put_answers(answers, asked, question, TaskOptions(jobs=jobs), quiet=True, stored=stored)
    _wait_for_processes()
    return answers


def _wait_for_processes() -> None:
    """Wait for processes that have been ended, so that their processor time is counted."""
    from multiprocessing import active_children

    for process in active_children():
        process.join()


def rows(speed: SweepSpeed) -> list[tuple[str, str, str, str]]:
    """The rows of the figures, with their thresholds."""
    low, high = min(speed.speedups), max(speed.speedups)
    engine = [1e3 * seconds for seconds in speed.engine_seconds_per_point]
    return [
        (
            "sweep, two processes over one",
            f"{speed.speedup:.2f} times",
            "1.8 times",
            f"median of {len(speed.speedups)} pairs, {low:.2f} to {high:.2f}; points of {1e3 * speed.point_seconds:.0f}"
            f" ms, {os.cpu_count()} cores; {speed.undisturbed_speedup:.2f} by processor time",
        ),
        (
            "engine of a sweep, for each point",
            f"{1e3 * speed.engine_seconds:.2f} ms",
            "3 ms",
            f"processor time, median of {len(engine)}, {min(engine):.2f} to {max(engine):.2f} ms",
        ),
    ]
