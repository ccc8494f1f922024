"""Steps whose messages are buffered and go in chunks: what a rank does with them, one after the other.

Between hosts of a laboratory the runtime cuts what it sends into chunks, and passes a chunk
on as soon as it has come (`pipelined_steps.py`).  A rank that is late finds chunks that came
before, one that waits keeps its link busy while others are late.  Here the message of a step
is cut into a few equal chunks, enough for that: chunk c of a step may go when chunk c of what
came in the step before has come, and has been added.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import ceil
from typing import NamedTuple

from quadrille.algorithms.analysis.op_plans import CommPlan, PlanStep, StepRun

MOST_CHUNKS = 64
"""Of a step: more would take longer to simulate.

A chain fills chunk by chunk, and one that is larger than a token bucket waits at every link for the rest of its bytes.
"""
CHUNKS_AHEAD = 8
"""What of an op goes to a receiver before it is there: as many as the runtime lets go (`pipelined_steps.py`)."""
PIECES_AHEAD = 2
"""Of a message that is not passed on, what goes ahead is so many pieces or more: of larger ones less would fit."""
MAX_COMPONENTS = 256
"""Of such a message; of one that is longer than all these, somewhat more goes ahead here than there."""
NOTHING = PlanStep(None, None, 0.0, 0, "one_way")


class Move(NamedTuple):
    """What a rank does at once.

    Parameters
    ----------
    lets_go : whether one more of its chunks may go
    receives : the step of which it then waits for a chunk; None for no step
    number : of that step, from 1
    is_last : whether the chunk is the last of its step
    """

    lets_go: bool
    receives: PlanStep | None = None
    number: int = 0
    is_last: bool = False


class Counts(NamedTuple):
    """Chunks of every message that a rank sends, and that it receives, in an op."""

    sent: int
    received: int


def chunk_counts(comm_plan: CommPlan, chunk_bytes: int) -> Counts:
    """The same on all members that pass on what they get; else by the size of a message, which both its ends know.

    None is larger than the runtime's, up to `MOST_CHUNKS`.  Messages of an all-to-all, which differ from pair to pair,
    go whole, and whole ahead of a receiver that is late, where the runtime lets `CHUNKS_AHEAD` go.

    Parameters
    ----------
    chunk_bytes : into which the runtime cuts messages
    """
    moved = comm_plan.moved
    if moved is None or moved.lowered.algorithm == "pairwise":
        if moved is None or moved.lowered.pieces > 1:
            return Counts(1, 1)
        sizes = (edges[-1] * moved.item_bytes for edges in (moved.edges, moved.receive_edges))
        pieces = (ceil(PIECES_AHEAD * size / (CHUNKS_AHEAD * chunk_bytes)) for size in sizes)
        return Counts(*(max(1, min(MAX_COMPONENTS, count)) for count in pieces))
    piece = moved.edges[-1] * moved.item_bytes / moved.lowered.pieces
    return Counts(*[max(1, min(MOST_CHUNKS, ceil(piece / chunk_bytes)))] * 2)


def moves(steps: Iterable[StepRun], counts: Counts) -> Iterator[Move]:
    """What a rank does in steps that are cut into so many chunks.

    >>> ring = PlanStep(1, 3, 8.0, 0, "shift")
    >>> [(move.lets_go, move.number) for move in moves([StepRun(ring, 2, 1)], Counts(2, 2))]
    [(True, 0), (True, 1), (True, 1), (True, 2), (False, 2)]

    Parameters
    ----------
    steps : in which something goes over a wire
    """
    single = [(row.step, row.number + turn) for row in steps for turn in range(row.times)]
    to_go = counts.sent if single and single[0][0].send_to is not None else 0
    for (step, number), (following, _) in pairwise([*single, (NOTHING, 0)]):
        for chunk in range(counts.received):
            if step.receive_from is not None:
                yield from (Move(lets_go=True) for _ in range(to_go - 1))
                yield Move(to_go > 0, step, number, chunk == counts.received - 1)
                to_go = 0
            to_go += int(following.send_to is not None)
    yield from (Move(lets_go=True) for _ in range(to_go))
