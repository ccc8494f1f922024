"""A schedule: declared tensors and the ops on them, written once for all ranks.

What repeats is written once (`Repeat`), and what differs by pipeline stage is
chosen by `Role`; all else is the same program on every rank.  Nothing here
grows with the number of ranks, layers or microbatches.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from algorithms.errors import InputError
from algorithms.grid import Axis, Grid
from algorithms.ops import Communication, Op, Receive, Send, kind, lane, reads, writes
from algorithms.parts import Number, Panel, Part, Place, number, variables
from algorithms.tensors import ITEM_BYTES, DType, Tensor


@dataclass(frozen=True, slots=True)
class Repeat:
    """`body`, once for each value of `loop` from `first`, `count` times.

    A count given as a Panel is the number of panels in which the rank takes part.
    `backwards` goes through the same values from the last to the first.
    """

    loop: str
    count: Number | Panel
    body: "Program"
    first: Number = 0
    backwards: bool = False

    def indices(self, place: Place) -> range:
        if isinstance(self.count, Panel):
            start, stop = self.count.turns(place)
            length = stop - start
        else:
            length = max(0, number(self.count, place))
        first = number(self.first, place)
        forwards = range(first, first + length)
        return forwards[::-1] if self.backwards else forwards


Program = tuple[Op | Repeat, ...]


@dataclass(frozen=True, slots=True)
class Role:
    """The program of the ranks with start <= coordinate along `axis` < stop; of all ranks if no axis is named."""

    program: Program
    axis: Axis | None = None
    start: int = 0
    stop: int | None = None

    def includes(self, place: Place) -> bool:
        if self.axis is None:
            return True
        coordinate = place.coordinates[self.axis]
        return self.start <= coordinate and (self.stop is None or coordinate < self.stop)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One sharded algorithm: what both interpreters read.

    Parameters
    ----------
    name : the algorithm
    sizes : length of each dimension, by its letter
    grid : the grid of ranks
    dtype : of all tensors that do not say otherwise
    tensors : every tensor, by name
    inputs, outputs : names of the tensors that are there at the start and wanted at the end
    state : those that are there at the start and change: parameters
    roles : the first one that includes a rank gives its program
    """

    name: str
    sizes: Mapping[str, int]
    grid: Grid
    dtype: DType
    tensors: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    roles: tuple[Role, ...]
    overlap: frozenset[str] = field(default=frozenset())
    state: tuple[str, ...] = ()

    def place(self, rank: int) -> Place:
        """The place of a rank before anything runs."""
        return Place(self.grid, self.sizes, self.grid.coordinates(rank))

    def program(self, place: Place) -> Program:
        """What the rank at `place` runs."""
        for role in self.roles:
            if role.includes(place):
                return role.program
        raise InputError(f"schedule {self.name}: no role includes coordinates {dict(place.coordinates)}")

    def item_bytes(self, tensor: str) -> int:
        return ITEM_BYTES[self.tensors[tensor].dtype or self.dtype]

    def with_program(self, change: Callable[["Program"], "Program"], **changes: object) -> "Schedule":
        """The schedule with every role's program changed."""
        roles = tuple(replace(role, program=change(role.program)) for role in self.roles)
        return replace(self, roles=roles, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return as_table(self)


def declare(*tensors: Tensor) -> dict[str, Tensor]:
    """Tensors by name.

    Raises
    ------
    InputError : two of one name
    """
    names = [tensor.name for tensor in tensors]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InputError(f"tensors {', '.join(sorted(twice))} are declared twice: a name stands for one tensor")
    return {tensor.name: tensor for tensor in tensors}


@dataclass(frozen=True, slots=True)
class Instances:
    """An op at one moment that stands for `count` moments at which it does the same."""

    op: Op
    moment: Place
    count: int


def walk(program: Program, place: Place) -> Iterator[tuple[Op, Place]]:
    """Ops of one rank in program order, each with its moment, one at a time."""
    for entry in program:
        if isinstance(entry, Repeat):
            for index in entry.indices(place):
                yield from walk(entry.body, place.during(entry.loop, index))
        else:
            yield entry, place


def walk_alike(program: Program, place: Place, loops: Collection[str], count: int = 1) -> Iterator[Instances]:
    """Ops of one rank in program order, iterations that are alike only once, with how many they stand for.

    `loops` are those whose iterations differ (`differing_loops`).
    """
    for entry in program:
        if not isinstance(entry, Repeat):
            yield Instances(entry, place, count)
            continue
        indices = entry.indices(place)
        if entry.loop in loops:
            for index in indices:
                yield from walk_alike(entry.body, place.during(entry.loop, index), loops, count)
        elif indices:
            moment = place.during(entry.loop, indices[0])
            yield from walk_alike(entry.body, moment, loops, count * len(indices))


def differing_loops(schedule: Schedule) -> frozenset[str]:
    """Loops whose index changes a size, a peer, a root or how often something is repeated.

    An index that only tells copies of a tensor apart makes no difference, and
    one that another loop begins at makes one only if that loop's index does.
    """
    found = {part.panel.loop for tensor in schedule.tensors.values() for part in _parts(tensor) if part.panel}
    found |= {name for tensor in schedule.tensors.values() for part in _parts(tensor) for name in part.rotated_by}
    for op in all_ops(schedule):
        for field_name in ("root", "to", "sender", "distance"):
            found |= variables(getattr(op, field_name, 0))
    repeats = [entry for role in schedule.roles for entry in _repeats(role.program)]
    found |= {name for one in repeats if not isinstance(one.count, Panel) for name in variables(one.count)}
    while more := {name for one in repeats if one.loop in found for name in variables(one.first)} - found:
        found |= more
    return frozenset(found)


def _parts(tensor: Tensor) -> tuple[Part, Part]:
    return tensor.rows, tensor.columns


def _repeats(program: Program) -> Iterator[Repeat]:
    for entry in program:
        if isinstance(entry, Repeat):
            yield entry
            yield from _repeats(entry.body)


def ops(program: Program) -> Iterator[Op]:
    """Every op that is written in the program, once."""
    for entry in program:
        if isinstance(entry, Repeat):
            yield from ops(entry.body)
        else:
            yield entry


def all_ops(schedule: Schedule) -> Iterator[Op]:
    """Every op that is written in the schedule, once for each role."""
    for role in schedule.roles:
        yield from ops(role.program)


def in_sequence(program: Program) -> Program:
    """The program with each op ordered after the one before it, around loops too.

    This is how a schedule without overlap is written: a rank does one thing at
    a time.  An overlap is a pass that takes such edges out again.  Nothing is
    ordered after an op that is concurrent from the start (a pipeline's sends).
    """
    return _chain(program, ())[0]


def _chain(program: Program, before: tuple[str, ...]) -> tuple[Program, tuple[str, ...]]:
    chained: list[Op | Repeat] = []
    for entry in program:
        if isinstance(entry, Repeat):
            last = tuple(op.name for op in ops(entry.body) if not _runs_beside(op))[-1:]
            body, _ = _chain(entry.body, tuple(dict.fromkeys(before + last)))
            chained.append(replace(entry, body=body))
            before = tuple(dict.fromkeys(before + last))
        else:
            chained.append(replace(entry, after=tuple(dict.fromkeys(entry.after + before))))
            before = before if _runs_beside(entry) else (entry.name,)
    return tuple(chained), before


def _runs_beside(op: Op) -> bool:
    return isinstance(op, Communication) and op.concurrent


def as_table(schedule: Schedule) -> str:
    """The schedule as a grid of lanes and ops that a person can read."""
    lines = [
        f"{schedule.name} on {schedule.grid}: "
        + ", ".join(f"{letter}={size}" for letter, size in schedule.sizes.items())
        + f", {schedule.dtype}"
        + (f", overlap {','.join(sorted(schedule.overlap))}" if schedule.overlap else "")
    ]
    lines += [f"  {_duty(schedule, tensor.name):6} {tensor}" for tensor in schedule.tensors.values()]
    for role in schedule.roles:
        if role.axis is not None:
            lines.append(f"role {role.axis}={role.start}..{'' if role.stop is None else role.stop - 1}")
        lines += _lane_table(role.program)
    return "\n".join(lines)


def _duty(schedule: Schedule, name: str) -> str:
    if name in schedule.state:
        return "state"
    return "input" if name in schedule.inputs else "output" if name in schedule.outputs else ""


def _lane_table(program: Program) -> list[str]:
    lanes = list(dict.fromkeys(["compute", *(lane(op) for op in ops(program))]))
    rows = [(name, *cells) for name, *cells in _rows(program, lanes, "")]
    heads = ("", *lanes)
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [heads, *rows]
    ]


def _rows(program: Program, lanes: Iterable[str], indent: str) -> Iterator[tuple[str, ...]]:
    for entry in program:
        if isinstance(entry, Repeat):
            count = f"panels of {entry.count.dimension}" if isinstance(entry.count, Panel) else entry.count
            turned = ", backwards" if entry.backwards else ""
            yield (f"{indent}repeat {entry.loop}, {count}{turned}", *("" for _ in lanes))
            yield from _rows(entry.body, lanes, indent + "  ")
        else:
            cell = _cell(entry)
            yield (indent + entry.name, *(cell if name == lane(entry) else "" for name in lanes))


def _cell(op: Op) -> str:
    """What the op does, from what to what; the other end of a send or receive is a coordinate."""
    source, into = "+".join(reads(op)), "+".join(writes(op)[:1])
    if isinstance(op, Send):
        into = f"{op.axis}={op.to}"
    if isinstance(op, Receive):
        source = f"{op.axis}={op.sender}"
    mark = " ∥" if isinstance(op, Communication) and op.concurrent else ""
    return f"{kind(op)}{mark}: {source} → {into}" if source or into else f"{kind(op)}{mark}"
