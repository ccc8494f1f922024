"""The buffers that a rank keeps while it runs a schedule: what the runtime allocates and memory predictions add up."""

from dataclasses import dataclass

from algorithms.amounts import amount
from algorithms.collectives.choices import Choices
from algorithms.counting_walk import counting_walk
from algorithms.grid import Axis
from algorithms.numbers import number
from algorithms.ops import (
    AllGather,
    AllToAll,
    Broadcast,
    Gemm,
    HostCopy,
    Kernel,
    Op,
    Pointwise,
    Reduce,
    ReduceScatter,
    lane,
    reads,
    writes,
)
from algorithms.parts import Place
from algorithms.schedule import Schedule, all_ops, ops
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
    written = tuple(ops(schedule.program(place)))
    touched = {name for op in written for name in (*writes(op), *reads(op))}
    touched |= {*schedule.inputs, *schedule.state, *schedule.outputs}
    views = view_sources(schedule, tuple(all_ops(schedule)))
    own = {name: tensor for name, tensor in schedule.tensors.items() if name in touched and name not in views}
    sizes = {name: tensor.capacity(place) for name, tensor in own.items()}
    products = 0
    reductions: dict[str, int] = {}
    packed: dict[str, int] = {}
    for op, moment in _moments(schedule, place, choices):
        match op:
            case Gemm() if op.accumulate:
                products = max(products, schedule.tensors[op.c].capacity(moment))
            case Gemm() | Pointwise() | Kernel() | HostCopy():
                pass
            case AllToAll():
                moved = traffic(op, schedule, moment, choices)
                if moved is not None:
                    largest = max(moved.edges[-1], moved.receive_edges[-1])
                    packed[lane(op)] = max(packed.get(lane(op), 0), largest)
                    reductions.setdefault(lane(op), 0)
            case _:
                on_wire = amount(op, schedule, moment, choices)
                if on_wire is not None:
                    reductions[lane(op)] = max(reductions.get(lane(op), 0), on_wire.added)
    scratch = max(schedule.item_bytes(name) for name in schedule.tensors)
    return Storage(
        sizes,
        {name: tensor.instances(place) for name, tensor in own.items()},
        {name: ITEM_BYTES[tensor.dtype or schedule.dtype] for name, tensor in own.items()},
        products,
        reductions,
        packed,
        scratch,
    )


def _moments(schedule: Schedule, place: Place, choices: Choices) -> list[tuple[Op, Place]]:
    """Each op at the first moment of every distinct size and root, which may vary in a loop."""
    seen: dict[tuple[object, ...], tuple[Op, Place]] = {}
    for one in counting_walk(schedule, place, choices):
        op, moment = one.op, one.moment
        blocks = tuple(schedule.tensors[name].block(moment).shape for name in writes(op))
        root = number(op.root, moment) if isinstance(op, Broadcast | Reduce) else 0
        seen.setdefault((op.name, blocks, root), (op, moment))
    return list(seen.values())


def is_view(schedule: Schedule, name: str, written: tuple[Op, ...]) -> bool:
    """Whether the tensor is never more than another name for a region of its source: groups of one move nothing."""
    return name in view_sources(schedule, written)


def view_sources(schedule: Schedule, written: tuple[Op, ...]) -> dict[str, str]:
    """The tensor with a buffer of its own behind each view: what only groups of one gather, scatter or broadcast.

    It must be so in the programs of all roles, and the source must have a copy for each of the view's.
    """
    direct: dict[str, str] = {}
    others: set[str] = set()
    for op in written:
        renames = isinstance(op, AllGather | Broadcast | ReduceScatter) and alone(schedule, op.axis)
        for name in writes(op):
            if renames and isinstance(op, AllGather | Broadcast | ReduceScatter) and name == op.into:
                direct[name] = op.source
                if not set(schedule.tensors[name].copies) <= set(schedule.tensors[op.source].copies):
                    others.add(name)
            else:
                others.add(name)
    direct = {name: source for name, source in direct.items() if name not in others}

    def behind(name: str) -> str:
        return behind(direct[name]) if name in direct else name

    return {name: behind(name) for name in direct}


def alone(schedule: Schedule, axis: Axis) -> bool:
    """Whether the groups along the axis have one member."""
    return schedule.grid.length(axis) == 1
