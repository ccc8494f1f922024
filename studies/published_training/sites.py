"""What is learnt of a machine from at most two training rows of the project's own copy, chosen by rule, never judged.

    between   share of the NICs that sums of many groups and messages between stages reach: from the seconds of the
              run with the most replicas, only where a microbenchmark of the machine says that an all-reduce over nodes
              reaches less than half of what NCCL counts on; else 1
    rest      bytes of a GPU beside what is counted (context, libraries, gaps): from the memory of the run of which
              least is counted, only where at least eight runs of the machine print their memory; else 0

So each is learnt where it weighs most and what is counted beside it least.  Ties
go to the row that is printed first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from quadrille.algorithms.collectives.choices import parse_choices
from quadrille.experiments.network.bandwidths import bus_factor
from quadrille.experiments.network.question import CollectiveQuestion
from quadrille.studies.published_collectives.rows import CollectiveRow
from quadrille.studies.published_collectives.sites import machine_of
from quadrille.studies.published_training.memory import peak_bytes
from quadrille.studies.published_training.rows import TrainingRow
from quadrille.studies.published_training.runs import NAMES, PublishedRun
from quadrille.studies.published_training.step import step_seconds
from quadrille.topologies.machines.machine_catalogue import MACHINES

REACHED = 0.5
LEFT_AT_LEAST = 8
SHARES = (1e-3, 1.0)
HALVINGS = 40


@dataclass(frozen=True, slots=True)
class LearntTraining:
    """A machine, what was learnt of it, and from which rows, by what they set."""

    machine: str
    between: float = 1.0
    rest_bytes: float = 0.0
    rows: Mapping[str, str] = field(default_factory=dict)


def slow_networks(rows: Sequence[CollectiveRow], seconds: Callable[[CollectiveRow], float]) -> frozenset[str]:
    """Those machines of the runs whose all-reduces over nodes take more than twice what NCCL's model says.

    Parameters
    ----------
    seconds : what is predicted of such a row
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
    """The all-reduce of a row, as NCCL would carry it out."""
    return CollectiveQuestion(
        kind="all_reduce", bytes=row.size, gpus=row.gpus, group=row.gpus, choices=parse_choices("nccl")
    )


def learn(machine: str, runs: Sequence[tuple[TrainingRow, PublishedRun]], slow: frozenset[str]) -> LearntTraining:
    """A machine calibrated from its rows whose runs are modelled, in printed order."""
    between, rest, rows = 1.0, 0.0, {}
    timed = [(row, run) for row, run in runs if row.metric is not None and row.metric[0] == "seconds" and run.data > 1]
    if machine in slow and timed:
        row, run = max(timed, key=lambda timed_run: timed_run[1].data)
        assert row.printed is not None
        between, rows["between"] = _share(run, row.printed), row.id
    weighed = [(row, run) for row, run in runs if row.metric is not None and row.metric[0] == "memory"]
    if len(weighed) >= LEFT_AT_LEAST:
        row, run = min(weighed, key=lambda weighed_run: peak_bytes(weighed_run[1]))
        assert row.printed is not None
        rest, rows["rest"] = max(0.0, row.printed - peak_bytes(run)), row.id
    return LearntTraining(machine, between, rest, rows)


def _share(run: PublishedRun, seconds: float) -> float:
    """The share of the network with which the run takes that long, by halving; one end where none does."""
    low, high = SHARES
    if step_seconds(run, high).seconds >= seconds:
        return high
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if step_seconds(run, middle).seconds < seconds else (middle, high)
    return float((low * high) ** 0.5)
