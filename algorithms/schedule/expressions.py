"""Whole numbers that depend on the place: roots, peers, distances and counts of a schedule.

They stand in ops and Repeats in place of numbers, so that one schedule is right
for every rank at every moment; `evaluate` gives their value at a place and
`variables` what they depend on.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import assert_never

from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.parts import Coordinates, Panel, cut


@dataclass(frozen=True, slots=True)
class PanelOwner:
    """The coordinate along `axis` whose block holds the panel of the moment."""

    panel: Panel
    axis: Axis

    def value(self, place: Coordinates) -> int:
        size, parts = place.sizes[self.panel.dimension], place.grid.length(self.axis)
        start = self.panel.bounds(place)[0] // self.panel.unit
        short, longer = divmod(size, parts)
        inside_longer = longer * (short + 1)
        if start < inside_longer:
            return start // (short + 1)
        return longer + (start - inside_longer) // short

    def __str__(self) -> str:
        return f"owner of {self.panel.dimension}[{self.panel.loop}]"


@dataclass(frozen=True, slots=True)
class Affine:
    """`factor` times a coordinate or loop index: the distance of a shift, the peer of a send.

    `modulo` an axis it is a coordinate of that axis, after whose last one comes the first.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> Affine("z", -1).value(Coordinates(Grid(z=3), {}, {"z": 2}))
    -2
    >>> Affine("z", -1, modulo="y").value(Coordinates(Grid(z=3, y=5), {}, {"z": 2}))
    3
    """

    variable: str
    factor: int = 1
    offset: int = 0
    modulo: Axis | None = None

    def value(self, place: Coordinates) -> int:
        value = self.factor * place.variable(self.variable) + self.offset
        return value if self.modulo is None else value % place.grid.length(self.modulo)

    def __str__(self) -> str:
        times = {1: "", -1: "-"}.get(self.factor, f"{self.factor}·")
        around = f" around {self.modulo}" if self.modulo is not None else ""
        return f"{times}{self.variable}" + (f"{self.offset:+d}" if self.offset else "") + around


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of several numbers: a turn and a coordinate, say.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> place = Coordinates(Grid(pipeline=4), {}, {"pipeline": 1}, {"turn": 5})
    >>> Sum(Affine("turn"), Affine("pipeline", -1, offset=3)).value(place)
    7
    """

    left: "IntExpression"
    right: "IntExpression"

    def value(self, place: Coordinates) -> int:
        return evaluate(self.left, place) + evaluate(self.right, place)

    def __str__(self) -> str:
        return f"{self.left} + {self.right}"


@dataclass(frozen=True, slots=True)
class PanelCount:
    """In how many panels a rank takes part, `offset` so many, and no fewer than none.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> PanelCount(Panel("k", 4, ("x",), "p"), offset=-1).value(Coordinates(Grid(x=3), {"k": 9}, {"x": 0}))
    2
    """

    panel: Panel
    offset: int = 0

    def value(self, place: Coordinates) -> int:
        start, stop = self.panel.iterations(place)
        return max(0, stop - start + self.offset)

    def __str__(self) -> str:
        return f"panels of {self.panel.dimension}" + (f"{self.offset:+d}" if self.offset else "")


class Expression(ABC):
    """A number worked out from other numbers; what there is stands in `training/formulas.py`."""

    __slots__ = ()

    @property
    @abstractmethod
    def operands(self) -> tuple["IntExpression", ...]:
        """The numbers from which it is worked out."""

    @abstractmethod
    def value(self, place: Coordinates) -> int:
        """The number at this place."""


IntExpression = int | PanelOwner | Affine | Sum | PanelCount | Expression
"""A whole number that may depend on the place."""


def evaluate(value: IntExpression, place: Coordinates) -> int:
    """The number at this place."""
    return value if isinstance(value, int) else value.value(place)


def variables(value: IntExpression) -> frozenset[str]:
    """Coordinates and loop indices on which a number depends.

    >>> sorted(variables(Sum(Affine("turn"), Affine("pipeline", -1))))
    ['pipeline', 'turn']
    """
    match value:
        case int():
            return frozenset()
        case Affine():
            return frozenset({value.variable})
        case Sum():
            return variables(value.left) | variables(value.right)
        case Expression():
            return frozenset[str]().union(*(variables(operand) for operand in value.operands))
        case PanelOwner():
            shared = value.panel.shared_over
            return frozenset({value.panel.loop} | ({shared} if shared is not None else set()))
        case PanelCount():
            return frozenset() if value.panel.shared_over is None else frozenset({value.panel.shared_over})
        case _:
            assert_never(value)


@dataclass(frozen=True, slots=True)
class Min(Expression):
    """The smaller of two numbers."""

    left: IntExpression
    right: IntExpression

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return self.left, self.right

    def value(self, place: Coordinates) -> int:
        return min(evaluate(self.left, place), evaluate(self.right, place))

    def __str__(self) -> str:
        return f"min({self.left}, {self.right})"


@dataclass(frozen=True, slots=True)
class Max(Expression):
    """The larger of two numbers."""

    left: IntExpression
    right: IntExpression

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return self.left, self.right

    def value(self, place: Coordinates) -> int:
        return max(evaluate(self.left, place), evaluate(self.right, place))

    def __str__(self) -> str:
        return f"max({self.left}, {self.right})"


@dataclass(frozen=True, slots=True)
class FloorDivision(Expression):
    """How many whole times `divisor` goes into a number.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.schedule.expressions import Affine
    >>> place = Coordinates(Grid(), {}, {}, {"turn": 7})
    >>> FloorDivision(Affine("turn"), 3).value(place), Modulo(Affine("turn"), 3).value(place)
    (2, 1)
    """

    dividend: IntExpression
    divisor: int

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return (self.dividend,)

    def value(self, place: Coordinates) -> int:
        return evaluate(self.dividend, place) // self.divisor

    def __str__(self) -> str:
        return f"⌊({self.dividend}) / {self.divisor}⌋"


@dataclass(frozen=True, slots=True)
class Modulo(Expression):
    """What is left of a number when `divisor` is taken out of it as often as it goes."""

    dividend: IntExpression
    divisor: int

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return (self.dividend,)

    def value(self, place: Coordinates) -> int:
        return evaluate(self.dividend, place) % self.divisor

    def __str__(self) -> str:
        return f"({self.dividend}) mod {self.divisor}"


@dataclass(frozen=True, slots=True)
class Scaled(Expression):
    """`factor` times a number."""

    factor: int
    operand: IntExpression

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return (self.operand,)

    def value(self, place: Coordinates) -> int:
        return self.factor * evaluate(self.operand, place)

    def __str__(self) -> str:
        return f"{self.factor}·({self.operand})"


@dataclass(frozen=True, slots=True)
class Lookup(Expression):
    """One number of a table, by its row and its column.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.schedule.expressions import Affine
    >>> place = Coordinates(Grid(pipeline=2), {}, {"pipeline": 1}, {"chunk": 0})
    >>> Lookup(((8, 4), (6, 3)), (Affine("pipeline"), Affine("chunk"))).value(place)
    6
    """

    numbers: tuple[tuple[int, ...], ...]
    indices: tuple[IntExpression, IntExpression]

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return self.indices

    def value(self, place: Coordinates) -> int:
        outer, inner = (evaluate(index, place) for index in self.indices)
        return self.numbers[outer][inner]

    def __str__(self) -> str:
        return f"of {self.numbers} number {self.indices[0]}, {self.indices[1]}"


@dataclass(frozen=True, slots=True)
class CyclicLookup(Expression):
    """One of `length` numbers from `first` on, taken in turn; a table says which, and where turn 0 begins.

        first + (begin + turn) mod length

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.schedule.expressions import Affine
    >>> one = CyclicLookup((((4, 2, 3),),), (0, 0), Affine("turn"))
    >>> [one.value(Coordinates(Grid(), {}, {}, {"turn": turn})) for turn in range(4)]
    [6, 4, 5, 6]

    Parameters
    ----------
    runs : first, begin and length, by row and column
    """

    runs: tuple[tuple[tuple[int, int, int], ...], ...]
    indices: tuple[IntExpression, IntExpression]
    iteration: IntExpression

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return (*self.indices, self.iteration)

    def value(self, place: Coordinates) -> int:
        outer, inner = (evaluate(index, place) for index in self.indices)
        first, begin, length = self.runs[outer][inner]
        return first + (begin + evaluate(self.iteration, place)) % length

    def __str__(self) -> str:
        return f"turn {self.iteration} of {self.runs} number {self.indices[0]}, {self.indices[1]}"


@dataclass(frozen=True, slots=True)
class PartStart(Expression):
    """Where part `index` of a cut of `size` into `parts` begins; past the last part, where that one ends.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.schedule.expressions import Affine
    >>> places = [Coordinates(Grid(pipeline=3), {}, {"pipeline": stage}) for stage in range(3)]
    >>> stage = Affine("pipeline")
    >>> [(PartStart(7, 3, stage).value(place), PartLength(7, 3, stage).value(place)) for place in places]
    [(0, 3), (3, 2), (5, 2)]
    """

    size: int
    parts: int
    index: IntExpression

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return (self.index,)

    def value(self, place: Coordinates) -> int:
        index = evaluate(self.index, place)
        return self.size if index == self.parts else cut(self.size, self.parts, index)[0]

    def __str__(self) -> str:
        return f"begin of part {self.index} of {self.size}/{self.parts}"


@dataclass(frozen=True, slots=True)
class PartLength(Expression):
    """How long part `index` of a cut of `size` into `parts` is, and `offset` so much."""

    size: int
    parts: int
    index: IntExpression
    offset: int = 0

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return (self.index,)

    def value(self, place: Coordinates) -> int:
        start, stop = cut(self.size, self.parts, evaluate(self.index, place))
        return stop - start + self.offset

    def __str__(self) -> str:
        return f"length of part {self.index} of {self.size}/{self.parts}" + (f"{self.offset:+d}" if self.offset else "")
