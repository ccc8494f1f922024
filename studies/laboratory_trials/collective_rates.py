"""Trial of collectives: the share of a link's rate that Quadrille's rings and the MPI library's collectives reach.

    python -m quadrille.studies.laboratory_trials.collective_rates > collective_rates.csv      (as root)

The ranks run in a laboratory (a network of Linux network namespaces): four hosts on one switch with links of
200 Mbit/s.  All four ranks run one collective, 10 times: by Quadrille's ring with messages in chunks or whole, and by
the MPI library's regular calls and vector calls.  The rate is the number of bytes that a rank of a ring sends, divided
by the time; the same number of bytes counts for the library, whatever its algorithm sends.  `cores_busy` is the busy
share of this machine's cores, over all processes.
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
from quadrille.studies.laboratory_trials.trial_conditions import conditions_line, core_load_meter

HOSTS, RATE, TIMES = 4, "200mbit", 10
VECTOR = "library:vector"
SIZES = (4 << 20, 16 << 20)
IMPLEMENTATIONS = (
    ("own", MessageOptions(CHUNK_BYTES, MAX_POLL_SLEEP_SECONDS)),
    ("own", MessageOptions(1 << 18, MAX_POLL_SLEEP_SECONDS)),
    ("own", MessageOptions(0, 0.0)),
    ("library", MessageOptions()),
    (VECTOR, MessageOptions()),
)
OPS: tuple[Collective, ...] = (
    AllGather(name="collective", axis="x", source="part", into="whole"),
    ReduceScatter(name="collective", axis="x", source="whole", into="part"),
    AllReduce(name="collective", axis="x", buffer="whole"),
)


def main(arguments: list[str]) -> None:
    """Start the ranks in a new laboratory, which print the CSV table.

    Parameters
    ----------
    arguments : empty; on the ranks, the rate of the links [bytes/s]
    """
    if arguments:
        measure(float(arguments[0]))
        return
    print(conditions_line(), flush=True)
    with laboratory.standing(parse_laboratory(f"star:hosts={HOSTS}", RATE, name=f"rings{os.getpid()}")) as entry:
        rate = min(entry.rates.values())
        sys.exit(
            launch_in_laboratory(
                entry, HOSTS, [f"{rate:.0f}"], program=("-m", "quadrille.studies.laboratory_trials.collective_rates")
            )
        )


def implementations_of(op: Collective) -> list[tuple[str, MessageOptions]]:
    """The implementations of a collective; `library:vector` only if MPI has a vector call for it (not for all-reduce).

    Each is the value of `--collectives` and the options of the messages.
    """
    has_vector_call = collective_kind(op) in VECTOR_CALL_KINDS
    return [implementation for implementation in IMPLEMENTATIONS if has_vector_call or implementation[0] != VECTOR]


def collective_schedule(op: Collective, size: int, grid: Grid, *, times: int = 1) -> Schedule:
    """A schedule in which every group along the op's axis runs a collective in float32.

    Parameters
    ----------
    op : collective
    size : size of the whole tensor [bytes]
    grid : grid of the ranks
    times : number of collectives, one after the other
    """
    single, elements = Part("one"), size // 4
    tensors = declare(Tensor("part", Part("e", (op.axis,)), single), Tensor("whole", Part("e"), single))
    source = "part" if isinstance(op, AllGather) else "whole"
    program = (Role(in_sequence((Repeat("turn", times, (op,)),))),)
    return Schedule("ring", {"e": elements, "one": 1}, grid, "float32", tensors, (source,), (), program)


def measure(rate: float) -> None:
    """Measure each collective, size and implementation on all ranks; rank 0 prints the rows.

    Parameters
    ----------
    rate : rate of the links [bytes/s]
    """
    from mpi4py import MPI

    table = csv.writer(sys.stdout, lineterminator="\n")
    is_root = MPI.COMM_WORLD.rank == 0
    if is_root:
        table.writerow(["collective", "bytes", "by", "chunk_bytes", "share_of_rate", "lowest", "highest", "cores_busy"])
    for op in OPS:
        for size in SIZES:
            for collectives, message_options in implementations_of(op):
                ring = collective_schedule(op, size, Grid(x=HOSTS))
                shares, busy = measured_rate_shares(ring, collectives, message_options, rate)
                if is_root:
                    spread = [f"{share:.3f}" for share in (median(shares), min(shares), max(shares))]
                    table.writerow(
                        [collective_kind(op), size, collectives, message_options.chunk_bytes, *spread, f"{busy:.2f}"]
                    )
                    sys.stdout.flush()


def measured_rate_shares(
    ring: Schedule, collectives: str, message_options: MessageOptions, rate: float
) -> tuple[list[float], float]:
    """Run a schedule `TIMES` times, and measure its rate.

    Parameters
    ----------
    ring : schedule of one collective
    collectives : implementation of the collective, as in `--collectives`
    message_options : options of the messages
    rate : rate of the links [bytes/s]

    Returns
    -------
    The share of the links' rate in each repeat (complete on rank 0 only), and the busy share of the cores.
    """
    (whole,) = ring.inputs
    carrier = MpiCarrier(message_options=message_options)
    busy_share = core_load_meter()
    zeros = {whole: np.zeros((ring.sizes["e"], 1), "float32")}
    run = execute(ring, zeros, carrier, repeats=TIMES, warmups=1, choices=parse_choices(collectives))
    busy = busy_share()
    carrier.close()
    sent = max(run.bytes_sent.values(), default=0)
    return [sent / timeline.makespan / rate for timeline in run.timelines] or [0.0], busy


if __name__ == "__main__":
    run_as_program(lambda: main(sys.argv[1:]))
