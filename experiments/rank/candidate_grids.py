"""`CandidateGrids`: the grids of a number of ranks, as every factorisation of it in every distinct rank order."""

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
class GridLimits:
    """Restrictions on the grids that are tried.

    Parameters
    ----------
    order : order of the axes in the numbering of ranks, innermost first; None for all distinct orders
    powers_of_two : whether only grids whose axes are powers of two are tried
    least_model_parallel : minimum number of ranks that share one copy of the model (x times y times z)
    """

    order: tuple[Axis, ...] | None = None
    powers_of_two: bool = False
    least_model_parallel: int = 1


@dataclass(frozen=True, slots=True)
class CandidateGrids:
    """Many grids with their rank orders, as arrays: element i of every array belongs to grid i.

    Parameters
    ----------
    lengths : length of each axis [grids]
    orders : index of the rank order in ORDERS [grids]
    """

    lengths: dict[Axis, Ints]
    orders: Ints

    def __len__(self) -> int:
        return len(self.orders)

    def __getitem__(self, chosen: Ints | NDArray[np.bool_]) -> "CandidateGrids":
        return CandidateGrids({axis: length[chosen] for axis, length in self.lengths.items()}, self.orders[chosen])

    def grid(self, number: int) -> Grid:
        return Grid(
            **{axis: int(length[number]) for axis, length in self.lengths.items()},
            order=ORDERS[int(self.orders[number])],
        )

    def strides(self) -> dict[Axis, Ints]:
        """The distance, in ranks, between neighbours along each axis [grids]."""
        table = np.stack([self.lengths[axis] for axis in MODELLED])
        strides = np.empty_like(table)
        row_of_axis = {axis: box_number for box_number, axis in enumerate(MODELLED)}
        for number in np.unique(self.orders):
            chosen = np.flatnonzero(self.orders == number)
            stride = np.ones(len(chosen), dtype=np.int64)
            for axis in ORDERS[number]:
                strides[row_of_axis[axis], chosen] = stride
                stride = stride * table[row_of_axis[axis], chosen]
        return dict(zip(MODELLED, strides, strict=True))


def candidate_grids(gpus: int, limits: GridLimits, shape: ModelShape, batch: int) -> CandidateGrids:
    """Every grid of `gpus` GPUs on which a model can be trained, in every distinct rank order.

    >>> from quadrille.algorithms.training.model_files import find_shape

    >>> grids = candidate_grids(4, GridLimits(), find_shape("tiny"), batch=8)
    >>> len(grids), str(grids.grid(0)), grids.grid(0).order[:3]
    (16, 'x=4', ('x', 'y', 'z'))

    Parameters
    ----------
    gpus : number of GPUs
    limits : restrictions on the grids
    shape : shape of the model, which must divide over the grid
    batch : number of sequences in a batch

    Raises
    ------
    InputError : the limits leave no grid, or the model divides over no grid
    """
    boxes = np.array(list(factorisations(gpus, len(MODELLED))), dtype=np.int64)
    allowed = _within_limits(boxes, gpus, limits)
    return _with_orders(_divisible(allowed, shape, batch, gpus), limits.order)


def check_limits(gpus: int, limits: GridLimits) -> None:
    """Checks that a number of GPUs has grids within the limits.

    Raises
    ------
    ParameterError : it has none
    """
    if limits.least_model_parallel > gpus:
        raise ParameterError(
            "min_model_parallel", f"{limits.least_model_parallel}: at most the number of GPUs, {gpus}, is accepted"
        )
    if limits.powers_of_two and gpus & (gpus - 1):
        raise ParameterError("gpus", f"{gpus}: grids of powers of two alone need a power of two")


def _within_limits(boxes: Ints, gpus: int, limits: GridLimits) -> Ints:
    check_limits(gpus, limits)
    if limits.powers_of_two:
        boxes = boxes[((boxes & (boxes - 1)) == 0).all(axis=1)]
    selected: Ints = boxes[gpus // boxes[:, MODELLED.index("data")] >= limits.least_model_parallel]
    return selected


def _divisible(boxes: Ints, shape: ModelShape, batch: int, gpus: int) -> Ints:
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


def _with_orders(boxes: Ints, order: tuple[Axis, ...] | None) -> CandidateGrids:
    """Each box in the given order, or in all distinct orders; axes of length 1 do not distinguish orders."""
    numbers = [ORDERS.index(order)] if order else range(len(ORDERS))
    pairs = list(product(range(len(boxes)), numbers)) if order else _distinct_pairs(boxes)
    box_numbers, orders = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return CandidateGrids(dict(zip(MODELLED, boxes[box_numbers].T, strict=True)), orders)


def _distinct_pairs(boxes: Ints) -> list[tuple[int, int]]:
    """The indices of box and order of all distinct pairs, box by box."""
    distinct: dict[tuple[bool, ...], list[int]] = defaultdict(list)
    pairs = []
    for box_number, box in enumerate((boxes > 1).tolist()):
        long = tuple(box)
        if long not in distinct:
            axes = {axis for axis, is_long in zip(MODELLED, long, strict=True) if is_long}
            distinct[long] = distinct_orders(axes)
        pairs += [(box_number, number) for number in distinct[long]]
    return pairs
