"""What lets two ranks exchange at a link's full rate in both directions: shorter messages, or settings of Open MPI.

    python -m quadrille.studies.laboratory_trials.exchanges [HOSTS] > studies/laboratory_trials/results/exchanges.csv

Four hosts on one switch at 200 Mbit/s (or two), with every setting and chunk size of
SETTINGS in turn; as root.  First collectives on 4 MiB of all groups of two ranks along z at
once, 10 times: exchanges of 2 MiB, one or, in an all-reduce and in a row of all-gathers,
several, of which only the first begins at the same time on both ranks; the share is of the
link's rate.  Then training steps of a two-layer MLP with overlaps, in seconds, three in each
of two turns, each three behind a step that is not counted.  All collectives are our own, and
a rank that waits takes naps, as in any step in a laboratory.

    defaults             messages above 64 KiB are put, once the other rank has answered, on one connection
    btl_tcp_links        connections between two ranks
    btl_tcp_flags        what they may be used for: `send` leaves out `put`, and messages are sent in fragments
    btl_tcp_eager_limit  bytes, with a header, up to which a message is sent at once

    chunk_bytes  into which messages are cut; 0 for whole ones
    cores_busy   the part of this machine's cores that was busy meanwhile, with this and anything else

Source: `ompi_info --param btl tcp --level 9` of Open MPI 5.0.11.
"""

import csv
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, median

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.formats.record import load_record
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import AllGather, collective_kind
from quadrille.experiments.laboratory.laboratory_commands import parse_laboratory
from quadrille.experiments.laboratory.laboratory_ranks import laboratory_launcher
from quadrille.experiments.measure.batch import RunCase, measure
from quadrille.experiments.workloads.execution_options import ExecutionOptions
from quadrille.experiments.workloads.run_options import RunOptions
from quadrille.experiments.workloads.training import TrainingExperiment
from quadrille.runtime.carriers.message_options import CHUNK_BYTES, MAX_POLL_SLEEP_SECONDS, MessageOptions
from quadrille.runtime.host.console import run_as_program
from quadrille.runtime.laboratory import laboratory
from quadrille.runtime.laboratory.register import LaboratoryRecord
from quadrille.studies.laboratory_trials import rings
from quadrille.studies.laboratory_trials.circumstances import MODEL, cores_busy_since_now, head_line

GRIDS = {2: Grid(z=2), 4: Grid(x=2, z=2)}
"""By the number of hosts: groups of two ranks only."""
RATE, SIZE, TURNS, REPEATS = "200mbit", 4 << 20, 2, 3
DEFAULTS = "defaults"
SETTINGS = {
    DEFAULTS: (0, 16 << 10, 32 << 10, CHUNK_BYTES, 128 << 10, 256 << 10),
    "btl_tcp_links=2": (0, CHUNK_BYTES),
    "btl_tcp_flags=send": (0, CHUNK_BYTES),
    f"btl_tcp_eager_limit={128 << 10}": (0, 120 << 10),
}
"""Parameters of Open MPI, and the chunks that are tried with each."""
OPS = tuple((replace(op, axis="z"), 1) for op in rings.OPS)
IN_A_ROW = (AllGather(name="collective", axis="z", source="part", into="whole"), 4)
COLUMNS = "hosts open_mpi chunk_bytes measured unit median lowest highest cores_busy"
ON_RANKS = "on-ranks"


@dataclass(frozen=True, slots=True)
class Remedy:
    """One setting of Open MPI and one size of chunks."""

    setting: str
    chunk_bytes: int

    @property
    def message_options(self) -> MessageOptions:
        return MessageOptions(self.chunk_bytes, MAX_POLL_SLEEP_SECONDS)

    def case(self, grid: Grid, record: str) -> RunCase:
        """A training step, and where its record goes."""
        execution = ExecutionOptions(overlaps=frozenset({"ors", "oag"}))
        experiment = TrainingExperiment(MODEL, grid, execution=execution)
        return RunCase(experiment, record, RunOptions(repeats=REPEATS, warmups=1, chunk_bytes=self.chunk_bytes))

    def row(self, hosts: int, measured: str, unit: str, values: Sequence[float], busy: float) -> list[str]:
        """A row with the median and the extremes of the values.

        >>> Remedy("defaults", 0).row(4, "step", "seconds", [5.0, 7.0, 6.5], 0.5)
        ['4', 'defaults', '0', 'step', 'seconds', '6.500', '5.000', '7.000', '0.50']
        """
        spread = [f"{value:.3f}" for value in (median(values), min(values), max(values))]
        return [str(hosts), self.setting, str(self.chunk_bytes), measured, unit, *spread, f"{busy:.2f}"]


@dataclass(frozen=True, slots=True)
class ExchangeSteps:
    """Seconds of the steps with one remedy, and how busy the cores were in each turn."""

    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


def options(setting: str) -> list[str]:
    """The words that tell mpirun of a setting.

    >>> options("btl_tcp_links=2"), options("defaults")
    (['--mca', 'btl_tcp_links', '2'], [])
    """
    if setting == DEFAULTS:
        return []
    name, _, value = setting.partition("=")
    return ["--mca", name, value]


def remedies(setting: str) -> list[Remedy]:
    """Those with one setting."""
    return [Remedy(setting, chunk_bytes) for chunk_bytes in SETTINGS[setting]]


def main(hosts: str = "4", *told: str) -> None:
    """The table, by ranks in a laboratory of their own: they are called with a setting and the links' rate [B/s].

    Raises
    ------
    InputError : a number of hosts that has no grid in GRIDS
    """
    if hosts == ON_RANKS:
        setting, rate = told
        measure_collectives(setting, float(rate))
        return
    if told or hosts not in map(str, GRIDS):
        raise InputError(f"hosts {' '.join((hosts, *told))!r}: accepted are {', '.join(map(str, GRIDS))}")
    print(head_line())
    print(",".join(COLUMNS.split()), flush=True)
    wanted = parse_laboratory(f"star:hosts={hosts}", RATE, name=f"exchanges{os.getpid()}")
    with laboratory.standing(wanted) as entry:
        _have_collectives_measured(entry)
        table = csv.writer(sys.stdout, lineterminator="\n")
        for remedy, steps in _measured_steps(entry).items():
            table.writerow(remedy.row(int(hosts), "step", "seconds", steps.seconds, mean(steps.busy)))


def _have_collectives_measured(entry: LaboratoryRecord) -> None:
    """By ranks, with each setting in turn."""
    rate = f"{min(entry.rates.values()):.0f}"
    for setting in SETTINGS:
        launched = laboratory_launcher(entry, options(setting))
        program = ("-m", "quadrille.studies.laboratory_trials.exchanges")
        launched(f"exchanges with {setting}", len(entry.addresses), [ON_RANKS, setting, rate], program=program)


def measure_collectives(setting: str, rate: float) -> None:
    """Measure each chunk size with each collective; rank 0 prints a row for each."""
    from mpi4py import MPI

    table = csv.writer(sys.stdout, lineterminator="\n")
    hosts = MPI.COMM_WORLD.size
    grid = GRIDS[hosts]
    for remedy in remedies(setting):
        for op, times in (*OPS, IN_A_ROW):
            schedule = rings.schedule(op, SIZE, grid, times=times)
            shares, busy = rings.shares_of_rate(schedule, "own", remedy.message_options, rate)
            if MPI.COMM_WORLD.rank == 0:
                measured = f"{times} {collective_kind(op)}"
                table.writerow(remedy.row(hosts, measured, "share_of_rate", shares, busy))
                sys.stdout.flush()


def _measured_steps(entry: LaboratoryRecord) -> dict[Remedy, ExchangeSteps]:
    """The measured steps of every remedy, some in each round; remedies with the same setting share a launch."""
    steps = {remedy: ExchangeSteps() for setting in SETTINGS for remedy in remedies(setting)}
    for _ in range(TURNS):
        for setting in SETTINGS:
            seconds, busy = _round(entry, setting)
            for remedy, several in seconds.items():
                steps[remedy].seconds.extend(several)
                steps[remedy].busy.append(busy)
    return steps


def _round(entry: LaboratoryRecord, setting: str) -> tuple[dict[Remedy, tuple[float, ...]], float]:
    """Seconds of the steps with each remedy of a setting, and the busy share of the cores."""
    hosts = len(entry.addresses)
    with tempfile.TemporaryDirectory() as folder:
        paths = {remedy: str(Path(folder, f"{remedy.chunk_bytes}.json")) for remedy in remedies(setting)}
        cases = [remedy.case(GRIDS[hosts], path) for remedy, path in paths.items()]
        busy = cores_busy_since_now()
        measure(hosts, cases, start_ranks=laboratory_launcher(entry, options(setting)))
        return {remedy: load_record(path).seconds_of_repeats for remedy, path in paths.items()}, busy()


if __name__ == "__main__":
    run_as_program(lambda: main(*sys.argv[1:]))
