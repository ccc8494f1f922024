"""Benchmark of the executor's overhead: its time against that of the same NumPy and MPI calls written by hand.

    python -m quadrille.studies.benchmarks.executor_overhead RECORD.json      (on two ranks, started by `launch`)

Both multiply matrices by the 4D algorithm on the grid z=2: the ranks exchange their shards of B, then each rank
multiplies.  The hand-written calls run before every repeat of the executor, so that both meet the same machine.
"""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.matmuls.catalogue import matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.runtime.launching.launch import launch_or_raise
from quadrille.studies.benchmarks.paired_ratios import ratio_of_pairs

PROGRAM = ("-m", "quadrille.studies.benchmarks.executor_overhead")
SIZE = 2048
PAIRS = 30


class Overhead(msgspec.Struct, frozen=True):
    """The overhead of the executor.

    Parameters
    ----------
    executor_seconds, by_hand_seconds : times of each pair [s]
    ratio, ratio_low, ratio_high : median of executor / by hand, and its 95 % interval
    """

    executor_seconds: tuple[float, ...]
    by_hand_seconds: tuple[float, ...]
    ratio: float
    ratio_low: float
    ratio_high: float


def executor_overhead(ranks: int = 2) -> Overhead:
    """Measure the pairs on MPI ranks.

    Parameters
    ----------
    ranks : number of ranks; the hand-written calls are for two

    Raises
    ------
    RunError : a rank failed
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.json"
        launch_or_raise("the pairs", ranks, [str(path)], program=PROGRAM)
        pairs = json.loads(path.read_text())
    executor, by_hand = pairs["executor"], pairs["by_hand"]
    ratio = ratio_of_pairs(executor, by_hand)
    return Overhead(tuple(executor), tuple(by_hand), ratio.median, ratio.low, ratio.high)


@dataclass(slots=True)
class HandWrittenCalls:
    """The hand-written product of one of two ranks: exchange the halves of B, multiply.

    Parameters
    ----------
    communicator : communicator of two ranks
    a, shard : this rank's rows of A, and its half of B as a flat array
    whole, c : buffers of B and of this rank's rows of C
    """

    communicator: Any
    a: Any
    shard: Any
    whole: Any
    c: Any

    def run(self) -> tuple[float, float]:
        """Multiply once, and return the start and the end on this rank's clock [s]."""
        rank, half = self.communicator.Get_rank(), self.shard.size
        flat = self.whole.reshape(-1)
        self.communicator.Barrier()
        start = time.perf_counter()
        flat[rank * half : (rank + 1) * half] = self.shard
        peer = 1 - rank
        received = flat[peer * half : (peer + 1) * half]
        self.communicator.Sendrecv(self.shard, dest=peer, recvbuf=received, source=peer)
        np.matmul(self.a, self.whole, out=self.c)
        return start, time.perf_counter()


def main(path: str) -> None:
    """Measure the pairs on this rank; rank 0 writes the times of all pairs to the JSON file `path`."""
    from quadrille.runtime.carriers.mpi import MpiCarrier
    from quadrille.runtime.execution.execute import execute
    from quadrille.runtime.host.world import world
    from quadrille.runtime.operands.operands import Operands

    communicator = world()
    random = np.random.default_rng(communicator.Get_rank())
    half = SIZE // 2
    hand = HandWrittenCalls(
        communicator,
        random.random((half, SIZE)),
        random.random(half * SIZE),
        np.empty((SIZE, SIZE)),
        np.empty((half, SIZE)),
    )
    stamps: list[tuple[float, float]] = []
    schedule = matmul_schedule(Matmul(SIZE, SIZE, SIZE, "float64"), "4d", Grid(z=2))
    execution = execute(
        schedule,
        Operands(SIZE, SIZE, SIZE, "float64"),
        MpiCarrier(communicator),
        repeats=PAIRS,
        warmups=2,
        between=lambda _rank: stamps.append(hand.run()),
    )
    every = communicator.gather(stamps[2:])
    if every is not None:
        by_hand = [max(end for _, end in pair) - min(start for start, _ in pair) for pair in zip(*every, strict=True)]
        executor = [timeline.makespan for timeline in execution.timelines]
        schema_files.write_text(path, json.dumps({"executor": executor, "by_hand": by_hand}))


if __name__ == "__main__":
    from quadrille.runtime.host.world import run_rank

    run_rank(main)
