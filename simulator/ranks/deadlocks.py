"""What a deadlock looks like: who waits in which step of which op for whom, and what those are doing."""

from collections.abc import Callable, Mapping, Sequence

from quadrille.algorithms.schedule.ops import Collective, lane
from quadrille.simulator.ranks.op_programs import BlockedRank

NAMED = 8
"""Ranks whose story is told; the others are counted."""


def explained(
    doing: Mapping[tuple[int, str], str], waiting: Sequence[BlockedRank], stands_for: Callable[[int], int]
) -> str:
    """The deadlock in one line.

    Parameters
    ----------
    doing : name of the op that each simulated rank is in, by rank and lane
    waiting : ranks in communication ops whose other end has not come
    stands_for : the simulated rank that stands for a rank
    """
    if not waiting:
        everyone = [f"rank {rank} in {name!r}" for (rank, _), name in sorted(doing.items())]
        return f"deadlock: {_some(everyone)}; each waits for another"
    told = [_story(one, doing, stands_for) for one in sorted(waiting, key=lambda one: (one.rank, lane(one.op)))]
    return f"deadlock: {_some(told)}"


def _some(stories: Sequence[str]) -> str:
    more = len(stories) - NAMED
    return "; ".join(stories[:NAMED]) + (f"; and {more} more" if more > 0 else "")


def _story(one: BlockedRank, doing: Mapping[tuple[int, str], str], stands_for: Callable[[int], int]) -> str:
    """What one rank waits for."""
    there = [_there(peer, lane(one.op), doing, stands_for(peer)) for peer in one.awaited]
    step = f" step {one.step}" if isinstance(one.op, Collective) else ""
    return f"rank {one.rank} in {one.op.name!r}{step} waits for {' and '.join(there)}"


def _there(peer: int, name: str, doing: Mapping[tuple[int, str], str], stands: int) -> str:
    """A rank that does not come, and what it does instead: on that lane, or on another one."""
    found = doing.get((stands, name))
    others = [op for (rank, _), op in doing.items() if rank == stands]
    if found is None and not others:
        return f"rank {peer}, which has ended"
    return f"rank {peer}, which is in {found or others[0]!r}"
