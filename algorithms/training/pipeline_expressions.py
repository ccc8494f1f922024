"""Numbers worked out from other numbers: what the loops of a pipeline need to say which turn is whose.

    Begin(layers, stages, pipeline)     the first layer of a stage
    Smaller(microbatches, 3 - pipeline) how many of them a stage begins ahead

All take and give whole numbers that may depend on the place.
"""

from dataclasses import dataclass

from quadrille.algorithms.schedule.expressions import Expression, IntExpression, evaluate
from quadrille.algorithms.schedule.parts import Coordinates, cut


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
