"""The check of `--device-memory`: whether each rank fits into its device arena, and what would fit instead."""

from collections.abc import Iterator

from quadrille.algorithms.analysis.volumes import storages_of_classes
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.units import format_bytes
from quadrille.experiments.workloads.experiment import Experiment
from quadrille.experiments.workloads.memory_remedies import remedies
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
    choices = experiment.execution.choices
    needed = max(storage.bytes for storage in storages_of_classes(schedule, choices))
    if needed <= limit:
        return
    fitting = [f"{flags} ({format_bytes(size)})" for flags, size in _fitting_options(experiment, limit)]
    others = f"this limit with {' or '.join(fitting)}" if fitting else "a smaller --batch or more ranks"
    raise InputError(
        f"--device-memory {format_bytes(limit)} ({limit} bytes): a rank needs {format_bytes(needed)} ({needed} bytes); "
        f"accepted are {needed} bytes and more, or {others}"
    )


def _fitting_options(experiment: Experiment, limit: int) -> Iterator[tuple[str, int]]:
    """The flags of options with which a rank fits into its arena, and the bytes that it then needs."""
    if isinstance(experiment, TrainingExperiment):
        for remedy in remedies(experiment):
            if remedy.rank_bytes <= limit:
                yield remedy.flags, remedy.rank_bytes
