"""Numbers worked out from other numbers: what the loops of a pipeline need to say which turn is whose.

    Begin(layers, stages, pipeline)     the first layer of a stage
    Smaller(microbatches, 3 - pipeline) how many of them a stage begins ahead

All take and give whole numbers that may depend on the place.
"""

from dataclasses import dataclass

from quadrille.algorithms.schedule.expressions import Formula, Number, number
from quadrille.algorithms.schedule.parts import Place, cut


@dataclass(frozen=True, slots=True)
class Smaller(Formula):
    """The smaller of two numbers."""

    one: Number
    other: Number

    @property
    def operands(self) -> tuple[Number, ...]:
        return self.one, self.other

    def value(self, place: Place) -> int:
        return min(number(self.one, place), number(self.other, place))

    def __str__(self) -> str:
        return f"min({self.one}, {self.other})"


@dataclass(frozen=True, slots=True)
class Larger(Formula):
    """The larger of two numbers."""

    one: Number
    other: Number

    @property
    def operands(self) -> tuple[Number, ...]:
        return self.one, self.other

    def value(self, place: Place) -> int:
        return max(number(self.one, place), number(self.other, place))

    def __str__(self) -> str:
        return f"max({self.one}, {self.other})"


@dataclass(frozen=True, slots=True)
class Quotient(Formula):
    """How many whole times `by` goes into a number.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.schedule.expressions import Multiple
    >>> place = Place(Grid(), {}, {}, {"turn": 7})
    >>> Quotient(Multiple("turn"), 3).value(place), Remainder(Multiple("turn"), 3).value(place)
    (2, 1)
    """

    of: Number
    by: int

    @property
    def operands(self) -> tuple[Number, ...]:
        return (self.of,)

    def value(self, place: Place) -> int:
        return number(self.of, place) // self.by

    def __str__(self) -> str:
        return f"⌊({self.of}) / {self.by}⌋"


@dataclass(frozen=True, slots=True)
class Remainder(Formula):
    """What is left of a number when `by` is taken out of it as often as it goes."""

    of: Number
    by: int

    @property
    def operands(self) -> tuple[Number, ...]:
        return (self.of,)

    def value(self, place: Place) -> int:
        return number(self.of, place) % self.by

    def __str__(self) -> str:
        return f"({self.of}) mod {self.by}"


@dataclass(frozen=True, slots=True)
class Times(Formula):
    """`factor` times a number."""

    factor: int
    of: Number

    @property
    def operands(self) -> tuple[Number, ...]:
        return (self.of,)

    def value(self, place: Place) -> int:
        return self.factor * number(self.of, place)

    def __str__(self) -> str:
        return f"{self.factor}·({self.of})"


@dataclass(frozen=True, slots=True)
class Listed(Formula):
    """One number of a table, by its row and its column.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.schedule.expressions import Multiple
    >>> place = Place(Grid(pipeline=2), {}, {"pipeline": 1}, {"chunk": 0})
    >>> Listed(((8, 4), (6, 3)), (Multiple("pipeline"), Multiple("chunk"))).value(place)
    6
    """

    numbers: tuple[tuple[int, ...], ...]
    indices: tuple[Number, Number]

    @property
    def operands(self) -> tuple[Number, ...]:
        return self.indices

    def value(self, place: Place) -> int:
        outer, inner = (number(index, place) for index in self.indices)
        return self.numbers[outer][inner]

    def __str__(self) -> str:
        return f"of {self.numbers} number {self.indices[0]}, {self.indices[1]}"


@dataclass(frozen=True, slots=True)
class InTurn(Formula):
    """One of `length` numbers from `first` on, taken in turn; a table says which, and where turn 0 begins.

        first + (begin + turn) mod length

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.schedule.expressions import Multiple
    >>> one = InTurn((((4, 2, 3),),), (0, 0), Multiple("turn"))
    >>> [one.value(Place(Grid(), {}, {}, {"turn": turn})) for turn in range(4)]
    [6, 4, 5, 6]

    Parameters
    ----------
    runs : first, begin and length, by row and column
    """

    runs: tuple[tuple[tuple[int, int, int], ...], ...]
    indices: tuple[Number, Number]
    turn: Number

    @property
    def operands(self) -> tuple[Number, ...]:
        return (*self.indices, self.turn)

    def value(self, place: Place) -> int:
        outer, inner = (number(index, place) for index in self.indices)
        first, begin, length = self.runs[outer][inner]
        return first + (begin + number(self.turn, place)) % length

    def __str__(self) -> str:
        return f"turn {self.turn} of {self.runs} number {self.indices[0]}, {self.indices[1]}"


@dataclass(frozen=True, slots=True)
class Begin(Formula):
    """Where part `index` of a cut of `size` into `parts` begins; past the last part, where that one ends.

    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.schedule.expressions import Multiple
    >>> places = [Place(Grid(pipeline=3), {}, {"pipeline": stage}) for stage in range(3)]
    >>> stage = Multiple("pipeline")
    >>> [(Begin(7, 3, stage).value(place), Length(7, 3, stage).value(place)) for place in places]
    [(0, 3), (3, 2), (5, 2)]
    """

    size: int
    parts: int
    index: Number

    @property
    def operands(self) -> tuple[Number, ...]:
        return (self.index,)

    def value(self, place: Place) -> int:
        index = number(self.index, place)
        return self.size if index == self.parts else cut(self.size, self.parts, index)[0]

    def __str__(self) -> str:
        return f"begin of part {self.index} of {self.size}/{self.parts}"


@dataclass(frozen=True, slots=True)
class Length(Formula):
    """How long part `index` of a cut of `size` into `parts` is, and `plus` so much."""

    size: int
    parts: int
    index: Number
    plus: int = 0

    @property
    def operands(self) -> tuple[Number, ...]:
        return (self.index,)

    def value(self, place: Place) -> int:
        start, stop = cut(self.size, self.parts, number(self.index, place))
        return stop - start + self.plus

    def __str__(self) -> str:
        return f"length of part {self.index} of {self.size}/{self.parts}" + (f"{self.plus:+d}" if self.plus else "")
