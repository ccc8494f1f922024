"""The buffers that a rank keeps while it runs a schedule: what the runtime allocates and memory predictions add up."""

from collections.abc import Sequence
from dataclasses import dataclass

from quadrille.algorithms.analysis.coordinate_dependence import CoordinateKinds, Kind, PerKind, tensor_dependence
from quadrille.algorithms.analysis.folded_walk import FoldedWalks
from quadrille.algorithms.analysis.traffic import Traffic, op_amount, traffic
from quadrille.algorithms.collectives.choices import Choices
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
from quadrille.algorithms.schedule.tensors import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class Storage:
    """Elements that one rank keeps.

    Parameters
    ----------
    tensors : elements of one copy of each tensor that has a buffer of its own
    copies : how many copies of it
    products : room for a product that is then added to what is there
    reductions : room, on each lane, for what a reduction step receives
    packed, unpacked : room, on each lane, for what an all-to-all sends and receives; a bucket has the first alone
    """

    tensors: dict[str, int]
    copies: dict[str, int]
    item_bytes: dict[str, int]
    products: int
    reductions: dict[str, int]
    packed: dict[str, int]
    unpacked: dict[str, int]
    scratch_item_bytes: int

    @property
    def bytes(self) -> int:
        """All of it [B]."""
        kept = sum(size * self.copies[name] * self.item_bytes[name] for name, size in self.tensors.items())
        rooms = (self.reductions, self.packed, self.unpacked)
        scratch = self.products + sum(size for room in rooms for size in room.values())
        return kept + scratch * self.scratch_item_bytes


def storage(schedule: Schedule, place: Coordinates, choices: Choices) -> Storage:
    """What the rank at `place` keeps while it runs the schedule."""
    return storages(schedule, [place], choices)[0]


def storages(schedule: Schedule, places: Sequence[Coordinates], choices: Choices) -> list[Storage]:
    """What the rank at each of the places keeps while it runs the schedule."""
    known = _Known(schedule, choices)
    return [known.of(place) for place in places]


@dataclass(frozen=True, slots=True)
class _Room:
    """Elements of what an op adds up, and of what it packs and unpacks, if it does."""

    added: int = 0
    packed: int | None = None
    unpacked: int | None = None


class _Known:
    """What tensors and ops of a schedule need, found once for each kind of place."""

    def __init__(self, schedule: Schedule, choices: Choices) -> None:
        self._schedule, self._choices = schedule, choices
        self._walks = FoldedWalks(schedule, choices)
        self._room = PerKind(schedule, self._room_of)
        self._elsewhere = {*view_sources(schedule, tuple(all_ops(schedule))), *schedule.cached(gathered_in_place)}
        self._kinds = {
            name: CoordinateKinds(tensor_dependence(tensor, schedule), schedule.grid)
            for name, tensor in schedule.tensors.items()
        }
        self._capacities: dict[tuple[str, Kind], int] = {}
        self._own: dict[int, list[str]] = {}

    def of(self, place: Coordinates) -> Storage:
        """What the rank at `place` keeps."""
        schedule, own = self._schedule, self._tensors(place)
        products = 0
        reductions: dict[str, int] = {}
        packed: dict[str, int] = {}
        unpacked: dict[str, int] = {}
        for one in self._walks.of(place):
            room = self._room.of(one.op, one.coordinates)
            if room is None:
                continue
            if not isinstance(one.op, Communication):
                products = max(products, room.added)
                continue
            name = lane(one.op)
            for rooms, size in ((reductions, room.added), (packed, room.packed), (unpacked, room.unpacked)):
                if size is not None:
                    rooms[name] = max(rooms.get(name, 0), size)
        scratch = max(schedule.item_bytes(name) for name in schedule.tensors)
        return Storage(
            {name: self._capacity(name, place) for name in own},
            {name: schedule.tensors[name].copy_count(place) for name in own},
            {name: ITEM_BYTES[schedule.tensors[name].dtype or schedule.dtype] for name in own},
            products,
            reductions,
            packed,
            unpacked,
            scratch,
        )

    def _tensors(self, place: Coordinates) -> list[str]:
        """Those with a buffer of their own on the rank at `place`."""
        program = self._schedule.program(place)
        if id(program) not in self._own:
            schedule = self._schedule
            named = {name for op in ops(program) for name in (*writes(op), *reads(op))}
            touched = {schedule.tensors[name].band_of or name for name in named}
            touched |= {*schedule.inputs, *schedule.state, *schedule.outputs}
            self._own[id(program)] = [one for one in schedule.tensors if one in touched and one not in self._elsewhere]
        return self._own[id(program)]

    def _capacity(self, name: str, place: Coordinates) -> int:
        key = name, self._kinds[name].of(place)
        if key not in self._capacities:
            self._capacities[key] = self._schedule.tensors[name].capacity(place)
        return self._capacities[key]

    def _room_of(self, op: Op, place: Coordinates) -> _Room | None:
        """The room that an op needs beside its tensors; None where it needs none."""
        match op:
            case Gemm() if op.accumulate:
                return _Room(added=self._schedule.tensors[op.c].capacity(place))
            case Gemm() | Pointwise() | Kernel() | HostCopy():
                return None
            case AllToAll():
                moved = traffic(op, self._schedule, place, self._choices)
                if moved is None:
                    return None
                size = max(moved.edges[-1], moved.receive_edges[-1])
                return _Room(packed=size, unpacked=size)
            case _:
                on_wire = op_amount(op, self._schedule, place, self._choices)
                if on_wire is None:
                    return None
                if not isinstance(op, AllReduce) or not op.more:
                    return _Room(on_wire.added_elements)
                return _Room(
                    on_wire.added_elements, sum(self._schedule.tensors[name].capacity(place) for name in op.buffers)
                )


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
        renames = isinstance(op, AllGather | Broadcast | ReduceScatter) and is_single_rank(schedule, op.axis)
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


def is_gathered_in_place(schedule: Schedule, gather: AllGather) -> bool:
    """Whether what a gather reads lives in its place of what it fills, so that nothing copies it there."""
    found = schedule.cached(gathered_in_place).get(gather.source)
    return found is not None and found.into == gather.into


def gathered_in_place(schedule: Schedule) -> dict[str, AllGather]:
    """Operands that live in their place of what a gather fills, by name, and that gather.

    Nothing changes such an operand, and nothing but its gathers fills what it is gathered into, in which its place
    stays the same.
    """
    if len(schedule.roles) != 1:
        return {}
    gathers: dict[str, dict[str, AllGather]] = {}
    others: set[str] = set()
    for op in all_ops(schedule):
        if isinstance(op, AllGather) and not is_single_rank(schedule, op.axis):
            gathers.setdefault(op.into, {}).setdefault(op.source, op)
        else:
            others |= {*writes(op)}
    unchanged = {*schedule.inputs} - others - gathers.keys()
    kept = {*schedule.inputs, *schedule.outputs, *schedule.state}
    found: dict[str, AllGather] = {}
    for into, by_source in gathers.items():
        (source, gather), *more = by_source.items()
        if more or into in others | kept or source in found or source not in unchanged:
            continue
        alike = schedule.item_bytes(source) == schedule.item_bytes(into)
        if alike and _stays(schedule, source) and _stays(schedule, into):
            found[source] = gather
    return found


def _stays(schedule: Schedule, name: str) -> bool:
    """Whether a tensor has one buffer, on all ranks, and no loop moves its block."""
    tensor = schedule.tensors[name]
    moves = any(part.panel is not None or part.rotated_by for part in (tensor.rows, tensor.columns))
    somewhere = tensor.held_at is not None or tensor.stages is not None or tensor.on_host or tensor.band_of is not None
    return not (moves or somewhere or tensor.copies)


def is_single_rank(schedule: Schedule, axis: Axis) -> bool:
    """Whether the groups along the axis have one member."""
    return schedule.grid.length(axis) == 1


@dataclass(frozen=True, slots=True)
class LocalCopies:
    """Bytes copied before the first step and after the last."""

    before: int = 0
    after: int = 0


NONE = LocalCopies()


def local_copies(op: CommunicationOp, schedule: Schedule, place: Coordinates, moved: Traffic | None) -> LocalCopies:
    """Bytes that the rank at `place` copies locally; `moved` is the op's traffic there."""
    if moved is None:
        return _alone(op, schedule, place)
    of_members = isinstance(op, AllGather | AllToAll)
    own = moved.edges[moved.member + 1] - moved.edges[moved.member] if of_members else 0
    match op:
        case AllGather():
            return NONE if is_gathered_in_place(schedule, op) else LocalCopies(before=own * moved.item_bytes)
        case Broadcast():
            size = moved.edges[-1] * moved.item_bytes
            return LocalCopies(before=size) if moved.member == moved.root else NONE
        case Reduce():
            size = moved.edges[-1] * moved.item_bytes
            return LocalCopies(after=size) if moved.member == moved.root else NONE
        case AllReduce() if op.more:
            size = moved.edges[-1] * moved.item_bytes
            return LocalCopies(before=size, after=size)
        case AllToAll():
            packed = moved.edges[-1] + own
            return LocalCopies(packed * moved.item_bytes, moved.receive_edges[-1] * moved.item_bytes)
        case _:
            return NONE


def _alone(op: CommunicationOp, schedule: Schedule, place: Coordinates) -> LocalCopies:
    """In a group of one the result is a view where it can be, else a copy."""
    match op:
        case AllGather() | ReduceScatter() | Broadcast():
            if is_view(schedule, op.into, tuple(all_ops(schedule))):
                return NONE
            held = not isinstance(op, Broadcast) or evaluate(op.root, place) == place.along[op.axis]
            return LocalCopies(before=_bytes(schedule, op.into, place)) if held else NONE
        case Reduce() | AllToAll() | Shift():
            return LocalCopies(before=_bytes(schedule, op.source, place))
        case AllReduce() | Barrier() | Send() | Receive():
            return NONE


def _bytes(schedule: Schedule, name: str, place: Coordinates) -> int:
    return schedule.tensors[name].block(place).elements * schedule.item_bytes(name)
