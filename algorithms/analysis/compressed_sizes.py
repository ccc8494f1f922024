"""Sizes of compressed blocks of pruned matrices over all ranks, before the axis data and buckets cut them.

Blocks of whole tiles have one size.  A block that cuts a tile has room for more, depending on where it begins, so each
coordinate counts.
"""

from dataclasses import replace
from itertools import product
from math import prod

from quadrille.algorithms.schedule.grid import AXES, Axis
from quadrille.algorithms.schedule.kept_elements import TILE
from quadrille.algorithms.schedule.parts import Part, is_mean
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Tensor


def whole_compressed(tensor: Tensor) -> Tensor:
    """The compressed tensor before the axis data and buckets cut it."""
    return replace(tensor, sharded_over=tuple(axis for axis in tensor.shards if axis != "data"), buckets=None)


def distinct_axes(tensor: Tensor, lengths: tuple[set[int], set[int]], schedule: Schedule) -> set[Axis]:
    """Axes along which compressed blocks may differ in size: none if no block cuts a tile.

    Parameters
    ----------
    lengths : lengths that rows and columns of a block may have
    """
    grid = schedule.grid
    whole = replace(whole_compressed(tensor), stages=None, first_indices=())
    axes = {axis for axis in whole.cut_over if grid.length(axis) > 1}
    shards = prod(grid.length(axis) for axis in tensor.shards if axis != "data")
    unit = (TILE[0] * shards, TILE[1])
    in_tiles = all(
        len(part_lengths) == 1 and _is_in_tiles(min(part_lengths), part, tile, schedule, is_cut=tile > TILE[side])
        for side, (part, part_lengths, tile) in enumerate(
            zip((tensor.rows, tensor.columns), lengths, unit, strict=True)
        )
    )
    return set() if in_tiles else axes


def _is_in_tiles(length: int, part: Part, tile: int, schedule: Schedule, *, is_cut: bool) -> bool:
    """Whether parts of one length begin and end where tiles do."""
    if is_mean(length):
        return True
    cut = is_cut or any(schedule.grid.length(axis) > 1 for axis in part.cut_over)
    return not cut or length % tile == 0


def compressed_sizes(tensor: Tensor, lengths: tuple[set[int], set[int]], schedule: Schedule) -> set[int]:
    """Sizes of the compressed blocks of all ranks, before the axis data and buckets cut them [elements]."""
    whole, grid = replace(whole_compressed(tensor), stages=None), schedule.grid
    axes = [axis for axis in AXES if axis in distinct_axes(tensor, lengths, schedule)]
    return {
        whole.block(schedule.coordinates(grid.rank_at(dict(zip(axes, along, strict=True))))).elements
        for along in product(*(range(grid.length(axis)) for axis in axes))
    }
