"""Times of Quadrille's matmul and of the same matmul by other libraries (peers), in alternating rounds, on every rank.

    python -m quadrille.studies.runtime_speed.alternating_matmuls PRODUCTS.json TIMES.json  (on every rank, by `launch`)

Before each repeat of Quadrille's matmul every peer runs once, in an order that rotates by one each round.  The time of
a run is from the first rank's start to the last rank's end.  All ranks sleep before each run, because the threads of a
BLAS poll for work after its product (OpenBLAS for about 50 ms) and would take a core from the next run.  Each peer's
result is verified by Freivalds' algorithm.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quadrille.algorithms.analysis.communication_lower_bound import words_3d
from quadrille.algorithms.errors import RunError
from quadrille.algorithms.formats import schema_files
from quadrille.algorithms.matmuls.catalogue import find_algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.workloads.grids import grids
from quadrille.studies.runtime_speed.peer_products import PEERS, Peer

PROGRAM = ("-m", "quadrille.studies.runtime_speed.alternating_matmuls")
OURS = "quadrille 3d"
WARMUPS = 2
REST_SECONDS = 0.15
StartAndEnd = tuple[float, float]


def best_grid(sizes: Matmul, ranks: int) -> Grid:
    """The grid on which the 3D algorithm sends the fewest elements; of equal grids one that cuts rows, then columns.

    Parameters
    ----------
    sizes : sizes of the matmul
    ranks : number of ranks

    >>> str(best_grid(Matmul(8192, 4096, 1024), 2)), str(best_grid(Matmul(1024, 4096, 8192), 2))
    ('z=2', 'x=2')
    """
    fitting = grids(ranks, find_algorithm("3d"))
    return min(fitting, key=lambda grid: (_words(sizes, grid), -grid.z, -grid.x))


def _words(sizes: Matmul, grid: Grid) -> float:
    """The number of elements that a rank sends with the 3D algorithm."""
    return words_3d(sizes.m, sizes.k, sizes.n, z=grid.z, y=grid.y, x=grid.x)


@dataclass(slots=True)
class Rounds:
    """The peers of one matmul on one rank, and their times.

    Parameters
    ----------
    communicator : communicator of all ranks
    peers : peers by their names
    turns : start and end of each peer's run in each round [s]
    """

    communicator: Any
    peers: dict[str, Peer]
    turns: list[dict[str, StartAndEnd]] = field(default_factory=list)

    def run_round(self) -> None:
        """Run every peer once, and sleep before Quadrille's run."""
        names = list(self.peers)
        first = len(self.turns) % len(names)
        self.turns.append({name: self._timed(self.peers[name]) for name in (*names[first:], *names[:first])})
        time.sleep(REST_SECONDS)

    def _timed(self, peer: Peer) -> StartAndEnd:
        """The start and the end of a peer's run on this rank."""
        time.sleep(REST_SECONDS)
        self.communicator.Barrier()
        start = time.monotonic()
        peer.multiply()
        return start, time.monotonic()


def measure_matmul(
    communicator: Any, sizes: Matmul, round_count: int, names: Sequence[str]
) -> dict[str, list[float]] | None:
    """Measure one matmul by Quadrille and by the peers.

    Parameters
    ----------
    communicator : communicator of all ranks
    sizes : sizes and dtype of the matmul
    round_count : number of rounds; in each round every peer and Quadrille run once
    names : names of the peers that take part

    Returns
    -------
    The times of every round by the name of the library [s], on rank 0; None on other ranks.

    Raises
    ------
    RunError : a peer whose product is wrong
    """
    from quadrille.runtime.carriers.mpi import MpiCarrier
    from quadrille.runtime.execution.execute import execute
    from quadrille.runtime.operands.operands import Operands

    random = np.random.default_rng(0)
    a, b = (random.random(shape, np.float64).astype(sizes.dtype) for shape in ((sizes.m, sizes.k), (sizes.k, sizes.n)))
    ranks = communicator.Get_size()
    rounds = Rounds(communicator, {name: PEERS[name](communicator, sizes, a, b) for name in names})
    for name, peer in rounds.peers.items():
        peer.multiply()
        check_product(communicator, name, peer, a, b)
    execution = execute(
        matmul_schedule(sizes, "3d", best_grid(sizes, ranks)),
        Operands(sizes.m, sizes.k, sizes.n, sizes.dtype),
        MpiCarrier(communicator),
        repeats=round_count,
        warmups=WARMUPS,
        between=lambda _rank: rounds.run_round(),
    )
    every = communicator.gather(rounds.turns[WARMUPS:])
    if every is None:
        return None
    peers = {
        name: [_round_seconds([turns[name] for turns in turn]) for turn in zip(*every, strict=True)]
        for name in rounds.peers
    }
    return {OURS: [timeline.makespan for timeline in execution.timelines]} | peers


def _round_seconds(turns: list[StartAndEnd]) -> float:
    """The time from the first rank's start to the last rank's end [s]."""
    return max(end for _, end in turns) - min(start for start, _ in turns)


def check_product(communicator: Any, name: str, peer: Peer, a: Any, b: Any) -> None:
    """Verify a peer's result by Freivalds' algorithm: C v = A (B v), element by element, within the rounding bound.

    Parameters
    ----------
    communicator : communicator of all ranks
    name : name of the peer, for the message
    peer : peer, after a multiplication
    a, b : whole operands

    Raises
    ------
    RunError : a wrong result
    """
    vector = np.random.default_rng(1).random(b.shape[1])
    rows, columns, c = peer.product()
    product = np.zeros(a.shape[0])
    product[rows] = c.astype(np.float64) @ vector[columns]
    product = communicator.allreduce(product)
    expected = a.astype(np.float64) @ (b.astype(np.float64) @ vector)
    worst = float(np.max(np.abs(product / expected - 1)))
    if not worst <= a.shape[1] * np.finfo(a.dtype).eps:
        raise RunError(f"{name}: its product of {a.shape[0]}x{a.shape[1]}x{b.shape[1]} {a.dtype} is off by {worst:.1e}")


def main(products_path: str, times_path: str) -> None:
    """Measure every matmul of a JSON file on all ranks; rank 0 writes the times to another."""
    from quadrille.runtime.host.world import world

    communicator, wanted = world(), json.loads(Path(products_path).read_text())
    products = [
        measure_matmul(communicator, Matmul(*sizes), wanted["pairs"], wanted["peers"]) for sizes in wanted["products"]
    ]
    if communicator.Get_rank() == 0:
        schema_files.write_text(times_path, json.dumps(products))


if __name__ == "__main__":
    from quadrille.runtime.host.world import run_rank

    run_rank(main)
