"""Measured part of the study: pipeline schedules on an emulated network, beside their predictions.

    quadrille lab run star:hosts=4 --rate 50mbit -n 4 -- calibrate --out star.toml       (as root)
    python -m quadrille.studies.message_driven_worth.measured_gains star.toml > measured_gains.csv (as root)

Four hosts on a switch are the stages of a pipeline that trains a small GPT.  Each disturbance is a laboratory (a
network of Linux network namespaces), in which training steps with all schedules alternate:

    none        equal links and equal stages
    slow cable  the cable of host 1 at a quarter of the rate
    slow hosts  a process that computes without a pause on the core of hosts 1 and 3
    noise       the same process, but busy and idle in turn for random times

    seconds     time of a step, median of the rounds; lowest and highest are those of the rounds [s]
    predicted   time of a step, predicted from the machine file [s]
    gain        median over the rounds of the time with 1F1B / the time with the schedule of the same round - 1
    cores       busy share of this machine's cores during the trial, over all processes
    parts       first stage and pass at which the order differs from that of 1F1B, predicted and measured

The prediction of the busy process is `--slow`, with the share of the core that is left for a matrix product beside the
process, which is measured before the trial.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np

from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.formats.record import Record, load_record
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.pass_rules import pass_order
from quadrille.algorithms.schedule.program import PipelineSchedule
from quadrille.algorithms.timelines.pass_orders import first_difference
from quadrille.algorithms.training.gpt import gpt_from_shape, pipeline_stages
from quadrille.algorithms.training.model_files import find_shape
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

HOSTS, RATE, SLOW_HOST, SLOW_SHARE, ROUNDS = 4, 6.25e6, 1, 0.25, 5
"""Number of hosts, rate of a cable [B/s], host of the slow cable and its share of the rate, and number of rounds."""
SLOW_CORE, BUSY_SECONDS = 1, 0.02
"""Core of the busy process, which the hosts with odd numbers use, and its mean time between pauses [s]."""
SHAPE = find_shape("layers=8,hidden=128,heads=4,sequence=64,vocabulary=256")
MODEL = replace(gpt_from_shape(SHAPE, 32, dtype="float64"), micro_batch=4)
CHUNKS: dict[PipelineSchedule, int] = {"1f1b": 1, "interleaved": 2, "zb-h1": 1, "message-driven": 1}
"""Chunks of layers of a stage by schedule."""
USUAL: PipelineSchedule = "1f1b"
COLUMNS = (
    "disturbance",
    "schedule",
    *("seconds", "lowest", "highest", "predicted", "gain", "predicted gain", "cores"),
    *("parts", "predicted parts"),
)
BUSY_PROGRAM = """
import os, random, sys, time
core, mean = int(sys.argv[1]), float(sys.argv[2])
os.sched_setaffinity(0, {core})
draw = random.Random(core)
while True:
    end = time.perf_counter() + draw.expovariate(1 / mean) if mean else float("inf")
    while time.perf_counter() < end:
        pass
    time.sleep(draw.expovariate(1 / mean))
"""


@dataclass(frozen=True, slots=True)
class LaboratoryCase:
    """A disturbance of the pipeline.

    Parameters
    ----------
    name : name of the disturbance
    share : share of the rate that the cable of `SLOW_HOST` keeps
    busy_seconds : mean time for which the process on `SLOW_CORE` computes between pauses [s]; 0 computes without a
        pause; None starts no process
    """

    name: str
    share: float = 1.0
    busy_seconds: float | None = None

    def predicted(self, machine: Machine, schedule: PipelineSchedule, speed: float) -> Record:
        """The predicted record of a step.

        Parameters
        ----------
        speed : speed of the hosts on `SLOW_CORE`, as a share of the speed without the busy process
        """
        cable = [f"host:{SLOW_HOST}-switch:0={self.share}"] if self.share < 1 else []
        slow = [f"host:{host}={speed}" for host in range(HOSTS) if host % 2 == SLOW_CORE and speed < 1]
        disturbed = with_faults(machine, degrade=cable, slow=slow)
        return prediction_record(step_of(schedule), disturbed, granularity="exact")


CASES = (
    LaboratoryCase("none"),
    LaboratoryCase("slow cable", SLOW_SHARE),
    LaboratoryCase("slow hosts", busy_seconds=0.0),
    LaboratoryCase("noise", busy_seconds=BUSY_SECONDS),
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
        raise InputError("machine file is missing: calibrate a laboratory of star:hosts=4 at 50mbit first")
    machine = find_machine(machine_file)
    table = csv.writer(sys.stdout, lineterminator="\n")
    print(conditions_line())
    table.writerow(COLUMNS)
    for case in CASES:
        undisturbed = product_seconds()
        with busy_process(case.busy_seconds):
            speed = 1.0 if case.busy_seconds is None else min(1.0, undisturbed / product_seconds())
            busy_share = core_load_meter()
            measured = measured_records(case)
            cores = busy_share()
        predicted = {schedule: case.predicted(machine, schedule, speed) for schedule in CHUNKS}
        table.writerows(rows_of(case.name, measured, predicted, cores))
        sys.stdout.flush()


def step_of(schedule: PipelineSchedule) -> TrainingExperiment:
    """The training step with a schedule."""
    problem = replace(MODEL, pipeline_schedule=schedule, interleave=CHUNKS[schedule])
    return TrainingExperiment(problem, Grid(pipeline=HOSTS), execution=ExecutionOptions(choices=Choices()), shape=SHAPE)


def rows_of(
    name: str, measured: dict[PipelineSchedule, list[Record]], predicted: dict[PipelineSchedule, Record], cores: float
) -> list[list[str]]:
    """The rows of a disturbance, one for each schedule.

    Parameters
    ----------
    measured : measured records of a step by schedule, one for each round
    predicted : predicted record of a step by schedule
    cores : busy share of this machine's cores
    """
    rows = []
    usual = [record.seconds for record in measured[USUAL]]
    for schedule, records in measured.items():
        times = [record.seconds for record in records]
        gain = median(before / after - 1 for before, after in zip(usual, times, strict=True))
        predicted_gain = predicted[USUAL].seconds / predicted[schedule].seconds - 1
        figures = [median(times), min(times), max(times), predicted[schedule].seconds, gain, predicted_gain]
        orders = [parting(records[0]), parting(predicted[schedule])]
        rows.append([name, schedule, *(f"{value:.3f}" for value in figures), f"{cores:.2f}", *orders])
    return rows


def parting(record: Record) -> str:
    """Where the order of a message-driven step first differs from that of 1F1B: stage, pass, and both kinds.

    Empty if messages decide no order, or if the orders are equal.
    """
    stages = pipeline_stages(MODEL, Grid(pipeline=HOSTS))
    for stage, order in enumerate(record.pass_orders if isinstance(record.pass_orders, tuple) else ()):
        usual = "".join(pass_order(USUAL, stages.first_state(stage)))
        if at := first_difference(usual, order):
            return f"stage {stage} pass {at}: {order[at - 1]} for {usual[at - 1]}"
    return ""


def measured_records(case: LaboratoryCase) -> dict[PipelineSchedule, list[Record]]:
    """The measured records of a step by schedule, one for each round; the schedules alternate in one launch."""
    with tempfile.TemporaryDirectory() as folder:
        network = write_network(Path(folder, "network.json"), case.share)
        spec = parse_laboratory(str(network), name=f"driven{os.getpid()}")
        with laboratory.standing(spec) as entry:
            runs = list(product(range(ROUNDS), CHUNKS))
            paths = {run: str(Path(folder, f"{index}.json")) for index, run in enumerate(runs)}
            cases = [RunCase(step_of(run[1]), paths[run], RunOptions(repeats=1)) for run in runs]
            measure(HOSTS, cases, start_ranks=laboratory_launcher(entry))
        return {schedule: [load_record(paths[number, schedule]) for number in range(ROUNDS)] for schedule in CHUNKS}


@contextmanager
def busy_process(mean_seconds: float | None) -> "Iterator[subprocess.Popen[bytes] | None]":
    """A context in which a process computes on `SLOW_CORE`; its value is the process.

    Parameters
    ----------
    mean_seconds : mean time for which it computes between pauses [s]; 0 for no pause; None starts no process
    """
    if mean_seconds is None:
        yield None
        return
    process = subprocess.Popen([sys.executable, "-c", BUSY_PROGRAM, str(SLOW_CORE), str(mean_seconds)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def product_seconds(repeats: int = 400) -> float:
    """Mean time of a small matrix product on `SLOW_CORE` [s]."""
    allowed = os.sched_getaffinity(0)
    factor = np.ones((256, 128))
    os.sched_setaffinity(0, {SLOW_CORE})
    try:
        start = time.perf_counter()
        for _ in range(repeats):
            factor.T @ factor
        return (time.perf_counter() - start) / repeats
    finally:
        os.sched_setaffinity(0, allowed)


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
    schema_files.write_text(path, json.dumps({**graph, "nodes": nodes, "edges": edges}))
    return path


if __name__ == "__main__":
    run_as_program(lambda: main(*sys.argv[1:]))
