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
    into, updates, sources : arrays, in the order of the op
    blocks : blocks of the sources in their tensors
    scalars : numbers by name
    count : index of the loop that the op counts, from 0
    """

    xp: Any
    into: tuple[Array, ...]
    updates: tuple[Array, ...]
    sources: tuple[Array, ...]
    blocks: tuple[Block, ...]
    scalars: Mapping[str, float]
    count: int
