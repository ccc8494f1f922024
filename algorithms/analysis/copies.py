"""Local copies that a communication op makes on one rank, beside what goes over the wire.

The runtime makes them and the simulator charges for them: a gather first puts
the member's own part in its place, unless it lives there, the root of a broadcast cuts out the
region, the root of a reduce puts it in, an all-to-all packs, keeps its own
piece and unpacks.
"""

from dataclasses import dataclass

from quadrille.algorithms.analysis.storage import is_gathered_in_place, is_view
from quadrille.algorithms.analysis.traffic import Traffic
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    CommunicationOp,
    Receive,
    Reduce,
    ReduceScatter,
    Send,
    Shift,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule, all_ops


@dataclass(frozen=True, slots=True)
class LocalCopies:
    """Bytes copied before the first step and after the last."""

    before: int = 0
    after: int = 0


NONE = LocalCopies()


def local_copies(op: CommunicationOp, schedule: Schedule, place: Coordinates, moved: Traffic | None) -> LocalCopies:
    """Bytes that the rank at `place` copies locally; `moved` is the op's traffic there."""
    if moved is None:
        return _alone(op, schedule, place)
    of_members = isinstance(op, AllGather | AllToAll)
    own = moved.edges[moved.member + 1] - moved.edges[moved.member] if of_members else 0
    match op:
        case AllGather():
            return NONE if is_gathered_in_place(schedule, op) else LocalCopies(before=own * moved.item_bytes)
        case Broadcast():
            size = moved.edges[-1] * moved.item_bytes
            return LocalCopies(before=size) if moved.member == moved.root else NONE
        case Reduce():
            size = moved.edges[-1] * moved.item_bytes
            return LocalCopies(after=size) if moved.member == moved.root else NONE
        case AllReduce() if op.more:
            size = moved.edges[-1] * moved.item_bytes
            return LocalCopies(before=size, after=size)
        case AllToAll():
            packed = moved.edges[-1] + own
            return LocalCopies(packed * moved.item_bytes, moved.receive_edges[-1] * moved.item_bytes)
        case _:
            return NONE


def _alone(op: CommunicationOp, schedule: Schedule, place: Coordinates) -> LocalCopies:
    """In a group of one the result is a view where it can be, else a copy."""
    match op:
        case AllGather() | ReduceScatter() | Broadcast():
            if is_view(schedule, op.into, tuple(all_ops(schedule))):
                return NONE
            held = not isinstance(op, Broadcast) or evaluate(op.root, place) == place.along[op.axis]
            return LocalCopies(before=_bytes(schedule, op.into, place)) if held else NONE
        case Reduce() | AllToAll() | Shift():
            return LocalCopies(before=_bytes(schedule, op.source, place))
        case AllReduce() | Barrier() | Send() | Receive():
            return NONE


def _bytes(schedule: Schedule, name: str, place: Coordinates) -> int:
    return schedule.tensors[name].block(place).elements * schedule.item_bytes(name)
