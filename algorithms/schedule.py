"""A schedule: declared tensors and the ops on them, written once for all ranks.

What repeats is written once (`Repeat`), and what differs by pipeline stage is
chosen by `Role`; all else is the same program on every rank.  Nothing here
grows with the number of ranks, layers or microbatches.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from algorithms.errors import InputError
from algorithms.grid import Axis, Grid
from algorithms.numbers import Number, number
from algorithms.ops import Communication, Op
from algorithms.parts import Panel, Place
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
        from algorithms.schedule_table import as_table  # which reads schedules

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
