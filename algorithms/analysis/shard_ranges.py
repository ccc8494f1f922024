"""Where the pieces of a buffer begin and end: what the layouts of an op's two tensors say of each other [elements].

A collective moves pieces of a flattened block, one or more for each member.
Its layouts must fit: each member's part is whole rows of the block or a
contiguous piece of it, one after the other in the order of the members.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import cast

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Collective,
    Reduce,
    ReduceScatter,
)
from quadrille.algorithms.schedule.parts import Coordinates, boundaries, is_mean
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Block, Tensor

Edges = tuple[int, ...]


def are_equal(edges: Edges) -> bool:
    """Whether all pieces are as long as the first.

    >>> are_equal((0, 2, 4)), are_equal((0, 2, 3))
    (True, False)
    """
    return len({stop - start for start, stop in pairwise(edges)}) == 1


def piece_edges(op: Collective, schedule: Schedule, place: Coordinates) -> tuple[Edges, Edges]:
    """Edges of the pieces of what is sent and of what is received [elements].

    Raises
    ------
    InputError : the layouts do not fit the op; the message names it
    """
    tensors = schedule.tensors
    match op:
        case AllGather():
            edges = _member_edges(op, tensors[op.source], tensors[op.into], place)
        case ReduceScatter():
            edges = _member_edges(op, tensors[op.into], tensors[op.source], place)
        case AllReduce():
            edges = (0, sum(tensors[name].block(place).elements for name in op.buffers))
        case Broadcast():
            edges = (0, tensors[op.into].block(place).elements)
        case Reduce():
            edges = (0, tensors[op.source].block(place).elements)
        case AllToAll():
            return _exchange_edges(tensors[op.source], tensors[op.into], op, place)
        case Barrier():
            edges = (0, 0)
    return edges, edges


def _member_edges(op: AllGather | ReduceScatter, part: Tensor, whole: Tensor, place: Coordinates) -> Edges:
    """Where each member's part lies in the flattened whole."""
    block = whole.block(place)
    if pieces := _next_cut(part, whole, op.axis):
        return pieces(block, place.grid.length(op.axis))
    edges = [0]
    for member in range(place.grid.length(op.axis)):
        start, stop = range_in(block, part.block(place.at(op.axis, member)))
        if start != edges[-1]:
            raise InputError(_misfit(op, part, whole))
        edges.append(stop)
    if edges[-1] != block.elements:
        raise InputError(_misfit(op, part, whole))
    return tuple(edges)


def _next_cut(part: Tensor, whole: Tensor, axis: Axis) -> Callable[[Block, int], Edges] | None:
    """The edges of the parts of a block, where they are it, cut once more over the axis; None where another cut is.

    So most layouts are, and the edges need no look at the members one by one.
    """
    if any(one.held_at is not None or one.stages is not None for one in (part, whole)):
        return None
    if part.columns != whole.columns or axis in whole.cut_over:
        return None
    if part.rows == whole.rows:
        return _pieces if part.shards == (*whole.shards, axis) else None
    if part.shards or whole.shards or whole.rows.panel is not None or whole.rows.rotated_by:
        return None
    if part.rows == replace(whole.rows, axes=(*whole.rows.axes, axis)) and not whole.rows.finer:
        return partial(_rows, each=whole.rows.unit)
    if part.rows == replace(whole.rows, finer=(*whole.rows.finer, axis)):
        return partial(_rows, each=1)
    return None


def _pieces(block: Block, members: int) -> Edges:
    return tuple(boundaries(block.elements, members))


def _rows(block: Block, members: int, *, each: int) -> Edges:
    rows, columns = block.rectangle_shape
    units = rows / each if is_mean(rows) else rows // each
    return tuple(edge * each * columns for edge in boundaries(cast(int, units), members))


def range_in(whole: Block, part: Block) -> tuple[int, int]:
    """Range of the flattened `whole` that `part` covers, which must be full rows of it, a range of its only row, or a
    piece; the whole may be a piece itself.

    >>> range_in(Block((2, 6), (0, 3)), Block((4, 6), (0, 3)))
    (6, 12)
    >>> range_in(Block((2, 6), (0, 3), (4, 9)), Block((2, 6), (0, 3), (7, 9)))
    (3, 5)
    """
    width = whole.columns[1] - whole.columns[0]
    if part.flat_range is not None and (part.rows, part.columns) == (whole.rows, whole.columns):
        before = 0 if whole.flat_range is None else whole.flat_range[0]
        return part.flat_range[0] - before, part.flat_range[1] - before
    if part.flat_range is not None or whole.flat_range is not None:
        return -1, -1
    if part.columns == whole.columns:
        return (part.rows[0] - whole.rows[0]) * width, (part.rows[1] - whole.rows[0]) * width
    if part.rows == whole.rows and whole.rows[1] - whole.rows[0] == 1:
        return part.columns[0] - whole.columns[0], part.columns[1] - whole.columns[0]
    return -1, -1


def _misfit(op: Collective, part: Tensor, whole: Tensor) -> str:
    return (
        f"op {op.name!r}: {part} is not {whole} cut over {op.axis} in whole rows or contiguous pieces, "
        f"one after the other in the order of the members"
    )


def _exchange_edges(source: Tensor, into: Tensor, op: AllToAll, place: Coordinates) -> tuple[Edges, Edges]:
    """Sizes of what goes to and comes from each member, packed one after the other."""
    sent, received = [0], [0]
    for member in range(place.grid.length(op.axis)):
        there = place.at(op.axis, member)
        sent.append(sent[-1] + shared_rectangle(source.block(place), into.block(there)).elements)
        received.append(received[-1] + shared_rectangle(source.block(there), into.block(place)).elements)
    if sent[-1] != source.block(place).elements or received[-1] != into.block(place).elements:
        raise InputError(f"op {op.name!r}: {into} along {op.axis} does not hold just what {source} holds")
    return tuple(sent), tuple(received)


def shared_rectangle(one: Block, other: Block) -> Block:
    """The rectangle that two rectangles share."""
    rows = max(one.rows[0], other.rows[0]), min(one.rows[1], other.rows[1])
    columns = max(one.columns[0], other.columns[0]), min(one.columns[1], other.columns[1])
    return Block((rows[0], max(rows)), (columns[0], max(columns)))
