"""Blocks of pruned matrices on the host: masks of tiles, indices of blocks, and places in a checkpoint.

`algorithms/schedule/kept_elements.py` defines tiles, the number of kept elements of a tile, and the order of compressed
vectors.  A function of a region takes a rectangle of whole tiles.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.schedule.kept_elements import TILE, Kept, rectangles
from quadrille.algorithms.schedule.tensors import Block
from quadrille.runtime.operands.rectangles import Rectangle

Shape = tuple[int, int]
Mask = NDArray[np.bool_]


def region_of(block: Block, shape: Shape) -> Rectangle:
    """The smallest rectangle of whole tiles around a block."""
    parts = list(rectangles(block.rows, block.columns, block.flat_range))
    if not parts:
        return Rectangle(0, 0, 0, 0)
    rows = min(part[0][0] for part in parts), max(part[0][1] for part in parts)
    columns = min(part[1][0] for part in parts), max(part[1][1] for part in parts)
    return Rectangle(*_outwards(rows, shape[0], TILE[0]), *_outwards(columns, shape[1], TILE[1]))


def _outwards(span: tuple[int, int], size: int, tile: int) -> tuple[int, int]:
    return span[0] // tile * tile, min(-(-span[1] // tile) * tile, size)


def _cut_at_tiles(span: tuple[int, int], tile: int) -> list[tuple[int, int]]:
    """The parts of a range that lie in one tile each."""
    edges = [span[0], *range((span[0] // tile + 1) * tile, span[1], tile), span[1]]
    return [(start, stop) for start, stop in pairwise(edges) if start < stop]


def _groups(span: tuple[int, int], tile: int) -> Iterator[tuple[int, int, int]]:
    """Yields start, width and number of neighbouring parts with one width."""
    for start, stop in _cut_at_tiles(span, tile):
        if stop - start == tile and start % tile == 0:
            break
        yield start, stop - start, 1
    whole = [part for part in _cut_at_tiles(span, tile) if part[1] - part[0] == tile]
    if not whole:
        return
    yield whole[0][0], tile, len(whole)
    if whole[-1][1] < span[1]:
        yield whole[-1][1], span[1] - whole[-1][1], 1


def tile_mask(scores: NDArray[Any], region: Rectangle, kept: Kept) -> Mask:
    """The kept elements of a region: in each tile, those with the largest scores; of equal scores, the first."""
    result = np.zeros(region.shape, np.bool_)
    for strip, columns, width, count in _strips(region):
        part = scores[strip, columns]
        height = part.shape[0]
        tiles = part.reshape(height, count, width).transpose(1, 0, 2).reshape(count, height * width)
        wanted = kept.of_tile(height * width)
        if wanted:
            largest = _largest(tiles, wanted).reshape(count, height, width).transpose(1, 0, 2)
            result[strip, columns] = largest.reshape(height, count * width)
    return result


def _strips(region: Rectangle) -> Iterator[tuple[slice, slice, int, int]]:
    """Yields the rows and columns of equal neighbouring tiles inside a region, their width and their number."""
    for top, bottom in _cut_at_tiles((region.row_start, region.row_stop), TILE[0]):
        for left, width, count in _groups((region.column_start, region.column_stop), TILE[1]):
            start = left - region.column_start
            yield (
                slice(top - region.row_start, bottom - region.row_start),
                slice(start, start + width * count),
                width,
                count,
            )


def _largest(tiles: NDArray[Any], wanted: int) -> Mask:
    """The places of the largest numbers of each row; a threshold decides, so that no order of a sort matters."""
    size = tiles.shape[1]
    threshold = np.partition(tiles, size - wanted, axis=1)[:, size - wanted, None]
    above, equal = tiles > threshold, tiles == threshold
    missing = wanted - above.sum(axis=1, keepdims=True)
    largest: Mask = above | (equal & (equal.cumsum(axis=1) <= missing))
    return largest


def index_of(block: Block, mask: Mask, region: Rectangle, kept: Kept, shape: Shape) -> NDArray[np.int32]:
    """The index of a block that is not sharded over data: positions of kept elements.

    Where a cut tile keeps fewer elements than there is room for, complements of positions of pruned elements follow.
    """
    width, first = block.columns[1] - block.columns[0], (block.flat_range or (0, 0))[0]
    parts: list[NDArray[np.int64]] = []
    for rows, columns in rectangles(block.rows, block.columns, block.flat_range):
        for top, bottom in _cut_at_tiles(rows, TILE[0]):
            for left, tile_width, count in _groups(columns, TILE[1]):
                here = mask[
                    top - region.row_start : bottom - region.row_start,
                    left - region.column_start : left - region.column_start + tile_width * count,
                ]
                room = _room((top, bottom), (left, left + tile_width), kept, shape)
                row, column = _first_kept(here, tile_width, count, room)
                positions = (top - block.rows[0] + row[0]) * width + left - block.columns[0] + column - first
                parts.append(np.where(row[1], positions, ~positions).reshape(-1))
    return np.concatenate(parts).astype(np.int32) if parts else np.empty(0, np.int32)


def _room(rows: tuple[int, int], columns: tuple[int, int], kept: Kept, shape: Shape) -> int:
    return kept.capacity(rows, columns, None, shape)


def _first_kept(
    here: Mask, width: int, count: int, room: int
) -> tuple[tuple[NDArray[np.int64], Mask], NDArray[np.int64]]:
    """Rows of the first elements of neighbouring tiles, kept ones first, with whether they are kept; and columns."""
    height = here.shape[0]
    tiles = here.reshape(height, count, width).transpose(1, 0, 2).reshape(count, height * width)
    places = np.argsort(~tiles, axis=1, kind="stable")[:, :room]
    is_kept: Mask = np.take_along_axis(tiles, places, axis=1)
    rows, columns = np.divmod(places, width)
    return (rows, is_kept), columns + np.arange(count)[:, None] * width


def dense_block(block: Block, values: NDArray[Any], region: Rectangle) -> NDArray[Any]:
    """The elements of a block, flattened, from the values of its region."""
    parts = [
        values[
            rows[0] - region.row_start : rows[1] - region.row_start,
            columns[0] - region.column_start : columns[1] - region.column_start,
        ].reshape(-1)
        for rows, columns in rectangles(block.rows, block.columns, block.flat_range)
    ]
    return np.concatenate(parts) if parts else values.reshape(-1)[:0]


def compressed_block(
    block: Block, values: NDArray[Any], mask: Mask, region: Rectangle, kept: Kept, shape: Shape
) -> NDArray[Any]:
    """The compressed vector of a block, from the values of its region; entries that are not kept are zero."""
    assert block.kept_range is not None, block
    index = index_of(replace(block, kept_range=None), mask, region, kept, shape)[slice(*block.kept_range)]
    dense = dense_block(block, values, region)
    return np.where(index >= 0, dense[np.where(index >= 0, index, ~index)], dense.dtype.type(0))


def places_of(mask: Mask, region: Rectangle, kept: Kept, shape: Shape) -> NDArray[np.int64]:
    """For each kept element of a region, its place in the compressed vector of the whole matrix."""
    places = np.zeros(region.shape, np.int64)
    for strip, columns, width, count in _strips(region):
        here = mask[strip, columns]
        height = here.shape[0]
        tiles = here.reshape(height, count, width).transpose(1, 0, 2).reshape(count, height * width)
        first = first_place(region.row_start + strip.start, region.column_start + columns.start, kept, shape)
        of_tile = tiles.cumsum(axis=1) - 1 + first + np.arange(count)[:, None] * kept.of_tile(height * width)
        spread = of_tile.reshape(count, height, width).transpose(1, 0, 2)
        places[strip, columns] = spread.reshape(height, count * width)
    return places


def first_place(row: int, column: int, kept: Kept, shape: Shape) -> int:
    """Place of the first kept element of the tile that begins at a row and column."""
    bottom = min(row + TILE[0], shape[0])
    above = kept.capacity((0, row), (0, shape[1]), None, shape)
    return above + kept.capacity((row, bottom), (0, column), None, shape)


def places_in(region: Rectangle, kept: Kept, shape: Shape) -> Iterator[slice]:
    """Yields the places of the kept elements of each strip of tiles of a region in the vector of the whole matrix."""
    for top, bottom in _cut_at_tiles((region.row_start, region.row_stop), TILE[0]):
        start = first_place(top, region.column_start, kept, shape)
        held = kept.capacity((top, bottom), (region.column_start, region.column_stop), None, shape)
        yield slice(start, start + held)


def is_in_tiles(index: NDArray[np.int32], kept: Kept, shape: Shape) -> bool:
    """Whether the positions of the kept elements of a whole matrix rise inside of each tile, and lie in it."""
    region = Rectangle(0, shape[0], 0, shape[1])
    for strip, places in zip(_cut_at_tiles((0, shape[0]), TILE[0]), places_in(region, kept, shape), strict=True):
        rows, columns = np.divmod(index[places].astype(np.int64), shape[1])
        widths = [right - left for left, right in _cut_at_tiles((0, shape[1]), TILE[1])]
        counts = [kept.of_tile((strip[1] - strip[0]) * width) for width in widths]
        tiles = np.repeat(np.arange(len(widths)), counts)
        in_place = (rows >= strip[0]) & (rows < strip[1]) & (columns // TILE[1] == tiles)
        rises = (np.diff(index[places].astype(np.int64)) > 0) | (np.diff(tiles) > 0)
        if not (in_place.all() and rises.all()):
            return False
    return True
