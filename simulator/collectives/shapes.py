"""Which programs are the same but for their peers."""

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from quadrille.algorithms.collectives.runs import NOBODY
from quadrille.simulator.collectives.programs import Ints, Programs
from quadrille.simulator.collectives.sizes import Pieces
from quadrille.simulator.symmetry.partition import firsts


def shapes(programs: Programs) -> Ints:
    """A number for each member's program without its peers: equal numbers, equal programs, exactly.

    Which peers are the same again is part of the shape: of two runs that send
    on one flow the second names the slot of the first.
    """
    rows = _shape_rows(programs)
    lengths = np.diff(programs.offsets)
    width = int(lengths.max(initial=0))
    if width == 0:
        return np.zeros(programs.members, dtype=np.int64)
    if (lengths == width).all() and all((row.reshape(-1, width) == row[:width]).all() for row in rows):
        return np.zeros(programs.members, dtype=np.int64)
    _, found = np.unique(_shape_hashes(rows, programs), return_inverse=True)
    first = firsts(found)[found]
    assert np.array_equal(lengths, lengths[first]), "two programs of different lengths have one hash"
    likewise = np.arange(len(rows[0])) + np.repeat(programs.offsets[first] - programs.offsets[:-1], lengths)
    assert all(np.array_equal(row, row[likewise]) for row in rows), "two different programs have one hash"
    return found


def _shape_rows(programs: Programs) -> list[NDArray[np.generic]]:
    """All that two programs of one shape have in common, by run."""
    slots = []
    for side, slot in ((programs.send, programs.send_slot), (programs.receive, programs.receive_slot)):
        slots.append(np.where(side >= 0, slot[side], NOBODY) if programs.flows else side)
    rows = [programs.count, programs.cycle, *slots, programs.empty]
    if programs.pieces is None:
        return [*rows, programs.sent_bytes]
    return rows + [getattr(programs.pieces, column.name) for column in fields(Pieces)]


def _shape_hashes(rows: list[NDArray[np.generic]], programs: Programs) -> NDArray[np.uint64]:
    """A hash of each program: a sum over its runs of random multiples, by column and place."""
    odd = np.random.default_rng(1).integers(1, 2**63, len(rows), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    place = np.arange(len(rows[0])) - np.repeat(programs.offsets[:-1], np.diff(programs.offsets))
    mixed = place.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for factor, row in zip(odd, rows, strict=True):
        mixed = (mixed ^ np.ascontiguousarray(row).view(np.uint64)) * factor
        mixed ^= mixed >> np.uint64(29)
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
    hashes: NDArray[np.uint64] = running[programs.offsets[1:]] - running[programs.offsets[:-1]]
    return hashes
