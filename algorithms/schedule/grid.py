"""The process grid: a pipeline × data × context × z × y × x box of ranks, and the groups along its axes.

Experts have their own factorisation of the ranks of a pipeline stage, data × context × z × y × x = replica × expert ×
expert_tensor:

    data=4, x=2, expert=4
    rank                  0  1  2  3  4  5  6  7
    x coordinate          0  1  0  1  0  1  0  1
    data coordinate       0  0  1  1  2  2  3  3
    expert coordinate     0  1  2  3  0  1  2  3      ranks of one group share out all experts
    replica coordinate    0  0  0  0  1  1  1  1      ranks of one group hold the same experts

So a dense layer sees the box, and a layer of experts sees the three factors.  Ranks along `expert_tensor` are the
fastest of these: they hold other columns of the same experts.  `expert` and `expert_tensor` add no ranks.  The ranks of
a stage are numbered in the order of the axes.  Ranks of a group have equal distances; where pipeline is neither the
slowest nor the fastest axis of several ranks, that needs as many ranks along both as are faster than pipeline.

Source: Singh et al., "A Hybrid Tensor-Expert-Data Parallelism Approach to Optimize Mixture-of-Experts Training" (TED),
ICS 2023, section 4; NVIDIA, Megatron Core, `--expert-model-parallel-size` and `--expert-tensor-parallel-size`,
megatron.core.parallel_state (a rank generator of its own for experts, whose tensor ranks are the fastest).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Literal, get_args

from quadrille.algorithms.errors import InputError
from quadrille.algorithms.tabular import ShortRepr
from quadrille.algorithms.units import parse_integer

TRADE_NAMES = {
    "tp": "x",
    "tensor": "x",
    "dp": "data",
    "cp": "context",
    "pp": "pipeline",
    "fsdp": "z",
    "zero": "z",
    "ep": "expert",
    "etp": "expert_tensor",
    "expert-tensor": "expert_tensor",
}
"""Other names of axes, for error messages."""
MOST_RANKS = 1 << 22
"""Most ranks of a grid: a schedule of more is not answered within a minute."""

Axis = Literal["pipeline", "data", "context", "z", "y", "x", "expert", "replica", "expert_tensor"]
AXES: tuple[Axis, ...] = ("pipeline", "data", "context", "z", "y", "x")
"""Axes of the box: their lengths multiply to the number of ranks."""
EXPERT_AXES: tuple[Axis, ...] = ("expert", "replica", "expert_tensor")
"""The three factors of the ranks of a pipeline stage in layers of experts."""
WITHIN_STAGE: tuple[Axis, ...] = AXES[1:]
"""Axes along which the ranks of a pipeline stage differ."""
ALL_AXES: tuple[Axis, ...] = get_args(Axis)
EXPERT: Axis = "expert"
REPLICA: Axis = "replica"
EXPERT_TENSOR: Axis = "expert_tensor"
FOLDED_AXES: tuple[Axis, ...] = (EXPERT, EXPERT_TENSOR)
"""The factors that a grid states; replica is what remains of the ranks of a stage."""
DEFAULT_ORDER: tuple[Axis, ...] = ("x", "y", "z", "context", "data", "pipeline")
NEWER_AXES: tuple[Axis, ...] = ("pipeline", "context", *FOLDED_AXES)
"""Axes that records hold only where they are longer than 1."""


@dataclass(frozen=True, slots=True, repr=False)
class Grid(ShortRepr):
    """Ranks 0 .. size - 1 on a pipeline × data × context × z × y × x box.

    `order` lists the axes from the fastest to the slowest.  Axes that it omits follow in the default order.  By default
    consecutive ranks are neighbours along x, so x belongs on the fastest links of a machine.

    >>> grid = Grid(data=2, y=2, x=2)
    >>> grid.coordinates(5)
    {'pipeline': 0, 'data': 1, 'context': 0, 'z': 0, 'y': 0, 'x': 1}
    >>> grid.group(5, "y")
    (5, 7)
    >>> Grid(z=2, x=2, order=("z", "x")).group(0, "x")
    (0, 2)
    >>> grid = Grid(data=4, x=2, expert=2)
    >>> grid.size, grid.group(5, "data"), grid.group(5, "expert"), grid.group(5, "replica")
    (8, (1, 3, 5, 7), (4, 5), (1, 3, 5, 7))
    >>> grid = Grid(data=4, x=2, expert=2, expert_tensor=2)
    >>> grid.group(5, "expert_tensor"), grid.group(5, "expert"), grid.group(5, "replica")
    ((4, 5), (5, 7), (1, 5))

    Raises
    ------
    InputError : a length below one; an order that names an axis twice; ranks along expert and expert_tensor that do not
        divide those of a stage, or that the order of the axes spaces unevenly
    """

    data: int = 1
    z: int = 1
    y: int = 1
    x: int = 1
    pipeline: int = 1
    context: int = 1
    order: tuple[Axis, ...] = DEFAULT_ORDER
    expert: int = 1
    expert_tensor: int = 1

    def __post_init__(self) -> None:
        for axis in (*AXES, *FOLDED_AXES):
            if self.length(axis) < 1:
                raise InputError(f"grid axis {axis}={self.length(axis)}: a length is a whole number from 1")
        if self.size > MOST_RANKS:
            raise InputError(f"grid {self}: {self.size} ranks; at most {MOST_RANKS} are accepted")
        if len(set(self.order)) < len(self.order) or not set(self.order) <= set(AXES):
            raise InputError(f"order {','.join(self.order)} must name each of {','.join(AXES)} at most once")
        object.__setattr__(self, "order", complete_order(self.order))
        if self.folds:
            self._check_experts()

    def _check_experts(self) -> None:
        """Checks that ranks along expert divide those of a stage, and have equal distances.

        Raises
        ------
        InputError : names the accepted lengths
        """
        ranks, tensor = self.stage_size, self.expert_tensor
        if ranks % tensor:
            raise InputError(
                f"grid expert_tensor={tensor}: groups of that many of the {ranks} ranks of a pipeline stage cut each "
                f"expert, so it divides {ranks}: accepted are {_divisors(ranks)}"
            )
        if ranks % (self.expert * tensor):
            of_them = f" times expert_tensor={tensor}" if tensor > 1 else ""
            raise InputError(
                f"grid expert={self.expert}{of_them}: groups of that many of the {ranks} ranks of a pipeline stage "
                f"share out the experts, so it divides {ranks}: accepted are {_divisors(ranks // tensor)}"
            )
        faster = self._faster_than_pipeline
        if self.pipeline > 1 and 1 < faster < ranks and self._sharing != faster:
            accepted = f"expert={faster // tensor}" if not faster % tensor else f"expert={faster},expert_tensor=1"
            raise InputError(
                f"grid expert={self.expert} on order {','.join(self.order)}: pipeline lies between the ranks of a "
                f"stage: {accepted} is accepted, and so is pipeline last"
            )

    @property
    def folds(self) -> bool:
        """Whether experts have a factorisation of the ranks of a stage that differs from that of dense layers."""
        return self._sharing > 1

    @property
    def _sharing(self) -> int:
        """Number of ranks that hold all experts together, each rank another part."""
        return self.expert * self.expert_tensor

    @property
    def stage_size(self) -> int:
        """Number of ranks of a pipeline stage."""
        return self.size // self.pipeline

    @property
    def _faster_than_pipeline(self) -> int:
        """Product of the lengths of the axes that are faster than pipeline."""
        return prod(self.length(axis) for axis in self.order[: self.order.index("pipeline")])

    @property
    def size(self) -> int:
        """Number of ranks."""
        return prod(self.length(axis) for axis in AXES)

    @property
    def lengths(self) -> dict[Axis, int]:
        """Length of each axis, as records hold it; the newer axes only where they are longer than 1."""
        return {
            axis: self.length(axis) for axis in (*AXES, *FOLDED_AXES) if axis not in NEWER_AXES or self.length(axis) > 1
        }

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes along which ranks have coordinates: those of the box, and those of experts if ranks share them out."""
        return ALL_AXES if self.folds else AXES

    @property
    def replicas(self) -> Axis:
        """Axis whose ranks hold the same experts."""
        return "replica" if self.folds else "data"

    def length(self, axis: Axis) -> int:
        """Number of ranks along `axis`."""
        if axis == "replica":
            return self.stage_size // self._sharing
        length: int = getattr(self, axis)
        return length

    def stride(self, axis: Axis) -> int:
        """Distance, in ranks, between two neighbours along `axis`."""
        if axis in EXPERT_AXES:
            return self._distance(self._places_before(axis))
        return prod(self.length(faster) for faster in self.order[: self.order.index(axis)])

    def _places_before(self, axis: Axis) -> int:
        """Distance of two neighbours along an axis of experts in the numbering of the ranks of a stage."""
        return {"expert_tensor": 1, "expert": self.expert_tensor}.get(axis, self._sharing)

    def _distance(self, position: int) -> int:
        """Distance, in ranks, between the first rank of a stage and the rank at a position in the stage."""
        faster = self._faster_than_pipeline
        return position if position < faster else position * self.pipeline

    def coordinate(self, rank: int, axis: Axis) -> int:
        """Coordinate of a rank along an axis."""
        return rank // self.stride(axis) % self.length(axis)

    def coordinates(self, rank: int) -> dict[Axis, int]:
        """Coordinates of a rank along all axes."""
        return self.with_expert_axes({axis: self.coordinate(rank, axis) for axis in AXES})

    def with_expert_axes(self, along: Mapping[Axis, int]) -> dict[Axis, int]:
        """The coordinates with those along the axes of experts, if ranks share out experts."""
        if not self.folds:
            return dict(along)
        group, tensor = divmod(self._position(along), self.expert_tensor)
        replica, expert = divmod(group, self.expert)
        return {**along, "expert": expert, "replica": replica, "expert_tensor": tensor}

    def _position(self, along: Mapping[Axis, int]) -> int:
        """Number of a rank among those of its stage."""
        position = 0
        for axis in reversed(self.order):
            if axis != "pipeline":
                position = position * self.length(axis) + along.get(axis, 0)
        return position

    def box_axes(self, axis: Axis) -> set[Axis]:
        """The axes of the box along which the coordinate along an axis changes: itself, or some within a stage.

        >>> grid = Grid(data=4, x=2, expert=2)
        >>> grid.box_axes("expert"), grid.box_axes("replica"), grid.box_axes("data")
        ({'x'}, {'data'}, {'data'})
        """
        if axis not in EXPERT_AXES:
            return {axis}
        if self.length(axis) == 1:
            return set()
        step = self._places_before(axis)
        faster, changing = 1, set[Axis]()
        for box_axis in self.order:
            if box_axis == "pipeline" or (length := self.length(box_axis)) == 1:
                continue
            if faster % (step * self.length(axis)) and step % (faster * length):
                changing.add(box_axis)
            faster *= length
        return changing

    def moved(self, along: Mapping[Axis, int], axis: Axis, coordinate: int) -> dict[Axis, int]:
        """The coordinates of the member at a coordinate of the group along an axis.

        >>> grid = Grid(data=2, x=2, expert=4)
        >>> moved = grid.moved(grid.coordinates(0), "expert", 3)
        >>> moved["data"], moved["x"]
        (1, 1)
        """
        if not self.folds:
            return {**along, axis: coordinate}
        moved = {**along, axis: coordinate}
        if axis in EXPERT_AXES:
            position = sum(moved[folded] * self._places_before(folded) for folded in EXPERT_AXES)
            for box_axis in self.order:
                if box_axis != "pipeline":
                    position, moved[box_axis] = divmod(position, self.length(box_axis))
        return self.with_expert_axes(moved)

    def rank_at(self, coordinates: Mapping[Axis, int]) -> int:
        """Returns the rank at these coordinates along the axes of the box; omitted axes are at 0."""
        return sum(self.stride(axis) * coordinate for axis, coordinate in coordinates.items() if axis in AXES)

    def group(self, rank: int, axis: Axis) -> tuple[int, ...]:
        """Returns the ranks that differ from `rank` along `axis` only, `rank` included."""
        length, stride = self.length(axis), self.stride(axis)
        first = rank - self.coordinate(rank, axis) * stride
        return tuple(range(first, first + length * stride, stride))

    def groups(self, axis: Axis) -> Iterator[tuple[int, ...]]:
        """Yields every group along `axis`, ordered by first rank."""
        for rank in range(self.size):
            if self.coordinate(rank, axis) == 0:
                yield self.group(rank, axis)

    def __str__(self) -> str:
        return lengths_text(self.lengths)


def parse_order(text: str) -> tuple[Axis, ...]:
    """Returns the axes from the fastest to the slowest; omitted axes follow in the default order.

    >>> parse_order("z,x")
    ('z', 'x', 'y', 'context', 'data', 'pipeline')
    """
    named = [_axis(word.strip(), "order") for word in text.split(",")]
    repeated = {axis for axis in named if named.count(axis) > 1}
    if repeated:
        raise InputError(f"order {text!r} repeats {', '.join(sorted(repeated))}: name each axis once")
    return complete_order(tuple(named))


def complete_order(order: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Returns the order with the axes that it omits appended in the default order.

    An omitted context axis leaves the default order of all others the default.
    """
    complete = order + tuple(axis for axis in DEFAULT_ORDER if axis not in order)
    others = [axis for axis in complete if axis != "context"]
    is_default = "context" not in order and others == [axis for axis in DEFAULT_ORDER if axis != "context"]
    return DEFAULT_ORDER if is_default else complete


def parse_grid(text: str, order: tuple[Axis, ...] = DEFAULT_ORDER) -> Grid:
    """Returns the grid written as `axis=length,…`.

    >>> parse_grid("z=2,x=3").size
    6

    Raises
    ------
    InputError : an unknown or repeated axis, a length that is no whole number from 1
    """
    lengths: dict[Axis, int] = {}
    for word in text.split(","):
        name, equals, value = word.strip().partition("=")
        axis = _axis(name, "grid")
        if axis in lengths:
            raise InputError(f"grid {text!r} repeats axis {axis}: name each axis once")
        if not equals or not (length := parse_integer(value)):
            raise InputError(f"grid {text[:80]!r}: {word.strip()[:80]!r} is not {axis}=N with a whole number N from 1")
        lengths[axis] = length
    return Grid(**lengths, order=order)


def lengths_text(lengths: Mapping[Axis, int] | Mapping[str, int]) -> str:
    """The lengths of axes as `--grid` takes them, without axes of length 1.

    >>> lengths_text({"data": 1, "z": 4, "y": 1, "x": 2}), lengths_text({"x": 1})
    ('z=4,x=2', 'x=1')
    """
    return ",".join(f"{axis}={length}" for axis, length in lengths.items() if length > 1) or "x=1"


def _divisors(number: int) -> str:
    """The numbers that divide a number, in words."""
    return ", ".join(str(length) for length in range(1, number + 1) if not number % length)


def _axis(name: str, where: str) -> Axis:
    accepted: tuple[Axis, ...] = AXES if where == "order" else (*AXES, *FOLDED_AXES)
    for axis in accepted:
        if name == axis:
            return axis
    meant = TRADE_NAMES.get(name.lower())
    hint = f"; {name} is {meant} here" if meant else ""
    raise InputError(f"{where}: unknown axis {name!r}; the axes are {', '.join(accepted)}{hint}")


assert {field.name for field in fields(Grid)} == {*AXES, *FOLDED_AXES, "order"}
