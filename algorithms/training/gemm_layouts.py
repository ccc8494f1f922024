"""GEMM layouts (NN, NT, TN): each matrix product runs in the layout that is fastest on a machine.

An operand that has the wrong layout is transposed by a copy.

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
STORED_TRANSPOSED: dict[GemmLayout, tuple[bool, bool]] = {
    "NN": (False, False),
    "NT": (False, True),
    "TN": (True, False),
}
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
    """A variant of a product C = P Q: a layout, with the transposes that it needs.

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
    stored = STORED_TRANSPOSED[written]
    for layout in (written, *(alternative for alternative in LAYOUTS if alternative != written)):
        for flipped in (False,) if accumulate else (False, True):
            first, alternative = STORED_TRANSPOSED[layout]
            needed = (not alternative, not first) if flipped else (first, alternative)
            yield GemmVariant(layout, flipped, needed[0] != stored[0], needed[1] != stored[1])


def seconds(variant: GemmVariant, m: int, k: int, n: int, times: GemmTimes) -> float:
    """The time of a product and its transposes [s].

    Parameters
    ----------
    variant : layout and transposes of the product
    m, k, n : sizes of the product of m × k by k × n
    times : times of products and of transposes
    """
    total = times.product(variant.layout, n, k, m) if variant.flipped else times.product(variant.layout, m, k, n)
    total += times.transposition(n, m) if variant.flipped else 0.0
    total += times.transposition(m, k) if variant.first else 0.0
    return total + (times.transposition(k, n) if variant.second else 0.0)


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
        replace(
            role, program=in_sequence(tuner.change(without_edges(role.program), _first_coordinates(schedule, role)))
        )
        for role in schedule.roles
    )
    if tuner.tensors == dict(schedule.tensors):
        return schedule
    return replace(schedule, roles=roles, tensors=tuner.tensors)


def _first_coordinates(schedule: Schedule, role: Role) -> Coordinates:
    coordinates = schedule.coordinates(0)
    return coordinates if role.axis is None else coordinates.at(role.axis, role.start)


@dataclass(slots=True)
class _Tuner:
    """Rewrites products to their fastest variants; transposed tensors are added to `tensors`."""

    schedule: Schedule
    times: GemmTimes
    tensors: dict[str, Tensor]
    best_variants: dict[tuple[GemmLayout, bool, int, int, int], GemmVariant] = field(default_factory=dict)

    def change(self, program: Program, coordinates: Coordinates) -> Program:
        changed: list[Op | Repeat] = []
        for entry in program:
            if isinstance(entry, Repeat):
                indices = entry.indices(coordinates)
                inner_coordinates = coordinates.during(entry.loop, indices[0]) if indices else coordinates
                changed.append(replace(entry, body=self.change(entry.body, inner_coordinates)) if indices else entry)
            elif isinstance(entry, Gemm) and not entry.counts:
                changed += self._issued(entry, coordinates)
            else:
                changed.append(entry)
        return tuple(changed)

    def _issued(self, op: Gemm, coordinates: Coordinates) -> Program:
        variant = self._best(op, coordinates)
        if variant.is_as_written:
            return (op,)
        program: list[Op] = []
        a, b = op.a, op.b
        if variant.first:
            a = self._transposed(a)
            program.append(
                Kernel(name=f"{op.name}: transpose {op.a}", function="transpose", into=(a,), sources=(op.a,))
            )
        if variant.second:
            b = self._transposed(b)
            program.append(
                Kernel(name=f"{op.name}: transpose {op.b}", function="transpose", into=(b,), sources=(op.b,))
            )
        if not variant.flipped:
            return (*program, replace(op, a=a, b=b, layout=variant.layout))
        c = self._transposed(op.c)
        back = Kernel(name=f"{op.name}: transpose {op.c}", function="transpose", into=(op.c,), sources=(c,))
        return (*program, replace(op, a=b, b=a, c=c, layout=variant.layout), back)

    def _best(self, op: Gemm, coordinates: Coordinates) -> GemmVariant:
        m, k, n = gemm_sizes(op, self.schedule, coordinates)
        key = (op.layout, op.accumulate, m, k, n)
        if key not in self.best_variants:
            candidates = gemm_variants(op.layout, accumulate=op.accumulate)
            self.best_variants[key] = min(candidates, key=lambda variant: seconds(variant, m, k, n, self.times))
        return self.best_variants[key]

    def _transposed(self, name: str) -> str:
        """Returns the name of the tensor that holds another tensor transposed."""
        tensor, transposed = self.schedule.tensors[name], f"{name} transposed"
        self.tensors[transposed] = Tensor(transposed, tensor.columns, tensor.rows, dtype=tensor.dtype)
        return transposed
