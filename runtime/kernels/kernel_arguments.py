"""The arguments of a layer function on arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quadrille.algorithms.schedule.tensors import Block
from quadrille.runtime.arrays.array_library import Array


@dataclass(frozen=True, slots=True)
class KernelArguments:
    """The arguments of a layer function.

    Parameters
    ----------
    xp : array module, numpy or cupy
    into, updates, sources : written, updated and read arrays, in the order of the op
    blocks : row and column ranges of the sources and updates in their whole matrices
    scalars : parameters of the function by name, such as "epsilon"
    count : index of the loop that the op counts, from 0
    """

    xp: Any
    into: tuple[Array, ...]
    updates: tuple[Array, ...]
    sources: tuple[Array, ...]
    blocks: tuple[Block, ...]
    scalars: Mapping[str, float]
    count: int
