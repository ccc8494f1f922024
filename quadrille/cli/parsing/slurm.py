"""The words of `--slurm`: from text to the options of jobs."""

from typing import Any

from quadrille.algorithms.errors import InputError
from quadrille.cli.parsing.numbers import MOST_JOBS, one_of, whole_number
from quadrille.experiments.tasks.slurm_workers import SlurmOptions

NUMBERS = ("jobs", "points", "minutes")
WORDS = ("partition", "account", "folder")
KEYS = (*WORDS, *NUMBERS, "cluster")


def parse_slurm(text: str) -> SlurmOptions | None:
    """The options of jobs on Slurm; None for an empty text.

    >>> parse_slurm("cluster=local,jobs=4").jobs
    4

    Raises
    ------
    InputError : an unknown key, a value that is not accepted, or jobs that cannot be submitted here
    """
    if not text:
        return None
    values: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if key not in KEYS or not equals or not value:
            raise InputError(f"--slurm {text:.120}: write KEY=VALUE,…; keys are {', '.join(KEYS)}")
        if key in values:
            raise InputError(f"--slurm {text:.120}: {key} is given twice")
        most = MOST_JOBS if key == "jobs" else None
        values[key] = whole_number(value, f"--slurm {key}", most=most) if key in NUMBERS else value
    if "cluster" in values:
        one_of(values["cluster"], "--slurm cluster", ("slurm", "local"))
    options = SlurmOptions(**values)
    options.check()
    return options
