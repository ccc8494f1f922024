"""The largest memory of a rank on many grids at once, from the buffers of a single schedule.

The layout of a tensor is the same on every grid; only the lengths of the axes differ.  A
single schedule is therefore enough, and each of its buffers is sized for all grids at once
with numpy arrays.  The results equal `quadrille.algorithms.analysis.storage` for rank 0,
whose shards are the largest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.schedule.grid import Axis
from quadrille.algorithms.schedule.kept_elements import Kept
from quadrille.algorithms.schedule.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Op,
    ReduceScatter,
    lane,
    reads,
    writes,
)
from quadrille.algorithms.schedule.parts import Part
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.layers import BUCKET
from quadrille.algorithms.training.offload import BUCKET_SIZE, DEFAULT_BUCKET, SETS

Ints = NDArray[np.int64]
Lengths = Mapping[Axis, Ints]


def peak_bytes_by_grid(schedule: Schedule, lengths: Lengths, bucket: int = DEFAULT_BUCKET) -> Ints:
    """The memory of the device of rank 0 on each grid [B] [grids].

    Parameters
    ----------
    schedule : schedule on a grid with the same axes longer than 1, because its ops may depend on them
    lengths : length of each axis that a layout names [grids]
    bucket : largest number of parameters of a bucket of an offloaded optimizer
    """
    written = tuple(all_ops(schedule))
    touched = {name for op in written for name in (*reads(op), *writes(op))}
    touched |= {*schedule.inputs, *schedule.state, *schedule.outputs}
    touched |= {tensor.staged_in for tensor in schedule.tensors.values() if tensor.staged_in is not None}
    total = _scratch(schedule, written, lengths)
    for name in sorted(touched):
        tensor = schedule.tensors[name]
        if tensor.on_host:
            continue
        size = _elements(schedule, tensor, lengths, bucket) * schedule.item_bytes(name)
        total = total + np.where(_is_view(schedule, name, written, lengths), 0, size)
    return total


def host_bytes_by_grid(schedule: Schedule, lengths: Lengths, bucket: int = DEFAULT_BUCKET) -> Ints:
    """The host memory of rank 0 on each grid [B] [grids].

    Parameters
    ----------
    schedule, lengths, bucket : as in `peak_bytes_by_grid`
    """
    total = np.zeros_like(next(iter(lengths.values())))
    for name, tensor in schedule.tensors.items():
        if tensor.on_host and tensor.staged_in is None:
            block = _elements(schedule, tensor, lengths, bucket)
            total = total + block * schedule.item_bytes(name)
    return total


def _elements(schedule: Schedule, tensor: Tensor, lengths: Lengths, bucket: int) -> Ints:
    """The number of elements of all copies of a tensor on rank 0 [grids]; buckets of a tensor have the same size."""
    if BUCKET_SIZE in (tensor.rows.dimension, tensor.columns.dimension):
        return SETS * _bucket_elements(schedule, tensor.name, lengths, bucket)
    if tensor.buckets is not None:
        whole = replace(tensor, buckets=None, copies=tuple(copy for copy in tensor.copies if copy[0] != BUCKET))
        block = _block(schedule, whole, lengths)
        count = _bucket_count(block, bucket)
        return count * _longest(block, count) * whole.copy_count(schedule.coordinates(0))
    return _block(schedule, tensor, lengths) * tensor.copy_count(schedule.coordinates(0))


def _bucket_elements(schedule: Schedule, buffer: str, lengths: Lengths, bucket: int) -> Ints:
    """The number of elements of the largest bucket in a bucket buffer [grids]."""
    largest = np.zeros_like(next(iter(lengths.values())))
    for tensor in schedule.tensors.values():
        if tensor.staged_in == buffer:
            block = _block(schedule, tensor, lengths)
            largest = np.maximum(largest, _longest(block, _bucket_count(block, bucket)))
    return largest


def _bucket_count(block: Ints, bucket: int) -> Ints:
    """The number of buckets of a block [grids]."""
    return np.maximum(1, -(-block // bucket))


def _block(schedule: Schedule, tensor: Tensor, lengths: Lengths) -> Ints:
    """The number of elements of one copy of a tensor on rank 0 [grids]."""
    rows, columns = _length(tensor.rows, schedule, lengths), _length(tensor.columns, schedule, lengths)
    size = rows * columns
    if tensor.kept is not None:
        return _compressed(schedule, tensor, tensor.kept, rows, columns, lengths)
    for axis in tensor.shards:
        size = _longest(size, lengths[axis])
    return size


def _compressed(schedule: Schedule, tensor: Tensor, kept: Kept, rows: Ints, columns: Ints, lengths: Lengths) -> Ints:
    """The number of elements of a compressed block on rank 0 [grids]."""
    axes, flat = [axis for axis in tensor.shards if axis != "data"], rows * columns
    for axis in axes:
        flat = _longest(flat, lengths[axis])
    shape = (
        schedule.sizes[tensor.rows.dimension] * tensor.rows.unit,
        schedule.sizes[tensor.columns.dimension] * tensor.columns.unit,
    )
    blocks, block_of = np.unique(np.stack([rows, columns, flat]), axis=1, return_inverse=True)
    sizes = [
        kept.capacity((0, height), (0, width), (0, size) if axes else None, shape)
        for height, width, size in blocks.T.tolist()
    ]
    size = np.array(sizes, dtype=np.int64)[block_of.ravel()]
    return _longest(size, lengths["data"]) if "data" in tensor.shards else size


def _length(part: Part, schedule: Schedule, lengths: Lengths) -> Ints:
    size = np.full_like(next(iter(lengths.values())), schedule.sizes[part.dimension])
    for axis in part.axes:
        size = _longest(size, lengths[axis])
    size = size * part.unit
    for axis in part.finer:
        size = _longest(size, lengths[axis])
    return size


def _longest(size: Ints, parts: Ints) -> Ints:
    """The size of the first shard, which is the largest [grids]."""
    return -(-size // parts)


def _is_view(schedule: Schedule, name: str, written: tuple[Op, ...], lengths: Lengths) -> NDArray[np.bool_]:
    """Whether a tensor is a view on each grid [grids].

    A view is declared as a part of another tensor, or all its writers are collectives of one rank.
    """
    nowhere = np.zeros_like(next(iter(lengths.values())), dtype=np.bool_)
    if schedule.tensors[name].shard_of is not None or schedule.tensors[name].staged_in is not None:
        return ~nowhere
    writers = [op for op in written if name in writes(op)]
    for op in writers:
        if not isinstance(op, AllGather | Broadcast | ReduceScatter) or name != op.into:
            return np.zeros_like(nowhere)
    axes = {op.axis for op in writers if isinstance(op, AllGather | Broadcast | ReduceScatter)}
    return np.logical_and.reduce([lengths[axis] == 1 for axis in axes]) if axes else nowhere


def _scratch(schedule: Schedule, written: tuple[Op, ...], lengths: Lengths) -> Ints:
    """The scratch memory of all lanes [B] [grids]: receive buffers of ring reductions, buckets, exchanged blocks."""
    rooms: dict[str, Ints] = {}
    buckets: dict[str, Ints] = {}
    unpacked: dict[str, Ints] = {}
    for op in written:
        if isinstance(op, AllToAll):
            ends = (_block(schedule, schedule.tensors[name], lengths) for name in (op.source, op.into))
            larger = np.maximum(*ends) * (lengths[op.axis] > 1)
            for packed in (buckets, unpacked):
                packed[lane(op)] = np.maximum(packed.get(lane(op), 0), larger)
        if not isinstance(op, AllReduce | ReduceScatter):
            continue
        summed = op.buffers if isinstance(op, AllReduce) else (op.source,)
        members = lengths[op.axis]
        elements = _total(_block(schedule, schedule.tensors[name], lengths) for name in summed) * (members > 1)
        rooms[lane(op)] = np.maximum(rooms.get(lane(op), 0), _longest(elements, members))
        if len(summed) > 1:
            buckets[lane(op)] = np.maximum(buckets.get(lane(op), 0), elements)
    scratch = _total(rooms.values()) + _total(buckets.values()) + _total(unpacked.values())
    return scratch * max(schedule.item_bytes(name) for name in schedule.tensors)


def _total(sizes: Iterable[Ints]) -> Ints:
    return sum(sizes, np.zeros((), dtype=np.int64))
