"""Predict measured collectives inside a node, and print the errors by system, kind of collective and size.

    python -m quadrille.studies.collective_tables.judge_rows FOLDER [model]

FOLDER holds nccl.csv.gz (system, nccl, op, dtype, gpus, bytes, seconds), as taken from aiconfigurator.  The word
`model` predicts by NCCL's model alone, without the tables of measured collectives.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.algorithms.units import MIB
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.experiments.output.tables import percent, print_tables, table
from quadrille.runtime.host.console import run_as_program
from quadrille.simulator.collectives.nccl.collective import NcclSettings
from quadrille.simulator.machine.network import network_of
from quadrille.studies.collective_tables.measured_rows import MeasuredCollective, measured_collectives
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network

MACHINE_OF_SYSTEM: Mapping[str, str] = {
    "a100_sxm": "a100-node",
    "h100_sxm": "h100-node",
    "h200_sxm": "h200-node",
    "b200_sxm": "b200-node",
    "b300_sxm": "b300-node",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
}
"""Named machine by the name of the system in the source."""
SIZES = ("below 1 MiB", "1 MiB to 16 MiB", "from 16 MiB")
MIDDLE = 16 * MIB
NODE_GPUS, RACK_GPUS = 8, 72
ITEM_BYTES: Mapping[str, int] = {"half": 2, "int8": 1}
COLUMNS = ("rows", "number", "median error", "90th percentile", "worst", "signed median")


@dataclass(frozen=True, slots=True)
class JudgedCollective:
    """A measured collective and its prediction [s]."""

    row: MeasuredCollective
    seconds: float

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.seconds / self.row.seconds - 1

    @property
    def size_class(self) -> str:
        """The entry of `SIZES` that holds the size."""
        return SIZES[(self.row.bytes >= MIB) + (self.row.bytes >= MIDDLE)]


def main(folder: str = "", model: str = "") -> None:
    """Print the errors of all rows in the folder's file whose system has a named machine.

    Raises
    ------
    InputError : no folder, no file in it, or another word than `model`
    """
    if model not in ("", "model"):
        raise InputError(f"{model!r}: accepted is model, or nothing")
    rows = [row for row in measured_collectives(folder) if row.system in MACHINE_OF_SYSTEM]
    judged = judge(rows, NcclSettings(measured=not model))
    large = [row for row in judged if row.row.bytes >= MIB]
    sections = (
        ("by system, from 1 MiB", _lines(large, lambda judged: judged.row.system)),
        ("by collective, from 1 MiB", _lines(large, lambda judged: judged.row.kind)),
        ("by number of GPUs, from 1 MiB", _lines(large, lambda judged: str(judged.row.gpus))),
        ("by size", _lines(judged, lambda judged: judged.size_class)),
        ("all", _lines(large, lambda _: "from 1 MiB")),
    )
    print_tables(*(table(title, COLUMNS, lines) for title, lines in sections))


def judge(rows: Sequence[MeasuredCollective], settings: NcclSettings) -> list[JudgedCollective]:
    """The rows with their predictions."""
    return [
        JudgedCollective(
            row,
            _seconds(MACHINE_OF_SYSTEM[row.system], row.kind, row.gpus, row.bytes, ITEM_BYTES[row.dtype], settings),
        )
        for row in rows
    ]


@cache
def _seconds(name: str, kind: CollectiveKind, gpus: int, size: int, item_bytes: int, settings: NcclSettings) -> float:
    """The predicted time of a collective on the first GPUs of a node [s]."""
    machine, net = _network(name)
    question = CollectiveQuestion(
        kind=kind,
        bytes=size,
        gpus=gpus,
        group=gpus,
        choices=parse_choices("nccl"),
        item_bytes=item_bytes,
        nccl=settings,
    )
    return predict_collective(question, machine, net=net).seconds


@cache
def _network(name: str) -> tuple[Machine, Network]:
    """A named machine with one node, and its network."""
    machine = find_machine(name, (), gpus=RACK_GPUS if "nvl72" in name else NODE_GPUS)
    return machine, network_of(machine)


def _lines(judged: Sequence[JudgedCollective], of: Callable[[JudgedCollective], str]) -> list[list[str]]:
    """The errors of the rows by a property of theirs."""
    groups: dict[str, list[float]] = {}
    for row in judged:
        groups.setdefault(of(row), []).append(row.error)
    return [
        [
            key,
            str(len(errors)),
            *(percent(value, signed=False) for value in _quantiles(errors)),
            percent(float(np.median(errors))),
        ]
        for key, errors in sorted(groups.items())
    ]


def _quantiles(errors: Sequence[float]) -> tuple[float, float, float]:
    """Median, 90th percentile and largest of the absolute errors."""
    median, most, worst = np.quantile(np.abs(errors), (0.5, 0.9, 1.0))
    return float(median), float(most), float(worst)


if __name__ == "__main__":
    run_as_program(lambda: main(*sys.argv[1:]))
