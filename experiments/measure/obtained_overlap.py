"""Obtained overlap: the rate of messages during local work, relative to their rate while the rank computes nothing.

    during local work      share m of an op's messages in u seconds
    while nothing runs     share 1 - m in e seconds
    obtained overlap       (m / u) / ((1 - m) / e), at most 1

The obtained overlap of an op without exposed time is 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quadrille.algorithms.formats.record import OpRecord

ALMOST_ALL_MESSAGES = 0.98
"""Share of messages during local work from which the remaining messages are too few to measure their rate."""
BRIEF_SECONDS = 1e-4
"""Duration of hidden communication up to which its rate cannot be measured [s]."""


@dataclass(frozen=True, slots=True)
class ObtainedOverlap:
    """The obtained overlap of an op.

    Parameters
    ----------
    op : name of the op
    share : obtained overlap, from 0 to 1
    seconds : time of the op that local work hides [s]
    """

    op: str
    share: float
    seconds: float


def obtained_overlaps(ops: Sequence[OpRecord], fractions: Mapping[str, float]) -> list[ObtainedOverlap]:
    """The obtained overlap of each op that overlaps local work.

    Parameters
    ----------
    fractions : fraction of an op's messages that were sent during local work, from 0 to 1, by the name of the op
    """
    overlaps = []
    for op in ops:
        hidden = op.seconds - op.exposed_seconds
        if op.name in fractions and hidden > BRIEF_SECONDS:
            share = obtained_share(fractions[op.name], hidden, op.exposed_seconds)
            overlaps.append(ObtainedOverlap(op.name, share, hidden))
    return overlaps


def obtained_share(fraction: float, hidden: float, exposed: float) -> float:
    """The rate of the hidden messages of an op relative to the rate of its exposed messages, at most 1.

    Parameters
    ----------
    fraction : fraction of the messages that were sent during local work
    hidden, exposed : time during local work, and time while nothing is computed [s]

    >>> obtained_share(0.5, 1.0, 1.0), obtained_share(0.2, 1.0, 2.0), obtained_share(1.0, 3.0, 0.0)
    (1.0, 0.5, 1.0)
    """
    if fraction >= ALMOST_ALL_MESSAGES or not exposed:
        return 1.0
    return min(1.0, fraction / hidden * exposed / (1 - fraction))
