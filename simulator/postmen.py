"""Messages that are handed over: their sender goes on at once, and they go one after the other.

Where messages go in chunks that the MPI library sends without asking the receiver, a rank
that only sends is done as soon as it has handed them over.  They are then carried by a
member of the engine that stands beside the rank's lane, in order; the receiver ends when
they have come.
"""

from collections import deque
from dataclasses import dataclass, field

import simpy

from simulator.engine import FlowEngine


@dataclass(slots=True)
class Postman:
    """Who carries what a lane of a rank has handed over.

    Parameters
    ----------
    waiting : programs, the next one first
    idle : happens when nothing is left; None while there is nothing
    """

    member: int
    waiting: deque[int] = field(default_factory=deque)
    idle: simpy.Event | None = None


class Postmen:
    """Those of all lanes of all ranks."""

    def __init__(self, env: simpy.Environment, engine: FlowEngine) -> None:
        self._env, self._engine = env, engine
        self._of: dict[tuple[int, str], Postman] = {}

    def hand_over(self, rank: int, lane: str, program: int) -> None:
        """Have a program of messages carried after those before it."""
        one = self._of.setdefault((rank, lane), Postman(-1))
        if one.member < 0:
            one.member = self._engine.member()
        one.waiting.append(program)
        if one.idle is None:
            one.idle = self._env.event()
            self._next(one)

    def idle(self, rank: int, lane: str) -> simpy.Event | None:
        """What happens when all that a lane has handed over is delivered; None if it is."""
        one = self._of.get((rank, lane))
        return one.idle if one is not None else None

    def _next(self, one: Postman) -> None:
        if one.waiting:
            self._engine.begin(one.member, one.waiting.popleft(), lambda: self._next(one))
            return
        assert one.idle is not None
        idle, one.idle = one.idle, None
        idle.succeed()
