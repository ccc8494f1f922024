"""All grids of a number of ranks: every factorisation of the number, in every distinct rank order."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.analysis.axonn import MODELLED
from quadrille.algorithms.errors import InputError, ParameterError
from quadrille.algorithms.schedule.grid import Axis, Grid
from quadrille.algorithms.training.model_shapes import ModelShape
from quadrille.experiments.workloads.grids import factorisations
from quadrille.experiments.workloads.rank_orders import ORDERS, distinct_orders

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Limits:
    """Restrictions on the grids that are tried.

    Parameters
    ----------
    order : the axes, the fastest first; None for all distinct orders
    least_model_parallel : minimum number of ranks that share one copy of the model (x times y times z)
    """

    order: tuple[Axis, ...] | None = None
    powers_of_two: bool = False
    least_model_parallel: int = 1


@dataclass(frozen=True, slots=True)
class Candidates:
    """Grids with a rank order: element i of every array belongs to grid i.

    Parameters
    ----------
    lengths : length of each axis [grids]
    orders : index of the rank order in ORDERS [grids]
    """

    lengths: dict[Axis, Ints]
    orders: Ints

    def __len__(self) -> int:
        return len(self.orders)

    def __getitem__(self, chosen: Ints | NDArray[np.bool_]) -> "Candidates":
        return Candidates({axis: length[chosen] for axis, length in self.lengths.items()}, self.orders[chosen])

    def grid(self, number: int) -> Grid:
        return Grid(
            **{axis: int(length[number]) for axis, length in self.lengths.items()},
            order=ORDERS[int(self.orders[number])],
        )

    def strides(self) -> dict[Axis, Ints]:
        """Distance, in ranks, between neighbours along each axis."""
        table = np.stack([self.lengths[axis] for axis in MODELLED])
        strides = np.empty_like(table)
        places = {axis: place for place, axis in enumerate(MODELLED)}
        for number in np.unique(self.orders):
            chosen = np.flatnonzero(self.orders == number)
            stride = np.ones(len(chosen), dtype=np.int64)
            for axis in ORDERS[number]:
                strides[places[axis], chosen] = stride
                stride = stride * table[places[axis], chosen]
        return dict(zip(MODELLED, strides, strict=True))


def candidates(gpus: int, limits: Limits, shape: ModelShape, batch: int) -> Candidates:
    """Every grid of `gpus` GPUs on which the model can be trained, in every distinct order.

    >>> from quadrille.algorithms.training.model_files import find_shape

    >>> grids = candidates(4, Limits(), find_shape("tiny"), batch=8)
    >>> len(grids), str(grids.grid(0)), grids.grid(0).order[:4]
    (16, 'x=4', ('x', 'y', 'z', 'data'))

    Raises
    ------
    InputError : the limits leave no grid, or the model divides over no grid
    """
    boxes = np.array(list(factorisations(gpus, len(MODELLED))), dtype=np.int64)
    left = _narrowed(boxes, gpus, limits)
    return _ordered(_dividing(left, shape, batch, gpus), limits.order)


def _narrowed(boxes: Ints, gpus: int, limits: Limits) -> Ints:
    if limits.least_model_parallel > gpus:
        raise ParameterError(
            "min_model_parallel", f"{limits.least_model_parallel}: at most the number of GPUs, {gpus}, is accepted"
        )
    if limits.powers_of_two:
        boxes = boxes[((boxes & (boxes - 1)) == 0).all(axis=1)]
        if not len(boxes):
            raise ParameterError("gpus", f"{gpus}: grids of powers of two alone need a power of two")
    selected: Ints = boxes[gpus // boxes[:, MODELLED.index("data")] >= limits.least_model_parallel]
    return selected


def _dividing(boxes: Ints, shape: ModelShape, batch: int, gpus: int) -> Ints:
    """The boxes over which the model and its batch divide.

    Raises
    ------
    InputError : no box is left
    """
    data, z, y, x = boxes.T
    heads = shape.key_value_heads % x == 0
    columns = (y <= shape.hidden) & (x <= shape.vocabulary)
    sequences = data * z <= batch
    divisible: Ints = boxes[heads & columns & sequences]
    if len(divisible):
        return divisible
    axis = "key_heads" if shape.key_value_heads != shape.heads else "heads"
    if not heads.any():
        raise InputError(
            f"model {shape.name}: attention heads are cut over x, and no x of the {len(boxes)} grids of {gpus} GPUs "
            f"divides {axis} = {shape.key_value_heads}"
        )
    least = int((data * z)[heads & columns].min()) if (heads & columns).any() else 0
    if not least:
        raise InputError(f"model {shape.name}: hidden = {shape.hidden} is too small for every grid of {gpus} GPUs")
    raise ParameterError(
        "batch",
        f"{batch}: sequences are cut over data and z, and every grid of {gpus} GPUs whose x divides "
        f"{axis} = {shape.key_value_heads} needs at least {least}",
    )


def _ordered(boxes: Ints, order: tuple[Axis, ...] | None) -> Candidates:
    """Each box in the given order, or in all distinct orders: the place of an axis of length 1 does not matter."""
    numbers = [ORDERS.index(order)] if order else range(len(ORDERS))
    pairs = list(product(range(len(boxes)), numbers)) if order else _differing(boxes)
    which, orders = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Candidates(dict(zip(MODELLED, boxes[which].T, strict=True)), orders)


def _differing(boxes: Ints) -> list[tuple[int, int]]:
    """Index of the box and of the order, for all distinct pairs, box by box."""
    distinct: dict[tuple[bool, ...], list[int]] = defaultdict(list)
    pairs = []
    for place, box in enumerate((boxes > 1).tolist()):
        long = tuple(box)
        if long not in distinct:
            axes = {axis for axis, is_long in zip(MODELLED, long, strict=True) if is_long}
            distinct[long] = distinct_orders(axes)
        pairs += [(place, number) for number in distinct[long]]
    return pairs
