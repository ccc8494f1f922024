"""The arrays that hold one rank's tensors. They are allocated once, by the storage plan, before the schedule runs."""

from dataclasses import dataclass
from typing import Any

from quadrille.algorithms.analysis.storage import gathered_in_place, storage
from quadrille.algorithms.analysis.traffic import traffic
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.ops import AllGather
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, Block, DType, ElementType
from quadrille.runtime.arrays.array_library import Array, ArrayLibrary

WIDER: dict[DType, DType] = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "float64": "float64"}
"""For each dtype, the dtype whose elements are twice as long (float64 stays float64): scratch arrays use it."""


def of_dtype(room: Array, dtype: Any) -> Array:
    """A scratch array viewed as elements of another dtype."""
    return room if room.dtype == dtype else room.view(dtype)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch arrays used within one op: for products, and per lane for reductions and for packed pieces."""

    product: Array
    nothing: Array
    reductions: dict[str, Array]
    packed: dict[str, Array]
    unpacked: dict[str, Array]


class Buffers:
    """The blocks of all tensors on one rank.

    In a group of one, the result of a collective is a view of its source. The operand of an all-gather may live inside
    the gathered tensor.
    """

    def __init__(self, schedule: Schedule, place: Coordinates, choices: Choices, library: ArrayLibrary) -> None:
        self._schedule = schedule
        self._library = library
        self._blocks: dict[str, Block] = {}
        self._views: dict[tuple[str, int], Array] = {}
        plan = storage(schedule, place, choices)
        self.allocated_bytes = 0
        self._copies = {
            name: [
                self._allocate(size, schedule.tensors[name].dtype or schedule.dtype, schedule.tensors[name].on_host)
                for _ in range(plan.copies[name])
            ]
            for name, size in plan.tensors.items()
        }
        for gather in schedule.cached(gathered_in_place).values():
            self._let_live_in_place(gather, place, choices)
        widest = schedule.dtype if plan.scratch_item_bytes == ITEM_BYTES[schedule.dtype] else WIDER[schedule.dtype]
        self.scratch = Scratch(
            self._allocate(plan.products, widest),
            self._allocate(0, widest),
            *(
                {lane: self._allocate(size, widest) for lane, size in sizes.items()}
                for sizes in (plan.reductions, plan.packed, plan.unpacked)
            ),
        )

    def _allocate(self, elements: int, dtype: ElementType, on_host: bool = False) -> Array:
        array = self._library.empty_on_host(elements, dtype) if on_host else self._library.empty(elements, dtype)
        self.allocated_bytes += int(array.nbytes)
        return array

    def _let_live_in_place(self, op: AllGather, place: Coordinates, choices: Choices) -> None:
        """Place the source of an all-gather inside its result."""
        moved = traffic(op, self._schedule, place, choices)
        assert moved is not None, op
        (whole,) = self._copies[op.into]
        own = whole[moved.edges[moved.member] : moved.edges[moved.member + 1]]
        self.bind(op.source, place, own.reshape(self.block(op.source, place).shape))

    def load(self, name: str, place: Coordinates, host_values: Any) -> None:
        """Copy host values into the buffer of an input or state tensor."""
        self._library.put(self.flat(name, place), host_values.reshape(-1))

    def is_view(self, name: str) -> bool:
        return name not in self._copies

    def bind(self, name: str, place: Coordinates, view: Array) -> None:
        """Let this copy of `name` be a view of another tensor."""
        self._views[name, self._schedule.tensors[name].copy_index(place)] = view

    def flat(self, name: str, place: Coordinates, ahead: int = 0) -> Array:
        """The block as a flat array."""
        tensor = self._schedule.tensors[name]
        if tensor.band_of is not None:
            return self.window(tensor.band_of, place, self.block(name, place)).reshape(-1)
        instance = tensor.copy_index(place, ahead)
        if (name, instance) in self._views:
            return self._views[name, instance].reshape(-1)
        return self._copies[name][instance][: self.block(name, place).elements]

    def stored(self, name: str, place: Coordinates) -> Array:
        """The block in the shape in which it is stored."""
        view = self._views.get((name, self._schedule.tensors[name].copy_index(place)))
        if view is not None:
            return view
        return self.flat(name, place).reshape(self.block(name, place).shape)

    def result(self, name: str, place: Coordinates) -> Array | list[Array]:
        """The block, or the blocks of all copies."""
        moments = list(self._schedule.tensors[name].copy_coordinates(place))
        blocks = [self.stored(name, moment) for moment in moments]
        return blocks if self._schedule.tensors[name].copies else blocks[0]

    def matrix(self, name: str, place: Coordinates) -> Array:
        """The block as a matrix."""
        return self.stored(name, place).reshape(self.block(name, place).rectangle_shape)

    def window(self, name: str, place: Coordinates, block: Block) -> Array:
        """The part of a block that another block covers, as a view."""
        own = self.block(name, place)
        rows, columns = _within(own.rows, block.rows), _within(own.columns, block.columns)
        return self.matrix(name, place)[rows, columns]

    def block(self, name: str, place: Coordinates) -> Block:
        """The rank's block at these coordinates. A block that no loop moves is computed once."""
        block = self._blocks.get(name)
        if block is None:
            tensor = self._schedule.tensors[name]
            block = tensor.block(place)
            if all(part.panel is None and not part.rotated_by for part in (tensor.rows, tensor.columns)):
                self._blocks[name] = block
        return block


def _within(outer: tuple[int, int], inner: tuple[int, int]) -> slice:
    assert outer[0] <= inner[0] and inner[1] <= outer[1], f"{inner} is not inside {outer}"
    return slice(inner[0] - outer[0], inner[1] - outer[0])
