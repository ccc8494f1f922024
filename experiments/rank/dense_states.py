"""The gain of compressed states in a ranking: the same question with dense states, and the difference."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Protocol

import msgspec

from quadrille.algorithms.schedule.grid import AXES
from quadrille.algorithms.units import format_bytes, format_seconds
from quadrille.experiments.rank.rank_question import RankQuestion


class FastestEntry(Protocol):
    """The fastest simulated entry of a ranking."""

    @property
    def grid(self) -> dict[str, int]: ...
    @property
    def seconds(self) -> float: ...
    @property
    def memory_bytes(self) -> int: ...


class DenseStates(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest entry of the same question with dense states, and the gain of compressed states.

    Parameters
    ----------
    reason : why no grid fits with dense states; empty if one fits
    grid : grid of the fastest entry
    seconds : time of an iteration [s]
    memory_bytes : largest memory of a rank [B]
    gain : share of the time that compressed states save; below 0 if they cost time
    """

    reason: str = ""
    grid: dict[str, int] = {}
    seconds: float | None = None
    memory_bytes: int | None = None
    gain: float | None = None


def with_dense_states(question: RankQuestion) -> RankQuestion:
    """The same question with dense states of the same pruned model."""
    training = question.training
    return replace(question, training=replace(training, problem=replace(question.problem, sparse_states=False)))


def compared(fastest: FastestEntry, dense: FastestEntry) -> DenseStates:
    """The gain of the fastest entry with compressed states over the fastest with dense states."""
    gain = 1 - fastest.seconds / dense.seconds
    return DenseStates(grid=dense.grid, seconds=dense.seconds, memory_bytes=dense.memory_bytes, gain=gain)


def dense_states_lines(fastest: FastestEntry, dense: DenseStates) -> Iterator[str]:
    """The line about the gain of compressed states."""
    if dense.seconds is None or dense.memory_bytes is None or dense.gain is None:
        yield f"with dense states (without --sparse-states) nothing fits: {dense.reason}"
        return
    saved = "less" if dense.gain >= 0 else "more"
    yield (
        f"with dense states (without --sparse-states) the fastest takes {format_seconds(dense.seconds)} with "
        f"{_sharing(dense.grid, dense.memory_bytes)}; compressed states take {abs(100 * dense.gain):.3g} % {saved} "
        f"with {_sharing(fastest.grid, fastest.memory_bytes)}"
    )


def _sharing(grid: Mapping[str, int], memory_bytes: int) -> str:
    """The ranks that share a copy of the model, the stages among them, and the memory of a rank, as text."""
    ranks, stages = prod(grid.get(axis, 1) for axis in AXES if axis != "data"), grid.get("pipeline", 1)
    words = f"{ranks} rank{'s' if ranks > 1 else ''} a copy of the model"
    in_stages = f" in {stages} stages" if stages > 1 else ""
    return f"{words}{in_stages}, {format_bytes(memory_bytes)} a rank"
