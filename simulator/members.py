"""The steps of one rank in one communication op, carried by the engine.

A member starts step s + 1 when its own send and receive of step s have ended;
a transfer starts when its sender and its receiver have both reached it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from algorithms.copies import Copies
from algorithms.ops import CommunicationOp, lane
from algorithms.record import PathPart
from algorithms.traffic import Exchange, Traffic
from simulator.compute import ComputeModel, touched
from simulator.engine import FlowEngine
from simulator.folding.resources import Channel
from simulator.wiring import Cost, Wiring


@dataclass(slots=True)
class Board:
    """Sends and receives that wait for their other end, by channel."""

    sends: dict[Channel, deque["Member"]] = field(default_factory=dict)
    receives: dict[Channel, deque["Member"]] = field(default_factory=dict)

    def post(self, channel: Channel, member: "Member", *, is_send: bool) -> "Member | None":
        """The other end, if it is there; else the member waits for it."""
        mine, theirs = (self.sends, self.receives) if is_send else (self.receives, self.sends)
        waiting = theirs.get(channel)
        if waiting:
            return waiting.popleft()
        mine.setdefault(channel, deque()).append(member)
        return None

    def waiting(self) -> list["Member"]:
        """Members that wait for another end, each once, in the order of their ranks."""
        found = {id(one): one for side in (self.sends, self.receives) for queue in side.values() for one in queue}
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
        moved: Traffic | None,
        copied: Copies,
        *,
        engine: FlowEngine,
        wiring: Wiring,
        compute: ComputeModel,
        board: Board,
        ended: Callable[["Member"], None],
    ) -> None:
        self.rank = rank
        self.op = op
        self.step = 0
        self.spent = Spent()
        self._group = group
        self._moved = moved
        self._copied = copied
        self._engine = engine
        self._wiring = wiring
        self._compute = compute
        self._board = board
        self._ended = ended
        self._lane = lane(op)
        self._exchanges: Iterator[Exchange] = _messages(moved) if moved is not None else iter(())
        self._under_way = 0
        self._exchange: Exchange | None = None
        self._since = 0.0
        self._send_waits = self._receive_waits = False

    def begin(self) -> None:
        """Local copies, then the first step."""
        self._work("copy", self._copied.before, self._next)

    @property
    def awaited(self) -> list[int]:
        """Ranks that have not come to this one's present step."""
        if self._exchange is None:
            return []
        peers = {self._exchange.send_to: self._send_waits, self._exchange.receive_from: self._receive_waits}
        return [self._group[peer] for peer, waits in peers.items() if peer is not None and waits]

    def _next(self) -> None:
        for exchange in self._exchanges:
            self.step += 1
            sends, receives = exchange.send_to is not None, exchange.receive_from is not None
            self._exchange, self._under_way, self._since = exchange, sends + receives, float(self._engine.env.now)
            if exchange.send_to is not None:
                self._post(self.rank, self._group[exchange.send_to], is_send=True)
            if exchange.receive_from is not None:
                self._post(self._group[exchange.receive_from], self.rank, is_send=False)
            if sends or receives:
                return
        self._exchange = None
        self._work("copy", self._copied.after, lambda: self._ended(self))

    def _post(self, from_rank: int, to_rank: int, *, is_send: bool) -> None:
        channel = self._wiring.channel(self._lane, from_rank, to_rank)
        other = self._board.post(channel, self, is_send=is_send)
        self._send_waits |= is_send
        self._receive_waits |= not is_send
        if other is None:
            return
        sender, receiver = (self, other) if is_send else (other, self)
        sender._send_waits = receiver._receive_waits = False
        assert sender._exchange is not None and sender._moved is not None
        size = float(sender._exchange.sent * sender._moved.item_bytes)
        cost = self._wiring.transfer_on(channel, size, _pattern(sender._exchange))
        for end in (sender, receiver):
            end._note(cost)
        begun = float(self._engine.env.now)

        def arrived() -> None:
            sender._arrived(cost, begun)
            receiver._arrived(cost, begun)

        self._wiring.start(cost, arrived)

    def _note(self, cost: Cost) -> None:
        """A step's two transfers run at once: its latency counts once."""
        assert self._exchange is not None
        both = self._exchange.send_to is not None and self._exchange.receive_from is not None
        self.spent.latency += cost.latency / (2 if both else 1)
        self.spent.extrapolated |= cost.extrapolated

    def _arrived(self, cost: Cost, begun: float) -> None:
        self._under_way -= 1
        if self._under_way:
            return
        took = float(self._engine.env.now) - begun
        self.spent.on_path("waiting", begun - self._since)
        self.spent.on_path("latency", cost.latency)
        self.spent.on_path("bandwidth", cost.alone)
        self.spent.on_path("contention", took - cost.latency - cost.alone)
        exchange, moved = self._exchange, self._moved
        assert exchange is not None and moved is not None
        reduced = exchange.received * moved.item_bytes if exchange.reduce else 0
        self._work("add", reduced, self._next)

    def _work(self, operation: str, size: int, then: Callable[[], None]) -> None:
        """Local work bound by memory, on the cores where the rank lives."""
        if not size:
            then()
            return
        estimate = self._compute.memory(operation, size)
        self.spent.compute += estimate.seconds
        self.spent.extrapolated |= estimate.extrapolated and self._compute.measured(operation)
        demands = self._wiring.local(self.rank, 1.0, touched(operation, size) / estimate.seconds)
        begun = float(self._engine.env.now)

        def done() -> None:
            self.spent.on_path("compute", estimate.seconds)
            self.spent.on_path("contention", float(self._engine.env.now) - begun - estimate.seconds)
            then()

        self._engine.start(estimate.seconds, demands, cap=1.0, then=done)


def _messages(moved: Traffic) -> Iterator[Exchange]:
    """The exchanges of one member; where a piece is empty nothing goes over the wire, except in a barrier."""
    for exchange in moved.exchanges():
        if moved.lowered.algorithm == "dissemination":
            yield exchange
        else:
            send_to = exchange.send_to if exchange.send else None
            receive_from = exchange.receive_from if exchange.receive else None
            yield replace(exchange, send_to=send_to, receive_from=receive_from)


def _pattern(exchange: Exchange) -> str:
    if exchange.send_to is None or exchange.receive_from is None:
        return "one_way"
    return "exchange" if exchange.send_to == exchange.receive_from else "shift"
