"""Trial of Open MPI's TCP settings and of message chunk sizes: which let two ranks exchange at a link's full rate.

    python -m quadrille.studies.laboratory_trials.open_mpi_tcp_settings [HOSTS] > open_mpi_tcp_settings.csv    (as root)

The ranks run in a laboratory (a network of Linux network namespaces): four hosts, or two, on one switch with links of
200 Mbit/s.  For each setting and chunk size of `SETTINGS` the trial measures

    collectives     All groups of two ranks along z run one collective on 4 MiB, 10 times.  It exchanges 2 MiB, in an
                    all-reduce twice, in a row of all-gathers four times; only the first exchange begins at the same
                    time on both ranks.  The value is the share of the link's rate.
    training steps  A two-layer MLP is trained with overlaps: twice three steps, after one step that is not counted.
                    The value is the time of a step [s].

All collectives are Quadrille's own rings.  A waiting rank sleeps between polls, as in any run in a laboratory.

    open_mpi             the setting of Open MPI:
    defaults             one connection; messages above 64 KiB are transferred by `put`, after a rendezvous
    btl_tcp_links        number of connections between two ranks
    btl_tcp_flags        transfer methods; `send` alone excludes `put`: messages are sent in fragments
    btl_tcp_eager_limit  size up to which a message is sent without a rendezvous, header included [bytes]

    chunk_bytes          size of the chunks that Quadrille cuts messages into; 0: messages are not cut
    cores_busy           busy share of this machine's cores during the measurement, over all processes

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
from quadrille.studies.laboratory_trials import collective_rates
from quadrille.studies.laboratory_trials.trial_conditions import MODEL, conditions_line, core_load_meter

GRIDS = {2: Grid(z=2), 4: Grid(x=2, z=2)}
"""The grid of each number of hosts, with two ranks along each axis."""
RATE, SIZE, ROUNDS, REPEATS = "200mbit", 4 << 20, 2, 3
DEFAULTS = "defaults"
SETTINGS = {
    DEFAULTS: (0, 16 << 10, 32 << 10, CHUNK_BYTES, 128 << 10, 256 << 10),
    "btl_tcp_links=2": (0, CHUNK_BYTES),
    "btl_tcp_flags=send": (0, CHUNK_BYTES),
    f"btl_tcp_eager_limit={128 << 10}": (0, 120 << 10),
}
"""Settings of Open MPI as `parameter=value`, and the chunk sizes measured with each [bytes]."""
OPS = tuple((replace(op, axis="z"), 1) for op in collective_rates.OPS)
FOUR_GATHERS = (AllGather(name="collective", axis="z", source="part", into="whole"), 4)
COLUMNS = "hosts open_mpi chunk_bytes measured unit median lowest highest cores_busy"
ON_RANKS = "on-ranks"


@dataclass(frozen=True, slots=True)
class TcpSetting:
    """One setting of Open MPI with one chunk size.

    Parameters
    ----------
    setting : `parameter=value`, or `defaults`
    chunk_bytes : size of the chunks that messages are cut into; 0: messages are not cut [bytes]
    """

    setting: str
    chunk_bytes: int

    @property
    def message_options(self) -> MessageOptions:
        """The options of Quadrille's messages with this chunk size."""
        return MessageOptions(self.chunk_bytes, MAX_POLL_SLEEP_SECONDS)

    def case(self, grid: Grid, record: str) -> RunCase:
        """The run of a training step.

        Parameters
        ----------
        grid : grid of the ranks
        record : path of the record that the run writes
        """
        execution = ExecutionOptions(overlaps=frozenset({"ors", "oag"}))
        experiment = TrainingExperiment(MODEL, grid, execution=execution)
        return RunCase(experiment, record, RunOptions(repeats=REPEATS, warmups=1, chunk_bytes=self.chunk_bytes))

    def row(self, hosts: int, measured: str, unit: str, values: Sequence[float], busy: float) -> list[str]:
        """The CSV row of a measurement, with the median and the extremes of its values.

        Parameters
        ----------
        hosts : number of hosts
        measured : measured operation: `step`, or the number and kind of collectives
        unit : unit of the values
        values : measured values
        busy : busy share of the cores, 0 to 1

        >>> TcpSetting("defaults", 0).row(4, "step", "seconds", [5.0, 7.0, 6.5], 0.5)
        ['4', 'defaults', '0', 'step', 'seconds', '6.500', '5.000', '7.000', '0.50']
        """
        spread = [f"{value:.3f}" for value in (median(values), min(values), max(values))]
        return [str(hosts), self.setting, str(self.chunk_bytes), measured, unit, *spread, f"{busy:.2f}"]


@dataclass(frozen=True, slots=True)
class ExchangeSteps:
    """The training steps with one setting.

    Parameters
    ----------
    seconds : time of each step [s]
    busy : busy share of the cores in each round, 0 to 1
    """

    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)


def mpirun_options(setting: str) -> list[str]:
    """The command-line options of mpirun for a setting.

    >>> mpirun_options("btl_tcp_links=2"), mpirun_options("defaults")
    (['--mca', 'btl_tcp_links', '2'], [])
    """
    if setting == DEFAULTS:
        return []
    name, _, value = setting.partition("=")
    return ["--mca", name, value]


def tcp_settings(setting: str) -> list[TcpSetting]:
    """A setting of Open MPI with each of its chunk sizes."""
    return [TcpSetting(setting, chunk_bytes) for chunk_bytes in SETTINGS[setting]]


def main(hosts: str = "4", *arguments: str) -> None:
    """Measure everything in a new laboratory, and print the CSV table.

    Parameters
    ----------
    hosts : number of hosts, from `GRIDS`; or `on-ranks`, with which this function starts itself on the ranks
    arguments : on the ranks, the setting and the rate of the links [bytes/s]

    Raises
    ------
    InputError : a number of hosts that has no grid in GRIDS
    """
    if hosts == ON_RANKS:
        setting, rate = arguments
        measure_collectives(setting, float(rate))
        return
    if arguments or hosts not in map(str, GRIDS):
        raise InputError(f"hosts {' '.join((hosts, *arguments))!r}: accepted are {', '.join(map(str, GRIDS))}")
    print(conditions_line())
    print(",".join(COLUMNS.split()), flush=True)
    spec = parse_laboratory(f"star:hosts={hosts}", RATE, name=f"exchanges{os.getpid()}")
    with laboratory.standing(spec) as entry:
        _launch_collectives(entry)
        table = csv.writer(sys.stdout, lineterminator="\n")
        for tcp_setting, steps in _measure_steps(entry).items():
            table.writerow(tcp_setting.row(int(hosts), "step", "seconds", steps.seconds, mean(steps.busy)))


def _launch_collectives(entry: LaboratoryRecord) -> None:
    """Start the ranks that measure the collectives, once for each setting."""
    rate = f"{min(entry.rates.values()):.0f}"
    for setting in SETTINGS:
        launched = laboratory_launcher(entry, mpirun_options(setting))
        program = ("-m", "quadrille.studies.laboratory_trials.open_mpi_tcp_settings")
        launched(f"exchanges with {setting}", len(entry.addresses), [ON_RANKS, setting, rate], program=program)


def measure_collectives(setting: str, rate: float) -> None:
    """Measure each collective with each chunk size of a setting, on all ranks; rank 0 prints the rows.

    Parameters
    ----------
    setting : setting of Open MPI that these ranks run with
    rate : rate of the links [bytes/s]
    """
    from mpi4py import MPI

    table = csv.writer(sys.stdout, lineterminator="\n")
    hosts = MPI.COMM_WORLD.size
    grid = GRIDS[hosts]
    for tcp_setting in tcp_settings(setting):
        for op, times in (*OPS, FOUR_GATHERS):
            schedule = collective_rates.collective_schedule(op, SIZE, grid, times=times)
            shares, busy = collective_rates.measured_rate_shares(schedule, "own", tcp_setting.message_options, rate)
            if MPI.COMM_WORLD.rank == 0:
                measured = f"{times} {collective_kind(op)}"
                table.writerow(tcp_setting.row(hosts, measured, "share_of_rate", shares, busy))
                sys.stdout.flush()


def _measure_steps(entry: LaboratoryRecord) -> dict[TcpSetting, ExchangeSteps]:
    """Measure the training steps of every setting, some in each round; chunk sizes of a setting share a launch."""
    steps = {tcp_setting: ExchangeSteps() for setting in SETTINGS for tcp_setting in tcp_settings(setting)}
    for _ in range(ROUNDS):
        for setting in SETTINGS:
            seconds, busy = _measure_round(entry, setting)
            for tcp_setting, step_seconds in seconds.items():
                steps[tcp_setting].seconds.extend(step_seconds)
                steps[tcp_setting].busy.append(busy)
    return steps


def _measure_round(entry: LaboratoryRecord, setting: str) -> tuple[dict[TcpSetting, tuple[float, ...]], float]:
    """The times of the steps by chunk size of a setting [s], and the busy share of the cores."""
    hosts = len(entry.addresses)
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            tcp_setting: str(Path(folder, f"{tcp_setting.chunk_bytes}.json")) for tcp_setting in tcp_settings(setting)
        }
        cases = [tcp_setting.case(GRIDS[hosts], path) for tcp_setting, path in paths.items()]
        busy = core_load_meter()
        measure(hosts, cases, start_ranks=laboratory_launcher(entry, mpirun_options(setting)))
        return {tcp_setting: load_record(path).seconds_of_repeats for tcp_setting, path in paths.items()}, busy()


if __name__ == "__main__":
    run_as_program(lambda: main(*sys.argv[1:]))
