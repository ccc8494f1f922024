"""The calibration of a machine from at most two published training rows, which a rule chooses and which are not judged.

    between   share of the NICs' bandwidth that gradient sums over replicas and messages between stages reach: fitted to
              the step time of the run with the most replicas, if a published microbenchmark of the machine shows that
              an all-reduce over nodes reaches less than half of the bandwidth that NCCL assumes; otherwise 1
    rest      memory of a GPU that the model does not count (context, libraries, fragmentation) [bytes]: fitted to the
              run with the smallest counted memory, if at least eight runs of the machine print it; otherwise 0

Each parameter is fitted where its effect is the largest.  Of equal rows the first in the file is chosen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.experiments.network.bus_bandwidth import bus_factor
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.experiments.predict.training_step import TrainingStep
from quadrille.studies.published_collectives.collective_rows import CollectiveRow
from quadrille.studies.published_collectives.machine_calibration import machine_of
from quadrille.studies.published_training.published_runs import NAMES, PublishedRun
from quadrille.studies.published_training.published_steps import PublishedStep, peak_bytes, published_step, step_of
from quadrille.studies.published_training.training_rows import TrainingRow
from quadrille.topologies.machines.machine_catalogue import MACHINES

REACHED = 0.5
LEFT_AT_LEAST = 8
SHARES = (1e-3, 1.0)
FIRST_INVERSE, MOST_SECANTS, CLOSE_ENOUGH = 7.0, 6, 1e-4
"""Second inverse share that is tried, largest number of further ones, and relative error that is accepted."""


@dataclass(frozen=True, slots=True)
class TrainingCalibration:
    """The calibration of a machine.

    Parameters
    ----------
    machine : name of the machine
    between : reached share of the bandwidth between nodes
    rest_bytes : memory of a GPU that the model does not count [bytes]
    rows : identifier of the fitted row, by the name of the parameter
    """

    machine: str
    between: float = 1.0
    rest_bytes: float = 0.0
    rows: Mapping[str, str] = field(default_factory=dict)


def slow_networks(rows: Sequence[CollectiveRow], seconds: Callable[[CollectiveRow], float]) -> frozenset[str]:
    """The machines whose published all-reduces over nodes take more than twice the time that NCCL's model predicts.

    Parameters
    ----------
    rows : published measurements of collectives
    seconds : function that returns the predicted time of a row [s]
    """
    return frozenset(
        name
        for row in rows
        if (name := machine_of(row)) is not None
        and name in NAMES.values()
        and (row.collective, row.metric, row.unit) == ("all_reduce", "busbw", "GB/s")
        and row.gpus > MACHINES[name].gpus_per_node
        and row.bytes
        and row.value
        and seconds(row) < REACHED * bus_factor("all_reduce", row.gpus) * row.bytes / (row.value * 1e9)
    )


def question_of(row: CollectiveRow) -> CollectiveQuestion:
    """The all-reduce of a row by NCCL, as a question to `predict_collective`."""
    return CollectiveQuestion(
        kind="all_reduce", bytes=row.size, gpus=row.gpus, group=row.gpus, choices=parse_choices("nccl")
    )


def calibrate(
    machine: str,
    runs: Sequence[tuple[TrainingRow, PublishedRun]],
    slow: frozenset[str],
    predicted: Callable[[PublishedStep], TrainingStep] = step_of,
) -> TrainingCalibration:
    """The calibration of a machine from its rows.

    Parameters
    ----------
    machine : name of the machine
    runs : rows of the machine with their modelled runs, in the order of the file
    slow : names of the machines with slow networks, see `slow_networks`
    predicted : function that returns the predicted step
    """
    between, rest, rows = 1.0, 0.0, {}
    timed = [(row, run) for row, run in runs if row.metric is not None and row.metric[0] == "seconds" and run.data > 1]
    if machine in slow and timed:
        row, run = max(timed, key=lambda timed_run: timed_run[1].data)
        assert row.printed is not None
        between, rows["between"] = _share(run, row.printed, predicted), row.id
    with_memory = [(row, run) for row, run in runs if row.metric is not None and row.metric[0] == "memory"]
    if len(with_memory) >= LEFT_AT_LEAST:
        row, run = min(with_memory, key=lambda row_and_run: peak_bytes(row_and_run[1]))
        assert row.printed is not None
        rest, rows["rest"] = max(0.0, row.printed - peak_bytes(run)), row.id
    return TrainingCalibration(machine, between, rest, rows)


def _share(run: PublishedRun, seconds: float, predicted: Callable[[PublishedStep], TrainingStep]) -> float:
    """The share of the network's bandwidth with which the run's step takes `seconds`, within `SHARES`.

    The time is almost linear in the inverse of the share, so few steps of the secant method suffice.
    """

    def excess(inverse: float) -> float:
        """Time of the step above `seconds`, relative to it."""
        return predicted(published_step(run, 1 / inverse)).seconds / seconds - 1

    low, high = 1 / SHARES[1], FIRST_INVERSE
    excess_low, excess_high = excess(low), excess(high)
    if excess_low >= 0:
        return SHARES[1]
    for _ in range(MOST_SECANTS):
        if abs(excess_high) < CLOSE_ENOUGH:
            break
        inverse = high - excess_high * (high - low) / (excess_high - excess_low)
        low, excess_low, high = high, excess_high, min(max(1.0, inverse), 1 / SHARES[0])
        excess_high = excess(high)
    return 1 / high
