"""`PieceSizes`: exact sizes of the pieces of a buffer that is not divisible; the first pieces have one element more."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PieceSizes:
    """The pieces that a step moves, where they are of two sizes; by run, as in `Runs`.

    Parameters
    ----------
    sent, received, first_sent, first_received, stride, spacing, origin, around, pieces : as in `Runs`
    elements : elements of the smaller pieces; the first `longer` pieces have one more
    element_bytes : size of an element on the links, protocol overhead included
    """

    sent: Ints
    received: Ints
    first_sent: Ints
    first_received: Ints
    stride: Ints
    spacing: Ints
    origin: Ints
    around: Ints
    pieces: Ints
    elements: Ints
    longer: Ints
    element_bytes: Floats


def select(pieces: PieceSizes, rows: Ints) -> PieceSizes:
    """The pieces of some runs."""
    return PieceSizes(*(getattr(pieces, column.name)[rows] for column in fields(PieceSizes)))


def together(parts: Sequence[PieceSizes]) -> PieceSizes:
    """The pieces of the runs of several parts, one after another."""
    return PieceSizes(
        *(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(PieceSizes))
    )


def sent_bytes(p: PieceSizes, k: int) -> Floats:
    """Bytes that each run sends in its k-th step, from 0."""
    return _elements(p, _moved(p, p.first_sent, k), p.sent) * p.element_bytes


def step_bytes(p: PieceSizes, count: int) -> Iterator[Floats]:
    """Bytes that each run sends in its first, second, … step; in a ring the piece only advances by one."""
    if not ((p.sent == 1) & (np.abs(p.stride) == 1) & (p.origin == 0) & (p.around == p.pieces)).all():
        for k in range(count):
            yield sent_bytes(p, k)
        return
    shorter = p.elements * p.element_bytes
    longer = shorter + p.element_bytes
    piece = p.first_sent % p.pieces
    for _ in range(count):
        yield np.where(piece < p.longer, longer, shorter)
        piece += p.stride
        piece += p.pieces * (piece < 0)
        piece -= p.pieces * (piece >= p.pieces)


def total_bytes(p: PieceSizes, count: Ints) -> Floats:
    """Bytes that each run sends in its `count` steps.

    A ring or a chain sends successive pieces, so its total is that of a range of
    pieces; others are summed step by step.
    """
    chain = (np.abs(p.stride) == 1) & (p.sent == 1) & (p.origin == 0) & (p.around == p.pieces)
    first = np.where(p.stride == 1, p.first_sent, p.first_sent - count + 1) % p.pieces
    side_by_side = replace(p, spacing=np.ones_like(p.spacing))
    total = np.where(chain, _elements(side_by_side, first, count) * p.element_bytes, 0.0)
    for k in range(int(count[~chain].max(initial=0))):
        total += np.where(~chain & (k < count), sent_bytes(p, k), 0.0)
    return total


def _moved(p: PieceSizes, first: Ints, k: int) -> Ints:
    """The first piece of each run in its k-th step."""
    moved: Ints = p.origin + (first - p.origin + k * p.stride) % p.around
    return moved


def _elements(p: PieceSizes, first: Ints, count: Ints) -> Ints:
    """Elements of `count` pieces: first, first + spacing, …, around the end of the buffer."""
    elements: Ints = count * p.elements
    if (p.spacing == 1).all():
        return elements + _longer_before(p, first + count) - _longer_before(p, first)
    for j in range(int(count.max(initial=0))):
        elements += (j < count) & ((first + j * p.spacing) % p.pieces < p.longer)
    return elements


def _longer_before(p: PieceSizes, piece: Ints) -> Ints:
    """The number of longer pieces among the pieces 0, 1, … before `piece`, counted on around the end."""
    before: Ints = piece // p.pieces * p.longer + np.minimum(piece % p.pieces, p.longer)
    return before
