"""Messages that are buffered: their sender goes on at once, and they go one after the other.

Where messages go in chunks, a rank has a number of them under way at once and need not wait
for a chunk to be taken before it posts the next: in a step it waits for what it receives
only.  What it sends is carried by a member of the engine that stands beside the rank's lane, in
order, as soon as the rank has told it to.  How much of an op goes before its receiver is there,
and that an op ends when all has been taken, as with `Issend`, is in `eager_op.py`.
"""

from collections import deque
from dataclasses import dataclass, field

from quadrille.simulator.engine.engine import FlowEngine


@dataclass(slots=True)
class SendQueue:
    """Who carries what a lane of a rank has posted.

    Parameters
    ----------
    waiting : programs, the next one first
    """

    member: int
    waiting: deque[int] = field(default_factory=deque)
    busy: bool = False


class SendQueues:
    """Those of all lanes of all ranks."""

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        self._of: dict[tuple[int, str], SendQueue] = {}

    def post(self, rank: int, lane: str, program: int) -> None:
        """Have a program of messages carried after those before it."""
        if (rank, lane) not in self._of:
            self._of[rank, lane] = SendQueue(self._engine.member())
        one = self._of[rank, lane]
        one.waiting.append(program)
        if not one.busy:
            self._next(one)

    def _next(self, one: SendQueue) -> None:
        one.busy = bool(one.waiting)
        if one.busy:
            self._engine.begin(one.member, one.waiting.popleft(), lambda: self._next(one))
