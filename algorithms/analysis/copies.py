"""Local copies that a communication op makes on one rank, beside what goes over the wire.

The runtime makes them and the simulator charges for them: a gather first puts
the member's own part in its place, unless it lives there, the root of a broadcast cuts out the
region, the root of a reduce puts it in, an all-to-all packs, keeps its own
piece and unpacks.
"""

from dataclasses import dataclass

from quadrille.algorithms.analysis.storage import is_view, lives_in_place
from quadrille.algorithms.analysis.traffic import Traffic
from quadrille.algorithms.schedule.expressions import number
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
from quadrille.algorithms.schedule.parts import Place
from quadrille.algorithms.schedule.schedule import Schedule, all_ops


@dataclass(frozen=True, slots=True)
class Copies:
    """Bytes copied before the first step and after the last."""

    before: int = 0
    after: int = 0


NONE = Copies()


def copies(op: CommunicationOp, schedule: Schedule, place: Place, moved: Traffic | None) -> Copies:
    """Bytes that the rank at `place` copies locally; `moved` is the op's traffic there."""
    if moved is None:
        return _alone(op, schedule, place)
    of_members = isinstance(op, AllGather | AllToAll)
    own = moved.edges[moved.member + 1] - moved.edges[moved.member] if of_members else 0
    match op:
        case AllGather():
            return NONE if lives_in_place(schedule, op) else Copies(before=own * moved.item_bytes)
        case Broadcast():
            size = moved.edges[-1] * moved.item_bytes
            return Copies(before=size) if moved.member == moved.root else NONE
        case Reduce():
            size = moved.edges[-1] * moved.item_bytes
            return Copies(after=size) if moved.member == moved.root else NONE
        case AllReduce() if op.more:
            size = moved.edges[-1] * moved.item_bytes
            return Copies(before=size, after=size)
        case AllToAll():
            packed = moved.edges[-1] + own
            return Copies(packed * moved.item_bytes, moved.receive_edges[-1] * moved.item_bytes)
        case _:
            return NONE


def _alone(op: CommunicationOp, schedule: Schedule, place: Place) -> Copies:
    """In a group of one the result is a view where it can be, else a copy."""
    match op:
        case AllGather() | ReduceScatter() | Broadcast():
            if is_view(schedule, op.into, tuple(all_ops(schedule))):
                return NONE
            held = not isinstance(op, Broadcast) or number(op.root, place) == place.coordinates[op.axis]
            return Copies(before=_bytes(schedule, op.into, place)) if held else NONE
        case Reduce() | AllToAll() | Shift():
            return Copies(before=_bytes(schedule, op.source, place))
        case AllReduce() | Barrier() | Send() | Receive():
            return NONE


def _bytes(schedule: Schedule, name: str, place: Place) -> int:
    return schedule.tensors[name].block(place).elements * schedule.item_bytes(name)
