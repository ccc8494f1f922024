"""`SlurmWorkers`: jobs of Slurm, each of which computes several tasks and leaves the results in a shared folder.

Source: github.com/facebookincubator/submitit, its AutoExecutor for Slurm and for processes of one computer.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from quadrille.algorithms.errors import InputError, RunError
from quadrille.algorithms.optional_packages import check_installed
from quadrille.experiments.tasks.workers import Workers

if TYPE_CHECKING:
    from submitit import Job

Point = TypeVar("Point")
Answer = TypeVar("Answer")
LOOK_SECONDS = 0.2
"""Time between two looks at the results of jobs [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """The jobs of a sweep on Slurm.

    Parameters
    ----------
    partition, account : partition and account of the jobs; empty for those of the site
    jobs : largest number of jobs at a time
    points : number of tasks of a job
    minutes : time limit of a job [min]
    folder : folder of the jobs' files, which all nodes see
    cluster : slurm, or local for processes of this computer
    """

    partition: str = ""
    account: str = ""
    jobs: int = 8
    points: int = 32
    minutes: int = 60
    folder: str = "slurm-tasks"
    cluster: Literal["slurm", "local"] = "slurm"

    def check(self) -> None:
        """Checks, before any work, that jobs can be submitted.

        Raises
        ------
        InputError : no submitit, or no Slurm
        """
        try:
            check_installed("submitit")
        except InputError as error:
            raise InputError(f"--slurm {error}") from None
        if self.cluster == "slurm" and shutil.which("sbatch") is None:
            raise InputError("--slurm: there is no sbatch on this computer; run on a login node, or share by --jobs N")


class SlurmWorkers(Workers[Point, Answer]):
    """The jobs that compute tasks; the process that waits for them needs to stay alive.

    Parameters
    ----------
    question : function of a module, which every node can import
    options : number, size and limits of jobs
    """

    def __init__(self, question: Callable[[Point], Answer], options: SlurmOptions) -> None:
        self._question, self._options, self.capacity = question, options, options.jobs * options.points
        self._taken: list[tuple[int, Point]] = []
        self._jobs: list[tuple[Job[list[Answer]], list[int]]] = []
        self._executor: Any = None

    def start(self, number: int, point: Point) -> None:
        self._taken.append((number, point))
        if len(self._taken) == self._options.points:
            self._submit()

    def finished(self, *, wait: bool) -> list[tuple[int, Answer]]:
        if wait and self._taken:
            self._submit()
        while True:
            results: list[tuple[int, Answer]] = []
            for job, numbers in [entry for entry in self._jobs if entry[0].done()]:
                if results and job.exception() is not None:
                    return results  # they are kept first
                self._jobs.remove((job, numbers))
                results += zip(numbers, _results_of(job), strict=True)
            if results or not (wait and self._jobs):
                return results
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        for job, _ in self._jobs:
            with suppress(Exception):  # a job that has ended cannot be cancelled
                job.cancel(check=False)

    def _submit(self) -> None:
        """Submit a job with the tasks that were taken."""
        numbers, points = [number for number, _ in self._taken], [point for _, point in self._taken]
        self._taken.clear()
        try:
            job = self._opened_executor().submit(answer_all, self._question, points)
        except Exception as error:  # noqa: BLE001 - whatever sbatch does not accept
            raise RunError(f"--slurm: a job cannot be submitted: {' '.join(str(error).split())}") from None
        self._jobs.append((job, numbers))

    def _opened_executor(self) -> Any:
        if self._executor is None:
            import submitit

            options = self._options
            self._executor = submitit.AutoExecutor(folder=options.folder, cluster=options.cluster)
            words = {"slurm_partition": options.partition, "slurm_account": options.account}
            self._executor.update_parameters(
                name="quadrille",
                timeout_min=options.minutes,
                cpus_per_task=1,
                **{name: word for name, word in words.items() if word},
            )
        return self._executor


def answer_all(question: Callable[[Point], Answer], points: Sequence[Point]) -> list[Answer]:
    """The results of several tasks; a job calls this."""
    return [question(point) for point in points]


def _results_of(job: "Job[list[Answer]]") -> list[Answer]:
    """The results of a job that has ended; its files are removed.

    Raises
    ------
    RunError : the job failed; its log stays
    """
    error = job.exception()
    if error is not None:
        lines = str(error).partition("You can check")[0].splitlines()
        last = next((line for line in reversed(lines) if line.strip(" -")), "no reason")
        raise RunError(f"--slurm: job {job.job_id} failed: {last.strip()}; its log is {job.paths.stderr}")
    results = job.result()
    for path in Path(job.paths.folder).glob(f"{job.job_id}_*"):
        path.unlink(missing_ok=True)
    return results
