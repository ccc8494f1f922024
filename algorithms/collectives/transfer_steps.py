"""Steps of point-to-point transfers, of which collectives are made.

A buffer is cut in pieces, numbered 0, 1, …; in each step a member sends at
most one run of pieces to one peer and receives at most one, which it adds to
what it holds (`reduce`) or puts in place.

A member starts step s + 1 when its own send and receive of step s have ended;
a transfer starts when both its ends have reached it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PieceRange:
    """`count` pieces: first, first + every, first + 2 every, …, counted around the end of the buffer."""

    first: int
    count: int
    every: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """What one member does in one step; a side that is None does nothing."""

    send_to: int | None = None
    send: PieceRange | None = None
    receive_from: int | None = None
    receive: PieceRange | None = None
    reduce: bool = False

    def backwards(self) -> "Step":
        """The step in reversed time: a gather's step becomes a reduction's.

        >>> Step(1, PieceRange(0, 1)).backwards()
        Step(send_to=None, send=None, receive_from=1, receive=PieceRange(first=0, count=1, every=1), reduce=True)
        """
        return Step(self.receive_from, self.receive, self.send_to, self.send, reduce=self.send is not None)


IDLE = Step()
