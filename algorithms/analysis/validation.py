"""Validation of a schedule before a run: names, shapes and partial sums; every message names the faulty op.

A product over a dimension that an axis cuts is a partial sum over that axis until a reduction along the axis.  The
checks follow partial sums through the program.  A partial sum that is reduced twice, or never, is an error.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from quadrille.algorithms.analysis.coordinate_dependence import PerKind
from quadrille.algorithms.analysis.layout_checks import check_op
from quadrille.algorithms.analysis.rank_symmetry import equivalent_ranks
from quadrille.algorithms.collectives.collective_choices import Choices
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import WITHIN_STAGE, Axis
from quadrille.algorithms.schedule.kernel_signatures import OF_EXPERTS, SIGNATURES, Summed
from quadrille.algorithms.schedule.ops import (
    AllReduce,
    Gemm,
    Kernel,
    Op,
    Pointwise,
    Reduce,
    ReduceScatter,
    Shift,
    kind,
    reads,
    writes,
)
from quadrille.algorithms.schedule.parts import Coordinates, Part
from quadrille.algorithms.schedule.program import Program, Repeat, ops
from quadrille.algorithms.schedule.schedule import Role, Schedule
from quadrille.algorithms.schedule.tensors import Tensor, bands_of

MOST_RANKS = 256
"""Largest number of ranks on which shapes are checked, if more of them differ."""


def validate(schedule: Schedule) -> Schedule:
    """Returns the schedule unchanged, if it has no faults.

    Raises
    ------
    InputError : names the op and the fault
    """
    _check_shards(schedule)
    for role in schedule.roles:
        _check_names(schedule, role)
        _check_shapes(schedule, role)
        _Sums(schedule, _Pending(schedule)).follow(role)
    tracked = _TrackedNames(schedule)
    written = {name for role in schedule.roles for op in ops(role.program) for name in writes(op)}
    for name in schedule.outputs:
        if name not in written and not written.issuperset(tracked.names_of(name)):
            raise InputError(f"schedule {schedule.name}: output {name!r} is written by no op")
    return schedule


def _check_shards(schedule: Schedule) -> None:
    """Checks that a tensor stored in the buffer of another tensor is that tensor, cut over more axes."""
    for name, tensor in schedule.tensors.items():
        if tensor.shard_of is None:
            continue
        owner = schedule.tensors.get(tensor.shard_of)
        if owner is None:
            raise InputError(f"tensor {name!r} is a shard of {tensor.shard_of!r}, which is not declared")
        cut = tensor.shards[: len(owner.shards)] == owner.shards and len(tensor.shards) > len(owner.shards)
        dtypes = {part.dtype or schedule.dtype for part in (tensor, owner)}
        same_layout = replace(
            tensor,
            name=owner.name,
            sharded_over=owner.sharded_over,
            shard_of=None,
            dtype=owner.dtype,
            value_of=owner.value_of,
        )
        if tensor.buckets is not None and owner.buckets is None:
            same_layout, cut = replace(same_layout, buckets=None), True
        if not cut or len(dtypes) > 1 or same_layout != replace(owner, shard_of=None):
            raise InputError(f"tensor {name!r} is a shard of {owner.name!r}, but {tensor} is no shard of {owner}")


def _check_names(schedule: Schedule, role: Role) -> None:
    _check_declared(schedule, role)
    tracked = _TrackedNames(schedule)
    inputs = {stored_name for name in schedule.inputs for stored_name in tracked.names_of(name)}
    written = inputs | {stored_name for name in schedule.state for stored_name in tracked.names_of(name)}
    loops = _loop_written(role)
    for op in ops(role.program):
        for name in reads(op):
            if not written.issuperset(tracked.names_of(name)) and name not in loops:
                raise InputError(f"op {op.name!r} reads {name!r}, which nothing has written before")
        for name in writes(op):
            if inputs.intersection(tracked.names_of(name)):
                raise InputError(f"op {op.name!r} would write or use up {name!r}, which is an input")
            written.update(tracked.names_of(name))


def _check_declared(schedule: Schedule, role: Role) -> None:
    """Checks that every tensor and every op named in `after` exists."""
    names = {op.name for op in ops(role.program)}
    for op in ops(role.program):
        for name in (*reads(op), *writes(op)):
            if name not in schedule.tensors:
                raise InputError(f"op {op.name!r}: tensor {name!r} is not declared")
        for name in op.after:
            if name not in names:
                raise InputError(f"op {op.name!r} is after {name!r}, which is no op of its program")


def _loop_written(role: Role) -> set[str]:
    """Returns the tensors that an earlier iteration may have written."""
    shifted: set[str] = set()
    for entry in role.program:
        if isinstance(entry, Repeat):
            shifted |= {name for op in ops(entry.body) if isinstance(op, Shift) for name in writes(op)}
    return shifted


def _check_shapes(schedule: Schedule, role: Role) -> None:
    """Checks each op in the first and last iteration of its loops, on one rank of each class and on the neighbours of
    rank 0.

    Ranks of different classes mostly share block sizes, so most ops are checked once.  Ranks of one class have such
    blocks at different positions: an exchanged axis shows on a rank with different coordinates.
    """
    classes = [
        representative.coordinates
        for representative in equivalent_ranks(schedule, Choices())
        if role.includes(representative.coordinates)
    ]
    step = max(1, len(classes) // MOST_RANKS)
    ranks = [classes[i] for i in dict.fromkeys([*range(0, len(classes), step), len(classes) - 1])] if classes else []
    grid = schedule.grid
    neighbours = [grid.rank_at({axis: 1}) for axis in grid.order if grid.length(axis) > 1]
    checked = PerKind(schedule, lambda op, instance_coordinates: check_op(op, schedule, instance_coordinates))
    for coordinates in ranks:
        for op, instance_coordinates in _end_iterations(role.program, coordinates):
            checked.of(op, instance_coordinates)
    for coordinates in map(schedule.coordinates, neighbours):
        if role.includes(coordinates) and coordinates not in ranks:
            for op, instance_coordinates in _end_iterations(role.program, coordinates):
                check_op(op, schedule, instance_coordinates)


def _end_iterations(program: Program, coordinates: Coordinates) -> Iterator[tuple[Op, Coordinates]]:
    """Yields the ops in the first and the last iteration of every loop."""
    for entry in program:
        if isinstance(entry, Repeat):
            indices = entry.indices(coordinates)
            for index in dict.fromkeys([indices[0], indices[-1]]) if indices else ():
                yield from _end_iterations(entry.body, coordinates.during(entry.loop, index))
        else:
            yield entry, coordinates


def _within_loops(program: Program, loops: tuple[Repeat, ...] = ()) -> Iterator[tuple[Op, tuple[Repeat, ...]]]:
    """Yields every op written in the program, once, with the loops around it, outermost first."""
    for entry in program:
        if isinstance(entry, Repeat):
            yield from _within_loops(entry.body, (*loops, entry))
        else:
            yield entry, loops


class _TrackedNames:
    """The names under which a tensor is tracked: those of its bands if it has bands, that of the whole tensor for a
    bucket in its buffer, otherwise its own.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._bands = bands_of(schedule.tensors)
        self._wholes = {
            name: tensor.shard_of for name, tensor in schedule.tensors.items() if tensor.buckets and tensor.shard_of
        }

    def names_of(self, name: str) -> tuple[str, ...]:
        whole = self._wholes.get(name, name)
        return self._bands.get(whole, (whole,))


class _Pending:
    """The axes over which each tensor is still a partial sum; a tensor with bands has the axes of all its bands."""

    def __init__(self, schedule: Schedule) -> None:
        self._kept = _TrackedNames(schedule)
        self._axes: dict[str, frozenset[Axis]] = {}

    def __getitem__(self, name: str) -> frozenset[Axis]:
        return frozenset[Axis]().union(
            *(self._axes.get(stored_name, frozenset()) for stored_name in self._kept.names_of(name))
        )

    def __setitem__(self, name: str, axes: frozenset[Axis]) -> None:
        self._axes |= dict.fromkeys(self._kept.names_of(name), axes)


@dataclass(slots=True)
class _Sums:
    """Follows partial sums through the program of a role, and checks each reduction.

    A tensor with a copy for each iteration may be all-reduced in a loop whose first or last iterations are peeled: it
    is a partial sum again where a peeled iteration, which has the same all-reduce, begins.
    """

    schedule: Schedule
    pending: _Pending
    reduced: dict[str, tuple[str, frozenset[Axis], tuple[Repeat, ...]]] = field(default_factory=dict)
    zeros: set[str] = field(default_factory=set)
    maxima: set[str] = field(default_factory=set)

    def follow(self, role: Role) -> None:
        for op, loops in _within_loops(role.program):
            self._enter(op, loops)
        for name in self.schedule.outputs:
            pending_axes = self._of_several_ranks(self.pending[name])
            if pending_axes:
                raise InputError(
                    f"schedule {self.schedule.name}: {name} is never summed over {', '.join(sorted(pending_axes))}"
                )

    def _enter(self, op: Op, loops: tuple[Repeat, ...]) -> None:
        for name in {*reads(op), *writes(op)} & self.reduced.keys():
            if self._is_peeled(name, loops):
                self.pending[name] = self.reduced.pop(name)[1]
        zeros = self.zeros - {*writes(op)}
        if isinstance(op, AllReduce):
            self.reduced |= {name: (op.name, self._of(name), loops) for name in op.buffers}
        self._follow(op)
        self.zeros = zeros | ({op.into} if isinstance(op, Pointwise) and op.function == "zero" else set())

    def _is_peeled(self, name: str, loops: tuple[Repeat, ...]) -> bool:
        """Whether these loops are other iterations of those in which a tensor was all-reduced."""
        reduction, _, of_reduction = self.reduced[name]
        for entry, reduced_in in zip(loops, of_reduction, strict=False):
            if entry is not reduced_in:
                has_copies = entry.loop == reduced_in.loop and entry.loop in dict(self.schedule.tensors[name].copies)
                return has_copies and any(op.name == reduction for op in ops(entry.body))
        return False

    def _follow(self, op: Op) -> None:
        match op:
            case Kernel():
                self._kernel(op)
            case Gemm():
                added = self._contraction(op) | self._of(op.a) | self._of(op.b)
                self.pending[op.c] = added | (self._of(op.c) if op.accumulate else frozenset())
            case Pointwise():
                sources = frozenset[Axis]().union(*(self._of(name) for name in op.sources))
                self.pending[op.into] = sources
            case AllReduce():
                for name in op.buffers:
                    if (op.combination == "max") != (name in self.maxima) and self._of_several_ranks(self._of(name)):
                        raise InputError(f"op {op.name!r} takes the {op.combination} of {name!r}, which needs another")
                    self._sum(op, name, name)
            case ReduceScatter() | Reduce():
                self._sum(op, op.source, op.into)
                shared = self._shared(self.schedule.tensors[op.source])
                self.pending[op.into] |= shared
            case _:
                for source in reads(op):
                    for into in writes(op):
                        self.pending[into] = self._of(source)

    def _sum(self, op: ReduceScatter | AllReduce | Reduce, source: str, into: str) -> None:
        pending = self._of(source)
        is_sum = not isinstance(op, AllReduce) or op.combination == "sum"
        if is_sum and self.schedule.grid.length(op.axis) > 1 and op.axis not in pending:
            raise InputError(
                f"op {op.name!r}: {kind(op)} of {source!r} over {op.axis}, over which it is no partial sum: "
                "the same values would be added several times"
            )
        self.pending[into] = pending - {op.axis}

    def _kernel(self, op: Kernel) -> None:
        """A linear function keeps partial sums, any other rejects them; both may add new ones."""
        signature = SIGNATURES[op.function]
        read = {name: self._of_several_ranks(self._of(name)) for name in reads(op)}
        if not signature.linear:
            for name, pending_axes in read.items():
                if pending_axes:
                    raise InputError(
                        f"op {op.name!r}: {op.function} of {name!r}, which is still a partial sum over "
                        f"{', '.join(sorted(pending_axes))}"
                    )
        tracked = frozenset[Axis]().union(*(self._of(name) for name in reads(op)))
        sums = signature.sums or (None,) * len(writes(op))
        for name, summed in zip(writes(op), sums, strict=True):
            new = frozenset[Axis]() if summed is None else self._summed(op.sources[summed[1]], summed[0])
            new -= self._kept_apart(name, op.sources[summed[1]]) if summed is not None else frozenset()
            new = self._of_experts(new) if op.function in OF_EXPERTS and summed is not None else new
            if op.sources and signature.linear and name in op.updates and name not in self.zeros:
                self._check_alike(op, name, self._of(op.sources[-1]) | new)
            self.pending[name] = tracked | new
            self.maxima = self.maxima | {name} if op.function == "row_maxima" else self.maxima - {name}

    def _summed(self, name: str, dimensions: Summed) -> frozenset[Axis]:
        """Returns the axes that cut the summed dimensions of a tensor."""
        tensor = self.schedule.tensors[name]
        if dimensions == "both":
            return tensor.cut_over
        return _cut_axes(tensor.rows if dimensions == "rows" else tensor.columns)

    def _kept_apart(self, name: str, source: str) -> frozenset[Axis]:
        """Returns the axes that cut the rows of a sum over rows like the rows that are summed."""
        rows, summed = self.schedule.tensors[name].rows, self.schedule.tensors[source].rows
        return frozenset(rows.cut_over if rows.dimension == summed.dimension else ())

    def _check_alike(self, op: Kernel, name: str, added: frozenset[Axis]) -> None:
        """Checks that an addend is a partial sum over the same axes as the tensor it is added to."""
        different = self._of_several_ranks(added) ^ self._of_several_ranks(self._of(name))
        if different:
            raise InputError(
                f"op {op.name!r} adds to {name!r}, and only one of the two is a partial sum over "
                f"{', '.join(sorted(different))}: the other would be counted more than once"
            )

    def _contraction(self, op: Gemm) -> frozenset[Axis]:
        tensor = self.schedule.tensors[op.a]
        axes = _cut_axes(tensor.rows if op.layout == "TN" else tensor.columns)
        return self._of_experts(axes) if op.counts and op.layout == "TN" else axes

    def _of_experts(self, axes: frozenset[Axis]) -> frozenset[Axis]:
        """Returns the axes that cut the rows of an expert, which are on the ranks that hold the expert."""
        grid = self.schedule.grid
        return axes if not grid.folds else (axes - {*WITHIN_STAGE}) | {grid.replicas}

    def _shared(self, tensor: Tensor) -> frozenset[Axis]:
        """Returns the axes whose members each hold only their own panels of a tensor."""
        axes = {part.panel.shared_over for part in (tensor.rows, tensor.columns) if part.panel is not None}
        return frozenset(axis for axis in axes if axis is not None)

    def _of(self, name: str) -> frozenset[Axis]:
        return self.pending[name]

    def _of_several_ranks(self, axes: frozenset[Axis]) -> frozenset[Axis]:
        return frozenset(axis for axis in axes if self.schedule.grid.length(axis) > 1)


def _cut_axes(part: Part) -> frozenset[Axis]:
    """Returns the axes that cut a contracted dimension; a loop over all its panels leaves no pending sum."""
    if part.panel is not None:
        return frozenset() if part.panel.shared_over is None else frozenset({part.panel.shared_over})
    return frozenset() if part.rotated_by else frozenset(part.cut_over)
