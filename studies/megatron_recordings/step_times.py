"""Times of recorded steps that kernels bound, beside the times that `simulate` predicts for the imported experiments.

A golden recording is kernel-bound if its model has at least 4e9 parameters; smaller ones wait for launches and the
host.  Each step is predicted on a named machine with two kinds of kernels:

    data sheet     shares of data-sheet peaks
    kernel table   tables of measured kernels, with their factors for training, as machines have by default
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean, median
from typing import Literal, get_args

from quadrille.algorithms.errors import QuadrilleError
from quadrille.algorithms.training.megatron_memory import stage_parameters
from quadrille.algorithms.training.megatron_step import MegatronStep
from quadrille.experiments.import_.job_experiment import job_experiment
from quadrille.experiments.import_.megatron_job import MegatronJob
from quadrille.experiments.predict.training_step import simulated_step
from quadrille.studies.megatron_recordings.recordings import Recording
from quadrille.topologies.find_machine import find_machine

MACHINES = {"A100": "a100-node", "H100": "h100-node", "GB200": "gb200-nvl72", "B200": "b200-node"}
LEAST_PARAMETERS = 4e9
Kernels = Literal["data sheet", "kernel table"]
KERNELS: tuple[Kernels, ...] = get_args(Kernels)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Recorded and predicted times of a step on a kind of GPU.

    Parameters
    ----------
    name : name of the test or case
    gpu : kind of GPU
    recorded : recorded times [s]
    predicted : predicted time by kind of kernels [s]
    reason : reason why there is no prediction; empty if there is one
    """

    name: str
    gpu: str
    recorded: tuple[float, ...]
    predicted: Mapping[Kernels, float]
    reason: str = ""

    @property
    def typical(self) -> float:
        """Median of the recorded times [s]."""
        return median(self.recorded)

    def error(self, kernels: Kernels) -> float | None:
        """Predicted / recorded - 1; None without a prediction."""
        return self.predicted[kernels] / self.typical - 1 if kernels in self.predicted else None


def step_times(recordings: Iterable[Recording]) -> Iterator[StepTimes]:
    """The times of each step that kernels bound, on each kind of GPU."""
    groups: dict[tuple[MegatronStep, str], list[Recording]] = {}
    for row in recordings:
        if row.step is not None and not row.refused and row.seconds and _parameters(row.step) >= LEAST_PARAMETERS:
            groups.setdefault((row.step, row.gpu), []).append(row)
    for (step, gpu), rows in groups.items():
        recorded, name = tuple(row.seconds for row in rows), rows[0].id.partition(",")[0]
        try:
            yield StepTimes(
                name, gpu, recorded, {kernels: predicted_seconds(step, gpu, kernels) for kernels in KERNELS}
            )
        except QuadrilleError as error:
            yield StepTimes(name, gpu, recorded, {}, str(error).partition(";")[0])


def _parameters(step: MegatronStep) -> int:
    """Parameters of the model."""
    return step.tensor * stage_parameters(step, step.layers, is_first=True, is_last=True)


@cache
def predicted_seconds(step: MegatronStep, gpu: str, kernels: Kernels = "kernel table") -> float:
    """The predicted time of a step [s]."""
    settings = ["device.kernel_table=none"] if kernels == "data sheet" else []
    machine = find_machine(MACHINES[gpu], settings, gpus=step.gpus)
    return simulated_step(job_experiment(MegatronJob(step, rotary_share=0 if step.positions else 1)), machine).seconds


def time_rows(times: Iterable[StepTimes]) -> Iterator[list[str]]:
    """The cells of each step: name, kind of GPU, number and range of recorded times, predictions and their errors."""
    for row in times:
        cells = [
            f"{row.predicted[kernels]:.3f}, {100 * (row.error(kernels) or 0.0):+.1f} %"
            if kernels in row.predicted
            else ""
            for kernels in KERNELS
        ]
        spread = (
            f"{min(row.recorded):.3f} to {max(row.recorded):.3f}" if len(row.recorded) > 1 else f"{row.typical:.3f}"
        )
        yield [row.name, row.gpu, str(len(row.recorded)), spread, *cells, row.reason]


def error_rows(times: Sequence[StepTimes]) -> Iterator[list[str]]:
    """Mean, median and largest absolute errors by kind of GPU and kind of kernels."""
    for gpu in dict.fromkeys(row.gpu for row in times):
        for kernels in KERNELS:
            errors = [error for row in times if row.gpu == gpu and (error := row.error(kernels)) is not None]
            if sizes := [abs(error) for error in errors]:
                shown = (mean(sizes), median(sizes), max(sizes), mean(errors))
                yield [gpu, kernels, str(len(sizes)), *(f"{100 * value:.1f} %" for value in shown)]
