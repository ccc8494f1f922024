"""Steps of collectives that only repeat those before them, passed over at once.

A ring of p members takes the same step p - 1 times.  Where all members keep in step,
and nothing else begins or ends, what is under way after a step is what was under way
after the step before: the same activities with as much left to do, except for those
that stay (a product beside the ring), which have come a little further.  The future
follows from the state, so the next step does the same, and so on until a member has
no such step left, or one of those that stay is about to end.  All of that but the
last is passed over: clocks, loads and stories become what they would have been.
"""

from dataclasses import dataclass
from math import floor

from simulator.engine import FlowEngine
from simulator.members import Member, MemberState
from simulator.sharing.moments import Moment, slack, stride

WORTH = 4
"""Equal steps that are worth looking at."""
TRIES = 6
"""Vain looks after which something else must happen before another."""


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    moment: Moment
    members: dict[Member, MemberState]


class Strides:
    """Watches the members that are under way, and passes over steps that repeat."""

    def __init__(self, engine: FlowEngine) -> None:
        self._engine = engine
        self._members: dict[Member, None] = {}
        self._leader: Member | None = None
        self._stepped = False
        self._seen: _Seen | None = None
        self._tries = 0
        self.waiting = 0
        """Lanes that wait for a moment that the engine does not know."""
        engine.settled = self._settled

    def happened(self) -> None:
        """Something other than a step: what was seen before tells nothing any more."""
        self._leader, self._seen, self._stepped, self._tries = None, None, False, 0

    def enter(self, member: Member) -> None:
        """An op begins on a rank."""
        self._members[member] = None
        member.watch = self._steps
        self.happened()

    def leave(self, member: Member) -> None:
        """It has ended."""
        del self._members[member]
        self.happened()

    def _steps(self, member: Member) -> None:
        """A member begins a step."""
        if self._leader is None and self._tries < TRIES and member.alike_left >= WORTH:
            self._leader = member
        if member is self._leader:
            self._stepped = True

    def _settled(self) -> None:
        """All that happens at this instant has happened."""
        if not self._stepped:
            return
        self._stepped = False
        if self.waiting or self._leader is None:
            return
        if self._leader.alike_left < 2:
            self._leader, self._seen = None, None
            return
        now = _Seen(self._engine.moment(), {one: one.state() for one in self._members})
        before, self._seen = self._seen, now
        if before is not None:
            if self._pass_over(before, now):
                self._leader, self._seen = None, None
            else:
                self._tries += 1
                if self._tries >= TRIES:
                    self._leader, self._seen = None, None

    def _pass_over(self, before: _Seen, now: _Seen) -> bool:
        found = stride(before.moment, now.moment)
        if found is None:
            return False
        most = found.most
        for member, state in now.members.items():
            earlier = before.members[member]
            if not state.is_like(earlier, found.seconds, slack(found.seconds, now.moment.now)):
                return False
            if steps := state.step - earlier.step:
                most = min(most, member.alike_left / steps - 1)
        times = floor(most)
        if times < 1:
            return False
        for member, state in now.members.items():
            member.pass_over(before.members[member], state, times, times * found.seconds)
        self._engine.leap(before.moment, now.moment, found, times)
        return True
