"""Predict measured collectives of one and several nodes of 8 H100, and print the errors.

    python -m quadrille.studies.collective_tables.judge_nodes FILE

FILE has the columns cluster, nodes, ranks_per_node, collective, bytes and seconds of xxrjun's nccl-tests-cluster.  Two
kinds of rows set the rates of the clusters' cards, and some others a constant of NCCL's model; these are not judged.
"""

import csv
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import CollectiveKind
from quadrille.experiments.network.collective import predict_collective
from quadrille.experiments.network.collective_question import CollectiveQuestion
from quadrille.experiments.output.tables import percent, print_tables, table
from quadrille.runtime.host.console import run_as_program
from quadrille.simulator.machine.network import network_of
from quadrille.studies.collective_tables.measured_rows import KINDS
from quadrille.topologies.find_machine import find_machine
from quadrille.topologies.machines.machine import Machine
from quadrille.topologies.network import Network

NODE_GPUS = 8
CARD_RATES: Mapping[str, str] = {"A": "13.6e9", "B": "48.8e9"}
"""Rate of a network card by cluster [B/s]: set by the largest rows of `RATE_ROWS`."""
RATE_ROWS = (("A", 2, 1, "sendrecv"), ("B", 10, 1, "all_reduce"))
MODEL_ROWS = (
    *(("B", nodes, per_node, "sendrecv") for nodes, per_node in ((2, 1), (10, 1), (10, 8))),
    *(("B", 1, per_node, "sendrecv") for per_node in (4, 8)),
)
"""Cluster, nodes, GPUs a node and collective of rows that set a constant of NCCL's model."""
COLLECTIVES: Mapping[str, CollectiveKind] = {**KINDS, "sendrecv": "send_receive"}
Key = tuple[str, int, int, str]


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """A measured collective: its cluster, nodes, GPUs a node and kind, and predicted / measured - 1."""

    key: Key
    error: float

    @property
    def group(self) -> str:
        """The rows with which it is summed up."""
        cluster, nodes, per_node, _ = self.key
        if self.key in (*RATE_ROWS, *MODEL_ROWS):
            return "learnt, not judged"
        if nodes == 1:
            return f"{cluster}, one node"
        return f"{cluster}, {nodes} nodes, {per_node} GPU{'s' if per_node > 1 else ''} a node"


def main(path: str = "") -> None:
    """Print the errors by cluster, nodes and GPUs of a node.

    Raises
    ------
    InputError : no file
    """
    if not Path(path).is_file():
        raise InputError(f"file {path!r}: a CSV file of multi-node nccl-tests is accepted")
    judged = judged_rows(Path(path))
    groups: dict[str, list[float]] = {}
    for row in judged:
        groups.setdefault(row.group, []).append(row.error)
        if row.group != "learnt, not judged":
            groups.setdefault("all of several nodes" if row.key[1] > 1 else "all of one node", []).append(row.error)
    lines = [[name, str(len(errors)), *_words(errors)] for name, errors in sorted(groups.items())]
    print_tables(table("errors", ("rows", "number", "median error", "90th percentile", "signed median"), lines))


def _words(errors: list[float]) -> list[str]:
    """Median and 90th percentile of the absolute errors, and the median of the errors, as texts."""
    median, most = np.quantile(np.abs(errors), (0.5, 0.9))
    return [percent(float(median), signed=False), percent(float(most), signed=False), percent(float(np.median(errors)))]


def judged_rows(path: Path) -> list[JudgedRow]:
    """The rows of a file with the errors of their predictions."""
    with path.open(encoding="utf-8") as file:
        return [
            JudgedRow(key, predicted_seconds(key, int(row["bytes"])) / float(row["seconds"]) - 1)
            for row in csv.DictReader(file)
            for key in [(row["cluster"], int(row["nodes"]), int(row["ranks_per_node"]), row["collective"])]
        ]


def predicted_seconds(key: Key, size: int) -> float:
    """The predicted time of a row [s].

    Parameters
    ----------
    key : cluster, nodes, GPUs a node, and collective
    size : size of the buffer [B]
    """
    cluster, nodes, per_node, collective = key
    machine, net = _network(cluster, nodes)
    question = CollectiveQuestion(
        kind=COLLECTIVES[collective],
        bytes=size,
        gpus=NODE_GPUS * nodes,
        group=nodes * per_node,
        stride=NODE_GPUS // per_node,
        choices=parse_choices("nccl"),
    )
    return predict_collective(question, machine, net=net).seconds


@cache
def _network(cluster: str, nodes: int) -> tuple[Machine, Network]:
    """The machine of a cluster with these nodes, and its network."""
    settings = (f"topology.bandwidth_bytes_per_second={CARD_RATES[cluster]}",)
    machine = find_machine("h100-superpod", settings, gpus=NODE_GPUS * nodes)
    return machine, network_of(machine)


if __name__ == "__main__":
    run_as_program(lambda: main(*sys.argv[1:]))
