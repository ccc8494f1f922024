"""The arrays of one rank: allocated once, as the storage plan says, and never while a schedule runs."""

from dataclasses import dataclass
from typing import Any

from algorithms.choices import Choices
from algorithms.parts import Place
from algorithms.schedule import Schedule
from algorithms.storage import storage
from algorithms.tensors import Block, DType
from runtime.arrays import Library
from runtime.communicators import Array


@dataclass(frozen=True, slots=True)
class Scratch:
    """Room for what is used within one op: of products, and for each lane, of its reductions and packed pieces."""

    product: Array
    nothing: Array
    reductions: dict[str, Array]
    packed: dict[str, Array]
    unpacked: dict[str, Array]


class Buffers:
    """Each tensor's block on one rank; tensors made by groups of one are views of their sources."""

    def __init__(self, schedule: Schedule, place: Place, choices: Choices, library: Library) -> None:
        self._schedule = schedule
        self._library = library
        self._views: dict[str, Array] = {}
        plan = storage(schedule, place, choices)
        self.allocated_bytes = 0
        self._copies = {
            name: [
                self._allocate(size, schedule.tensors[name].dtype or schedule.dtype, schedule.tensors[name].on_host)
                for _ in range(plan.copies[name])
            ]
            for name, size in plan.tensors.items()
        }
        self.scratch = Scratch(
            self._allocate(plan.products, schedule.dtype),
            self._allocate(0, schedule.dtype),
            *(
                {lane: self._allocate(size, schedule.dtype) for lane, size in sizes.items()}
                for sizes in (plan.reductions, plan.packed, plan.packed)
            ),
        )

    def _allocate(self, elements: int, dtype: DType, on_host: bool = False) -> Array:
        array = self._library.empty_on_host(elements, dtype) if on_host else self._library.empty(elements, dtype)
        self.allocated_bytes += int(array.nbytes)
        return array

    def load(self, name: str, host_values: Any) -> None:
        """Put an input's host values into its buffer."""
        flat = self._copies[name][0]
        self._library.put(flat[: host_values.size], host_values.reshape(-1))

    def is_view(self, name: str) -> bool:
        return name not in self._copies

    def bind(self, name: str, view: Array) -> None:
        """Let `name` stand for a view of another tensor."""
        self._views[name] = view

    def flat(self, name: str, place: Place, ahead: int = 0) -> Array:
        """The block as a flat array."""
        if name in self._views:
            return self._views[name].reshape(-1)
        tensor = self._schedule.tensors[name]
        elements = tensor.block(place).elements
        return self._copies[name][tensor.instance(place, ahead)][:elements]

    def stored(self, name: str, place: Place) -> Array:
        """The block in the shape in which it is stored."""
        if name in self._views:
            return self._views[name]
        return self.flat(name, place).reshape(self.block(name, place).shape)

    def matrix(self, name: str, place: Place) -> Array:
        """The block as a matrix."""
        return self.stored(name, place).reshape(self.block(name, place).rectangle_shape)

    def window(self, name: str, place: Place, block: Block) -> Array:
        """The part of a block that another block covers, as a view."""
        own = self.block(name, place)
        rows, columns = _within(own.rows, block.rows), _within(own.columns, block.columns)
        return self.matrix(name, place)[rows, columns]

    def block(self, name: str, place: Place) -> Block:
        return self._schedule.tensors[name].block(place)


def _within(outer: tuple[int, int], inner: tuple[int, int]) -> slice:
    assert outer[0] <= inner[0] and inner[1] <= outer[1], f"{inner} is not inside {outer}"
    return slice(inner[0] - outer[0], inner[1] - outer[0])
