"""The message of a deadlock: which rank waits in which step of which op for which rank, and what that rank does."""

from collections.abc import Callable, Mapping, Sequence

from quadrille.algorithms.schedule.ops import Collective, lane
from quadrille.simulator.ranks.op_programs import BlockedRank

MAX_NAMED = 8
"""Ranks that the message describes; further ranks are counted."""


def deadlock_message(
    doing: Mapping[tuple[int, str], str], waiting: Sequence[BlockedRank], stands_for: Callable[[int], int]
) -> str:
    """The deadlock in one line.

    Parameters
    ----------
    doing : name of the op that each simulated rank is in, by rank and lane
    waiting : ranks in communication ops that wait for another rank
    stands_for : function from a rank to the simulated rank that stands for it
    """
    if not waiting:
        everyone = [f"rank {rank} in {name!r}" for (rank, _), name in sorted(doing.items())]
        return f"deadlock: {_first_few(everyone)}; each waits for another"
    texts = [
        _blocked_text(blocked, doing, stands_for)
        for blocked in sorted(waiting, key=lambda blocked: (blocked.rank, lane(blocked.op)))
    ]
    return f"deadlock: {_first_few(texts)}"


def _first_few(texts: Sequence[str]) -> str:
    more = len(texts) - MAX_NAMED
    return "; ".join(texts[:MAX_NAMED]) + (f"; and {more} more ranks" if more > 0 else "")


def _blocked_text(blocked: BlockedRank, doing: Mapping[tuple[int, str], str], stands_for: Callable[[int], int]) -> str:
    """The text for one rank: its op, its step, and the ranks that it waits for."""
    peers = [_peer_text(peer, lane(blocked.op), doing, stands_for(peer)) for peer in blocked.awaited]
    step = f" step {blocked.step}" if isinstance(blocked.op, Collective) else ""
    return f"rank {blocked.rank} in {blocked.op.name!r}{step} waits for {' and '.join(peers)}"


def _peer_text(peer: int, name: str, doing: Mapping[tuple[int, str], str], simulated: int) -> str:
    """The text for an awaited rank: its present op, on the lane of the waiting op or on another lane."""
    op_here = doing.get((simulated, name))
    others = [op for (rank, _), op in doing.items() if rank == simulated]
    if op_here is None and not others:
        return f"rank {peer}, which has ended"
    return f"rank {peer}, which is in {op_here or others[0]!r}"
