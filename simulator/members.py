"""The steps of one rank in one communication op, carried by the engine.

A member starts step s + 1 when its own send and receive of step s have ended;
a transfer starts when its sender and its receiver have both reached it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from algorithms.ops import CommunicationOp
from algorithms.record import PathPart
from simulator.duties import Duty, MemberStep
from simulator.engine import FlowEngine
from simulator.folding.resources import Channel
from simulator.local_work import LocalWork
from simulator.sharing.moments import Recurring
from simulator.wiring import Message, Wiring

PRICES_KEPT = 256
"""Messages of different size or pattern that a wire remembers the price of."""


@dataclass(slots=True, eq=False)
class Wire:
    """A channel, the sends and receives on it that wait for their other end, and what its messages cost."""

    channel: Channel
    sends: deque["Member"] = field(default_factory=deque)
    receives: deque["Member"] = field(default_factory=deque)
    messages: dict[tuple[float, str], Message] = field(default_factory=dict)


class Board:
    """The wires that are in use."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._wires: dict[tuple[str, int, int], Wire] = {}
        self._of_channel: dict[Channel, Wire] = {}

    def wire(self, lane: str, sender: int, receiver: int) -> Wire:
        """What carries the messages of a lane from a rank to another."""
        key = (lane, sender, receiver)
        found = self._wires.get(key)
        if found is None:
            channel = self._wiring.channel(lane, sender, receiver)
            found = self._wires[key] = self._of_channel.setdefault(channel, Wire(channel))
        return found

    def message(self, wire: Wire, size: float, pattern: str) -> Message:
        """A message of so many bytes on a wire, as one step of a pattern."""
        found = wire.messages.get((size, pattern))
        if found is None:
            if len(wire.messages) >= PRICES_KEPT:
                wire.messages.clear()
            found = wire.messages[size, pattern] = self._wiring.message(wire.channel, size, pattern)
        return found

    def waiting(self) -> list["Member"]:
        """Members that wait for another end, each once, in the order of their ranks."""
        sides = (side for wire in self._of_channel.values() for side in (wire.sends, wire.receives))
        found = {id(one): one for side in sides for one in side}
        return sorted(found.values(), key=lambda one: one.rank)


@dataclass(slots=True)
class Spent:
    """Seconds of one member's op, by what they went into.

    `latency` and `compute` are those of its steps and of its local work, as far
    as they are not transfer.  `path` tells of each step the story of the
    transfer that ended last: waiting for its other end, latency, the time that
    it takes alone (bandwidth), and what sharing added (contention).
    """

    latency: float = 0.0
    compute: float = 0.0
    extrapolated: bool = False
    path: dict[PathPart, float] = field(default_factory=dict)

    def on_path(self, part: PathPart, seconds: float) -> None:
        if seconds:
            self.path[part] = self.path.get(part, 0.0) + seconds

    def copy(self) -> "Spent":
        return Spent(self.latency, self.compute, self.extrapolated, dict(self.path))

    def again(self, before: "Spent", after: "Spent", times: int) -> None:
        """What was spent between two moments, so many times more."""
        self.latency += times * (after.latency - before.latency)
        self.compute += times * (after.compute - before.compute)
        for part, seconds in after.path.items():
            self.on_path(part, times * (seconds - before.path.get(part, 0.0)))


@dataclass(frozen=True, slots=True, eq=False)
class MemberState:
    """How far a member is.

    Parameters
    ----------
    step : steps that it has begun
    alike_ends : where the run of equal steps ends that the last one is in
    doing : transfers that are under way, and whether it waits to send, and to receive
    since : when it began the step [s]
    spent : so far, a copy
    """

    step: int
    alike_ends: int
    doing: tuple[int, bool, bool]
    since: float
    spent: "Spent"

    def is_like(self, earlier: "MemberState", seconds: float, slack: float) -> bool:
        """Whether it is as it was `seconds` before, but for steps that equal each other."""
        if self.doing != earlier.doing or self.alike_ends != earlier.alike_ends:
            return False
        if self.step == earlier.step:
            return self.since == earlier.since
        return abs(self.since - earlier.since - seconds) <= slack


class Transfer(Recurring):
    """What is called when a message has arrived."""

    __slots__ = ("message", "receiver", "sender")

    def __init__(self, sender: "Member", receiver: "Member", message: Message, begun: float) -> None:
        self.sender, self.receiver, self.message, self.begun = sender, receiver, message, begun

    @property
    def key(self) -> tuple[float, ...]:
        return id(self.sender), id(self.receiver), id(self.message)

    def __call__(self) -> None:
        self.sender.arrived(self.message, self.begun)
        self.receiver.arrived(self.message, self.begun)


class Adding(Recurring):
    """What is called when a member has done local work within an op."""

    __slots__ = ("member", "seconds", "then")

    def __init__(self, member: "Member", seconds: float, begun: float, then: Callable[[], None]) -> None:
        self.member, self.seconds, self.begun, self.then = member, seconds, begun, then

    @property
    def key(self) -> tuple[float, ...]:
        return id(self.member), self.seconds

    def __call__(self) -> None:
        self.member.worked(self.seconds, self.begun)
        self.then()


class Member:
    """One rank in one instance of a communication op.

    Parameters
    ----------
    group : ranks of its group along the op's axis, by their coordinate
    ended : called when the op has ended on this rank
    """

    def __init__(
        self,
        rank: int,
        op: CommunicationOp,
        group: Sequence[int],
        duty: Duty,
        *,
        engine: FlowEngine,
        local: LocalWork,
        board: Board,
        ended: Callable[["Member"], None],
    ) -> None:
        self.rank = rank
        self.op = op
        self.step = 0
        self.spent = Spent()
        self._group = group
        self._copied = duty.copied
        self._engine = engine
        self._local = local
        self._board = board
        self._ended = ended
        self._lane = duty.wires
        self._steps = duty.steps()
        self._ends = duty.ends
        self.watch: Callable[[Member], None] | None = None
        self._under_way = 0
        self._doing: MemberStep | None = None
        self._since = 0.0
        self._send_waits = self._receive_waits = False

    def begin(self) -> None:
        """Local copies, then the first step."""
        self._work("copy", self._copied.before, self._next)

    @property
    def awaited(self) -> list[int]:
        """Ranks that have not come to this one's present step."""
        if self._doing is None:
            return []
        peers = {self._doing.send_to: self._send_waits, self._doing.receive_from: self._receive_waits}
        return [self._group[peer] for peer, waits in peers.items() if peer is not None and waits]

    def _next(self) -> None:
        for step in self._steps:
            self.step += 1
            if self.watch is not None:
                self.watch(self)
            send_to, receive_from = step.send_to, step.receive_from
            self._doing, self._since = step, self._engine.env.now
            self._under_way = (send_to is not None) + (receive_from is not None)
            if send_to is not None:
                wire = self._board.wire(self._lane, self.rank, self._group[send_to])
                if wire.receives:
                    self._start(wire, self, wire.receives.popleft())
                else:
                    wire.sends.append(self)
                    self._send_waits = True
            if receive_from is not None:
                wire = self._board.wire(self._lane, self._group[receive_from], self.rank)
                if wire.sends:
                    self._start(wire, wire.sends.popleft(), self)
                else:
                    wire.receives.append(self)
                    self._receive_waits = True
            if self._under_way:
                return
        self._doing = None
        self._work("copy", self._copied.after, lambda: self._ended(self))

    def _start(self, wire: Wire, sender: "Member", receiver: "Member") -> None:
        """Both ends of a transfer are there."""
        sender._send_waits = receiver._receive_waits = False
        step = sender._doing
        assert step is not None
        message = self._board.message(wire, step.sent, step.pattern)
        sender._note(message)
        receiver._note(message)
        arrived = Transfer(sender, receiver, message, self._engine.env.now)
        self._engine.begin(message.flow_class, message.work, latency=message.latency, then=arrived)

    def _note(self, message: Message) -> None:
        """A step's two transfers run at once: its latency counts once."""
        step = self._doing
        assert step is not None
        both = step.send_to is not None and step.receive_from is not None
        self.spent.latency += message.latency / (2 if both else 1)
        self.spent.extrapolated |= message.extrapolated

    def arrived(self, message: Message, begun: float) -> None:
        """One of the step's transfers has ended."""
        self._under_way -= 1
        if self._under_way:
            return
        took = self._engine.env.now - begun
        self.spent.on_path("waiting", begun - self._since)
        self.spent.on_path("latency", message.latency)
        self.spent.on_path("bandwidth", message.alone)
        self.spent.on_path("contention", took - message.latency - message.alone)
        assert self._doing is not None
        self._work("add", self._doing.added, self._next)

    def _work(self, operation: str, size: int, then: Callable[[], None]) -> None:
        """Local work bound by memory, on the cores where the rank lives."""
        if not size:
            then()
            return
        work = self._local.of_bytes(self.rank, operation, size)
        self.spent.compute += work.seconds
        self.spent.extrapolated |= work.extrapolated
        done = Adding(self, work.seconds, self._engine.env.now, then)
        self._engine.begin(work.flow_class, work.seconds, then=done)

    def worked(self, seconds: float, begun: float) -> None:
        """Local work has ended."""
        self.spent.on_path("compute", seconds)
        self.spent.on_path("contention", self._engine.env.now - begun - seconds)

    # Steps that are passed over

    @property
    def alike_left(self) -> int:
        """Steps after this one that equal it, in a row."""
        return self._alike_ends - self.step

    @property
    def _alike_ends(self) -> int:
        return self._ends[self.step - 1] if 0 < self.step <= len(self._ends) else self.step

    def state(self) -> MemberState:
        """How far it is."""
        doing = self._under_way, self._send_waits, self._receive_waits
        return MemberState(self.step, self._alike_ends, doing, self._since, self.spent.copy())

    def pass_over(self, before: MemberState, now: MemberState, times: int, seconds: float) -> None:
        """Do so many times what was done between two states, all of it in so many seconds."""
        steps = times * (now.step - before.step)
        if steps:
            deque(islice(self._steps, steps), 0)
            self.step += steps
            self._since += seconds
            self.spent.again(before.spent, now.spent, times)
