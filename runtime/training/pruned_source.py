"""Pruned matrices block by block: masks from initial weights or random numbers, dense and compressed blocks."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.schedule.tensors import Block
from quadrille.runtime.operands.input_sources import InputSource
from quadrille.runtime.operands.rectangles import Rectangle
from quadrille.runtime.training.pruned_blocks import (
    Mask,
    compressed_block,
    dense_block,
    index_of,
    places_of,
    region_of,
)
from quadrille.runtime.training.tensor_copies import PrunedCopy

Values = Callable[[str, Rectangle], NDArray[Any]]
"""A function of a matrix's name and a rectangle that returns the elements."""
MaskOf = Callable[[PrunedCopy, Rectangle], Mask]
"""A function of a pruned matrix and a region of whole tiles that returns the kept elements."""


class TrainingInputs(InputSource, Protocol):
    """An input source that knows the kept elements of pruned matrices."""

    def mask(self, copy: PrunedCopy, region: Rectangle) -> Mask:
        """The kept elements of a region of whole tiles."""


def pruned_block(copy: PrunedCopy, block: Block, values: Values, mask_of: MaskOf) -> NDArray[Any]:
    """A rank's block of a pruned matrix, of one of its moments or of its index, in the stored shape.

    Parameters
    ----------
    values : elements of the named matrix, of which only those at kept places are read
    mask_of : kept elements
    """
    if not block.elements:
        return np.empty(block.shape, np.int32 if copy.is_index else np.float32)
    region = region_of(block, copy.shape)
    mask = mask_of(copy, region)
    if copy.is_index:
        assert block.kept_range is not None, block
        whole = Block(block.rows, block.columns, block.flat_range)
        return index_of(whole, mask, region, copy.kept, copy.shape)[slice(*block.kept_range)]
    elements = values(copy.name, region)
    if block.kept_range is not None:
        return compressed_block(block, elements, mask, region, copy.kept, copy.shape)
    zero = elements.dtype.type(0)
    return dense_block(block, np.where(mask, elements, zero), region).reshape(block.shape)


def kept_elements(
    copy: PrunedCopy, block: Block, values: NDArray[Any] | None, mask_of: MaskOf
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Places of a block's kept elements in the compressed vector of the whole matrix, and the elements.

    Parameters
    ----------
    values : stored values of the block, dense or compressed; None for the positions in the flattened matrix
    """
    whole = Block(block.rows, block.columns, block.flat_range)
    region = region_of(whole, copy.shape)
    mask = mask_of(copy, region)
    index = index_of(whole, mask, region, copy.kept, copy.shape)
    index = index if block.kept_range is None else index[slice(*block.kept_range)]
    is_kept = index >= 0
    positions = index[is_kept]
    places = dense_block(whole, places_of(mask, region, copy.kept, copy.shape), region)[positions]
    if values is not None:
        return places, values.reshape(-1)[positions if block.kept_range is None else is_kept]
    rows = np.arange(region.row_start, region.row_stop)[:, None] * copy.shape[1]
    flat = rows + np.arange(region.column_start, region.column_stop)
    return places, dense_block(whole, flat, region)[positions]
