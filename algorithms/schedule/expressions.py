"""Integer expressions over coordinates and loop indices: roots, peers, shift distances and trip counts of a schedule.

Ops and Repeats hold expressions in place of numbers, so that one schedule holds for every rank and every iteration.
`evaluate` gives the value at given coordinates; `variables` gives the coordinates and loop indices that the value
depends on.

    Affine("pipeline", -1, 3)                  3 - pipeline
    Min(microbatches, Affine("pipeline", …))   microbatches in the warm-up of a pipeline stage
    PartStart(layers, stages, stage)           first layer of a stage
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import assert_never

from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.parts import Coordinates, Panel, cut


@dataclass(frozen=True, slots=True)
class PanelOwner:
    """Coordinate along `axis` whose block holds the current panel."""

    panel: Panel
    axis: Axis

    def value(self, coordinates: Coordinates) -> int:
        size, parts = coordinates.sizes[self.panel.dimension], coordinates.grid.length(self.axis)
        start = self.panel.bounds(coordinates)[0] // self.panel.unit
        short, longer = divmod(size, parts)
        inside_longer = longer * (short + 1)
        if start < inside_longer:
            return start // (short + 1)
        return longer + (start - inside_longer) // short

    def __str__(self) -> str:
        return f"owner of {self.panel.dimension}[{self.panel.loop}]"


@dataclass(frozen=True, slots=True)
class Affine:
    """`factor` · `variable` + `offset`, where the variable is a coordinate or a loop index.

    With `modulo`, the value is taken modulo the length of that axis: the peer of a ring.

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

    def value(self, coordinates: Coordinates) -> int:
        value = self.factor * coordinates.variable(self.variable) + self.offset
        return value if self.modulo is None else value % coordinates.grid.length(self.modulo)

    def __str__(self) -> str:
        times = {1: "", -1: "-"}.get(self.factor, f"{self.factor}·")
        around = f" around {self.modulo}" if self.modulo is not None else ""
        return f"{times}{self.variable}" + (f"{self.offset:+d}" if self.offset else "") + around


@dataclass(frozen=True, slots=True)
class Sum:
    """Sum of two expressions.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> coordinates = Coordinates(Grid(pipeline=4), {}, {"pipeline": 1}, {"slot": 5})
    >>> Sum(Affine("slot"), Affine("pipeline", -1, offset=3)).value(coordinates)
    7
    """

    left: "IntExpression"
    right: "IntExpression"

    def value(self, coordinates: Coordinates) -> int:
        return evaluate(self.left, coordinates) + evaluate(self.right, coordinates)

    def __str__(self) -> str:
        return f"{self.left} + {self.right}"


@dataclass(frozen=True, slots=True)
class PanelCount:
    """Number of panels that a rank takes part in, plus `offset`, at least 0.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> PanelCount(Panel("k", 4, ("x",), "p"), offset=-1).value(Coordinates(Grid(x=3), {"k": 9}, {"x": 0}))
    2
    """

    panel: Panel
    offset: int = 0

    def value(self, coordinates: Coordinates) -> int:
        start, stop = self.panel.iterations(coordinates)
        return max(0, stop - start + self.offset)

    def __str__(self) -> str:
        return f"panels of {self.panel.dimension}" + (f"{self.offset:+d}" if self.offset else "")


class Expression(ABC):
    """Base of the integer expressions."""

    __slots__ = ()

    @property
    @abstractmethod
    def operands(self) -> tuple["IntExpression", ...]:
        """The operands, themselves expressions."""

    @abstractmethod
    def value(self, coordinates: Coordinates) -> int:
        """Value of the expression at the coordinates."""


IntExpression = int | PanelOwner | Affine | Sum | PanelCount | Expression
"""An integer that may depend on coordinates and loop indices."""


def evaluate(value: IntExpression, coordinates: Coordinates) -> int:
    """Returns the value of an integer or expression at the coordinates."""
    return value if isinstance(value, int) else value.value(coordinates)


def variables(value: IntExpression) -> frozenset[str]:
    """Returns the coordinates and loop indices that an expression depends on.

    >>> sorted(variables(Sum(Affine("slot"), Affine("pipeline", -1))))
    ['pipeline', 'slot']
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
    """Minimum of two expressions."""

    left: IntExpression
    right: IntExpression

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return self.left, self.right

    def value(self, coordinates: Coordinates) -> int:
        return min(evaluate(self.left, coordinates), evaluate(self.right, coordinates))

    def __str__(self) -> str:
        return f"min({self.left}, {self.right})"


@dataclass(frozen=True, slots=True)
class Max(Expression):
    """Maximum of two expressions."""

    left: IntExpression
    right: IntExpression

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return self.left, self.right

    def value(self, coordinates: Coordinates) -> int:
        return max(evaluate(self.left, coordinates), evaluate(self.right, coordinates))

    def __str__(self) -> str:
        return f"max({self.left}, {self.right})"


@dataclass(frozen=True, slots=True)
class FloorDivision(Expression):
    """Quotient of an expression and an integer, rounded down.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> coordinates = Coordinates(Grid(), {}, {}, {"slot": 7})
    >>> FloorDivision(Affine("slot"), 3).value(coordinates), Modulo(Affine("slot"), 3).value(coordinates)
    (2, 1)
    """

    dividend: IntExpression
    divisor: int

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return (self.dividend,)

    def value(self, coordinates: Coordinates) -> int:
        return evaluate(self.dividend, coordinates) // self.divisor

    def __str__(self) -> str:
        return f"⌊({self.dividend}) / {self.divisor}⌋"


@dataclass(frozen=True, slots=True)
class Modulo(Expression):
    """Remainder of an expression divided by an integer."""

    dividend: IntExpression
    divisor: int

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return (self.dividend,)

    def value(self, coordinates: Coordinates) -> int:
        return evaluate(self.dividend, coordinates) % self.divisor

    def __str__(self) -> str:
        return f"({self.dividend}) mod {self.divisor}"


@dataclass(frozen=True, slots=True)
class Scaled(Expression):
    """An expression times an integer."""

    factor: int
    operand: IntExpression

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return (self.operand,)

    def value(self, coordinates: Coordinates) -> int:
        return self.factor * evaluate(self.operand, coordinates)

    def __str__(self) -> str:
        return f"{self.factor}·({self.operand})"


@dataclass(frozen=True, slots=True)
class Lookup(Expression):
    """Entry of a table, by row and column.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> coordinates = Coordinates(Grid(pipeline=2), {}, {"pipeline": 1}, {"chunk": 0})
    >>> Lookup(((8, 4), (6, 3)), (Affine("pipeline"), Affine("chunk"))).value(coordinates)
    6
    """

    numbers: tuple[tuple[int, ...], ...]
    indices: tuple[IntExpression, IntExpression]

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return self.indices

    def value(self, coordinates: Coordinates) -> int:
        outer, inner = (evaluate(index, coordinates) for index in self.indices)
        return self.numbers[outer][inner]

    def __str__(self) -> str:
        return f"of {self.numbers} number {self.indices[0]}, {self.indices[1]}"


@dataclass(frozen=True, slots=True)
class CyclicLookup(Expression):
    """Entry of a cycle of `length` consecutive integers; a table gives the cycle, and the iteration gives the position
    in it.

        first + (begin + iteration) mod length

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> cycle = CyclicLookup((((4, 2, 3),),), (0, 0), Affine("slot"))
    >>> [cycle.value(Coordinates(Grid(), {}, {}, {"slot": slot})) for slot in range(4)]
    [6, 4, 5, 6]

    Parameters
    ----------
    runs : (first, begin, length) of each cycle, by row and column
    indices : row and column
    iteration : position in the cycle
    """

    runs: tuple[tuple[tuple[int, int, int], ...], ...]
    indices: tuple[IntExpression, IntExpression]
    iteration: IntExpression

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return (*self.indices, self.iteration)

    def value(self, coordinates: Coordinates) -> int:
        outer, inner = (evaluate(index, coordinates) for index in self.indices)
        first, begin, length = self.runs[outer][inner]
        return first + (begin + evaluate(self.iteration, coordinates)) % length

    def __str__(self) -> str:
        return f"turn {self.iteration} of {self.runs} number {self.indices[0]}, {self.indices[1]}"


@dataclass(frozen=True, slots=True)
class PartStart(Expression):
    """Start of part `index` when `size` elements are cut into `parts`; the end of the last part for index = parts.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> stages = [Coordinates(Grid(pipeline=3), {}, {"pipeline": stage}) for stage in range(3)]
    >>> stage = Affine("pipeline")
    >>> [(PartStart(7, 3, stage).value(at), PartLength(7, 3, stage).value(at)) for at in stages]
    [(0, 3), (3, 2), (5, 2)]
    """

    size: int
    parts: int
    index: IntExpression

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return (self.index,)

    def value(self, coordinates: Coordinates) -> int:
        index = evaluate(self.index, coordinates)
        return self.size if index == self.parts else cut(self.size, self.parts, index)[0]

    def __str__(self) -> str:
        return f"begin of part {self.index} of {self.size}/{self.parts}"


@dataclass(frozen=True, slots=True)
class PartLength(Expression):
    """Length of part `index` when `size` elements are cut into `parts`, plus `offset`."""

    size: int
    parts: int
    index: IntExpression
    offset: int = 0

    @property
    def operands(self) -> tuple[IntExpression, ...]:
        return (self.index,)

    def value(self, coordinates: Coordinates) -> int:
        start, stop = cut(self.size, self.parts, evaluate(self.index, coordinates))
        return stop - start + self.offset

    def __str__(self) -> str:
        return f"length of part {self.index} of {self.size}/{self.parts}" + (f"{self.offset:+d}" if self.offset else "")
