"""Layout tuning: each product is issued in the fastest layout, with explicit transposes where necessary.

A product C = P Q is written for its stored operands: forward NN, dI = dO Wᵀ as NT, dW = Iᵀ dO as TN.  It can be issued
in any of the three layouts, with transposes of the operands that need them, and as C = (Qᵀ Pᵀ)ᵀ with a transpose of the
result.  The fastest variant by given times, transposes included, is used for all products of equal sizes and layout.

Sums inside a product may be ordered differently, so the last bits may differ.

Source: the authors' code of AxoNN (Singh et al., arXiv 2502.08145) tries the same variants for each (operation, m, n,
k).
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
"""Whether the first and second operand of a layout are stored transposed."""


@dataclass(frozen=True, slots=True)
class GemmTimes:
    """Times by which variants are compared.

    Parameters
    ----------
    product : seconds of an m x k by k x n product, from (layout, m, k, n)
    transposition : seconds of writing a rows × columns matrix transposed
    """

    product: Callable[[GemmLayout, int, int, int], float]
    transposition: Callable[[int, int], float]


@dataclass(frozen=True, slots=True)
class GemmVariant:
    """A variant of issuing a product.

    Parameters
    ----------
    layout : layout of the issued product
    flipped : whether the issued product is Qᵀ Pᵀ
    first, second : whether P and Q are transposed first
    """

    layout: GemmLayout
    flipped: bool
    first: bool
    second: bool

    @property
    def is_as_written(self) -> bool:
        return not (self.flipped or self.first or self.second)


def gemm_variants(written: GemmLayout, *, accumulate: bool = False) -> Iterator[GemmVariant]:
    """Yields all variants of a product written in a layout; an accumulating product is not flipped.

    >>> variants = [one for one in gemm_variants("NT") if not one.first and not one.second]
    >>> [f"{one.layout}{' flipped' if one.flipped else ''}" for one in variants]
    ['NT', 'NT flipped']
    """
    stored = WANTED[written]
    for layout in (written, *(alternative for alternative in LAYOUTS if alternative != written)):
        for flipped in (False,) if accumulate else (False, True):
            first, alternative = WANTED[layout]
            wanted = (not alternative, not first) if flipped else (first, alternative)
            yield GemmVariant(layout, flipped, wanted[0] != stored[0], wanted[1] != stored[1])


def seconds(way: GemmVariant, m: int, k: int, n: int, times: GemmTimes) -> float:
    """Seconds of a product and its transposes."""
    total = times.product(way.layout, n, k, m) if way.flipped else times.product(way.layout, m, k, n)
    total += times.transposition(n, m) if way.flipped else 0.0
    total += times.transposition(m, k) if way.first else 0.0
    return total + (times.transposition(k, n) if way.second else 0.0)


def tune_layouts(schedule: Schedule, times: GemmTimes) -> Schedule:
    """Returns the schedule with every product in its fastest variant, for the sizes of a role's first rank.

    Raises
    ------
    InputError : the schedule already has overlaps, which must follow
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
    """Rewrites products; transposed tensors are added to `tensors`."""

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
        """Returns the name of the tensor that holds another tensor transposed."""
        tensor, transposed = self.schedule.tensors[name], f"{name} transposed"
        self.tensors[transposed] = Tensor(transposed, tensor.columns, tensor.rows, dtype=tensor.dtype)
        return transposed
