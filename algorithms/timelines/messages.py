"""Messages of a timeline: each send with the receive that it meets."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from quadrille.algorithms.timelines.spans import UNPAIRED, Span

POSTED = " posted"
"""End of the name of a lane of posted receives, whose messages meet under the rest of the name."""


def messages(spans: Iterable[Span]) -> Iterator[tuple[Span, Span]]:
    """Yields the send and the receive of each message; the k-th send of a lane from a rank to another meets the k-th
    receive.

    A lane between two ranks of which some ends are missing has no messages.

    >>> send = Span(0, "send X", "send", "y", 0, 0, 0, 3, "y", to_peer=1)
    >>> receive = Span(1, "receive X", "receive", "y posted", 1, 1, 1, 3, "y", to_peer=-1)
    >>> [(sent.op, received.op) for sent, received in messages([receive, send])]
    [('send X', 'receive X')]
    """
    ends: dict[tuple[int, int, str], tuple[list[Span], list[Span]]] = defaultdict(lambda: ([], []))
    for span in spans:
        if span.to_peer and span.kind in UNPAIRED:
            is_send, peer = span.kind == "send", span.rank + span.to_peer
            sender, receiver = (span.rank, peer) if is_send else (peer, span.rank)
            ends[sender, receiver, span.lane.removesuffix(POSTED)][0 if is_send else 1].append(span)
    for sends, receives in ends.values():
        if len(sends) == len(receives):
            yield from zip(sorted(sends, key=_order), sorted(receives, key=_order), strict=True)


def _order(span: Span) -> tuple[float, float, int]:
    return span.start, span.end, span.index
