"""The check of `--device-memory`: whether each rank fits into its device arena, and what would fit instead."""

from collections.abc import Iterator
from dataclasses import replace

from quadrille.algorithms.analysis.rank_symmetry import equivalent_ranks
from quadrille.algorithms.analysis.storage import storages
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.training.gpt import Gpt
from quadrille.algorithms.training.offload import Offload
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.experiments.workloads.training import TrainingExperiment


def check_device_memory(experiment: Experiment, schedule: Schedule, limit: int) -> None:
    """Checks that the arrays of every rank fit into a device arena.

    Parameters
    ----------
    experiment : the experiment, whose options may need less memory
    schedule : its schedule
    limit : size of the arena of each rank [B]

    Raises
    ------
    InputError : names the memory that a rank needs, and options with which it would fit
    """
    needed = _largest_bytes(schedule, experiment.execution.choices)
    if needed <= limit:
        return
    fitting = [
        f"{flag} ({format_bytes(size)})"
        for flag, options in _options_with_less(experiment)
        if (size := _bytes_with(options, limit)) is not None
    ]
    others = f"this limit with {' or '.join(fitting)}" if fitting else "a smaller --batch or more ranks"
    raise InputError(
        f"--device-memory {format_bytes(limit)} ({limit} bytes): a rank needs {format_bytes(needed)} ({needed} bytes); "
        f"accepted are {needed} bytes and more, or {others}"
    )


def _largest_bytes(schedule: Schedule, choices: Choices) -> int:
    """The memory of the rank that needs most on its device [B]."""
    coordinates = [ranks.coordinates for ranks in equivalent_ranks(schedule, choices)]
    return max(buffers.bytes for buffers in storages(schedule, coordinates, choices))


def _bytes_with(experiment: TrainingExperiment, limit: int) -> int | None:
    """The memory of a rank with other options [B]; None if they do not fit, or cannot be."""
    try:
        needed = _largest_bytes(experiment.schedule(), experiment.execution.choices)
    except InputError:
        return None
    return needed if needed <= limit else None


def _options_with_less(experiment: Experiment) -> Iterator[tuple[str, TrainingExperiment]]:
    """Options that need less memory than those of an experiment, with their flags."""
    if not isinstance(experiment, TrainingExperiment):
        return
    problem = experiment.problem
    offloaded = replace(problem, offload=problem.offload or Offload())
    if problem.offload is None:
        yield "--offload optimizer", replace(experiment, problem=offloaded)
    if experiment.grid.data > 1 and problem.zero < 1:
        yield "--zero 1", replace(experiment, problem=replace(problem, zero=1))
    if isinstance(offloaded, Gpt) and offloaded.recompute != "full":
        flags = "--offload optimizer --recompute full" if problem.offload is None else "--recompute full"
        yield flags, replace(experiment, problem=replace(offloaded, recompute="full"))
