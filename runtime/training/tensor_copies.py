"""Copies of a schedule's tensors by name: tensor, loop indices, shape, and the pruned matrix that a copy belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass

from quadrille.algorithms.schedule.kept_elements import Kept
from quadrille.algorithms.schedule.schedule import Schedule
from quadrille.algorithms.schedule.tensors import Tensor
from quadrille.algorithms.training.sparsity import base_name, index_name


@dataclass(frozen=True, slots=True)
class TensorCopy:
    """One copy of a tensor.

    Parameters
    ----------
    tensor : tensor of the schedule
    indices : indices of the loops that distinguish the copies, where this copy is used
    """

    tensor: Tensor
    indices: Mapping[str, int]


def tensor_copy(schedule: Schedule, name: str) -> TensorCopy:
    """The tensor copy with that name.

    Raises
    ------
    KeyError : there is none
    """
    words = name.split(" ")
    for length in range(len(words), 0, -1):
        tensor = schedule.tensors.get(" ".join(words[:length]))
        rest = words[length:]
        if tensor is not None and len(rest) % 2 == 0 and all(word.isdigit() for word in rest[1::2]):
            return TensorCopy(tensor, {loop: int(index) for loop, index in zip(rest[::2], rest[1::2], strict=True)})
    raise KeyError(name)


def shape_of(schedule: Schedule, tensor: Tensor) -> tuple[int, int]:
    """Rows and columns of one whole copy."""
    return (
        schedule.sizes[tensor.rows.dimension] * tensor.rows.unit,
        schedule.sizes[tensor.columns.dimension] * tensor.columns.unit,
    )


@dataclass(frozen=True, slots=True)
class PrunedCopy:
    """One copy of a pruned matrix, of one of its moments or of its index.

    Parameters
    ----------
    name : name of the copy
    matrix, index : names of the copies of the matrix and of its index
    kept : share of the elements that pruning keeps
    shape : rows and columns of the matrix
    """

    name: str
    matrix: str
    index: str
    kept: Kept
    shape: tuple[int, int]

    @property
    def is_index(self) -> bool:
        """Whether the copy is the index."""
        return self.name == self.index

    @property
    def kept_elements(self) -> int:
        """Number of kept elements of the matrix."""
        return self.kept.of_matrix(*self.shape)


def pruned_copy(schedule: Schedule, name: str) -> PrunedCopy | None:
    """The copy of that name, if it belongs to a pruned matrix of the schedule."""
    try:
        tensor = tensor_copy(schedule, name).tensor
    except KeyError:
        return None
    base = base_name(tensor.name)
    index = schedule.tensors.get(index_name(base))
    if index is None or index.kept is None:
        return None
    suffix = name.removeprefix(tensor.name)
    return PrunedCopy(name, base + suffix, index.name + suffix, index.kept, shape_of(schedule, tensor))
