"""The arrays that hold one rank's tensors. They are allocated once, by the storage plan, before the schedule runs."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.storage import gathered_in_place, storage
from quadrille.algorithms.analysis.traffic import traffic
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.ops import AllGather, Op, reads, writes
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, Block, DType, ElementType
from quadrille.runtime.arrays.array_library import Array, ArrayLibrary

WIDER: dict[DType, DType] = {"float16": "float32", "bfloat16": "float32", "float32": "float64", "float64": "float64"}
"""For each dtype, the dtype whose elements are twice as long (float64 stays float64): scratch arrays use it."""


def viewed_as(scratch: Array, dtype: Any) -> Array:
    """A scratch array reinterpreted as elements of another dtype."""
    return scratch if scratch.dtype == dtype else scratch.view(dtype)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Arrays for temporary values within one op.

    Parameters
    ----------
    product : product of a GEMM that accumulates
    empty : array without elements, for messages without content
    reductions : received summands of a collective, by lane
    packed, unpacked : sent and received parts of an all-to-all, or the bucket of a fused all-reduce, by lane
    """

    product: Array
    empty: Array
    reductions: dict[str, Array]
    packed: dict[str, Array]
    unpacked: dict[str, Array]


class Buffers:
    """The blocks of all tensors on one rank, and its scratch arrays.

    Some blocks are views of other blocks: in a group of one, the result of a collective is a view of its source; the
    source of an all-gather, or the result of a reduce-scatter, may be a part of the whole tensor.

    Parameters
    ----------
    schedule : schedule with the tensors
    coordinates : grid coordinates of the rank
    choices : algorithms of the collectives, which decide the scratch arrays
    library : array library that allocates the arrays
    """

    def __init__(self, schedule: Schedule, coordinates: Coordinates, choices: Choices, library: ArrayLibrary) -> None:
        self._schedule = schedule
        self._library = library
        self._blocks: dict[str, Block] = {}
        self._views: dict[tuple[str, int], Array] = {}
        self._routed_rows: dict[tuple[str, int], int] = {}
        plan = storage(schedule, coordinates, choices)
        self.allocated_bytes = self.allocated_host_bytes = 0
        self._copies = {
            name: [
                self._allocate(size, schedule.tensors[name].dtype or schedule.dtype, schedule.tensors[name].on_host)
                for _ in range(plan.copies[name])
            ]
            for name, size in plan.tensors.items()
        }
        for gather in schedule.cached(gathered_in_place).values():
            self._bind_gather_source(gather, coordinates, choices)
        self._widest = widest = (
            schedule.dtype if plan.scratch_item_bytes == ITEM_BYTES[schedule.dtype] else WIDER[schedule.dtype]
        )
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
        if on_host:
            self.allocated_host_bytes += int(array.nbytes)
        else:
            self.allocated_bytes += int(array.nbytes)
        return array

    def _bind_gather_source(self, op: AllGather, coordinates: Coordinates, choices: Choices) -> None:
        """Bind the source of an all-gather to this rank's shard of the gathered tensor."""
        op_traffic = traffic(op, self._schedule, coordinates, choices)
        assert op_traffic is not None, op
        (whole,) = self._copies[op.into]
        shard = whole[op_traffic.edges[op_traffic.member] : op_traffic.edges[op_traffic.member + 1]]
        self.bind(op.source, coordinates, shard.reshape(self.block(op.source, coordinates).shape))

    def load(self, name: str, coordinates: Coordinates, host_values: Any) -> None:
        """Copy host values into the buffer of an input or state tensor."""
        self._library.put(self.flat(name, coordinates), host_values.reshape(-1))

    def is_view(self, name: str) -> bool:
        """Whether the tensor has no array of its own, only a view of another tensor."""
        return name not in self._copies

    def bind(self, name: str, coordinates: Coordinates, view: Array) -> None:
        """Make this copy of the tensor `name` a view of another tensor."""
        self._views[name, self._schedule.tensors[name].copy_index(coordinates)] = view

    def flat(self, name: str, coordinates: Coordinates) -> Array:
        """The block as a flat array."""
        tensor = self._schedule.tensors[name]
        if tensor.band_of is not None:
            return self.window(tensor.band_of, coordinates, self.block(name, coordinates)).reshape(-1)
        instance = tensor.copy_index(coordinates)
        if (name, instance) in self._views:
            return self._views[name, instance].reshape(-1)
        if tensor.shard_of is not None:
            return self._shard(name, tensor.shard_of, coordinates)
        if tensor.staged_in is not None:
            return self.flat(tensor.staged_in, coordinates)[: self.block(name, coordinates).elements]
        return self._copies[name][instance][: self.block(name, coordinates).elements]

    def _shard(self, name: str, owner: str, coordinates: Coordinates) -> Array:
        """The part of the owner's block that this shard covers."""
        start, stop = self.block(name, coordinates).stored_range or (0, 0)
        first, _ = self.block(owner, coordinates).stored_range or (0, 0)
        return self.flat(owner, coordinates)[start - first : stop - first]

    def stored(self, name: str, coordinates: Coordinates) -> Array:
        """The block in the shape in which it is stored."""
        view = self._views.get((name, self._schedule.tensors[name].copy_index(coordinates)))
        if view is not None:
            return view
        return self.flat(name, coordinates).reshape(self.block(name, coordinates).shape)

    def result(self, name: str, coordinates: Coordinates) -> Array | list[Array]:
        """The block of an output, or the list of the blocks of all its copies."""
        blocks = [self.stored(name, copy) for copy in self._schedule.tensors[name].copy_coordinates(coordinates)]
        return blocks if self._schedule.tensors[name].copies else blocks[0]

    def matrix(self, name: str, coordinates: Coordinates) -> Array:
        """The block as a matrix: rows and columns of the rectangle that it covers."""
        return self.stored(name, coordinates).reshape(self.block(name, coordinates).rectangle_shape)

    def window(self, name: str, coordinates: Coordinates, block: Block) -> Array:
        """The part of a rank's block that `block` covers, as a view."""
        shard = self.block(name, coordinates)
        rows, columns = _within(shard.rows, block.rows), _within(shard.columns, block.columns)
        return self.matrix(name, coordinates)[rows, columns]

    def set_rows(self, name: str, coordinates: Coordinates, rows: int) -> None:
        """Give this copy of a tensor of routed rows as many rows; its array grows if it is too small."""
        tensor = self._schedule.tensors[name]
        instance = tensor.copy_index(coordinates)
        self._routed_rows[name, instance] = rows
        array, needed = self._copies[name][instance], self.block(name, coordinates).elements
        if array.size < needed:
            self.allocated_bytes -= int(array.nbytes)
            self._copies[name][instance] = self._allocate(needed, tensor.dtype or self._schedule.dtype)

    def copy_rows(self, op: Op, coordinates: Coordinates) -> None:
        """Give what an op writes as many routed rows as what it reads has."""
        tensors = self._schedule.tensors
        source = next((name for name in reads(op) if tensors[name].routed), None)
        for name in writes(op):
            if source is not None and tensors[name].routed and name != source:
                first, last = self.block(source, coordinates).rows
                self.set_rows(name, coordinates, last - first)

    def room(self, scratch: dict[str, Array], lane: str, elements: int) -> Array:
        """The scratch array of a lane with room for that many elements; it grows if it is too small."""
        array = scratch[lane]
        if array.size < elements:
            self.allocated_bytes -= int(array.nbytes)
            scratch[lane] = self._allocate(elements, self._widest)
        return scratch[lane]

    def counts(self, name: str, coordinates: Coordinates) -> NDArray[np.int64]:
        """Rows of each expert, from each rank that sends some, on the host."""
        return self._library.fetch(self.matrix(name, coordinates)).astype(np.int64)

    def block(self, name: str, coordinates: Coordinates) -> Block:
        """The rank's block at these coordinates. A block that no loop moves is computed once."""
        block = self._blocks.get(name)
        if block is None:
            tensor = self._schedule.tensors[name]
            block = tensor.block(coordinates)
            if tensor.routed:
                rows = self._routed_rows.get((name, tensor.copy_index(coordinates)))
                return block if rows is None else replace(block, rows=(block.rows[0], block.rows[0] + rows))
            if tensor.buckets is None and tensor.rows.is_fixed and tensor.columns.is_fixed:
                self._blocks[name] = block
        return block


def _within(outer: tuple[int, int], inner: tuple[int, int]) -> slice:
    """The index range of an inner range, counted from the start of the outer range."""
    assert outer[0] <= inner[0] and inner[1] <= outer[1], f"{inner} is not inside {outer}"
    return slice(inner[0] - outer[0], inner[1] - outer[0])
