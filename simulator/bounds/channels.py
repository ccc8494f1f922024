"""Every channel of a schedule: which rank sends to which on which lane, whenever it does."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from quadrille.algorithms.analysis.labels import Ints
from quadrille.algorithms.errors import InputError
from quadrille.algorithms.schedule.ops import Communication, Receive, Send, lane
from quadrille.algorithms.schedule.program import walk
from quadrille.algorithms.schedule.schedule import Schedule, all_ops
from quadrille.simulator.bounds.concurrency import Walked
from quadrille.simulator.bounds.distinct import rising
from quadrille.simulator.bounds.stages import Stage
from quadrille.simulator.bounds.work import Looks, Part

MOST_CHANNELS = 1 << 23
"""More take more memory than a laptop has."""


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Channels, by rising lane, sender and receiver; a lane is a place in `lanes`."""

    lanes: tuple[str, ...]
    lane: Ints
    sender: Ints
    receiver: Ints


def listing(schedule: Schedule, looks: Looks, programs: Iterable[tuple[Ints, int]], walked: Walked = walk) -> Listing:
    """All channels.

    >>> from quadrille.algorithms.matmuls.catalogue import matmul_schedule
    >>> from quadrille.algorithms.collectives.choices import Choices
    >>> from quadrille.algorithms.schedule.grid import Grid
    >>> from quadrille.algorithms.matmuls.matmul import Matmul
    >>> schedule = matmul_schedule(Matmul(8, 8, 8), "1d-row", Grid(y=3))
    >>> found = listing(schedule, Looks(schedule, Choices()), [(np.arange(3), 0)])
    >>> found.lanes, found.sender.tolist(), found.receiver.tolist()
    (('y',), [0, 1, 2], [1, 2, 0])

    Parameters
    ----------
    programs : the ranks that follow each program, and one of them

    Raises
    ------
    InputError : too many to list
    """
    lanes = tuple(dict.fromkeys(lane(op) for op in all_ops(schedule) if isinstance(op, Communication)))
    size, grid = schedule.grid.size, schedule.grid
    keys: dict[str, Ints] = {}
    seen = set()
    pairs: dict[int, tuple[tuple[Stage, ...], Ints]] = {}
    listed: set[tuple[str, int, bytes]] = set()
    for ranks, one in programs:
        place = schedule.place(one)
        for op, moment in walked(schedule.program(place), place):
            key = one, looks.key(op, moment)
            if not isinstance(op, Communication) or grid.length(op.axis) == 1 or key in seen:
                continue
            seen.add(key)
            if isinstance(op, Receive):  # listed where it is sent
                continue
            stride = grid.stride(op.axis)
            first = rising(ranks - ranks // stride % grid.length(op.axis) * stride)
            parts = [looks.sent(op, moment, ranks)] if isinstance(op, Send) else looks.parts(op, moment, first)
            for part in parts:
                name, (stages, between) = lane(op), _pairs(part, pairs)
                same = name, id(stages), part.ranks.tobytes()
                if same in listed:
                    continue
                listed.add(same)
                found = _channels(part, between, size)
                keys[name] = rising(np.concatenate([keys[name], found])) if name in keys else found
                if sum(map(len, keys.values())) > MOST_CHANNELS:
                    raise InputError(f"op {op.name!r}: ranks talk to too many others; at most {MOST_CHANNELS} channels")
    used = [name for name in lanes if name in keys]
    none = np.zeros(0, dtype=np.int64)
    number = np.concatenate([none, *(np.full(len(keys[name]), at) for at, name in enumerate(used))])
    return Listing(tuple(used), number, *np.divmod(np.concatenate([none, *(keys[name] for name in used)]), size))


def _pairs(part: Part, known: dict[int, tuple[tuple[Stage, ...], Ints]]) -> tuple[tuple[Stage, ...], Ints]:
    """The steps of a part, and sender x members + receiver of each pair of members that they use."""
    members = part.ranks.size if part.flat else part.ranks.shape[1]
    if id(part.stages) not in known:
        moves = [move for stage in part.stages for move in stage.moves]
        both = [move.sender * members + move.receiver for move in moves]
        known[id(part.stages)] = part.stages, rising(np.concatenate([np.zeros(0, dtype=np.int64), *both]))
    return known[id(part.stages)]


def _channels(part: Part, pairs: Ints, size: int) -> Ints:
    """Sender x size + receiver of each channel that the groups of a part use."""
    ranks = part.ranks.reshape(1, -1) if part.flat else part.ranks
    sender, receiver = np.divmod(pairs, ranks.shape[1])
    return rising((ranks[:, sender] * size + ranks[:, receiver]).ravel())
