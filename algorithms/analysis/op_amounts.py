"""What a communication op comes to on one rank: how much it sends, and the largest piece that it gets to add.

From or to a root these depend on the distance from it, not on who it is.  So the
turns of a mesh, each with another root, need no look at their steps.
"""

from dataclasses import dataclass
from functools import lru_cache

from quadrille.algorithms.analysis.root_distances import AROUND
from quadrille.algorithms.analysis.traffic import Traffic, traffic
from quadrille.algorithms.collectives.choices import Choices
from quadrille.algorithms.collectives.lowered import Name
from quadrille.algorithms.collectives.lowering import lower
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.ops import (
    Broadcast,
    Collective,
    CollectiveKind,
    CommunicationOp,
    Reduce,
    collective_kind,
)
from quadrille.algorithms.schedule.parts import Coordinates, boundaries
from quadrille.algorithms.schedule.schedule import Schedule

MOST_KEPT = 1 << 16


@dataclass(frozen=True, slots=True)
class OpAmount:
    """Of one instance of an op on one rank.

    Parameters
    ----------
    sent_bytes : what it puts on the wire [B]
    added_elements : the most that it receives in one step to add to what it has [elements]
    algorithm : of a collective
    """

    sent_bytes: int
    added_elements: int
    algorithm: Name | None


def op_amount(op: CommunicationOp, schedule: Schedule, place: Coordinates, choices: Choices) -> OpAmount | None:
    """What the op comes to on the rank at `place`; None where nothing goes over a wire."""
    if isinstance(op, Broadcast | Reduce):
        members, kind = place.grid.length(op.axis), collective_kind(op)
        chosen = choices.of(op.name)
        algorithm, chunk = chosen.algorithm(kind), chosen.chunk_bytes
        if members > 1 and algorithm in AROUND:
            moved = schedule.tensors[op.into if isinstance(op, Broadcast) else op.source]
            behind = (place.along[op.axis] - evaluate(op.root, place)) % members
            item = schedule.item_bytes(op.source)
            return _from_root(kind, algorithm, members, behind, moved.block(place).elements, item, chunk)
    found = traffic(op, schedule, place, choices)
    return None if found is None else _amount(found, isinstance(op, Collective))


@lru_cache(MOST_KEPT)
def _from_root(
    kind: CollectiveKind, algorithm: Name, members: int, behind: int, elements: int, item: int, chunk: int
) -> OpAmount:
    """Of the member so far behind the root."""
    lowered = lower(kind, algorithm, members, size_bytes=elements * item, elements=elements, chunk_bytes=chunk)
    edges = tuple(boundaries(elements, lowered.pieces))
    return _amount(Traffic(behind, lowered, edges, edges, item), collective=True)


def _amount(moved: Traffic, collective: bool) -> OpAmount:
    sent = added = 0
    for exchange in moved.exchanges():
        sent += exchange.sent
        if exchange.reduce:
            added = max(added, exchange.received)
    return OpAmount(sent * moved.item_bytes, added, moved.lowered.algorithm if collective else None)
