"""A schedule: declared tensors and the ops on them, written once for all ranks.

What repeats is written once (`Repeat`), and what differs by pipeline stage is
chosen by `Role`; all else is the same program on every rank.  Nothing here
grows with the number of ranks, layers or microbatches.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from algorithms.errors import InputError
from algorithms.grid import Axis, Grid
from algorithms.ops import Communication, Op, Receive, Send, kind, lane, reads, writes
from algorithms.parts import Panel, Place
from algorithms.tensors import ITEM_BYTES, DType, Tensor


@dataclass(frozen=True, slots=True)
class Repeat:
    """`body`, once for each value of `loop` from `first`, `count` times.

    A count given as a Panel is the number of panels in which the rank takes part.
    """

    loop: str
    count: int | Panel
    body: "Program"
    first: int = 0

    def indices(self, place: Place) -> range:
        if isinstance(self.count, int):
            return range(self.first, self.first + self.count)
        start, stop = self.count.turns(place)
        return range(self.first, self.first + stop - start)


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


def walk(program: Program, place: Place) -> Iterator[tuple[Op, Place]]:
    """Ops of one rank in program order, each with its moment, one at a time."""
    for entry in program:
        if isinstance(entry, Repeat):
            for index in entry.indices(place):
                yield from walk(entry.body, place.during(entry.loop, index))
        else:
            yield entry, place


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
    a time.  An overlap is a pass that takes such edges out again.
    """
    return _chain(program, ())[0]


def _chain(program: Program, before: tuple[str, ...]) -> tuple[Program, tuple[str, ...]]:
    chained: list[Op | Repeat] = []
    for entry in program:
        if isinstance(entry, Repeat):
            last = tuple(op.name for op in ops(entry.body))[-1:]
            body, _ = _chain(entry.body, tuple(dict.fromkeys(before + last)))
            chained.append(replace(entry, body=body))
            before = tuple(dict.fromkeys(before + last))
        else:
            chained.append(replace(entry, after=tuple(dict.fromkeys(entry.after + before))))
            before = (entry.name,)
    return tuple(chained), before


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
            count = entry.count if isinstance(entry.count, int) else f"panels of {entry.count.dimension}"
            yield (f"{indent}repeat {entry.loop}, {count}", *("" for _ in lanes))
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
