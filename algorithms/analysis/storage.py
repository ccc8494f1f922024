"""Storage of a rank: sizes of the buffers that the runtime allocates, and bytes of its local copies.

A *view* is a tensor that shares the buffer of another tensor: it is declared as a shard of that tensor's block, or only
a single-rank group moves the data.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quadrille.algorithms.analysis.coordinate_dependence import (
    CoordinateKinds,
    Kind,
    OpDependences,
    PerKind,
    TensorDependences,
)
from quadrille.algorithms.analysis.folded_walk import folded_walks
from quadrille.algorithms.analysis.traffic import OpAmounts, Traffic, traffic
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.schedule.expressions import evaluate
from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Communication,
    CommunicationOp,
    Gemm,
    HostCopy,
    Kernel,
    Op,
    Pointwise,
    Receive,
    Reduce,
    ReduceScatter,
    Send,
    Shift,
    lane,
    reads,
    writes,
)
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import ops
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, Tensor


@dataclass(frozen=True, slots=True)
class Storage:
    """Elements that one rank stores.

    Parameters
    ----------
    tensors : elements of one copy of each tensor with a buffer of its own
    copies : number of copies of each tensor
    item_bytes : bytes of an element of each tensor
    products : scratch for a product that is then accumulated
    reductions : scratch, by lane, for the elements that a reduction step receives
    packed, unpacked : scratch, by lane, for the send and receive buffers of an all-to-all; a gradient bucket has a
        packed buffer only
    scratch_item_bytes : bytes of an element of the scratch buffers
    on_host : tensors in host memory
    """

    tensors: dict[str, int]
    copies: dict[str, int]
    item_bytes: dict[str, int]
    products: int
    reductions: dict[str, int]
    packed: dict[str, int]
    unpacked: dict[str, int]
    scratch_item_bytes: int
    on_host: frozenset[str] = frozenset()

    @property
    def bytes(self) -> int:
        """All buffers on the device together [B]."""
        tensor_bytes = sum(self._bytes_of(name) for name in self.tensors if name not in self.on_host)
        buffers_by_lane = (self.reductions, self.packed, self.unpacked)
        scratch = self.products + sum(size for buffer in buffers_by_lane for size in buffer.values())
        return tensor_bytes + scratch * self.scratch_item_bytes

    @property
    def host_bytes(self) -> int:
        """All buffers in host memory together [B]."""
        return sum(map(self._bytes_of, self.on_host))

    def _bytes_of(self, name: str) -> int:
        return self.tensors[name] * self.copies[name] * self.item_bytes[name]


def storage(schedule: Schedule, coordinates: Coordinates, choices: Choices) -> Storage:
    """Returns the buffer sizes of the rank at the coordinates [elements]."""
    return storages(schedule, [coordinates], choices)[0]


def storages(schedule: Schedule, ranks: Sequence[Coordinates], choices: Choices) -> list[Storage]:
    """Returns the buffer sizes of several ranks [elements].

    Parameters
    ----------
    schedule : the schedule
    ranks : coordinates of the ranks
    choices : implementation and algorithms of the collectives
    """
    buffers = schedule.cached(_RankBuffers, choices)
    return [buffers.of(coordinates) for coordinates in ranks]


@dataclass(frozen=True, slots=True)
class _Scratch:
    """Scratch elements of an op: accumulated, packed and unpacked, if any."""

    added: int = 0
    packed: int | None = None
    unpacked: int | None = None


class _RankBuffers:
    """Buffers that tensors and ops of a schedule need, computed once for each kind of coordinates."""

    def __init__(self, schedule: Schedule, choices: Choices) -> None:
        self._schedule, self._choices = schedule, choices
        self._amounts = schedule.cached(OpAmounts, choices)
        self._walks = folded_walks(schedule, choices)
        self._scratch = PerKind(schedule, self._scratch_of)
        self._elsewhere = {*schedule.cached(views), *schedule.cached(gathered_in_place)}
        dependences = schedule.cached(TensorDependences)
        self._kinds = {name: CoordinateKinds(dependences.of(name), schedule.grid) for name in schedule.tensors}
        self._capacities: dict[tuple[str, Kind], int] = {}
        self._own: dict[int, list[str]] = {}
        self._ops: dict[int, list[Op] | None] = {}

    def of(self, coordinates: Coordinates) -> Storage:
        """Buffers of the rank at the coordinates."""
        schedule, own = self._schedule, self._tensors(coordinates)
        products = 0
        reductions: dict[str, int] = {}
        packed: dict[str, int] = {}
        unpacked: dict[str, int] = {}
        for op, op_coordinates in self._instances(coordinates):
            op_scratch = self._scratch.of(op, op_coordinates)
            if op_scratch is None:
                continue
            if not isinstance(op, Communication):
                products = max(products, op_scratch.added)
                continue
            name = lane(op)
            for buffers_by_lane, size in (
                (reductions, op_scratch.added),
                (packed, op_scratch.packed),
                (unpacked, op_scratch.unpacked),
            ):
                if size is not None:
                    buffers_by_lane[name] = max(buffers_by_lane.get(name, 0), size)
        scratch = max(schedule.item_bytes(name) for name in schedule.tensors)
        return Storage(
            {name: self._capacity(name, coordinates) for name in own},
            {name: schedule.tensors[name].copy_count(coordinates) for name in own},
            {name: ITEM_BYTES[schedule.tensors[name].dtype or schedule.dtype] for name in own},
            products,
            reductions,
            packed,
            unpacked,
            scratch,
            frozenset(name for name in own if schedule.tensors[name].on_host),
        )

    def _instances(self, coordinates: Coordinates) -> Iterator[tuple[Op, Coordinates]]:
        """The ops of the rank with coordinates of each kind, of which one is enough where no loop changes a size."""
        program = self._schedule.program(coordinates)
        if id(program) not in self._ops:
            distinct_ops = {id(op): op for op in ops(program)}
            dependences = self._schedule.cached(OpDependences)
            is_same_everywhere = not any(dependences.of(op).loops for op in distinct_ops.values())
            self._ops[id(program)] = list(distinct_ops.values()) if is_same_everywhere else None
        same_ops = self._ops[id(program)]
        if same_ops is not None:
            yield from ((op, coordinates) for op in same_ops)
            return
        for instance in self._walks.of(coordinates):
            yield instance.op, instance.coordinates

    def _tensors(self, coordinates: Coordinates) -> list[str]:
        """Tensors with a buffer of their own on the rank."""
        program = self._schedule.program(coordinates)
        if id(program) not in self._own:
            schedule = self._schedule
            named = {name for op in ops(program) for name in (*writes(op), *reads(op))}
            touched = {schedule.tensors[name].band_of or name for name in named}
            touched |= {*schedule.inputs, *schedule.state, *schedule.outputs}
            for _ in range(2):  # a bucket of a shard
                touched |= {owner for name in touched if (owner := _owner(schedule.tensors[name])) is not None}
            self._own[id(program)] = [
                tensor for tensor in schedule.tensors if tensor in touched and tensor not in self._elsewhere
            ]
        return self._own[id(program)]

    def _capacity(self, name: str, coordinates: Coordinates) -> int:
        key = name, self._kinds[name].of(coordinates)
        if key not in self._capacities:
            self._capacities[key] = self._schedule.tensors[name].capacity(coordinates)
        return self._capacities[key]

    def _scratch_of(self, op: Op, coordinates: Coordinates) -> _Scratch | None:
        """Scratch that an op needs beside its tensors, or None."""
        match op:
            case Gemm() if op.accumulate:
                return _Scratch(added=self._schedule.tensors[op.c].capacity(coordinates))
            case Gemm() | Pointwise() | Kernel() | HostCopy():
                return None
            case AllToAll():
                op_traffic = traffic(op, self._schedule, coordinates, self._choices)
                if op_traffic is None:
                    return None
                size = max(op_traffic.edges[-1], op_traffic.receive_edges[-1])
                if op.counts:
                    return self._sorted(op, 0, size)
                return _Scratch(packed=size, unpacked=size)
            case _:
                amount = self._amounts.of(op, coordinates)
                if amount is None:
                    return None
                if isinstance(op, AllGather | ReduceScatter) and op.counts:
                    whole = self._schedule.tensors[op.into if isinstance(op, AllGather) else op.source]
                    return self._sorted(op, amount.added_elements, whole.capacity(coordinates))
                if not isinstance(op, AllReduce) or not op.more:
                    return _Scratch(amount.added_elements)
                return _Scratch(
                    amount.added_elements,
                    sum(self._schedule.tensors[name].capacity(coordinates) for name in op.buffers),
                )

    def _sorted(self, op: AllToAll | AllGather | ReduceScatter, added: int, size: int) -> _Scratch:
        """Scratch of rows that are sorted by expert after they travel, or before they return."""
        if not sorts_rows(op, self._schedule):
            return _Scratch(added)
        returns = op.back if isinstance(op, AllToAll) else isinstance(op, ReduceScatter)
        return _Scratch(added, packed=size) if returns else _Scratch(added, unpacked=size)


def is_view(schedule: Schedule, name: str) -> bool:
    """Whether the tensor is always another name for a region of another tensor."""
    return name in schedule.cached(views)


def views(schedule: Schedule) -> dict[str, str]:
    """Returns the tensor that owns the buffer, by the name of each view."""
    return view_sources(schedule, tuple(all_ops(schedule)))


def view_sources(schedule: Schedule, written: tuple[Op, ...]) -> dict[str, str]:
    """Returns the tensor that owns the buffer, by the name of each view, from the ops that may write views.

    A view is declared as a shard, or it is written only by gathers, scatters or broadcasts of single-rank groups, in
    the programs of all roles.  Its source has at least the copies of the view.
    """
    owners = ((name, _owner(tensor)) for name, tensor in schedule.tensors.items())
    shards = {name: holder for name, holder in owners if holder is not None}
    direct: dict[str, str] = {}
    not_views: set[str] = set()
    for op in written:
        renames = isinstance(op, AllGather | Broadcast | ReduceScatter) and is_single_rank(schedule, op.axis)
        for name in writes(op):
            if renames and isinstance(op, AllGather | Broadcast | ReduceScatter) and name == op.into:
                direct[name] = op.source
                if not set(schedule.tensors[name].copies) <= set(schedule.tensors[op.source].copies):
                    not_views.add(name)
            else:
                not_views.add(name)
    direct = {name: source for name, source in direct.items() if name not in not_views} | shards

    def owner(name: str) -> str:
        return owner(direct[name]) if name in direct else name

    return {name: owner(name) for name in direct}


def _owner(tensor: Tensor) -> str | None:
    """Returns the tensor whose buffer is declared to store this tensor."""
    return tensor.shard_of or tensor.staged_in


def is_gathered_in_place(schedule: Schedule, gather: AllGather) -> bool:
    """Whether the source of a gather is stored inside the gathered tensor, so that no local copy is needed."""
    gathering = schedule.cached(gathered_in_place).get(gather.source)
    is_operand_in_place = gathering is not None and gathering.into == gather.into
    return is_operand_in_place or schedule.tensors[gather.source].shard_of == gather.into


def gathered_in_place(schedule: Schedule) -> dict[str, AllGather]:
    """Returns the operands stored inside the tensor that they are gathered into, with their gather.

    Nothing modifies such an operand, only its gathers fill the gathered tensor, and its position inside that tensor is
    fixed.
    """
    if len(schedule.roles) != 1:
        return {}
    gathers: dict[str, dict[str, AllGather]] = {}
    not_views: set[str] = set()
    for op in all_ops(schedule):
        if isinstance(op, AllGather) and not op.counts and not is_single_rank(schedule, op.axis):
            gathers.setdefault(op.into, {}).setdefault(op.source, op)
        else:
            not_views |= {*writes(op)}
    unchanged = {name for name in schedule.inputs if schedule.tensors[name].shard_of is None}
    unchanged -= not_views | gathers.keys()
    persistent = {*schedule.inputs, *schedule.outputs, *schedule.state}
    in_place: dict[str, AllGather] = {}
    for into, by_source in gathers.items():
        (source, gather), *more = by_source.items()
        if more or into in not_views | persistent or source in in_place or source not in unchanged:
            continue
        same_type = schedule.item_bytes(source) == schedule.item_bytes(into)
        if same_type and _is_fixed(schedule, source) and _is_fixed(schedule, into):
            in_place[source] = gather
    return in_place


def _is_fixed(schedule: Schedule, name: str) -> bool:
    """Whether a tensor has one buffer, on all ranks, whose block no loop moves."""
    tensor = schedule.tensors[name]
    moves = not (tensor.rows.is_fixed and tensor.columns.is_fixed)
    somewhere = tensor.held_at is not None or tensor.stages is not None or tensor.on_host or tensor.band_of is not None
    return not (moves or somewhere or tensor.copies)


def is_single_rank(schedule: Schedule, axis: Axis) -> bool:
    """Whether the groups along the axis have one member."""
    return schedule.grid.length(axis) == 1


@dataclass(frozen=True, slots=True)
class LocalCopies:
    """Bytes that a rank copies locally before the first and after the last step of a communication op [B]."""

    before: int = 0
    after: int = 0


NONE = LocalCopies()


def local_copies(
    op: CommunicationOp, schedule: Schedule, coordinates: Coordinates, op_traffic: Traffic | None
) -> LocalCopies:
    """Returns the bytes that a rank copies locally for a communication op.

    A gather first copies the member's own part into place, unless it is stored there.  The root of a broadcast extracts
    the region, the root of a reduce inserts it.  An all-to-all packs, keeps its own piece and unpacks.

    Parameters
    ----------
    op : communication op
    schedule : schedule of the op
    coordinates : coordinates of the rank
    op_traffic : messages of the op on this rank; None if it sends nothing
    """
    if op_traffic is None:
        return _single_rank_copies(op, schedule, coordinates)
    of_members = isinstance(op, AllGather | AllToAll)
    own = op_traffic.edges[op_traffic.member + 1] - op_traffic.edges[op_traffic.member] if of_members else 0
    match op:
        case AllGather() if op.counts:
            after = op_traffic.edges[-1] if sorts_rows(op, schedule) else 0
            return LocalCopies(own * op_traffic.item_bytes, after * op_traffic.item_bytes)
        case ReduceScatter() if op.counts and sorts_rows(op, schedule):
            return LocalCopies(before=op_traffic.edges[-1] * op_traffic.item_bytes)
        case AllGather():
            return NONE if is_gathered_in_place(schedule, op) else LocalCopies(before=own * op_traffic.item_bytes)
        case Broadcast():
            size = op_traffic.edges[-1] * op_traffic.item_bytes
            return LocalCopies(before=size) if op_traffic.member == op_traffic.root else NONE
        case Reduce():
            size = op_traffic.edges[-1] * op_traffic.item_bytes
            return LocalCopies(after=size) if op_traffic.member == op_traffic.root else NONE
        case AllReduce() if op.more:
            size = op_traffic.edges[-1] * op_traffic.item_bytes
            return LocalCopies(before=size, after=size)
        case AllToAll() if op.counts:
            sorted_again = sorts_rows(op, schedule)
            packed = own + (op_traffic.edges[-1] if sorted_again and op.back else 0)
            unpacked = op_traffic.receive_edges[-1] if sorted_again and not op.back else 0
            return LocalCopies(packed * op_traffic.item_bytes, unpacked * op_traffic.item_bytes)
        case AllToAll():
            packed = op_traffic.edges[-1] + own
            return LocalCopies(packed * op_traffic.item_bytes, op_traffic.receive_edges[-1] * op_traffic.item_bytes)
        case _:
            return NONE


def sorts_rows(op: AllToAll | AllGather | ReduceScatter, schedule: Schedule) -> bool:
    """Whether the rows of all members are sorted by expert, or back: a rank has several experts."""
    experts = schedule.sizes[schedule.tensors[op.counts].columns.dimension]
    return experts > schedule.grid.expert


def _single_rank_copies(op: CommunicationOp, schedule: Schedule, coordinates: Coordinates) -> LocalCopies:
    """Returns the local copies in a single-rank group: none if the result is a view."""
    match op:
        case AllGather() | ReduceScatter() | Broadcast():
            if is_view(schedule, op.into):
                return NONE
            has_source = not isinstance(op, Broadcast) or evaluate(op.root, coordinates) == coordinates.along[op.axis]
            return LocalCopies(before=_bytes(schedule, op.into, coordinates)) if has_source else NONE
        case Reduce() | AllToAll() | Shift():
            return LocalCopies(before=_bytes(schedule, op.source, coordinates))
        case AllReduce() | Barrier() | Send() | Receive():
            return NONE


def _bytes(schedule: Schedule, name: str, coordinates: Coordinates) -> int:
    return schedule.tensors[name].block(coordinates).elements * schedule.item_bytes(name)
