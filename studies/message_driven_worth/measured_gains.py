"""Measured part of the study: a message-driven pipeline beside 1F1B on an emulated network, and both predicted.

    quadrille lab run star:hosts=4 --rate 200mbit -n 4 -- calibrate --out star.toml       (as root)
    python -m quadrille.studies.message_driven_worth.measured_gains star.toml > measured_gains.csv      (as root)

Four hosts on a switch are the stages of a pipeline that trains an MLP.  Each disturbance is one laboratory (a network
of Linux network namespaces), in which training steps with both schedules alternate:

    none        equal links and equal stages
    slow cable  the cable of host 1 at a quarter of the rate
    slow stage  twice the layers on stage 1; it stands for a slow host, because hosts share this machine's cores

    seconds     time of a step, median of the rounds; lowest and highest are those of the rounds [s]
    predicted   time of a step, predicted from the machine file [s]
    gain        median over the rounds of the time with 1F1B / the time with messages of the same round - 1
    cores       busy share of this machine's cores during the trial, over all processes
"""

import csv
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.program import PipelineSchedule
from quadrille.algorithms.training.mlp import Mlp
from quadrille.experiments.laboratory.laboratory_commands import parse_laboratory
from quadrille.experiments.laboratory.laboratory_ranks import laboratory_launcher
from quadrille.experiments.measure.batch import RunCase, measure
from quadrille.experiments.predict.predict import prediction_record
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.host.console import run_as_program
from quadrille.runtime.laboratory import laboratory
from quadrille.studies.laboratory_trials.trial_conditions import conditions_line, core_load_meter
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.machines.what_if import with_faults

HOSTS, RATE, SLOW_HOST, SLOW_SHARE, ROUNDS = 4, 25e6, 1, 0.25, 5
"""Number of hosts, rate of a cable [B/s], host of the slow cable and its share of the rate, and number of rounds."""
MODEL = Mlp((512,) * 9, 2048, micro_batch=128)
SCHEDULES: tuple[PipelineSchedule, ...] = ("1f1b", "message-driven")
COLUMNS = ("disturbance", "schedule", "seconds", "lowest", "highest", "predicted", "gain", "predicted gain", "cores")


@dataclass(frozen=True, slots=True)
class LaboratoryCase:
    """A disturbance of the pipeline.

    Parameters
    ----------
    name : name of the disturbance
    share : share of the rate that the cable of `SLOW_HOST` keeps
    stages : layers of each stage
    """

    name: str
    share: float = 1.0
    stages: tuple[int, ...] = (2, 2, 2, 2)

    def step(self, schedule: PipelineSchedule) -> TrainingExperiment:
        """The training step with a schedule."""
        model = replace(MODEL, pipeline_schedule=schedule, stages=self.stages)
        return TrainingExperiment(model, Grid(pipeline=HOSTS), execution=ExecutionOptions(choices=Choices()))

    def predicted(self, machine: Machine, schedule: PipelineSchedule) -> float:
        """The predicted time of a step [s]."""
        cable = [f"host:{SLOW_HOST}-switch:0={self.share}"] if self.share < 1 else []
        return prediction_record(self.step(schedule), with_faults(machine, degrade=cable), granularity="exact").seconds


CASES = (
    LaboratoryCase("none"),
    LaboratoryCase("slow cable", SLOW_SHARE),
    LaboratoryCase("slow stage", 1, (1, 4, 2, 1)),
)


def main(machine_file: str = "") -> None:
    """Measure and predict every disturbance, and print the CSV table.

    Parameters
    ----------
    machine_file : path of the machine file of a laboratory with equal links

    Raises
    ------
    InputError : no machine file
    """
    if not machine_file:
        raise InputError("machine file is missing: calibrate a laboratory of star:hosts=4 at 200mbit first")
    machine = find_machine(machine_file)
    table = csv.writer(sys.stdout, lineterminator="\n")
    print(conditions_line())
    table.writerow(COLUMNS)
    for case in CASES:
        busy_share = core_load_meter()
        seconds = measured_seconds(case)
        cores = busy_share()
        predicted = {schedule: case.predicted(machine, schedule) for schedule in SCHEDULES}
        table.writerows(rows_of(case.name, seconds, predicted, cores))
        sys.stdout.flush()


def rows_of(
    name: str, seconds: dict[PipelineSchedule, list[float]], predicted: dict[PipelineSchedule, float], cores: float
) -> list[list[str]]:
    """The rows of a disturbance, one for each schedule.

    >>> rows_of("none", {"1f1b": [2.0, 3.0, 4.0], "message-driven": [1.6, 2.5, 4.0]},
    ...         {"1f1b": 3.0, "message-driven": 2.0}, 0.5)[1]
    ['none', 'message-driven', '2.500', '1.600', '4.000', '2.000', '0.200', '0.500', '0.50']

    Parameters
    ----------
    seconds : measured times of a step by schedule, one for each round [s]
    predicted : predicted time of a step by schedule [s]
    cores : busy share of this machine's cores
    """
    usual = SCHEDULES[0]
    rows = []
    for schedule, times in seconds.items():
        gain = median(before / after - 1 for before, after in zip(seconds[usual], times, strict=True))
        predicted_gain = predicted[usual] / predicted[schedule] - 1
        figures = [median(times), min(times), max(times), predicted[schedule], gain, predicted_gain]
        rows.append([name, schedule, *(f"{value:.3f}" for value in figures), f"{cores:.2f}"])
    return rows


def measured_seconds(case: LaboratoryCase) -> dict[PipelineSchedule, list[float]]:
    """The measured times of a step by schedule, one for each round; the schedules alternate in one launch [s]."""
    with tempfile.TemporaryDirectory() as folder:
        network = write_network(Path(folder, "network.json"), case.share)
        spec = parse_laboratory(str(network), name=f"driven{os.getpid()}")
        with laboratory.standing(spec) as entry:
            runs = list(product(range(ROUNDS), SCHEDULES))
            paths = {run: str(Path(folder, f"{index}.json")) for index, run in enumerate(runs)}
            cases = [RunCase(case.step(schedule), paths[_, schedule], RunOptions(repeats=1)) for _, schedule in runs]
            measure(HOSTS, cases, start_ranks=laboratory_launcher(entry))
        return {
            schedule: [load_record(paths[number, schedule]).seconds for number in range(ROUNDS)]
            for schedule in SCHEDULES
        }


def write_network(path: Path, share: float) -> Path:
    """Write the star with the share of the rate that one cable keeps; returns the path."""
    rates = {f"host:{host}": RATE * (share if host == SLOW_HOST else 1.0) for host in range(HOSTS)}
    ends = [pair for host in rates for pair in ((host, "switch:0"), ("switch:0", host))]
    nodes: Sequence[object] = [
        *({"id": host, "kind": "host", "cores": 1} for host in rates),
        {"id": "switch:0", "kind": "switch"},
    ]
    edges = [
        {"source": source, "target": target, "key": 0, "latency": 0.0, "bandwidth": rates.get(source) or rates[target]}
        for source, target in ends
    ]
    graph = {"schema": "quadrille/topology/1", "directed": True, "multigraph": True, "graph": {"name": "star"}}
    path.write_text(json.dumps({**graph, "nodes": nodes, "edges": edges}))
    return path


if __name__ == "__main__":
    run_as_program(lambda: main(*sys.argv[1:]))
