"""A schedule: declared tensors and the ops on them, written once for all ranks.

Loops are written once (`program.py`).  A `Role` gives pipeline stages programs of their own; otherwise every rank runs
the same program.  A schedule does not grow with the number of ranks, layers or microbatches.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.schedule.ops import Op
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import Program, is_concurrent, is_driven, ops
from quadrille.algorithms.schedule.tensors import ITEM_BYTES, DType, Tensor
from quadrille.algorithms.tabular import fact_line

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Role:
    """The program of the ranks with start <= coordinate along `axis` < stop, or of all ranks if `axis` is None."""

    program: Program
    axis: Axis | None = None
    start: int = 0
    stop: int | None = None

    def includes(self, coordinates: Coordinates) -> bool:
        """Whether a rank runs this program."""
        if self.axis is None:
            return True
        coordinate = coordinates.along[self.axis]
        return self.start <= coordinate and (self.stop is None or coordinate < self.stop)

    def lines(self) -> list[str]:
        """Lines of the printed role: its ranks, and its program as a table."""
        last = "" if self.stop is None else self.stop - 1
        from quadrille.algorithms.schedule.lane_table import lane_table

        return [*([f"role {self.axis}={self.start}..{last}"] if self.axis else []), *lane_table(self.program)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """One distributed algorithm: its tensors and the program of every rank, which simulator and runtime interpret.

    Parameters
    ----------
    name : name of the algorithm
    sizes : length of each dimension, by letter
    grid : grid of ranks
    dtype : element type of tensors that declare none
    tensors : every tensor, by name
    inputs, outputs : names of tensors that exist at the start, and that are wanted at the end
    state : names of tensors that exist at the start and change (parameters)
    roles : programs; the first role that includes a rank applies
    overlap : names of the overlaps that were applied
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
    _results: dict[tuple[object, ...], object] = field(init=False, default_factory=dict, compare=False, repr=False)

    def cached(self, compute: Callable[..., Result], *options: Hashable) -> Result:
        """The result of `compute(schedule, *options)`, computed once for each combination of options."""
        key = (compute, *options)
        if key not in self._results:
            self._results[key] = compute(self, *options)
        return self._results[key]  # type: ignore[return-value]

    def coordinates(self, rank: int) -> Coordinates:
        """Coordinates of a rank outside all loops."""
        return Coordinates(self.grid, self.sizes, self.grid.coordinates(rank))

    def program(self, coordinates: Coordinates) -> Program:
        """Program that the rank at the coordinates runs."""
        for role in self.roles:
            if role.includes(coordinates):
                return role.program
        raise InputError(f"schedule {self.name}: no role includes coordinates {dict(coordinates.along)}")

    def item_bytes(self, tensor: str) -> int:
        """Bytes of one element of a tensor."""
        return ITEM_BYTES[self.tensors[tensor].dtype or self.dtype]

    @property
    def driven(self) -> bool:
        """Whether messages decide the order of a pipeline's passes."""
        return any(is_driven(role.program) for role in self.roles)

    def with_program(self, change: Callable[["Program"], "Program"], **changes: object) -> "Schedule":
        """The schedule with `change` applied to the program of every role."""
        roles = tuple(replace(role, program=change(role.program)) for role in self.roles)
        return replace(self, roles=roles, **changes)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        """The line above the table of `str`, and the number of ops."""
        return fact_line(self, f"{self._head()}; {sum(1 for _ in all_ops(self))} ops, {len(self.tensors)} tensors")

    def __str__(self) -> str:
        """Tensors, then a table of lanes and ops for each role."""
        tensors = [f"  {self._role(name):6} {tensor}" for name, tensor in self.tensors.items()]
        return "\n".join([self._head(), *tensors, *(line for role in self.roles for line in role.lines())])

    def _head(self) -> str:
        """Name, grid, sizes, element type and overlaps, as text."""
        sizes = ", ".join(f"{letter}={size}" for letter, size in self.sizes.items())
        overlaps = f", overlap {','.join(sorted(self.overlap))}" if self.overlap else ""
        return f"{self.name} on {self.grid}: {sizes}, {self.dtype}{overlaps}"

    def _role(self, tensor: str) -> str:
        """Role of a tensor: "state", "input", "output" or empty."""
        if tensor in self.state:
            return "state"
        return "input" if tensor in self.inputs else "output" if tensor in self.outputs else ""


def declare(*tensors: Tensor) -> dict[str, Tensor]:
    """Returns the tensors by name.

    Raises
    ------
    InputError : two tensors with the same name
    """
    names = [tensor.name for tensor in tensors]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InputError(f"tensors {', '.join(sorted(twice))} are declared twice: a name stands for one tensor")
    return {tensor.name: tensor for tensor in tensors}


def all_ops(schedule: Schedule) -> Iterator[Op]:
    """Yields every op written in the schedule, once for each role."""
    for role in schedule.roles:
        yield from ops(role.program)


def may_overlap(schedule: Schedule, op: Op) -> bool:
    """Whether an op is communication between several ranks for which later local ops need not wait."""
    return is_concurrent(op) and schedule.grid.length(op.axis) > 1
