"""Traffic: the bytes that one rank sends and receives in each step of a communication op.

Two sources are combined.  The layouts of the op's tensors say which contiguous range of a buffer belongs to which
member of the group (`shard_ranges.py`).  The lowered collective says which pieces of the buffer a member sends to which
peer in each step (`lowered_collective.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.coordinate_dependence import PerKind
from quadrille.algorithms.analysis.root_distances import DISTANCE_ONLY
from quadrille.algorithms.analysis.shard_ranges import are_equal, shard_edges
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.collectives.lowered_collective import CollectiveAlgorithm, Lowered
from quadrille.algorithms.collectives.lowering import lower
from quadrille.algorithms.collectives.run_length_programs import PieceRange, Step
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.ops import (
    VECTOR_CALL_KINDS,
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Calls,
    Collective,
    CollectiveKind,
    Communication,
    CommunicationOp,
    Op,
    Pointwise,
    Receive,
    Reduce,
    ReduceScatter,
    Send,
    Shift,
    collective_kind,
)
from quadrille.algorithms.schedule.parts import Coordinates, boundaries
from quadrille.algorithms.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Exchange:
    """The elements that a rank sends and receives in one step.

    Parameters
    ----------
    send_to, receive_from : peers, as coordinates along the op's axis; None if that side is idle
    send, receive : (start, stop) ranges of elements of the buffer
    reduce : whether received elements are added to those held
    """

    send_to: int | None
    send: tuple[tuple[int, int], ...]
    receive_from: int | None
    receive: tuple[tuple[int, int], ...]
    reduce: bool

    @property
    def sent(self) -> int:
        """Number of elements sent."""
        return sum(stop - start for start, stop in self.send)

    @property
    def received(self) -> int:
        """Number of elements received."""
        return sum(stop - start for start, stop in self.receive)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The messages of one rank in one instance of a communication op.

    Parameters
    ----------
    member : coordinate of the rank along the op's axis
    lowered : steps of the collective
    edges : starts of the pieces of the buffer, and the end of the last [elements]
    receive_edges : edges of the receive buffer; equal to `edges` except in an all-to-all [elements]
    item_bytes : bytes of an element
    root : root member of a broadcast or reduce
    """

    member: int
    lowered: Lowered
    edges: tuple[int, ...]
    receive_edges: tuple[int, ...]
    item_bytes: int
    root: int = 0

    def exchanges(self) -> Iterator[Exchange]:
        """Yields the steps, with element ranges in place of piece numbers."""
        for step in self.lowered.program(self.member):
            yield Exchange(
                step.send_to,
                ranges(step.send, self.edges),
                step.receive_from,
                ranges(step.receive, self.receive_edges),
                step.reduce,
            )

    @property
    def bytes_sent(self) -> int:
        """Bytes that the rank sends in the op [B]."""
        return sum(exchange.sent for exchange in self.exchanges()) * self.item_bytes


def calls_of(op: Collective, op_traffic: Traffic, choices: Choices) -> Calls | None:
    """Returns the MPI calls that execute a collective, or None for a kind with one call only.

    Regular calls require equal shards; unequal shards use the vector calls, whatever was chosen.
    """
    if collective_kind(op) not in VECTOR_CALL_KINDS:
        return None
    return choices.of(op.name).calls if are_equal(op_traffic.edges) else "vector"


def ranges(run: PieceRange | None, edges: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Element ranges of consecutive pieces: one, two across the end of the buffer, or one for each strided piece; empty
    ranges are omitted.

    >>> ranges(PieceRange(2, 2), (0, 4, 8, 9))
    ((8, 9), (0, 4))
    >>> ranges(PieceRange(1, 2, spacing=2), (0, 4, 8, 9, 11))
    ((4, 8), (9, 11))
    """
    if run is None:
        return ()
    pieces = len(edges) - 1
    if run.spacing > 1:
        apart = ((run.first + j * run.spacing) % pieces for j in range(run.count))
        return tuple((edges[i], edges[i + 1]) for i in apart if edges[i + 1] > edges[i])
    end = run.first + run.count
    spans = [(edges[run.first], edges[min(end, pieces)])]
    if end > pieces:
        spans.append((edges[0], edges[end - pieces]))
    return tuple((start, stop) for start, stop in spans if stop > start)


def elements_of(run: PieceRange | None, edges: tuple[int, ...]) -> int:
    """Number of elements of consecutive pieces: the total length of `ranges`.

    >>> elements_of(PieceRange(2, 2), (0, 4, 8, 9)), elements_of(PieceRange(1, 2, spacing=2), (0, 4, 8, 9, 11))
    (5, 6)
    """
    if run is None:
        return 0
    if run.spacing > 1:
        return sum(stop - start for start, stop in ranges(run, edges))
    pieces, end = len(edges) - 1, run.first + run.count
    if end <= pieces:
        return edges[end] - edges[run.first]
    return edges[pieces] - edges[run.first] + edges[end - pieces] - edges[0]


def traffic(op: CommunicationOp, schedule: Schedule, coordinates: Coordinates, choices: Choices) -> Traffic | None:
    """Returns the messages of the rank at the coordinates, or None if the op sends nothing.

    Parameters
    ----------
    op : communication op
    schedule : schedule of the op
    coordinates : coordinates of the rank and its loop indices
    choices : implementation and algorithms of the collectives

    Raises
    ------
    InputError : the layouts do not fit the op; the message names it
    """
    members = coordinates.grid.length(op.axis)
    member = coordinates.along[op.axis]
    match op:
        case Send() | Receive() | Shift():
            return _point_to_point(op, schedule, coordinates)
        case AllGather() | ReduceScatter() | AllReduce() | Broadcast() | Reduce() | AllToAll() | Barrier():
            if members == 1:
                return None
            edges, receive_edges = shard_edges(op, schedule, coordinates)
            item = _item_bytes(op, schedule)
            root = evaluate(op.root, coordinates) if isinstance(op, Broadcast | Reduce) else 0
            lowered = _lowered(op, choices, members, root, edges[-1], item)
            if isinstance(op, AllReduce | Broadcast | Reduce):
                edges = receive_edges = tuple(boundaries(edges[-1], lowered.pieces))
            return Traffic(member, lowered, edges, receive_edges, item, root)


def _lowered(op: Collective, choices: Choices, members: int, root: int, elements: int, item_bytes: int) -> Lowered:
    kind, size = collective_kind(op), elements * item_bytes
    op_choices = choices.of(op.name)
    algorithm, per_node = op_choices.algorithm(kind), op_choices.ranks_per_node(op.axis)
    return lower(
        kind,
        algorithm,
        members,
        root=root,
        size_bytes=size,
        per_node=per_node,
        elements=elements,
        chunk_bytes=op_choices.chunk_bytes,
    )


def _item_bytes(op: CommunicationOp, schedule: Schedule) -> int:
    match op:
        case AllReduce():
            return schedule.item_bytes(op.buffer)
        case Receive():
            return schedule.item_bytes(op.into)
        case AllGather() | ReduceScatter() | Broadcast() | Reduce() | AllToAll() | Send() | Shift():
            return schedule.item_bytes(op.source)
        case Barrier():
            return 1


def _point_to_point(op: Send | Receive | Shift, schedule: Schedule, coordinates: Coordinates) -> Traffic | None:
    members, member = coordinates.grid.length(op.axis), coordinates.along[op.axis]
    item = _item_bytes(op, schedule)
    match op:
        case Send():
            step = Step(send_to=_peer(op, evaluate(op.to, coordinates), members, member), send=PieceRange(0, 1))
            sent, received = schedule.tensors[op.source].block(coordinates).elements, 0
        case Receive():
            step = Step(
                receive_from=_peer(op, evaluate(op.sender, coordinates), members, member), receive=PieceRange(0, 1)
            )
            sent, received = 0, schedule.tensors[op.into].block(coordinates).elements
        case Shift():
            distance = evaluate(op.distance, coordinates)
            if distance % members == 0:
                return None
            step = Step(
                (member + distance) % members, PieceRange(0, 1), (member - distance) % members, PieceRange(0, 1)
            )
            sent = schedule.tensors[op.source].block(coordinates).elements
            received = schedule.tensors[op.into].block(written_coordinates(op, schedule, coordinates)).elements
    lowered = Lowered("pairwise", members, 1, 1, lambda _member, _step: step)
    return Traffic(member, lowered, (0, sent), (0, received), item)


def written_coordinates(op: Shift | Pointwise, schedule: Schedule, coordinates: Coordinates) -> Coordinates:
    """Coordinates of the iteration whose copy the op writes."""
    copies = schedule.tensors[op.into].copies
    if not copies or not op.iteration_offset:
        return coordinates
    loop, _ = copies[-1]
    return coordinates.during(loop, coordinates.indices.get(loop, 0) + op.iteration_offset)


def _peer(op: Op, coordinate: int, members: int, own: int) -> int:
    if not 0 <= coordinate < members or coordinate == own:
        raise InputError(
            f"op {op.name!r} of member {own}: member {coordinate} is no other one of the {members} in its group"
        )
    return coordinate


MOST_CACHED = 1 << 16
MOST_STEPS_ONE_BY_ONE = 256
"""Steps of a collective that are walked without arrays, which cost as much as some hundred steps."""


@dataclass(frozen=True, slots=True)
class OpAmount:
    """The bytes that one rank sends, and the elements that it adds, in one instance of an op.

    Parameters
    ----------
    sent_bytes : bytes sent [B]
    added_elements : most elements received in one step to be added
    algorithm : algorithm of a collective; None for point-to-point ops
    """

    sent_bytes: int
    added_elements: int
    algorithm: CollectiveAlgorithm | None


def op_amount(op: CommunicationOp, schedule: Schedule, coordinates: Coordinates, choices: Choices) -> OpAmount | None:
    """Returns the amounts of an op on the rank at the coordinates, or None if the op sends nothing.

    In rooted collectives the amounts depend on the distance from the root only, so the steps of SUMMA's broadcasts are
    not visited in every iteration.

    Parameters
    ----------
    op : communication op
    schedule : schedule of the op
    coordinates : coordinates of the rank and its loop indices
    choices : implementation and algorithms of the collectives
    """
    if isinstance(op, Broadcast | Reduce):
        members, kind = coordinates.grid.length(op.axis), collective_kind(op)
        op_choices = choices.of(op.name)
        algorithm, chunk = op_choices.algorithm(kind), op_choices.chunk_bytes
        if members > 1 and algorithm in DISTANCE_ONLY:
            tensor = schedule.tensors[op.into if isinstance(op, Broadcast) else op.source]
            distance = (coordinates.along[op.axis] - evaluate(op.root, coordinates)) % members
            item = schedule.item_bytes(op.source)
            return _from_root(kind, algorithm, members, distance, tensor.block(coordinates).elements, item, chunk)
    op_traffic = traffic(op, schedule, coordinates, choices)
    return None if op_traffic is None else _amount(op_traffic, isinstance(op, Collective))


class OpAmounts:
    """The amounts of the communication ops of a schedule, computed once for each kind of coordinates.

    Volumes and the sizes of buffers share one instance (`schedule.cached(OpAmounts, choices)`).
    """

    def __init__(self, schedule: Schedule, choices: Choices) -> None:
        self._amounts = PerKind(schedule, lambda op, coordinates: _amount_of(op, schedule, coordinates, choices))

    def of(self, op: Op, coordinates: Coordinates) -> OpAmount | None:
        """Amounts of the op on the rank at the coordinates; None if it sends nothing."""
        return self._amounts.of(op, coordinates)


def _amount_of(op: Op, schedule: Schedule, coordinates: Coordinates, choices: Choices) -> OpAmount | None:
    return op_amount(op, schedule, coordinates, choices) if isinstance(op, Communication) else None


@lru_cache(MOST_CACHED)
def _from_root(
    kind: CollectiveKind,
    algorithm: CollectiveAlgorithm,
    members: int,
    distance: int,
    elements: int,
    item: int,
    chunk: int,
) -> OpAmount:
    """Returns the amounts of the member `distance` ranks after the root."""
    lowered = lower(kind, algorithm, members, size_bytes=elements * item, elements=elements, chunk_bytes=chunk)
    edges = tuple(boundaries(elements, lowered.pieces))
    return _amount(Traffic(distance, lowered, edges, edges, item), collective=True)


def _amount(op_traffic: Traffic, collective: bool) -> OpAmount:
    many = op_traffic.lowered.steps > MOST_STEPS_ONE_BY_ONE
    sent, added = (_amount_of_sections if many else _amount_of_steps)(op_traffic)
    return OpAmount(sent * op_traffic.item_bytes, added, op_traffic.lowered.algorithm if collective else None)


def _amount_of_steps(op_traffic: Traffic) -> tuple[int, int]:
    """The elements that a member sends, and the most that it adds in a step."""
    sent = added = 0
    for step in op_traffic.lowered.program(op_traffic.member):
        sent += elements_of(step.send, op_traffic.edges)
        if step.reduce:
            added = max(added, elements_of(step.receive, op_traffic.receive_edges))
    return sent, added


def _amount_of_sections(op_traffic: Traffic) -> tuple[int, int]:
    """As `_amount_of_steps`, for many steps: all steps of a section at once."""
    edges, receive_edges = np.array(op_traffic.edges), np.array(op_traffic.receive_edges)
    sent, added = 0, 0
    for section in op_traffic.lowered.sections():
        sent += sum(_lengths(*section.sends_of(op_traffic.member), section.spacing, edges).tolist())
        reduces = section.reduce if isinstance(section.reduce, bool) else section.reduce[op_traffic.member]
        if reduces:
            received = _lengths(*section.receives_of(op_traffic.member), section.spacing, receive_edges)
            added = max(added, *received.tolist(), 0)
    return sent, added


def _lengths(firsts: NDArray[np.int64], count: int, spacing: int, edges: NDArray[Any]) -> NDArray[Any]:
    """The elements of `count` pieces from each first piece, as `elements_of`."""
    pieces = len(edges) - 1
    if spacing > 1:
        taken = (firsts[:, None] + spacing * np.arange(count)) % pieces
        return np.asarray((edges[taken + 1] - edges[taken]).sum(axis=1))
    ends = firsts + count
    around = np.where(ends > pieces, edges[np.maximum(ends - pieces, 0)] - edges[0], 0)
    return np.asarray(edges[np.minimum(ends, pieces)] - edges[firsts] + around)
