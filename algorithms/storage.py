"""The buffers that a rank keeps while it runs a schedule: what the runtime allocates and memory predictions add up."""

from dataclasses import dataclass

from algorithms.choices import Choices
from algorithms.grid import Axis
from algorithms.ops import (
    AllGather,
    AllToAll,
    Broadcast,
    Gemm,
    HostCopy,
    Op,
    Pointwise,
    Reduce,
    ReduceScatter,
    lane,
    reads,
    writes,
)
from algorithms.parts import Place, number
from algorithms.schedule import Schedule, ops, walk
from algorithms.tensors import ITEM_BYTES
from algorithms.traffic import traffic


@dataclass(frozen=True, slots=True)
class Storage:
    """Elements that one rank keeps.

    Parameters
    ----------
    tensors : elements of one copy of each tensor that has a buffer of its own
    copies : how many copies of it
    products : room for a product that is then added to what is there
    reductions : room, on each lane, for what a reduction step receives
    packed : room, on each lane, for what an all-to-all sends and receives, packed
    """

    tensors: dict[str, int]
    copies: dict[str, int]
    item_bytes: dict[str, int]
    products: int
    reductions: dict[str, int]
    packed: dict[str, int]
    scratch_item_bytes: int

    @property
    def bytes(self) -> int:
        """All of it [B]."""
        kept = sum(size * self.copies[name] * self.item_bytes[name] for name, size in self.tensors.items())
        scratch = self.products + sum(self.reductions.values()) + 2 * sum(self.packed.values())
        return kept + scratch * self.scratch_item_bytes


def storage(schedule: Schedule, place: Place, choices: Choices) -> Storage:
    """What the rank at `place` keeps while it runs the schedule."""
    program = schedule.program(place)
    own = {
        name: tensor
        for name, tensor in schedule.tensors.items()
        if not is_view(schedule, name, tuple(ops(program))) and _touched(schedule, name, tuple(ops(program)))
    }
    sizes = {name: tensor.capacity(place) for name, tensor in own.items()}
    products = 0
    reductions: dict[str, int] = {}
    packed: dict[str, int] = {}
    for op, moment in _moments(schedule, place):
        match op:
            case Gemm() if op.accumulate:
                products = max(products, schedule.tensors[op.c].capacity(moment))
            case Gemm() | Pointwise() | HostCopy():
                pass
            case _:
                moved = traffic(op, schedule, moment, choices)
                if moved is not None:
                    reductions[lane(op)] = max(reductions.get(lane(op), 0), moved.largest_receive)
                    if isinstance(op, AllToAll):
                        largest = max(moved.edges[-1], moved.receive_edges[-1])
                        packed[lane(op)] = max(packed.get(lane(op), 0), largest)
    scratch = max(schedule.item_bytes(name) for name in schedule.tensors)
    return Storage(
        sizes,
        {name: tensor.copies for name, tensor in own.items()},
        {name: ITEM_BYTES[tensor.dtype or schedule.dtype] for name, tensor in own.items()},
        products,
        reductions,
        packed,
        scratch,
    )


def _moments(schedule: Schedule, place: Place) -> list[tuple[Op, Place]]:
    """Each op at the first moment of every distinct size and root, which may vary in a loop."""
    seen: dict[tuple[object, ...], tuple[Op, Place]] = {}
    for op, moment in walk(schedule.program(place), place):
        blocks = tuple(schedule.tensors[name].block(moment).shape for name in writes(op))
        root = number(op.root, moment) if isinstance(op, Broadcast | Reduce) else 0
        seen.setdefault((op.name, blocks, root), (op, moment))
    return list(seen.values())


def _touched(schedule: Schedule, name: str, program: tuple[Op, ...]) -> bool:
    used = {tensor for op in program for tensor in (*writes(op), *reads(op))}
    return name in used or name in schedule.inputs or name in schedule.outputs


def is_view(schedule: Schedule, name: str, program: tuple[Op, ...]) -> bool:
    """Whether the tensor is never more than another name for a region of its source: groups of one move nothing."""
    writers = [op for op in program if name in writes(op)]
    made_by_groups_of_one = [
        op
        for op in writers
        if isinstance(op, AllGather | Broadcast | ReduceScatter) and op.into == name and alone(schedule, op.axis)
    ]
    return bool(writers) and len(made_by_groups_of_one) == len(writers)


def view_sources(schedule: Schedule, written: tuple[Op, ...]) -> dict[str, str]:
    """The tensor with a buffer of its own behind each view."""
    direct = {
        op.into: op.source
        for op in written
        if isinstance(op, AllGather | Broadcast | ReduceScatter) and is_view(schedule, op.into, written)
    }

    def behind(name: str) -> str:
        return behind(direct[name]) if name in direct else name

    return {name: behind(name) for name in direct}


def alone(schedule: Schedule, axis: Axis) -> bool:
    """Whether the groups along the axis have one member."""
    return schedule.grid.length(axis) == 1
