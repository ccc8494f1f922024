"""What came of overlaps: how fast messages went beside local work, of how fast they went while nothing was computed.

    beside local work     part m of an op's messages in u seconds
    while nothing ran     part 1 - m in e seconds
    obtained              (m / u) / ((1 - m) / e), 1 at most

What hides an op wholly has obtained all that there was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quadrille.algorithms.formats.record import OpRecord

ALL = 0.98
"""Of an op's messages: where so many went beside local work, the few others tell no speed."""
BRIEF_SECONDS = 1e-4
"""Local work so short tells nothing of what went on beside it."""


@dataclass(frozen=True, slots=True)
class Obtained:
    """What an op obtained, and its seconds beside local work."""

    op: str
    share: float
    seconds: float


def overlaps_obtained(ops: Sequence[OpRecord], beside: Mapping[str, float]) -> list[Obtained]:
    """Of each op that ran beside local work.

    Parameters
    ----------
    beside : how much of an op went on beside local work, of 1
    """
    found = []
    for op in ops:
        hidden = op.seconds - op.exposed_seconds
        if op.name in beside and hidden > BRIEF_SECONDS:
            found.append(Obtained(op.name, obtained(beside[op.name], hidden, op.exposed_seconds), hidden))
    return found


def obtained(share: float, hidden: float, exposed: float) -> float:
    """How fast the share of an op went that was hidden, of how fast the rest went.

    >>> obtained(0.5, 1.0, 1.0), obtained(0.2, 1.0, 2.0), obtained(1.0, 3.0, 0.0)
    (1.0, 0.5, 1.0)
    """
    if share >= ALL or not exposed:
        return 1.0
    return min(1.0, share / hidden * exposed / (1 - share))
