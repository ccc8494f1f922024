"""Our product and its peers', in turn on the same ranks.

    python -m quadrille.studies.runtime_speed.pairs ASKED.json FOUND.json      (on every rank, started by `launch`)

Before each repeat of ours every peer has its turn, in an order that moves on by
one each time.  A turn lasts from the first rank's start to the last rank's end.
All rest before each turn: the threads of a BLAS go on looking for work for a while
after its product (OpenBLAS some 50 ms), and would take a core from who comes next.
Every product of a peer is compared with one vector's way through A and B.
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
from quadrille.algorithms.matmuls.catalogue import find_algorithm, matmul_schedule
from quadrille.algorithms.matmuls.matmul import Matmul
from quadrille.algorithms.schedule.grid import Grid
from quadrille.experiments.workloads.grids import grids
from quadrille.studies.runtime_speed.peers import PEERS, Peer

PAIRS = ("-m", "quadrille.studies.runtime_speed.pairs")
OURS = "quadrille 3d"
WARMUPS = 2
REST_SECONDS = 0.15
Turn = tuple[float, float]


def best_grid(sizes: Matmul, ranks: int) -> Grid:
    """The grid of our product that sends the fewest words; among equals that which cuts rows, then columns.

    >>> str(best_grid(Matmul(8192, 4096, 1024), 2)), str(best_grid(Matmul(1024, 4096, 8192), 2))
    ('z=2', 'x=2')
    """
    fitting = grids(ranks, find_algorithm("3d"))
    return min(fitting, key=lambda grid: (_words(sizes, grid), -grid.z, -grid.x))


def _words(sizes: Matmul, grid: Grid) -> float:
    return words_3d(sizes.m, sizes.k, sizes.n, z=grid.z, y=grid.y, x=grid.x)


@dataclass(slots=True)
class Rounds:
    """The peers of one product on one rank, and begin and end of each of their rounds [s]."""

    communicator: Any
    peers: dict[str, Peer]
    turns: list[dict[str, Turn]] = field(default_factory=list)

    def take(self) -> None:
        """One turn of each, and a rest for ours."""
        names = list(self.peers)
        first = len(self.turns) % len(names)
        self.turns.append({name: self._one(self.peers[name]) for name in (*names[first:], *names[:first])})
        time.sleep(REST_SECONDS)

    def _one(self, peer: Peer) -> Turn:
        time.sleep(REST_SECONDS)
        self.communicator.Barrier()
        start = time.monotonic()
        peer.multiply()
        return start, time.monotonic()


def measured(communicator: Any, sizes: Matmul, pairs: int, names: Sequence[str]) -> dict[str, list[float]] | None:
    """Seconds of each round of every entrant, on rank 0.

    Parameters
    ----------
    names : names of the peers that take part

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
    taking = Rounds(communicator, {name: PEERS[name](communicator, sizes, a, b) for name in names})
    for name, peer in taking.peers.items():
        peer.multiply()
        check_product(communicator, name, peer, a, b)
    execution = execute(
        matmul_schedule(sizes, "3d", best_grid(sizes, ranks)),
        Operands(sizes.m, sizes.k, sizes.n, sizes.dtype),
        MpiCarrier(communicator),
        repeats=pairs,
        warmups=WARMUPS,
        between=lambda _rank: taking.take(),
    )
    every = communicator.gather(taking.turns[WARMUPS:])
    if every is None:
        return None
    peers = {
        name: [_lasted([turns[name] for turns in turn]) for turn in zip(*every, strict=True)] for name in taking.peers
    }
    return {OURS: [timeline.makespan for timeline in execution.timelines]} | peers


def _lasted(turns: list[Turn]) -> float:
    return max(end for _, end in turns) - min(start for start, _ in turns)


def check_product(communicator: Any, name: str, peer: Peer, a: Any, b: Any) -> None:
    """Freivalds: C v = A (B v), row by row, within what rounding may do."""
    vector = np.random.default_rng(1).random(b.shape[1])
    rows, columns, c = peer.product()
    product = np.zeros(a.shape[0])
    product[rows] = c.astype(np.float64) @ vector[columns]
    product = communicator.allreduce(product)
    wanted = a.astype(np.float64) @ (b.astype(np.float64) @ vector)
    worst = float(np.max(np.abs(product / wanted - 1)))
    if not worst <= a.shape[1] * np.finfo(a.dtype).eps:
        raise RunError(f"{name}: its product of {a.shape[0]}x{a.shape[1]}x{b.shape[1]} {a.dtype} is off by {worst:.1e}")


def main(asked: str, answer: str) -> None:
    """Measure every product of the file on this rank; rank 0 writes the times."""
    from quadrille.runtime.host.world import world

    communicator, wanted = world(), json.loads(Path(asked).read_text())
    products = [
        measured(communicator, Matmul(*sizes), wanted["pairs"], wanted["peers"]) for sizes in wanted["products"]
    ]
    if communicator.Get_rank() == 0:
        Path(answer).write_text(json.dumps(products))


if __name__ == "__main__":
    from quadrille.runtime.host.world import run_rank

    run_rank(main)
