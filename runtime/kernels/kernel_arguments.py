"""The arguments of a layer function on real arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quadrille.algorithms.schedule.tensors import Block
from quadrille.runtime.arrays.array_library import Array


@dataclass(frozen=True, slots=True)
class KernelArguments:
    """What a function is called with.

    Parameters
    ----------
    xp : the module of arrays, numpy or cupy
    into, updates, sources : arrays, in the order of the op
    blocks : where in their tensors the sources lie
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
