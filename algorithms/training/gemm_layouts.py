"""The layout in which a product is issued: where one layout is slow, a transpose and another layout may be faster.

A product C = P Q is written for its operands as they are stored: forward NN,
dI = dO Wᵀ as NT, dW = Iᵀ dO as TN.  It may be issued in any of the three
layouts, with explicit transposes of the operands that these want otherwise;
and as C = (Qᵀ Pᵀ)ᵀ, with a transpose of the result.  The fastest way by given
times is taken, those of the transposes included; every product of the same
sizes and layout is issued the same way.

Sums inside a product may be made in another order then, so the last bits may
differ from those of the schedule as it was.

Source: the authors' code of AxoNN (Singh et al., arXiv 2502.08145) tries the
same ways for each (operation, m, n, k).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import get_args

from quadrille.algorithms.analysis.volumes import gemm_sizes
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.passes.overlap import without_edges
from quadrille.algorithms.schedule.ops import Gemm, GemmLayout, Kernel, Op
from quadrille.algorithms.schedule.parts import Coordinates
from quadrille.algorithms.schedule.program import Program, Repeat, in_sequence
from quadrille.algorithms.schedule.schedule import Role, Schedule
from quadrille.algorithms.schedule.tensors import Tensor

LAYOUTS: tuple[GemmLayout, ...] = get_args(GemmLayout)
WANTED: dict[GemmLayout, tuple[bool, bool]] = {"NN": (False, False), "NT": (False, True), "TN": (True, False)}
"""Whether the first and the second operand of a layout are stored transposed."""


@dataclass(frozen=True, slots=True)
class GemmTimes:
    """What ways are compared by.

    Parameters
    ----------
    product : seconds of a product m x k by k x n in a layout, from (layout, m, k, n)
    transposition : seconds of writing a matrix of so many rows and columns transposed
    """

    product: Callable[[GemmLayout, int, int, int], float]
    transposition: Callable[[int, int], float]


@dataclass(frozen=True, slots=True)
class GemmVariant:
    """A way to issue a product.

    Parameters
    ----------
    layout : of the product that is issued
    flipped : whether that is Qᵀ Pᵀ
    first, second : whether P and Q are transposed before, as they are stored
    """

    layout: GemmLayout
    flipped: bool
    first: bool
    second: bool

    @property
    def is_as_written(self) -> bool:
        return not (self.flipped or self.first or self.second)


def gemm_variants(written: GemmLayout, *, accumulate: bool = False) -> Iterator[GemmVariant]:
    """All ways to issue a product that is written in a layout; one that adds to its result is not flipped.

    >>> variants = [one for one in gemm_variants("NT") if not one.first and not one.second]
    >>> [f"{one.layout}{' flipped' if one.flipped else ''}" for one in variants]
    ['NT', 'NT flipped']
    """
    stored = WANTED[written]
    for layout in (written, *(other for other in LAYOUTS if other != written)):
        for flipped in (False,) if accumulate else (False, True):
            one, other = WANTED[layout]
            wanted = (not other, not one) if flipped else (one, other)
            yield GemmVariant(layout, flipped, wanted[0] != stored[0], wanted[1] != stored[1])


def seconds(way: GemmVariant, m: int, k: int, n: int, times: GemmTimes) -> float:
    """Of a product and its transposes."""
    total = times.product(way.layout, n, k, m) if way.flipped else times.product(way.layout, m, k, n)
    total += times.transposition(n, m) if way.flipped else 0.0
    total += times.transposition(m, k) if way.first else 0.0
    return total + (times.transposition(k, n) if way.second else 0.0)


def tune_layouts(schedule: Schedule, times: GemmTimes) -> Schedule:
    """The schedule with every product issued in the way that takes least; sizes are those of a role's first rank.

    Raises
    ------
    InputError : the schedule has overlaps already, which are to be made afterwards
    """
    if schedule.overlap:
        raise InputError(f"schedule {schedule.name} already has overlaps: layouts are tuned before")
    tuner = _Tuner(schedule, times, dict(schedule.tensors))
    roles = tuple(
        replace(role, program=in_sequence(tuner.change(without_edges(role.program), _first_place(schedule, role))))
        for role in schedule.roles
    )
    if tuner.tensors == dict(schedule.tensors):
        return schedule
    return replace(schedule, roles=roles, tensors=tuner.tensors)


def _first_place(schedule: Schedule, role: Role) -> Coordinates:
    coordinates = schedule.coordinates(0)
    return coordinates if role.axis is None else coordinates.at(role.axis, role.start)


@dataclass(slots=True)
class _Tuner:
    """Rewrites products; `tensors` grow by what is transposed."""

    schedule: Schedule
    times: GemmTimes
    tensors: dict[str, Tensor]
    known: dict[tuple[GemmLayout, bool, int, int, int], GemmVariant] = field(default_factory=dict)

    def change(self, program: Program, coordinates: Coordinates) -> Program:
        changed: list[Op | Repeat] = []
        for entry in program:
            if isinstance(entry, Repeat):
                indices = entry.indices(coordinates)
                moment = coordinates.during(entry.loop, indices[0]) if indices else coordinates
                changed.append(replace(entry, body=self.change(entry.body, moment)) if indices else entry)
            elif isinstance(entry, Gemm):
                changed += self._issued(entry, coordinates)
            else:
                changed.append(entry)
        return tuple(changed)

    def _issued(self, op: Gemm, coordinates: Coordinates) -> Program:
        way = self._best(op, coordinates)
        if way.is_as_written:
            return (op,)
        program: list[Op] = []
        a, b = op.a, op.b
        if way.first:
            a = self._transposed(a)
            program.append(
                Kernel(name=f"{op.name}: transpose {op.a}", function="transpose", into=(a,), sources=(op.a,))
            )
        if way.second:
            b = self._transposed(b)
            program.append(
                Kernel(name=f"{op.name}: transpose {op.b}", function="transpose", into=(b,), sources=(op.b,))
            )
        if not way.flipped:
            return (*program, replace(op, a=a, b=b, layout=way.layout))
        c = self._transposed(op.c)
        back = Kernel(name=f"{op.name}: transpose {op.c}", function="transpose", into=(op.c,), sources=(c,))
        return (*program, replace(op, a=b, b=a, c=c, layout=way.layout), back)

    def _best(self, op: Gemm, coordinates: Coordinates) -> GemmVariant:
        m, k, n = gemm_sizes(op, self.schedule, coordinates)
        key = (op.layout, op.accumulate, m, k, n)
        if key not in self.known:
            candidates = gemm_variants(op.layout, accumulate=op.accumulate)
            self.known[key] = min(candidates, key=lambda way: seconds(way, m, k, n, self.times))
        return self.known[key]

    def _transposed(self, name: str) -> str:
        """The tensor that holds another one transposed."""
        tensor, other = self.schedule.tensors[name], f"{name} transposed"
        self.tensors[other] = Tensor(other, tensor.columns, tensor.rows, dtype=tensor.dtype)
        return other
