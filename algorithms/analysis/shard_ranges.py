"""Shard ranges: the elements of a buffer that belong to each member of a collective, from the layouts of its tensors.

A collective moves shards of a flattened block, one or more for each member.  The
layouts must fit: the part of each member is a range of whole rows, or a contiguous
range of the flattened block, in the order of the members.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
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
from quadrille.algorithms.schedule.parts import Coordinates, boundaries, cut, is_mean
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Block, Tensor

Edges = tuple[int, ...]


def are_equal(edges: Edges) -> bool:
    """Whether all shards have the same length.

    >>> are_equal((0, 2, 4)), are_equal((0, 2, 3))
    (True, False)
    """
    return len({stop - start for start, stop in pairwise(edges)}) == 1


def shard_edges(op: Collective, schedule: Schedule, coordinates: Coordinates) -> tuple[Edges, Edges]:
    """Returns the edges of the shards sent and of the shards received [elements].

    Raises
    ------
    InputError : the layouts do not fit the op; the message names it
    """
    tensors = schedule.tensors
    match op:
        case AllGather() | ReduceScatter() if op.counts:
            part = tensors[op.source if isinstance(op, AllGather) else op.into]
            members = range(coordinates.grid.length(op.axis))
            parts = (part.block(coordinates.at(op.axis, member)).elements for member in members)
            edges = tuple(accumulate(parts, initial=0))
        case AllGather():
            edges = _member_edges(op, tensors[op.source], tensors[op.into], coordinates)
        case ReduceScatter():
            edges = _member_edges(op, tensors[op.into], tensors[op.source], coordinates)
        case AllReduce():
            edges = (0, sum(tensors[name].block(coordinates).elements for name in op.buffers))
        case Broadcast():
            edges = (0, tensors[op.into].block(coordinates).elements)
        case Reduce():
            edges = (0, tensors[op.source].block(coordinates).elements)
        case AllToAll() if op.counts:
            return _routed_edges(tensors[op.source], tensors[op.into], op, coordinates)
        case AllToAll():
            return _exchange_edges(tensors[op.source], tensors[op.into], op, coordinates)
        case Barrier():
            edges = (0, 0)
    return edges, edges


def _member_edges(op: AllGather | ReduceScatter, part: Tensor, whole: Tensor, coordinates: Coordinates) -> Edges:
    """Returns the edges of the members' parts in the flattened whole."""
    block = whole.block(coordinates)
    if edges_of := _next_cut(part, whole, op.axis):
        return edges_of(block, coordinates.grid.length(op.axis))
    edges = [0]
    for member in range(coordinates.grid.length(op.axis)):
        start, stop = range_in(block, part.block(coordinates.at(op.axis, member)))
        if start != edges[-1]:
            raise InputError(_misfit(op, part, whole))
        edges.append(stop)
    if edges[-1] != block.elements:
        raise InputError(_misfit(op, part, whole))
    return tuple(edges)


def _next_cut(part: Tensor, whole: Tensor, axis: Axis) -> Callable[[Block, int], Edges] | None:
    """Returns the function for the edges of the parts if `part` is `whole` cut once more over the axis, else None.

    In this common case the members need not be visited one by one.
    """
    if any(tensor.held_at is not None or tensor.stages is not None for tensor in (part, whole)):
        return None
    if part.columns != whole.columns or axis in whole.cut_over:
        return None
    if part.rows == whole.rows:
        return _shards if part.shards == (*whole.shards, axis) else None
    if part.shards or whole.shards or whole.rows.panel is not None or whole.rows.rotated_by:
        return None
    if part.rows == replace(whole.rows, axes=(*whole.rows.axes, axis)) and not whole.rows.finer:
        return partial(_rows, each=whole.rows.unit)
    if part.rows == replace(whole.rows, finer=(*whole.rows.finer, axis)):
        return partial(_rows, each=1)
    return None


def _shards(block: Block, members: int) -> Edges:
    """Edges of a flattened block that is cut into shards."""
    return tuple(boundaries(block.elements, members))


def _rows(block: Block, members: int, *, each: int) -> Edges:
    """Edges of a block that is cut by rows, in units of `each` rows."""
    rows, columns = block.rectangle_shape
    units = rows / each if is_mean(rows) else rows // each
    return tuple(edge * each * columns for edge in boundaries(cast(int, units), members))


def range_in(whole: Block, part: Block) -> tuple[int, int]:
    """Range of the flattened `whole` that `part` covers; (-1, -1) if it covers no contiguous range.

    The part is full rows, a range of the only row, or a shard; the whole may be a shard too.

    >>> range_in(Block((2, 6), (0, 3)), Block((4, 6), (0, 3)))
    (6, 12)
    >>> range_in(Block((2, 6), (0, 3), (4, 9)), Block((2, 6), (0, 3), (7, 9)))
    (3, 5)
    """
    if part.kept_range is not None and whole.kept_range is not None:
        same_block = replace(part, kept_range=None) == replace(whole, kept_range=None)
        before = whole.kept_range[0]
        return (part.kept_range[0] - before, part.kept_range[1] - before) if same_block else (-1, -1)
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


def _exchange_edges(source: Tensor, into: Tensor, op: AllToAll, coordinates: Coordinates) -> tuple[Edges, Edges]:
    """Returns the edges of what goes to and comes from each member of an all-to-all, packed consecutively."""
    sent, received = [0], [0]
    for member in range(coordinates.grid.length(op.axis)):
        member_coordinates = coordinates.at(op.axis, member)
        sent.append(sent[-1] + shared_rectangle(source.block(coordinates), into.block(member_coordinates)).elements)
        received.append(
            received[-1] + shared_rectangle(source.block(member_coordinates), into.block(coordinates)).elements
        )
    if sent[-1] != source.block(coordinates).elements or received[-1] != into.block(coordinates).elements:
        raise InputError(f"op {op.name!r}: {into} along {op.axis} does not hold just what {source} holds")
    return tuple(sent), tuple(received)


def _routed_edges(source: Tensor, into: Tensor, op: AllToAll, coordinates: Coordinates) -> tuple[Edges, Edges]:
    """Returns the edges of the rows that are expected to go to and to come from each member, for their experts.

    Each member has its rows sorted by expert; the experts of one member after the other have them.
    """
    own, members, member = (into if op.back else source), coordinates.grid.length(op.axis), coordinates.along[op.axis]
    of_experts = (source if op.back else into).rows
    loads = of_experts.loads
    ends = tuple(
        Fraction(sum(loads[: cut(len(loads), members, number)[1]]), sum(loads) + of_experts.dropped)
        for number in range(members if loads else 0)
    )

    def edge(rows: int, number: int) -> int:
        """Rows for the experts of the members before `number`, of a member that has some rows."""
        if not loads:
            return cut(rows, members, number)[0] if number < members else rows
        exact = rows * ends[number - 1] if number else Fraction(0)
        return cast(int, exact) if is_mean(rows) else round(exact)

    width = own.block(coordinates).rectangle_shape[1]

    def rows_at(sender: int) -> int:
        return own.block(coordinates.at(op.axis, sender)).rectangle_shape[0]

    first, last = rows_at(0), rows_at(members - 1)  # longer parts come first, so equal ends are equal parts
    rows_of = [first] * members if first == last else [rows_at(sender) for sender in range(members)]
    to_experts = tuple(edge(rows_of[member], number) * width for number in range(members + 1))
    pieces = {rows: (edge(rows, member + 1) - edge(rows, member)) * width for rows in {*rows_of}}
    from_members = tuple(accumulate((pieces[rows] for rows in rows_of), initial=0))
    return (from_members, to_experts) if op.back else (to_experts, from_members)


def shared_rectangle(first: Block, second: Block) -> Block:
    """Returns the intersection of two rectangles."""
    rows = max(first.rows[0], second.rows[0]), min(first.rows[1], second.rows[1])
    columns = max(first.columns[0], second.columns[0]), min(first.columns[1], second.columns[1])
    return Block((rows[0], max(rows)), (columns[0], max(columns)))
