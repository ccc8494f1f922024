"""What collectives make of a link: our own rings in chunks and in whole steps, and the MPI library's both ways.

    python -m quadrille.studies.laboratory_trials.rings > studies/laboratory_trials/results/rings.csv

Four hosts on one switch at 200 Mbit/s, one collective of all four, 10 times; as root.  The
share is of the link's rate, for the bytes that a rank of a ring sends (the library's
algorithms are held to the same count, by its regular calls and, where there are such, by its
vector calls); beside it is the part of this machine's cores that was busy, with this and
anything else.
"""

import csv
import os
import sys
from statistics import median

import numpy as np

from quadrille.algorithms.collectives.collective_choices import parse_choices
from quadrille.algorithms.schedule.grid import Grid
from quadrille.algorithms.schedule.ops import (
    VECTOR_CALL_KINDS,
    AllGather,
    AllReduce,
    Collective,
    ReduceScatter,
    collective_kind,
)
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.program import Repeat, in_sequence
from quadrille.algorithms.schedule.schedule import Role, Schedule, declare
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.experiments.laboratory.laboratory_commands import parse_laboratory
from quadrille.experiments.laboratory.laboratory_ranks import launch_in_laboratory
from quadrille.runtime.carriers.message_options import CHUNK_BYTES, MAX_POLL_SLEEP_SECONDS, MessageOptions
from quadrille.runtime.carriers.mpi import MpiCarrier
from quadrille.runtime.execution.execute import execute
from quadrille.runtime.host.console import run_as_program
from quadrille.runtime.laboratory import laboratory
from quadrille.studies.laboratory_trials.circumstances import cores_busy_since_now, head_line

HOSTS, RATE, TIMES = 4, "200mbit", 10
SIZES = (4 << 20, 16 << 20)
WAYS = (
    ("own", MessageOptions(CHUNK_BYTES, MAX_POLL_SLEEP_SECONDS)),
    ("own", MessageOptions(1 << 18, MAX_POLL_SLEEP_SECONDS)),
    ("own", MessageOptions(0, 0.0)),
    ("library", MessageOptions()),
    ("library:vector", MessageOptions()),
)
OPS: tuple[Collective, ...] = (
    AllGather(name="collective", axis="x", source="part", into="whole"),
    ReduceScatter(name="collective", axis="x", source="whole", into="part"),
    AllReduce(name="collective", axis="x", buffer="whole"),
)


def main(words: list[str]) -> None:
    """The table, by ranks in a laboratory of their own: they are called with the rate of their links [B/s]."""
    if words:
        measure(float(words[0]))
        return
    print(head_line(), flush=True)
    with laboratory.standing(parse_laboratory(f"star:hosts={HOSTS}", RATE, name=f"rings{os.getpid()}")) as entry:
        rate = min(entry.rates.values())
        sys.exit(
            launch_in_laboratory(
                entry, HOSTS, [f"{rate:.0f}"], program=("-m", "quadrille.studies.laboratory_trials.rings")
            )
        )


def ways_of(op: Collective) -> list[tuple[str, MessageOptions]]:
    """Those that carry a collective out differently: MPI has one call for an all-reduce."""
    both = collective_kind(op) in VECTOR_CALL_KINDS
    return [way for way in WAYS if both or way[0] != "library:vector"]


def schedule(op: Collective, size: int, grid: Grid, *, times: int = 1) -> Schedule:
    """A schedule in which every group along the axis runs a collective on `size` bytes, `times` times in a row."""
    single, elements = Part("one"), size // 4
    tensors = declare(Tensor("part", Part("e", (op.axis,)), single), Tensor("whole", Part("e"), single))
    source = "part" if isinstance(op, AllGather) else "whole"
    program = (Role(in_sequence((Repeat("turn", times, (op,)),))),)
    return Schedule("ring", {"e": elements, "one": 1}, grid, "float32", tensors, (source,), (), program)


def measure(rate: float) -> None:
    """One row for each collective, size and way; rank 0 prints them."""
    from mpi4py import MPI

    table = csv.writer(sys.stdout, lineterminator="\n")
    is_root = MPI.COMM_WORLD.rank == 0
    if is_root:
        table.writerow(["collective", "bytes", "by", "chunk_bytes", "share_of_rate", "lowest", "highest", "cores_busy"])
    for op in OPS:
        for size in SIZES:
            for words, message_options in ways_of(op):
                ring = schedule(op, size, Grid(x=HOSTS))
                shares, busy = shares_of_rate(ring, words, message_options, rate)
                if is_root:
                    spread = [f"{share:.3f}" for share in (median(shares), min(shares), max(shares))]
                    table.writerow(
                        [collective_kind(op), size, words, message_options.chunk_bytes, *spread, f"{busy:.2f}"]
                    )
                    sys.stdout.flush()


def shares_of_rate(
    ring: Schedule, words: str, message_options: MessageOptions, rate: float
) -> tuple[list[float], float]:
    """Share of the rate in each repeat, complete at rank 0, and the busy share of the cores."""
    (whole,) = ring.inputs
    carrier = MpiCarrier(message_options=message_options)
    busy_share = cores_busy_since_now()
    zeros = {whole: np.zeros((ring.sizes["e"], 1), "float32")}
    run = execute(ring, zeros, carrier, repeats=TIMES, warmups=1, choices=parse_choices(words))
    busy = busy_share()
    carrier.close()
    sent = max(run.bytes_sent.values(), default=0)
    return [sent / timeline.makespan / rate for timeline in run.timelines] or [0.0], busy


if __name__ == "__main__":
    run_as_program(lambda: main(sys.argv[1:]))
